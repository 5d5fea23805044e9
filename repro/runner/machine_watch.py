"""Checks between trials: was the clock set, did the machine sleep, what slowed it while a trial ran?

Causes: heat, power, a control group's limit, the hypervisor. All come from counters that only grow, read before and
after, so that no event in between is missed. Without a counter in the kernel or the driver nothing is reported.
"""

from __future__ import annotations

import errno
import os
import pwd
import socket
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from repro.core.control_group import held_back_seconds, text_of
from repro.core.errors import GuardError, OutputError, UsageError
from repro.core.numbers import percent_above
from repro.record.environment.gpus import ask_nvidia_smi, used_uuids
from repro.record.folder.ledger import IncidentKind
from repro.runner.context import RunContext

STEP_SECONDS = 0.5
"""A wall clock that moves by more than this from the monotonic one was set, not slewed. Dates in the ledger and MLflow
are affected; durations are not, because they are taken from the monotonic clock."""
SLEW = 1e-3
"""The largest gentle adjustment of a clock, seconds per second (NTP: 500 ppm)."""
HELD_SHARE = 0.01
"""Tolerated share of the elapsed time for which a control group held processes back, or a GPU its clock."""
STOLEN_SHARE = 0.02
"""Tolerated share of the processors' time that a hypervisor gave to other guests."""
LEAST_SECONDS = 0.05
"""Shorter times are ignored: counters are not read at the same moment."""
REASONS = {"hw_thermal_slowdown": "heat (hardware)", "sw_thermal_slowdown": "heat (driver)",
           "hw_power_brake_slowdown": "its power supply's brake", "sw_power_cap": "its power limit"}
"""nvidia-smi's counters of microseconds, `clocks_event_reasons_counters.*`; recent drivers have them."""
MASK = {0x08: "a hardware slowdown", 0x20: "heat (driver)", 0x40: "heat (hardware)", 0x80: "its power supply's brake"}
"""Bits of `clocks_throttle_reasons.active` (NVML, nvmlClocksThrottleReasons) of older drivers: the current state."""


@dataclass(frozen=True, slots=True)
class Counters:
    """Values of the counters at one time."""

    at: float
    """Of the monotonic clock, seconds."""
    wall: float
    """The wall clock at the same moment, seconds."""
    asleep: float
    """Seconds since boot in which the monotonic clock was stopped."""
    heat: int
    """Number of times that heat slowed a core or its package."""
    held: float
    """Seconds for which a control group's limit held this process's group back."""
    stolen: float
    """Seconds of all processors that a hypervisor gave to other guests."""
    gpus: dict[str, float]
    """`GPU 0 by heat (driver)` -> seconds."""


@dataclass(slots=True)
class MachineWatch:
    """Compares the counters after every trial with those before it."""

    root: Path = Path("/")
    monotonic: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time
    _gpus: bool = False
    _last: Counters | None = None

    def begin(self, gpus: bool) -> None:
        """Take the counters before the first trial.

        Args:
            gpus: trials use them.
        """
        self._gpus = gpus
        self._last = self._take()

    def check(self, context: RunContext, trial_id: str, strict: bool) -> None:
        """Warn of what happened while a trial ran.

        Raises:
            GuardError: `strict`, and something happened.
        """
        found = self.look()
        for kind, text in found:
            context.warn(kind, f"{text} while this trial ran", trial_id)
        if strict and found:
            raise GuardError(f"--strict: {found[0][1]} during {trial_id}; completed trials are kept")

    def look(self) -> list[tuple[IncidentKind, str]]:
        """Return what happened since `begin` or the last call: its kind, and one sentence."""
        before, now = self._last, self._take()
        assert before is not None, "it was begun"
        self._last = now
        throttled = [*_describe(before, now, os.cpu_count() or 1), *(self._gpus_now() if not now.gpus else [])]
        found: list[tuple[IncidentKind, str]] = [("clock", text) for text in _clock_events(before, now)]
        return found + [("throttled", text) for text in throttled]

    def _take(self) -> Counters:
        return Counters(
            at=self.monotonic(), wall=self.wall(), asleep=_asleep(), heat=_heat(self.root),
            held=held_back_seconds(self.root), stolen=_stolen(self.root),
            gpus=_gpu_counters() if self._gpus else {},
        )

    def _gpus_now(self) -> Iterator[str]:
        if not self._gpus:
            return
        for index, value in _of_used("index", "clocks_throttle_reasons.active"):
            try:
                mask = int(value, 16)
            except ValueError:
                continue
            if reasons := [words for bit, words in MASK.items() if mask & bit]:
                yield f"GPU {index} is held back by {', '.join(reasons)}"


