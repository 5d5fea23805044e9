"""One log of a speed-run: the program's own text, a block that names the machine, and a line a step.

    step:1390/1390 val_loss:3.2785 train_time:204345ms step_avg:148.08ms

Lines between evaluations have no `val_loss`. Times are in ms or s. Until 2025 the clock restarted after ten steps of
warm-up, whose `step_avg` is `nan`: they are outside the measured time.
"""

from __future__ import annotations

import hashlib
import math
import re
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from repro.published.contest_rules import MOST_SECONDS
from repro.published.record import PublishedPoint, Setting
from repro.published.untrusted.files import DamagedInput, plain, read_lines

RUNNING = re.compile(rb"Running (Python|PyTorch|Triton)(?: version)? (\S+)", re.IGNORECASE)
DRIVER = re.compile(rb"Driver Version: *([\w.]+)")
GPU = re.compile(rb"\| +(\d{1,4}) +(\S.*?) +(?:On|Off) +\| +([0-9A-Fa-f]{8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.\d)")
CLOCK = re.compile(rb"[A-Z][a-z]{2} [A-Z][a-z]{2} +\d{1,2} \d{2}:\d{2}:\d{2} \d{4}")
MOST_GPUS = 1024


@dataclass(slots=True)
class Machine:
    """Statements of the block; empty: none."""

    versions: dict[str, str] = field(default_factory=dict)
    """By `python`, `pytorch`, `triton`."""
    driver: str = ""
    gpus: list[tuple[str, str]] = field(default_factory=list)
    """(name, address on the bus) in the order of the table."""
    started: str = ""
    """Local time of the machine, ISO 8601."""

    def read(self, line: bytes) -> None:
        """Take what one line of the block states."""
        if found := RUNNING.match(line):
            self.versions[found[1].decode().lower()] = plain(found[2].decode("utf-8", "replace"), 80)
        elif found := GPU.match(line):
            if len(self.gpus) < MOST_GPUS:
                self.gpus.append((plain(found[2].decode("utf-8", "replace"), 80), found[3].decode().lower()))
        elif found := DRIVER.search(line):
            self.driver = found[1].decode()
        elif found := CLOCK.match(line):
            self.started = _moment(found[0].decode())

    @property
    def name(self) -> str:
        """The machine as text that differs where the GPUs, their addresses or the driver differ; empty: unknown."""
        if not self.gpus:
            return ""
        names = ", ".join(dict.fromkeys(name for name, _ in self.gpus))
        places = " ".join(place.removeprefix("00000000:") for _, place in self.gpus)
        return plain(f"{len(self.gpus)} x {names}, driver {self.driver or 'unknown'}, at {places}", 2000)

    def settings(self) -> dict[str, Setting]:
        """Return what is known, for the record of a run."""
        found: dict[str, Setting] = dict(self.versions)
        found |= {"driver": self.driver, "machine": self.name, "started": self.started}
        return {name: value for name, value in found.items() if value}


def _moment(text: str) -> str:
    try:
        return datetime.strptime(" ".join(text.split()), "%a %b %d %H:%M:%S %Y").isoformat()
    except ValueError:
        return ""


STEP = re.compile(
    rb"step:(\d{1,9})/(\d{1,9}) (?:[^ \n]+ ){0,8}?(?:val_loss:(\S{1,40}) (?:[^ \n]+ ){0,8}?)?"
    rb"train_time:([0-9][0-9.eE+-]{0,30})(ms|s)\b(?: step_avg:(\S{1,40}))?")
OLDEST = re.compile(rb"s:\d+ tel:\S+")
"""Lines of llm.c, the first baseline: an evaluation without a time."""
RULE = b"=" * 20
MAX_LINE, MAX_FILE, MAX_EVALUATIONS = 4096, 64 << 20, 10_000
"""Bytes of a line (a longer one is no line of a step) and of a log; evaluations of one."""
ROUNDING = 1.5e-3
"""Seconds by which a printed time may fall: two lines round in two ways."""


@dataclass(slots=True)
class SpeedrunLog:
    """Statements of one log."""

    machine: Machine = field(default_factory=Machine)
    steps: int | None = None
    """Steps that the run was to make."""
    curve: list[PublishedPoint] = field(default_factory=list)
    last_step: int = -1
    last_evaluated: int = -1
    final: float | None = None
    """Loss of the last evaluation; NaN and infinities are values here."""
    seconds: float = 0.0
    """The program's clock at the last evaluation."""
    fault: str = ""
    """Reason why the clock cannot be right; empty: none."""
    program: str = ""
    """Hash of the program's text; empty: the log has none."""
    sha256: str = ""
    lines_sha256: str = ""
    """Hash of the step lines: equal for two texts about one run."""
    ruled: bool = False
    """It has a separator, which every log has, also one that is cut before the first step."""
    untimed: bool = False
    """It has evaluations of llm.c, which state no time."""
    _latest: tuple[int, float] = field(default=(-1, -1.0), repr=False)
    """The last step that the clock was read at, and the largest time until then."""

    @property
    def lost(self) -> str:
        """Return the reason why it has no final loss; empty: it has one."""
        if self.steps is None:
            return ("its lines (s:N tel:V) state no time" if self.untimed else
                    "cut before its first step" if self.ruled else "")
        if self.last_step < self.steps:
            return f"cut: its last line is step {self.last_step:,} of {self.steps:,}"
        if self.last_evaluated < 0:
            return "it has no evaluation (no val_loss)"
        if self.last_evaluated < self.steps:
            return (f"cut: no evaluation at its last step {self.steps:,}; the last one is at step "
                    f"{self.last_evaluated:,}")
        return ""


