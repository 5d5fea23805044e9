"""Checkpoints of a running trial: all ranks write one, or none does; a resumed rank loads its own part."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from repro.core.errors import CheckpointError, CheckpointRefused
from repro.record.environment.placement import boot_id
from repro.record.folder.checkpoint import LOG, Checkpoint, Checkpoints, Resumption
from repro.seams.training import Session
from repro.worker.setup import TrialContext


@dataclass(slots=True)
class CheckpointWriter:
    """Writes one rank's part of every checkpoint of one attempt."""

    # Eight fields: what the launch payload says about checkpoints, which is all that this object needs to know.

    folder: Checkpoints
    every: int
    """Evaluations between two checkpoints."""
    trial_id: str
    attempt: int
    rank: int
    world: int
    shift_ns: int = 0
    size: int = 0
    """Bytes of the last checkpoint; 0: none yet."""

    def prepare(self, step: int, estimated_bytes: int) -> str:
        """Make room for a checkpoint, on rank 0; return why it cannot be written, or ""."""
        return self.folder.prepare(step, self.size or estimated_bytes) if self.rank == 0 else ""

    def write_own(self, step: int, own: Mapping[str, Any], log: bytes) -> None:
        """Write this rank's own files.

        Raises:
            CheckpointError: they cannot be written.
        """
        partial = self.folder.partial(step)
        try:
            (partial / f"rank{self.rank}.json").write_text(json.dumps(own, separators=(",", ":")))
            if self.rank == 0:
                (partial / LOG).write_bytes(log)
        except OSError as error:
            raise CheckpointError(f"checkpoint of step {step}: cannot be written: {error.strerror}") from error

    def describe_room(self) -> str:
        """Return the free space of the disk in words: libraries do not report why they could not write."""
        try:
            return f"{shutil.disk_usage(self.folder.root).free / 1e6:.0f} MB are free on its disk"
        except OSError as error:
            return f"its disk: {error.strerror}"

    def keep(self, step: int, samples: int, at_ns: int, wall_ms: float) -> None:
        """Finish a checkpoint that all ranks have written, on rank 0.

        Raises:
            CheckpointError: it cannot be written.
        """
        if self.rank == 0:
            self.size = self.folder.keep(Checkpoint(
                trial_id=self.trial_id, attempt=self.attempt, world=self.world, step=step, samples=samples,
                at_ns=at_ns, wall_ms=wall_ms, shift_ns=self.shift_ns, boot=boot_id(), files={},
            ))


def from_payload(payload: Mapping[str, Any], folder: Path, trial_id: str, rank: int,
                 world: int) -> tuple[CheckpointWriter | None, Resumption | None]:
    """Return the writer (None: the trial keeps no checkpoints) and the checkpoint to resume (None: none).

    Raises:
        CheckpointRefused: the checkpoint is of another trial or another number of ranks.
    """
    request = payload.get("checkpoints")
    if request is None:
        return None, None
    kept = Checkpoints(folder / request["folder"])
    resumed = None
    if request["resume"]:
        # The parent has checked every file; once is enough.
        manifest = kept.read_manifest(request["resume"], trial_id, world)
        resumed = Resumption(kept.root / request["resume"], manifest, request["shift_ns"], request["clock"])
    writer = CheckpointWriter(kept, request["every"], trial_id, payload["attempt"], rank, world, request["shift_ns"])
    return writer, resumed


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
        if writer.rank == 0:
            writer.folder.tidy()
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
