"""The checkpoints of one trial: written aside and renamed, the last two kept, every file with its hash.

A folder holds what the engine wrote, what is each rank's own (`rank<N>.json`), the log up to then (`log.txt`) and
`checkpoint.json`. Here is decided which one a trial may go on from; what the engine's files say is the engine's own.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from repro.core.errors import CheckpointError, CheckpointRefused, OutputError
from repro.core.events import TOKEN, complete_lines, parse_line
from repro.core.files import make_durable, read_model, write_model
from repro.core.frozen import Frozen
from repro.record.index import file_sha256

MANIFEST, LOG = "checkpoint.json", "log.txt"
LAUNCHED = "x_launch_ns"
KEPT = 2
"""The last one may be torn by what ended the trial, or hold what made it fail."""
LEAST_BYTES = 1 << 20
MAX_JSON_BYTES = 256 << 20
BOOT = Path("/proc/sys/kernel/random/boot_id")
NANO_PER_MS = 1_000_000


class Checkpoint(Frozen):
    """What stands in one checkpoint, and when it was made."""

    schema_: Literal[1] = Field(default=1, alias="schema")
    trial_id: str
    attempt: int
    world: int
    step: int
    samples: int
    at_ns: int
    """The log's clock."""
    wall_ms: float
    """Wall clock at the same moment, milliseconds since 1970."""
    shift_ns: int = 0
    """The log's clock minus the machine's monotonic one."""
    boot: str
    """Names the machine's start: monotonic clocks of two starts have nothing to do with each other. "": not known."""
    files: dict[str, str]
    """Every other file in the folder, by name relative to it: sha256."""


