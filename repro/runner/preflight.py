"""What of the machine would spoil a run: looked at before it, and between its trials."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from repro.core.machine import Machine
from repro.core.random_streams import Streams
from repro.core.throttle import others_on_gpus
from repro.record.checkpoint import KEPT
from repro.seams.training import Engine, Workload
from repro.suite.identity import canonical
from repro.suite.plan import Plan

BUSY = 0.25
"""Load a core above which the report calls a machine busy."""
DISK_BYTES = 256 << 20
"""What a run folder should find free, and a megabyte a trial."""
TRIAL_BYTES = 1 << 20
WEIGHT_BYTES = 16
"""What a checkpoint holds of one weight: itself, two moments and a master copy, in float32."""
SHARED_BYTES = 64 << 20
"""Shared memory that NCCL and loaders of a rank may want on a GPU machine; a sixteenth of it elsewhere."""
STEP_SECONDS = 0.5
"""A wall clock that moves so far from the monotonic one was set, not slewed."""
SLEW = 1e-3
"""What adjusting a clock gently may come to, a second (NTP: 500 ppm)."""


def before(plan: Plan, machine: Machine, folder: Path, load: float | None) -> list[str]:
    """What speaks against starting `plan` here now, a sentence each.

    Args:
        load: processes that ran or waited, mean of the last minute; None: not known.
    """
    found = (_busy(load, machine), _gpus(plan), _cores(plan, machine), _disk(plan, folder), _shared(plan))
    return [text for text in found if text]


def load_now(seconds: float = 0.5, stat: Path = Path("/proc/stat")) -> float | None:
    """Cores that were busy over the next `seconds`; None where the kernel does not say.

    The load of the last minute says nothing yet of what began a moment ago, and still tells of what has ended.
    """
    before = _ticks(stat)
    time.sleep(seconds)
    after = _ticks(stat)
    if before is None or after is None or after[1] <= before[1]:
        return None
    return (after[0] - before[0]) / (after[1] - before[1]) * (os.cpu_count() or 1)


def _ticks(stat: Path) -> tuple[int, int] | None:
    """(busy, all) clock ticks of all processors since boot."""
    try:
        fields = [int(part) for part in stat.read_text().partition("\n")[0].split()[1:9]]
    except (OSError, ValueError):
        return None
    return (sum(fields) - fields[3] - fields[4], sum(fields)) if len(fields) >= 5 else None


def _gpus(plan: Plan) -> str:
    others = others_on_gpus() if plan.device == "cuda" else []
    if not others:
        return ""
    more = f" and {len(others) - 3} more" if len(others) > 3 else ""
    return f"other processes compute on its GPUs: {', '.join(others[:3])}{more}"


def _busy(load: float | None, machine: Machine) -> str:
    if load is None or load <= BUSY * machine.cores:
        return ""
    return f"its load is {load:.3g} on {machine.cores} core(s): other work slows trials, and not all alike"


def _cores(plan: Plan, machine: Machine) -> str:
    """Ranks on the CPU that have to share cores measure each other."""
    threads = os.environ.get("OMP_NUM_THREADS", "")
    each = int(threads) if threads.isdecimal() and int(threads) > 0 else 1
    needed = max((cell.choices.processes * each for cell in plan.cells
                  if cell.choices.device == "cpu" and cell.choices.origin == "measured"), default=0)
    if needed <= machine.cores:
        return ""
    return f"its {machine.cores} core(s) are too few for {needed} threads of ranks: they wait for each other's cores"


def _disk(plan: Plan, folder: Path) -> str:
    needed = DISK_BYTES + TRIAL_BYTES * len(plan.order) + checkpoint_bytes(plan)
    free = shutil.disk_usage(folder).free
    if free >= needed:
        return ""
    return f"{free / 1e6:.0f} MB are free for the run folder, {needed / 1e6:.0f} MB may be needed"


def checkpoint_bytes(plan: Plan) -> int:
    """About what the checkpoints of the largest model in `plan` take: those kept, and one that is being written."""
    if not plan.suite.keeps_checkpoints:
        return 0
    chosen = {canonical(cell.choices.workload): cell.choices.workload.get(Workload) for cell in plan.cells
              if cell.choices.engine.get(Engine).checkpoints and cell.choices.engine.get(Engine).needs_parts}
    return max((_weights(workload) for workload in chosen.values()), default=0) * WEIGHT_BYTES * (KEPT + 1)


def _weights(workload: Workload) -> int:
    return sum(parameter.numel() for parameter in workload.build(Streams(0, 0), "cpu").model.parameters())


def _shared(plan: Plan) -> str:
    place = Path("/dev/shm")
    if not place.is_dir():
        return ""
    ranks = max(cell.choices.processes for cell in plan.cells)
    needed = ranks * (SHARED_BYTES if plan.device == "cuda" else SHARED_BYTES // 16)
    free = shutil.disk_usage(place).free
    if free >= needed:
        return ""
    return f"{free / 1e6:.0f} MB of shared memory are free, {ranks} ranks may need {needed / 1e6:.0f} MB"


@dataclass(slots=True)
class ClockWatch:
    """Tells when the wall clock was set, or the machine slept, since the last look. No duration hangs on either: they
    are taken from the monotonic clock; dates in the ledger and in MLflow do."""

    wall: Callable[[], float] = time.time
    monotonic: Callable[[], float] = time.monotonic
    _offset: float = 0.0
    _asleep: float = 0.0
    _at: float = 0.0

    def __post_init__(self) -> None:
        self._take()

    def _take(self) -> None:
        self._at = self.monotonic()
        self._offset, self._asleep = self.wall() - self._at, _asleep()

    def look(self) -> list[str]:
        """What happened since the last look, a sentence each."""
        at, offset, asleep = self._at, self._offset, self._asleep
        self._take()
        return list(_moved(self._offset - offset, self._asleep - asleep, self._at - at))


def _moved(step: float, slept: float, elapsed: float) -> Iterator[str]:
    if slept > STEP_SECONDS:
        yield f"the machine slept for {slept:.1f} s"
    step -= slept
    if abs(step) > STEP_SECONDS + SLEW * elapsed:
        yield f"the wall clock was set {'forward' if step > 0 else 'back'} by {abs(step):.1f} s"


def _asleep() -> float:
    """Seconds since boot in which the monotonic clock stood still."""
    if not hasattr(time, "CLOCK_BOOTTIME"):
        return 0.0
    return time.clock_gettime(time.CLOCK_BOOTTIME) - time.clock_gettime(time.CLOCK_MONOTONIC)
