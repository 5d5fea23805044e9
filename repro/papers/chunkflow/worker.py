"""A worker: receive a task, apply the operators, delete the task after the write. Workers come and go at any time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from repro.core.errors import ReproError
from repro.papers.chunkflow.operators import Operator, Piece
from repro.papers.chunkflow.store import Output
from repro.papers.chunkflow.task_queue import TaskQueue

POLL_SECONDS = 0.02


@dataclass(slots=True)
class Tally:
    """Tasks that one worker did."""

    done: int = 0
    failed: int = 0
    late: int = 0
    """Done, but after the visibility timeout, when another worker had the task too."""


def work(queue: TaskQueue, chain: Sequence[Operator], output: Output, tell: Callable[[str], None]) -> Tally:
    """Work until the queue has no open task, also none in another worker's hands.

    A task that fails stays in the queue, is received again after the visibility timeout and ends as a dead letter;
    `tell` is given one line. What concerns every task (a full disk, a lost queue) ends the worker.

    Raises:
        ReproError: the output cannot be written, the queue cannot be reached, or its tasks are for another output.
    """
    tally = Tally()
    while True:
        message = queue.receive()
        if message is None:
            if not queue.counts().open:
                return tally
            time.sleep(POLL_SECONDS)
            continue
        piece = Piece(output.chunk_of(message.body))
        try:
            for operator in chain:
                piece = operator.apply(piece, output.grid)
        except ReproError:
            raise
        except Exception as error:  # a damaged input chunk, for example: other tasks may be well
            tally.failed += 1
            tell(f"chunk {piece.index} failed ({message.receives} receives): "
                 f"{type(error).__name__}: {error}")
            continue
        tally.done += 1
        tally.late += not queue.delete(message)
