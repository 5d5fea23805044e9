"""Checkpoints of a running trial: all ranks write one, or none does; a resumed rank loads its own part."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from repro.core.errors import CheckpointError, CheckpointRefused
from repro.record.folder.checkpoint import Resumption
from repro.seams.training import Session
from repro.worker.checkpoints.checkpoint_writer import CheckpointWriter
from repro.worker.context import TrialContext


def save_checkpoint(
    context: TrialContext, writer: CheckpointWriter, step: int, state: Mapping[str, Any]
) -> dict[str, Any]:
    """Write a checkpoint of all ranks; between blocks, on the clock.

    Args:
        state: this rank's own state (JSON-like), its stopwatch under `watch`.

    Returns:
        `bytes` of the checkpoint, or `skipped` with the reason that there is none (JSON-like).
    """
    session, wall_ms = context.session, time.time() * 1e3
    problem = writer.prepare(step, session.state_bytes())
    if session.total([float(bool(problem))])[0]:
        return {"skipped": problem}
    log = context.log.text()

    def write() -> None:
        own = session.save(writer.folder.partial(step))
        writer.write_own(step, {"loop": state, "session": own}, log)

    def keep() -> None:
        writer.keep(step, context.count_samples(step), state["watch"]["at_ns"], wall_ms)

    # All ranks learn how each part ended: none continues to a timed step while rank 0 still writes.
    room = writer.describe_room
    if problem := find_problem(session, write, room) or find_problem(session, keep, room):
        writer.drop()
        return {"skipped": problem}
    return {"bytes": writer.size}


def find_problem(session: Session, part: Callable[[], None], describe_room: Callable[[], str]) -> str:
    """Run this rank's part of a checkpoint and return the first problem of any rank; "" if all ranks succeeded."""
    problem = ""
    try:
        part()
    except CheckpointError as error:
        problem = f"{error} ({describe_room()})"
    if not session.total([float(bool(problem))])[0]:
        return ""
    return next(str(one) for one in session.gather(problem) if one)


def read_own_state(context: TrialContext, resumed: Resumption) -> dict[str, Any]:
    """Read this rank's state; for an engine without a model only rank 0 has written one.

    Raises:
        CheckpointRefused: it is damaged.
    """
    return resumed.own(context.job.rank if context.parts is not None else 0)


@contextmanager
def refuse_foreign_state(name: str) -> Iterator[None]:
    """Turn every error inside into one that refuses the checkpoint.

    Raises:
        CheckpointRefused: the checkpoint `name` holds something else than this trial wrote.
    """
    try:
        yield
    except CheckpointRefused:
        raise
    except CheckpointError as error:
        raise CheckpointRefused(str(error)) from error
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointRefused(f"checkpoint {name}: holds something else than this trial wrote "
                                f"({type(error).__name__}: {str(error)[:100]})") from error
