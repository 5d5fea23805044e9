"""The checkpoints of one trial: written to a temporary folder and renamed, the last two kept, every file hashed.

A checkpoint folder holds the engine's files, one file of each rank (`rank<N>.json`), the log up to then (`log.txt`) and
`checkpoint.json`. This module decides which checkpoint a trial may resume; the content of the engine's files is the
engine's business.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Literal

from repro.core.errors import CheckpointError, CheckpointRefused, OutputError
from repro.core.events import TOKEN, complete_lines, parse_line
from repro.core.files import make_durable, read_model, write_model
from repro.core.frozen import Frozen
from repro.record.environment.placement import boot_id
from repro.record.folder.index import file_sha256
from repro.record.log.reading import follow_log
from repro.record.log.schema import Launched

MANIFEST, LOG = "checkpoint.json", "log.txt"
KEPT = 2
"""The last one may be damaged by the failure that ended the trial, or contain its cause."""
LEAST_BYTES = 1 << 20
MAX_JSON_BYTES = 256 << 20


class Checkpoint(Frozen):
    """The manifest of one checkpoint."""

    trial_id: str
    attempt: int
    world: int
    step: int
    samples: int
    at_ns: int
    """Time of the log's clock, nanoseconds."""
    wall_ms: float
    """Wall clock at the same moment, milliseconds since 1970."""
    shift_ns: int = 0
    """The log's clock minus the machine's monotonic one."""
    boot: str
    """Identifier of the machine's boot: monotonic clocks of two boots are unrelated. "": unknown."""
    files: dict[str, str]
    """sha256 of every other file in the folder, by its relative name."""


@dataclass(frozen=True, slots=True)
class Resumption:
    """A checkpoint to resume, read as far as no engine is needed."""

    path: Path
    checkpoint: Checkpoint
    shift_ns: int
    clock: Literal["monotonic", "wall"]
    """The clock that gives the time since the checkpoint."""

    def log(self) -> bytes:
        """Return the log up to the checkpoint."""
        return (self.path / LOG).read_bytes()

    def spent_seconds(self, monotonic: Callable[[], int] = time.monotonic_ns) -> float:
        """Return the seconds from the trial's first launch to now on the log's clock, lost time included.

        0 if the log does not state the launch. Valid only for a log on the machine's clock: an engine's own clock
        stops between two attempts.
        """
        for recorded, _ in follow_log(self.path / LOG):
            if recorded is not None and isinstance(recorded.event, Launched):
                return (monotonic() + self.shift_ns - recorded.event.value) / 1e9
        return 0.0

    def own(self, rank: int) -> dict[str, Any]:
        """Return the state of one rank.

        Raises:
            CheckpointRefused: it is damaged.
        """
        path = self.path / f"rank{rank}.json"
        try:
            if path.stat().st_size > MAX_JSON_BYTES:
                raise ValueError("too large")
            data = json.loads(path.read_bytes())
            if not isinstance(data, dict):
                raise ValueError("no JSON object")
        except (OSError, ValueError, RecursionError) as error:
            raise CheckpointRefused(f"checkpoint {self.path.name}: {path.name} cannot be read: {error}") from error
        return data