@dataclass(frozen=True, slots=True)
class Resumption:
    """A checkpoint to go on from, read as far as no engine is needed."""

    path: Path
    checkpoint: Checkpoint
    shift_ns: int
    clock: Literal["monotonic", "wall"]
    """By which clock the time since the checkpoint is known."""

    def log(self) -> bytes:
        """The lines that the log had."""
        return (self.path / LOG).read_bytes()

    def spent_seconds(self, monotonic: Callable[[], int] = time.monotonic_ns) -> float:
        """From the trial's very first launch to now on the log's clock, what was lost in between included.

        0 where the log does not say. Only of a log on the machine's clock: an engine's own stands still meanwhile.
        """
        events = (parse_line(line) for line in complete_lines(self.path / LOG))
        launched = next((event.value for event in events if event is not None and event.key == LAUNCHED), None)
        return (monotonic() + self.shift_ns - launched) / 1e9 if isinstance(launched, int) else 0.0

    def own(self, rank: int) -> dict[str, Any]:
        """What one rank wrote of its own.

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


def boot() -> str:
    """What names this start of the machine; "" where nothing does."""
    try:
        return BOOT.read_text(encoding="ascii").strip()
    except OSError:
        return ""


class Checkpoints:
    """The folder of one trial's checkpoints."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def names(self) -> list[str]:
        """Finished ones, newest first."""
        if not self.root.is_dir():
            return []
        return sorted((path.name for path in self.root.iterdir() if path.name.startswith("step_")), reverse=True)

    # ---- writing; rank 0 alone calls `fresh` and `keep`

    def aside(self, step: int) -> Path:
        """Where all ranks write."""
        return self.root / f".step_{step:09d}.tmp"

    def fresh(self, step: int, needed: int) -> str:
        """Make room for a checkpoint of about `needed` bytes; why it cannot be written, or ""."""
        try:
            self.tidy()
            self.aside(step).mkdir(parents=True)
            free = shutil.disk_usage(self.root).free
        except OSError as error:
            return f"{self.root} cannot be written: {error.strerror}"
        needed = max(needed, LEAST_BYTES)
        if free < 2 * needed:  # the log and results need some too
            return f"{free / 1e6:.0f} MB are free, it needs {needed / 1e6:.0f} MB"
        return ""

    def keep(self, found: Checkpoint) -> int:
        """Make what all ranks have written a checkpoint, drop older ones; its size in bytes.

        Raises:
            CheckpointError: it cannot be written.
        """
        aside, name = self.aside(found.step), f"step_{found.step:09d}"
        try:
            files = {path.relative_to(aside).as_posix(): path for path in sorted(aside.rglob("*")) if path.is_file()}
            sums = {where: file_sha256(path) for where, path in files.items()}
            for path in files.values():
                make_durable(path)
            write_model(aside / MANIFEST, found.model_copy(update={"files": sums}))
            if (self.root / name).exists():  # from an attempt that got as far and was not gone on from
                shutil.rmtree(self.root / name)
            aside.rename(self.root / name)
            make_durable(self.root)
            # Those of later steps are of a course that was not gone on from: they could not be read.
            later = [other for other in self.names() if other > name]
            for old in [*later, *self.names()[len(later) + KEPT:]]:
                shutil.rmtree(self.root / old)
            return sum(path.stat().st_size for path in (self.root / name).rglob("*") if path.is_file())
        except OSError as error:
            raise CheckpointError(f"checkpoint {name}: cannot be written: {error.strerror}") from error
        except OutputError as error:
            raise CheckpointError(f"checkpoint {name}: {error}") from error

    def tidy(self) -> None:
        """Take away what was left half written."""
        if self.root.is_dir():
            for path in self.root.glob(".*.tmp"):
                shutil.rmtree(path, ignore_errors=True)

    # ---- reading

    def newest(self, trial_id: str, world: int) -> tuple[Resumption | None, list[str]]:
        """The newest checkpoint that the trial may go on from, and why each newer one was passed over."""
        passed: list[str] = []
        for name in self.names():
            try:
                return self.open(name, trial_id, world), passed
            except CheckpointRefused as error:
                passed.append(str(error))
        return None, passed

    def open(self, name: str, trial_id: str, world: int) -> Resumption:
        """One checkpoint, checked: of this trial and as many ranks, every file as it was written.

        Raises:
            CheckpointRefused: it is not; in one line.
        """
        found = self.fitting(name, trial_id, world)
        path = self.root / name
        for text in chain(_damage(path, found.files), _torn_log(path / LOG)):  # the first is enough
            raise CheckpointRefused(f"checkpoint {name}: {text}")
        return Resumption(path, found, *_clock(name, found))

    def fitting(self, name: str, trial_id: str, world: int) -> Checkpoint:
        """What a checkpoint says of itself, where it is of this trial and of as many ranks.

        Raises:
            CheckpointRefused: it is not.
        """
        try:
            found = read_model(self.root / name / MANIFEST, Checkpoint)
        except OutputError as error:
            raise CheckpointRefused(f"checkpoint {name}: {str(error).rpartition('/')[2]}") from error
        if found.world != world:
            raise CheckpointRefused(f"checkpoint {name}: was written by {found.world} rank(s), this trial has {world}; "
                                    "going on with another number of ranks would be another trial")
        if found.trial_id != trial_id:
            raise CheckpointRefused(f"checkpoint {name}: is of another trial, {found.trial_id[:100]}")
        return found

    def refuse(self, name: str) -> bool:
        """Take away one that an engine could not go on from; False: it is still there, and would be refused again."""
        shutil.rmtree(self.root / name, ignore_errors=True)
        return not (self.root / name).exists()

    def remove(self) -> None:
        """The trial needs none any more."""
        shutil.rmtree(self.root, ignore_errors=True)


def _damage(path: Path, files: Mapping[str, str]) -> Iterator[str]:
    """How the files differ from what was written."""
    present = {item.relative_to(path).as_posix(): item for item in path.rglob("*")
               if item.is_symlink() or not item.is_dir()}
    present.pop(MANIFEST, None)
    for name in sorted({*files, *present}):
        if name not in present:
            yield f"{name} is missing"
        elif name not in files or present[name].is_symlink() or not present[name].is_file():
            yield f"{name} was not written with it"
        elif _hash(present[name]) != files[name]:
            yield f"{name} is torn or was altered"
    if LOG not in files:
        yield f"{LOG} is missing"


def _torn_log(path: Path) -> Iterator[str]:
    """What is wrong with the log up to then: it may have been touched before it was copied.

    A trial that went on from it would come to a damaged log every time, however often it ran.
    """
    try:
        with path.open(encoding="utf-8") as stream:
            while stream.read(1 << 20):
                pass
    except ValueError:
        yield f"{LOG} is not UTF-8 and was not before it was written"
    damaged = [not line.startswith(TOKEN) or parse_line(line) is None for line in complete_lines(path)]
    if any(damaged):
        yield f"{sum(damaged)} of {len(damaged)} lines of {LOG} were damaged before it was written"


