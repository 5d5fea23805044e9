"""Step time of a program under `repro.watch` over that of the same program without, single steps in turn.

The program is a process of its own; this one reads its pipe while it trains, as the supervisor of a trial does.
"""

from __future__ import annotations

import importlib.util
import json
import os
import select
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import fmean, median

from repro.bench.trial import BenchOutcome, outcome
from repro.core.errors import TrialError
from repro.core.frozen import Frozen
from repro.program.watch_reader import WatchPipe, WatchReader

STEP_MS = 10.0
PAIRS = 2000
LIMIT = 1.01
"""Ratio promised for steps of `STEP_MS`."""
CALL_LIMIT_US = 20.0
"""Mean processor time of a call of `watch.step`, promised."""
ARMS = {"watch": None, "huggingface": "transformers", "accelerate": "accelerate", "lightning": "lightning"}
"""Ways of reporting, with the package that each needs."""
OFFLINE = {"TRANSFORMERS_OFFLINE": "1", "HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "DO_NOT_TRACK": "1"}


class WatchOverhead(BenchOutcome):
    """The ratio of one arm, and what a call costs."""

    arm: str
    report_us: float
    """Mean processor time of a report over that of none, with the writes to the pipe that fall into some of them: who
    else wants the processor meanwhile does not change it."""
    report_median_us: float
    """Median time of a report on the wall clock."""
    report_p99_us: float
    lines: int
    """Lines that arrived."""
    load: tuple[float, float]
    """Load of the machine (1 min) before and after."""

    def text(self) -> str:
        promised = f"; promised: at most {CALL_LIMIT_US:g}" if self.arm == "watch" else ""
        return "\n".join([
            super().text(),
            f"  a report takes {self.report_us:.3g} us of the processor (mean, writes included{promised})",
            f"  and {self.report_median_us:.3g} us of the wall clock (median), 99 % within {self.report_p99_us:.3g} us",
            f"  {self.lines} lines arrived",
            f"  load of the machine (1 min): {self.load[0]:.2f} before, {self.load[1]:.2f} after",
        ])


class ProgramOverhead(Frozen):
    """All arms that could be measured."""

    arms: tuple[WatchOverhead, ...]
    missing: tuple[str, ...]
    """Arms whose package is not installed."""

    def text(self) -> str:
        return "\n".join([
            *(arm.text() for arm in self.arms),
            *(f"{name}: not measured, {ARMS[name]} is not installed" for name in self.missing)])


def measure(pairs: int, milliseconds: float = STEP_MS) -> ProgramOverhead:
    """Time `pairs` steps each way, of every arm whose package is installed.

    Raises:
        TrialError: the measured program failed.
    """
    missing = tuple(name for name, package in ARMS.items() if package and importlib.util.find_spec(package) is None)
    return ProgramOverhead(arms=tuple(_arm(name, pairs, milliseconds) for name in ARMS if name not in missing),
                           missing=missing)


def _arm(name: str, pairs: int, milliseconds: float) -> WatchOverhead:
    before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as scratch, WatchPipe(Path(scratch)) as pipe:
        file = Path(scratch, "seconds.json")
        command = [sys.executable, "-m", "repro.bench.watched_steps", name, str(pairs), str(milliseconds)]
        lines = _run([*command, str(file)], pipe)
        found: dict[str, list[float]] = json.loads(file.read_text())
    watched, bare = ([1e3 * seconds for seconds in found[key]] for key in ("watched", "bare"))
    reports = sorted(found["watched report"])
    of = "a loop" if name == "watch" else f"a loop of {ARMS[name]}"
    made = outcome(f"repro.watch in {of}, steps of {milliseconds:g} ms, watched and bare in turn in one process",
                   ("watched", watched), ("bare", bare), "ms per step", LIMIT)
    return WatchOverhead(**made.model_dump(), arm=name, lines=lines, load=(before, os.getloadavg()[0]),
                         report_us=1e6 * (fmean(found["watched processor"]) - fmean(found["bare processor"])),
                         report_median_us=1e6 * median(reports), report_p99_us=1e6 * reports[int(0.99 * len(reports))])


def _run(command: list[str], pipe: WatchPipe) -> int:
    """Run the program to its end, reading its pipe; return the number of lines."""
    environment = {name: value for name, value in os.environ.items() if name != "RANK"}
    with tempfile.TemporaryFile("w+") as output:
        program = subprocess.Popen(command, env=environment | OFFLINE | pipe.environment, stdout=output, stderr=output)
        try:
            reader, count, lines = WatchReader(), 0, pipe.lines()
            while lines or program.poll() is None:
                select.select([pipe], [], [], 0.05)
                lines = pipe.lines()
                for line in lines:
                    reader.take(line)
                count += len(lines)
            reader.close()
        finally:
            program.kill()
            program.wait()
        if program.returncode:
            output.seek(0)
            raise TrialError(f"the benchmark failed: {(output.read().strip() or 'no output').splitlines()[-1]}")
    return count