def _clock_events(before: Counters, now: Counters) -> Iterator[str]:
    slept = now.asleep - before.asleep
    if slept > STEP_SECONDS:
        yield f"the machine slept for {slept:.1f} s"
    elapsed = now.at - before.at
    step = now.wall - before.wall - elapsed - slept
    if abs(step) > STEP_SECONDS + SLEW * elapsed:
        yield f"the wall clock was set {'forward' if step > 0 else 'back'} by {abs(step):.1f} s"


def _asleep() -> float:
    """Return the seconds since boot in which the monotonic clock was stopped."""
    if not hasattr(time, "CLOCK_BOOTTIME"):
        return 0.0
    return time.clock_gettime(time.CLOCK_BOOTTIME) - time.clock_gettime(time.CLOCK_MONOTONIC)


def _describe(before: Counters, now: Counters, cores: int) -> Iterator[str]:
    elapsed = max(now.at - before.at, 1e-9)
    if now.heat > before.heat:
        yield f"heat slowed the processor down {now.heat - before.heat} times"
    held = now.held - before.held
    if held > max(LEAST_SECONDS, HELD_SHARE * elapsed):
        yield f"a control group's limit held its processes back for {held:.1f} of {elapsed:.1f} s"
    stolen = now.stolen - before.stolen
    if stolen > max(LEAST_SECONDS, STOLEN_SHARE * elapsed * cores):
        share = percent_above(stolen / elapsed / cores, STOLEN_SHARE, 0)
        yield f"the hypervisor gave {share} of the processors' time to others"
    for name, seconds in now.gpus.items():
        spent = seconds - before.gpus.get(name, seconds)
        if spent > max(LEAST_SECONDS, HELD_SHARE * elapsed):
            yield f"{name}: its clock was held back for {spent:.1f} of {elapsed:.1f} s"


def _heat(root: Path) -> int:
    """Read Intel's counters; those of other processors are not read."""
    places = (root / "sys/devices/system/cpu").glob("cpu[0-9]*/thermal_throttle/*_throttle_count")
    return sum(int(text) for path in places if (text := text_of(path).strip()).isdecimal())


def _stolen(root: Path) -> float:
    """Return seconds from the eighth figure of /proc/stat's first line, which is in clock ticks."""
    fields = text_of(root / "proc/stat").partition("\n")[0].split()
    return int(fields[8]) / os.sysconf("SC_CLK_TCK") if len(fields) > 8 and fields[8].isdecimal() else 0.0


def _gpu_counters() -> dict[str, float]:
    """Return the seconds of each reason by GPU; empty if the driver has no such counters."""
    found: dict[str, float] = {}
    for index, *values in _of_used("index", *(f"clocks_event_reasons_counters.{name}" for name in REASONS)):
        for words, value in zip(REASONS.values(), values, strict=False):
            number = value.split()[0] if value.split() else ""
            if number.isdecimal():
                found[f"GPU {index} by {words}"] = int(number) / 1e6
    return found


def others_on_gpus() -> list[str]:
    """Return the processes that compute now on a GPU that this process can use, as `name (pid)`."""
    rows = _of_used("pid", "process_name", query="--query-compute-apps", uuid="gpu_uuid")
    return [f"{Path(row[1]).name or 'a process'} ({row[0]})" for row in rows if len(row) > 1]