def _hash(path: Path) -> str:
    try:
        return file_sha256(path)
    except OutputError:
        return "unreadable"


def _clock(
    name: str, found: Checkpoint, monotonic: Callable[[], int] = time.monotonic_ns,
    wall: Callable[[], float] = time.time,
) -> tuple[int, Literal["monotonic", "wall"]]:
    """What to add to the monotonic clock so that the log's clock runs on, and how the time between is known.

    Raises:
        CheckpointRefused: it is not known: another start of the machine, and the wall clock went back.
    """
    if found.boot and found.boot == boot():
        return found.shift_ns, "monotonic"
    passed = wall() * 1e3 - found.wall_ms
    if passed < 0:
        raise CheckpointRefused(
            f"checkpoint {name}: the machine was started anew and its wall clock is {-passed / 1e3:.0f} s before the "
            "checkpoint; how long the trial stood still is unknown")
    return found.at_ns + round(passed * NANO_PER_MS) - monotonic(), "wall"


@dataclass(slots=True)
class Saving:
    """How the ranks of one attempt keep checkpoints."""

    folder: Checkpoints
    every: int
    """Evaluations from one to the next."""
    trial_id: str
    attempt: int
    rank: int
    world: int
    shift_ns: int = 0
    size: int = 0
    """Bytes of the last one; 0: none yet."""

    def due(self, evaluations: int) -> bool:
        return evaluations % self.every == 0

    def fresh(self, step: int, about: int) -> str:
        """Rank 0's part before a checkpoint; why there will be none, or ""."""
        return self.folder.fresh(step, self.size or about) if self.rank == 0 else ""

    def write_own(self, step: int, own: Mapping[str, Any], log: bytes) -> Path:
        """One rank's own files.

        Raises:
            CheckpointError: they cannot be written.
        """
        aside = self.folder.aside(step)
        try:
            (aside / f"rank{self.rank}.json").write_text(json.dumps(own, separators=(",", ":")), encoding="utf-8")
            if self.rank == 0:
                (aside / LOG).write_bytes(log)
        except OSError as error:
            raise CheckpointError(f"checkpoint of step {step}: cannot be written: {error.strerror}") from error
        return aside

    def room(self) -> str:
        """What the disk has left: libraries that write do not say why they could not."""
        try:
            return f"{shutil.disk_usage(self.folder.root).free / 1e6:.0f} MB are free on its disk"
        except OSError as error:
            return f"its disk: {error.strerror}"

    def drop(self) -> None:
        """Rank 0's part when one could not be written: what there is of it only takes up room."""
        if self.rank == 0:
            self.folder.tidy()

    def keep(self, step: int, samples: int, at_ns: int, wall_ms: float) -> None:
        """Rank 0's part when all have written.

        Raises:
            CheckpointError: it cannot be written.
        """
        if self.rank == 0:
            self.size = self.folder.keep(Checkpoint(
                trial_id=self.trial_id, attempt=self.attempt, world=self.world, step=step, samples=samples,
                at_ns=at_ns, wall_ms=wall_ms, shift_ns=self.shift_ns, boot=boot(), files={},
            ))


def from_payload(payload: Mapping[str, Any], folder: Path, trial_id: str, rank: int,
                 world: int) -> tuple[Saving | None, Resumption | None]:
    """What the parent told a rank: whether to keep checkpoints, and which to go on from.

    Raises:
        CheckpointRefused: the checkpoint is of another trial or another number of ranks.
    """
    told = payload.get("checkpoints")
    if told is None:
        return None, None
    kept = Checkpoints(folder / told["folder"])
    resumed = None
    if told["resume"]:
        # The parent has looked at every file; one look at each is enough.
        found = kept.fitting(told["resume"], trial_id, world)
        resumed = Resumption(kept.root / told["resume"], found, told["shift_ns"], told["clock"])
    saving = Saving(kept, told["every"], trial_id, payload["attempt"], rank, world, told["shift_ns"])
    return saving, resumed