class Checkpoints:
    """The folder of one trial's checkpoints."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def names(self) -> list[str]:
        """Return the names of finished checkpoints, newest first."""
        return sorted((path.name for path in self.root.glob("step_*")), reverse=True)

    # ---- writing; only rank 0 calls `prepare` and `keep`

    def partial(self, step: int) -> Path:
        """Return the temporary folder that all ranks write to."""
        return self.root / f".step_{step:09d}.tmp"

    def prepare(self, step: int, needed_bytes: int) -> str:
        """Make room for a checkpoint of about `needed_bytes`; return why it cannot be written, or ""."""
        try:
            self.tidy()
            self.partial(step).mkdir(parents=True)
            free = shutil.disk_usage(self.root).free
        except OSError as error:
            return f"{self.root} cannot be written: {error.strerror}"
        needed_bytes = max(needed_bytes, LEAST_BYTES)
        if free < 2 * needed_bytes:  # the log and results need some too
            return f"{free / 1e6:.0f} MB are free, it needs {needed_bytes / 1e6:.0f} MB"
        return ""

    def keep(self, found: Checkpoint) -> int:
        """Finish the checkpoint that all ranks have written, delete older ones, return its size in bytes.

        Raises:
            CheckpointError: it cannot be written.
        """
        partial, name = self.partial(found.step), f"step_{found.step:09d}"
        try:
            files = [path for path in sorted(partial.rglob("*")) if path.is_file()]
            sums = {path.relative_to(partial).as_posix(): file_sha256(path) for path in files}
            for path in files:
                make_durable(path)
            write_model(partial / MANIFEST, found.model_copy(update={"files": sums}))
            if (self.root / name).exists():  # of an earlier attempt whose later course was discarded
                shutil.rmtree(self.root / name)
            partial.replace(self.root / name)
            make_durable(self.root)
            # Checkpoints of later steps belong to a discarded course: they could not be resumed.
            later = [other for other in self.names() if other > name]
            for old in [*later, *self.names()[len(later) + KEPT:]]:
                shutil.rmtree(self.root / old)
            return sum(path.stat().st_size for path in (self.root / name).rglob("*") if path.is_file())
        except OSError as error:
            raise CheckpointError(f"checkpoint {name}: cannot be written: {error.strerror}") from error
        except OutputError as error:
            raise CheckpointError(f"checkpoint {name}: {error}") from error

    def tidy(self) -> None:
        """Delete unfinished checkpoints."""
        for path in self.root.glob(".*.tmp"):
            shutil.rmtree(path, ignore_errors=True)

    # ---- reading

    def newest(self, trial_id: str, world: int) -> tuple[Resumption | None, list[str]]:
        """Return the newest checkpoint that the trial may resume, and why each newer one was passed over."""
        passed: list[str] = []
        for name in self.names():
            try:
                return self.open(name, trial_id, world), passed
            except CheckpointRefused as error:
                passed.append(str(error))
        return None, passed

    def open(self, name: str, trial_id: str, world: int) -> Resumption:
        """Return a checkpoint after checking it: of this trial and as many ranks, every file unmodified.

        Raises:
            CheckpointRefused: a check fails; the message is one line.
        """
        found = self.read_manifest(name, trial_id, world)
        path = self.root / name
        for text in chain(_damage(path, found.files), _torn_log(path / LOG)):  # the first is enough
            raise CheckpointRefused(f"checkpoint {name}: {text}")
        return Resumption(path, found, *_clock(name, found))

    def read_manifest(self, name: str, trial_id: str, world: int) -> Checkpoint:
        """Read the manifest of a checkpoint of this trial and as many ranks.

        Raises:
            CheckpointRefused: it cannot be read, or is of another trial or number of ranks.
        """
        try:
            found = read_model(self.root / name / MANIFEST, Checkpoint)
        except OutputError as error:
            raise CheckpointRefused(f"checkpoint {name}: {str(error).rpartition('/')[2]}") from error
        if found.world != world:
            raise CheckpointRefused(f"checkpoint {name}: was written by {found.world} rank(s), this trial has {world}; "
                                    "with another number of ranks it would be another trial")
        if found.trial_id != trial_id:
            raise CheckpointRefused(f"checkpoint {name}: is of another trial, {found.trial_id[:100]}")
        return found

    def set_aside(self, name: str) -> bool:
        """Keep a checkpoint that an engine refused under another name, by which none is resumed, to the end of the
        trial: another machine may read it. Return False if it is still there and would be refused again.
        """
        aside = self.root / f"refused_{name}"
        shutil.rmtree(aside, ignore_errors=True)  # of the same step, written again by a later attempt
        with suppress(OSError):
            (self.root / name).rename(aside)
        return not (self.root / name).exists()

    def remove(self) -> None:
        """Delete all checkpoints."""
        shutil.rmtree(self.root, ignore_errors=True)


def _damage(path: Path, files: Mapping[str, str]) -> Iterator[str]:
    present = {item.relative_to(path).as_posix(): item for item in path.rglob("*")
               if item.is_symlink() or not item.is_dir()}
    present.pop(MANIFEST, None)
    for name in sorted({*files, *present}):
        if name not in present:
            yield f"{name} is missing"
        elif name not in files or present[name].is_symlink() or not present[name].is_file():
            yield f"{name} does not belong to it"
        elif _hash(present[name]) != files[name]:
            yield f"{name} is damaged or was modified"
    if LOG not in files:
        yield f"{LOG} is missing"


def _torn_log(path: Path) -> Iterator[str]:
    """Yield the problems of the copied log: it may have been damaged before it was copied.

    A trial that resumed it would end with a damaged log every time.
    """
    try:
        with path.open(encoding="utf-8") as stream:
            while stream.read(1 << 20):
                pass
    except ValueError:
        yield f"{LOG} is not UTF-8: it was damaged before the checkpoint was written"
    damaged = [not line.startswith(TOKEN) or parse_line(line) is None for line, _ in complete_lines(path)]
    if any(damaged):
        yield f"{sum(damaged)} of {len(damaged)} lines of {LOG} were damaged before the checkpoint was written"


def _hash(path: Path) -> str:
    try:
        return file_sha256(path)
    except OutputError:
        return "unreadable"


def _clock(name: str, found: Checkpoint) -> tuple[int, Literal["monotonic", "wall"]]:
    """Return the nanoseconds to add to the monotonic clock so that the log's clock continues, and their source.

    Raises:
        CheckpointRefused: the time since the checkpoint is unknown: the machine was rebooted and its wall clock is
            before the checkpoint.
    """
    if found.boot and found.boot == boot_id():
        return found.shift_ns, "monotonic"
    passed = time.time() * 1e3 - found.wall_ms
    if passed < 0:
        raise CheckpointRefused(
            f"checkpoint {name}: the machine was rebooted and its wall clock is {-passed / 1e3:.0f} s before the "
            "checkpoint; the time since then is unknown")
    return found.at_ns + round(passed * 1_000_000) - time.monotonic_ns(), "wall"