def _of_used(*fields: str, query: str = "--query-gpu", uuid: str = "uuid") -> list[list[str]]:
    """Query nvidia-smi and return its rows of the GPUs that this process can use, those of its run; none without a
    driver, or if it does not know a field.

    Args:
        uuid: the field of the query that names a GPU.
    """
    used = used_uuids()
    found = ask_nvidia_smi(f"{query}={','.join((uuid, *fields))}", "--format=csv,noheader")
    rows = [[part.strip() for part in line.split(",")] for line in found.splitlines() if line.strip()]
    return [row[1:] for row in rows if used is None or row[0] in used]


VARIABLE = "REPRO_TIMING_LOCK"
NAME = "\0repro-timing"
PAUSE_SECONDS = 0.2


@contextmanager
def only_run_that_times(show: Callable[[str], None], lane: bool = False) -> Iterator[float]:
    """Hold the machine's timing lock; while another run holds it, say so once and wait. Gives the seconds waited.

    Lanes of a pool whose cores and GPUs differ may time at once: each holds the names of its own, and no other run
    begins while there is one. `REPRO_TIMING_LOCK=off` does without, which the record shows among the settings.

    Args:
        show: receives the line that names the other run.
        lane: this process runs a shard, on its cores and GPUs only.

    Raises:
        UsageError: the variable has another value.
        OutputError: the kernel refuses the socket.
    """
    stated = os.environ.get(VARIABLE, "")
    if stated not in ("", "off"):
        raise UsageError(f"{VARIABLE}={stated}: must be `off`, or not set")
    if stated:
        yield 0.0
        return
    begun, waits = time.monotonic(), False
    names = [NAME]
    if lane:
        cores = [f"core{core}" for core in sorted(os.sched_getaffinity(0))]
        names = [f"{NAME}-{item}" for item in (*cores, *sorted(used_uuids() or ()))]
    with ExitStack() as held:
        other = _bind(names, held)
        # Both sides bind before they look for the other's names, so one of them sees the other.
        while other or (other := _of_the_other_side(lane)):
            if not waits:
                show(f"waiting for another run that times its trials on this machine{_owner(other)}; Ctrl-C ends the "
                     f"wait; to run without the lock, set {VARIABLE}=off")
            waits = True
            if lane:  # a run of the whole machine keeps its name, so that it waits for the last lane only
                held.close()
            time.sleep(PAUSE_SECONDS)
            other = _bind(names, held) if lane or other == NAME else ""
        yield time.monotonic() - begun if waits else 0.0


def _bind(names: Sequence[str], held: ExitStack) -> str:
    """Bind all names or none; return the first that another run holds, "" if there is none."""
    for name in names:
        lock = held.enter_context(socket.socket(socket.AF_UNIX))
        try:
            lock.bind(name)
            lock.listen()  # so that others can ask who holds it
        except OSError as error:
            held.close()
            if error.errno == errno.EADDRINUSE:
                return name
            raise OutputError(f"the lock that keeps two runs from timing at once: {error.strerror}; to run without "
                              f"it, set {VARIABLE}=off") from error
    return ""


def _of_the_other_side(lane: bool) -> str:
    """Return the name of a run of the whole machine for a lane, that of a lane for such a run; "" if none is bound."""
    bound = (line.rpartition(" @")[2] for line in text_of(Path("/proc/net/unix")).splitlines())
    wanted = NAME[1:] if lane else f"{NAME[1:]}-"
    return next((f"\0{name}" for name in bound if (name == wanted if lane else name.startswith(wanted))), "")


def _owner(name: str) -> str:
    """Return process and user of a name's holder, as the kernel knows them; "" if it has just ended."""
    with socket.socket(socket.AF_UNIX) as asked:
        asked.setblocking(False)
        try:
            asked.connect(name)
            pid, user, _ = struct.unpack("3i", asked.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        except OSError:
            return ""
    try:
        return f" (pid {pid} of {pwd.getpwuid(user).pw_name})"
    except KeyError:
        return f" (pid {pid} of user {user})"
