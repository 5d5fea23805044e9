"""One rank of the measurement volume-inference: a worker."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch.distributed as dist
import zarr

from repro.core import devices
from repro.core.errors import ReproError, TrialError
from repro.papers.chunkflow.grid import Grid
from repro.papers.chunkflow.operators import RADIUS, Blend, Delay, Infer, Operator, Piece, Read, Write
from repro.papers.chunkflow.queues import open_queue
from repro.papers.chunkflow.store import Output
from repro.papers.chunkflow.task_queue import TaskQueue
from repro.seams.measurement import Check, Counted, Findings, Measuring, Post

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


CONV_LIMIT = 1e-5
"""Largest difference to inference of the whole volume where no chunk lacks neighbours: float32 sums in other orders."""


class Workers(Measuring):
    """A worker of the trial; rank 0 also makes tasks and outputs."""

    def __init__(self, grid: Grid, address: Callable[[str, Path], str], delay: float, visibility: float, post: Post
                 ) -> None:
        """`address` gives that of a queue by its name and the trial's folder."""
        self.grid, self.address, self.delay, self.visibility, self.post = grid, address, delay, visibility, post
        made = [tempfile.mkdtemp(prefix="repro-volume-") if post.rank == 0 else ""] * post.world
        if post.world > 1:
            dist.all_gather_object(made, made[0])
        self.folder = Path(made[0])
        given: Any = post.streams.generator("volume").standard_normal(grid.shape, dtype=np.float32)
        self.given: np.ndarray = given
        if post.rank == 0:
            zarr.save_array(str(self.folder / "given"), given)
        self.infer = Infer("conv", post.device)
        self.operations = 0
        self.queue: TaskQueue | None = None
        self.tally = Tally()
        self._together()

    def operate(self) -> None:
        self.tally = self._drain(self.infer, self.delay)

    def finish(self, counted: Counted) -> Findings:
        """Compare the last output with inference of the whole volume, and an output of the identity with the input."""
        own = slice(*(self.grid.shape[0] * (self.post.rank + more) // self.post.world for more in (0, 1)))
        whole = self.infer.net(self.given)
        error = np.abs(self._result() - whole)
        alike = sees_everything(self.grid)
        left = self._output().left()
        self._together()  # rank 0 is about to remove this output
        self._drain(Infer("identity"), 0.0)
        same = self._result()[own]
        assert self.queue is not None
        counts = self.queue.counts()
        scale = float(whole.std())
        return Findings(
            checks=(
                Check("identity: output against input, exactly",
                      float(np.abs(same - self.given[own]).max(initial=0.0))),
                Check("tasks that are left or dead", left + self._output().left() + counts.open + counts.dead),
                Check("far from seams: output against the whole volume", float(error[alike].max(initial=0.0)) / scale,
                      CONV_LIMIT)),
            figures={"seam_error": float(np.sqrt(np.mean(error**2))) / scale,
                     "largest_error": float(error.max()) / scale, "chunks": self.grid.chunks,
                     "computed": self.grid.chunks * prod(self.grid.chunk) / self.given.size,
                     "tasks_of_busiest": self.tally.done})

    def effective(self) -> dict[str, str]:
        return {"queue": type(self.queue).__name__, "grid": "x".join(map(str, self.grid.counts)),
                "dtype": str(self._output().volume.dtype), "zarr": zarr.__version__}

    def close(self) -> None:
        if self.post.rank == 0:
            if self.queue is not None:
                self.queue.remove()
            shutil.rmtree(self.folder, ignore_errors=True)

    # ---- one pass over the volume

    def _drain(self, infer: Infer, delay: float) -> Tally:
        """Make the tasks, work on them with all ranks, and return what this one did."""
        self.operations += 1
        name = f"{self.post.streams.seed('queue')}-{self.operations}"
        address = self.address(name, self.folder)
        if self.post.rank == 0:
            if self.queue is not None:
                self.queue.remove()
                shutil.rmtree(self._place(self.operations - 1))
            made = open_queue(address, make=True)
            made.add(Output.create(self._place(self.operations), self.grid, "float32").tasks())
            made.close()
        elif self.queue is not None:
            self.queue.close()
        self._together()
        self.queue = open_queue(address, self.visibility)
        chain = [Read(str(self.folder / "given")), infer, *([Delay(delay)] if delay else []), Blend(),
                 output := Write(str(self._place(self.operations)))]
        tally = work(self.queue, chain, output.output, _fail)
        self._together()
        return tally

    def _place(self, operation: int) -> Path:
        return self.folder / f"out-{operation}"

    def _output(self) -> Output:
        return Output(self._place(self.operations))

    def _result(self) -> np.ndarray:
        found: np.ndarray = self._output().volume[:]
        return found

    # ---- ranks

    def _together(self) -> None:
        if self.post.world > 1:
            dist.barrier(device_ids=devices.gpus_of(self.post.device) or None)


def _fail(text: str) -> None:
    raise TrialError(text)


def sees_everything(grid: Grid) -> np.ndarray:
    """Return the voxels, as a mask, whose chunks all hold everything within `RADIUS`, or end where the volume ends."""
    axes = []
    for axis, size in enumerate(grid.shape):
        fine = np.ones(size, dtype=bool)
        for start in grid.starts(axis):
            end = start + grid.chunk[axis]
            if start:
                fine[start:start + RADIUS] = False
            if end < size:
                fine[max(start, end - RADIUS):end] = False
        axes.append(fine)
    return axes[0][:, None, None] & axes[1][None, :, None] & axes[2][None, None, :]