def read_log(path: Path) -> SpeedrunLog:
    """Read one log as a stream: the text of the program costs neither memory nor parsing.

    Raises:
        DamagedInput: unreadable, too large, NUL bytes, more than one run in it, two totals of steps, or a step
            line that is no number.
    """
    log, began = SpeedrunLog(), False
    events, text, whole = hashlib.sha256(), hashlib.sha256(), hashlib.sha256()
    for number, line in read_lines(path, MAX_FILE, MAX_LINE, whole):
        if line.startswith(b"step:"):
            found = STEP.match(line)
            if found is not None:
                events.update(found[0])
                _take(log, found, number)
                continue
        if log.steps is not None:
            continue
        if line.startswith((b"Running P", b"Running p")):
            began = began or log.ruled
            log.program = log.program or (text.hexdigest() if log.ruled else "")
        if began or line.startswith((b"|", b"Running T")):
            log.machine.read(line)
        if not began:
            text.update(line)
            log.ruled = log.ruled or line.startswith(RULE)
        if line.startswith(b"s:"):
            log.untimed = log.untimed or OLDEST.match(line) is not None
    log.sha256 = whole.hexdigest()
    log.lines_sha256 = events.hexdigest() if log.steps is not None else ""
    if not log.lost and log.steps is not None and not 0 < log.seconds <= MOST_SECONDS:
        log.fault = log.fault or (f"its clock shows {log.seconds:g} s" if log.seconds else "its clock shows no time")
    return log


def _take(log: SpeedrunLog, found: re.Match[bytes], number: int) -> None:
    step, steps, unit = int(found[1]), int(found[2]), found[5]
    if log.steps is not None and log.steps != steps:
        raise DamagedInput(f"line {number}: step {step:,} of {steps:,} after a run of {log.steps:,} steps: more than "
                           "one run in one log")
    if step < log.last_step:
        raise DamagedInput(f"line {number}: step {step:,} after step {log.last_step:,}: more than one run in one log")
    seconds = _value(found[4], number) / (1e3 if unit == b"ms" else 1.0)
    if not math.isfinite(seconds):
        raise DamagedInput(f"line {number}: {plain(found[4].decode(), 40)!r} is no time")
    log.steps, log.last_step = steps, step
    average = found[6] or b""
    warming_up = average.startswith((b"nan", b"inf"))
    if not warming_up:  # after the warm-up the clock restarts
        last, largest = log._latest
        if seconds < largest - ROUNDING and not log.fault:
            log.fault = f"train time goes back: {seconds:g} s at step {step:,} after {largest:g} s at step {last:,}"
        log._latest = step, max(seconds, largest)
    if found[3] is None:
        return
    value = _value(found[3], number)
    if step == log.last_evaluated:
        if (value, seconds) == (log.final, log.seconds):  # written twice, to the file and to the console
            return
        log.fault = log.fault or f"two evaluations at step {step:,}"
    if len(log.curve) >= MAX_EVALUATIONS:
        raise DamagedInput(f"line {number}: more than {MAX_EVALUATIONS:,} evaluations")
    log.curve.append(PublishedPoint(seconds=seconds, value=value if math.isfinite(value) else None))
    log.last_evaluated, log.final, log.seconds = step, value, seconds
    if step == steps and warming_up:
        log.fault = log.fault or f"step_avg is {average.decode()} at its end, as if all of it were warm-up"
    log.fault = log.fault or _other_unit(step, seconds, average)


def _other_unit(step: int, seconds: float, average: bytes) -> str:
    """Compare the time with `step_avg` (which may leave out some warm-up steps): two units differ by a thousand."""
    found = re.fullmatch(rb"([0-9.]+)(ms|s)", average)
    if found is None or step < 100:
        return ""
    expected = float(found[1]) * (1e-3 if found[2] == b"ms" else 1.0) * step
    if expected <= 0 or 0.1 < seconds / expected < 10:
        return ""
    return (f"a unit cannot be right: {seconds:g} s at step {step:,}, where step_avg {average.decode()} gives "
            f"{expected:.4g} s")


def _value(text: bytes, number: int) -> float:
    try:
        return float(text)
    except ValueError:
        raise DamagedInput(f"line {number}: {plain(text.decode('utf-8', 'replace'), 40)!r} is no number") from None
