"""The run's side of energy tracking: start the tracker's process, query it before and after every trial."""

from __future__ import annotations

import json
import logging
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pydantic import ValidationError

import repro
from repro.core.devices import SELECTORS
from repro.core.errors import UsageError
from repro.record.result.parts import Energy

READY_SECONDS, ANSWER_SECONDS = 90.0, 20.0
KEPT = ("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", *SELECTORS)
"""Environment variables that the tracker's process inherits."""


class EnergyMeter:
    """One tracker for one run; every query returns an answer or a reason, and none can stop a trial."""

    def __init__(self, command: tuple[str, ...] = (sys.executable, "-m", "repro.runner.energy_meter")) -> None:
        """Start the tracker.

        Raises:
            UsageError: CodeCarbon is not installed, or does not start.
        """
        self.needed()
        self._home = tempfile.TemporaryDirectory(prefix=PREFIX)
        self._child = subprocess.Popen(
            command, cwd=self._home.name, env=self._environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, text=True, bufsize=1, start_new_session=True,
        )
        self.problem = ""
        """Reason for a missing figure; "" if none is missing."""
        if self._answer(READY_SECONDS) is None:
            problem = self.problem
            self.close()
            raise UsageError(f"--energy: CodeCarbon's tracker {problem}; run without --energy")

    @staticmethod
    def needed() -> None:
        """Check that CodeCarbon is installed.

        Raises:
            UsageError: it is not.
        """
        if find_spec("codecarbon") is None:
            raise UsageError("--energy needs CodeCarbon, which is not installed: pip install 'repro-harness[energy]'")

    def _environment(self) -> dict[str, str]:
        kept = {name: os.environ[name] for name in KEPT if name in os.environ}
        root = str(Path(repro.__file__).resolve().parents[1])
        return {**kept, "HOME": self._home.name, "PYTHONPATH": os.pathsep.join([root, *filter(None, sys.path)]),
                "PYTHONSAFEPATH": "1", "OMP_NUM_THREADS": "1"}

    def start(self) -> None:
        """Begin to measure a trial."""
        self._ask("start")

    def stop(self) -> Energy | None:
        """Return the energy since `start`; None if the tracker gave no answer (`problem` says why)."""
        answer = self._ask("stop")
        try:
            return None if answer is None else Energy.model_validate(answer)
        except ValidationError as error:
            self.problem = f"answered {error.errors(include_url=False)[0]['msg']!r}"
            return None

    def close(self) -> None:
        """End the tracker's process."""
        if self._child.stdin:
            self._child.stdin.close()
        try:
            self._child.wait(5.0)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
        if self._child.stdout:
            self._child.stdout.close()
        self._home.cleanup()

    def _ask(self, word: str) -> dict[str, Any] | None:
        if self.problem:
            return None
        assert self._child.stdin is not None
        try:
            self._child.stdin.write(f"{word}\n")
            self._child.stdin.flush()
        except OSError:
            self.problem = "has ended"
            return None
        return self._answer(ANSWER_SECONDS)

    def _answer(self, patience: float) -> dict[str, Any] | None:
        """Read one line of JSON; None, and a problem, if none comes in time."""
        assert self._child.stdout is not None
        begin = time.monotonic()
        if not select.select([self._child.stdout], [], [], patience)[0]:
            self.problem = f"gave no answer for {time.monotonic() - begin:.0f} s"
            return None
        line = self._child.stdout.readline()
        if not line:
            self.problem = "has ended"
            return None
        try:
            answer = json.loads(line)
        except ValueError:
            self.problem = "gave an answer that is not JSON"
            return None
        return answer if isinstance(answer, dict) else None


PREFIX = "repro-energy-"
"""The prefix of the folder that serves as this process's home."""
JOULES = 3.6e6
"""A kilowatt-hour."""
COUNTRY = "FRA"
"""An offline tracker requires one; it affects emissions only, which are not used."""
NEVER = 1e9
"""Seconds between measurements in addition to the requested ones; the power of hardware without a counter is sampled
every second while a task runs, regardless of this value."""


def main() -> None:
    """Serve until standard input ends."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # the output of a library must not look like an answer
    os.nice(19)
    logging.disable(logging.CRITICAL)
    tracker, number, busy = _tracker(), 0, 0.0
    print(json.dumps({"ready": True}), file=answers)
    for line in sys.stdin:
        if line.strip() == "start":
            number, busy = number + 1, time.process_time()
            tracker.start_task(str(number))
            print(json.dumps({"started": number}), file=answers)
        elif line.strip() == "stop":
            data = tracker.stop_task(str(number))
            print(json.dumps(_answer(tracker, data, time.process_time() - busy)), file=answers)
    _leave(Path.cwd())


def _leave(home: Path) -> None:
    """Remove this process's home: a parent that was killed cannot do it."""
    if home.name.startswith(PREFIX) and os.environ.get("HOME") == str(home):
        shutil.rmtree(home, ignore_errors=True)


def _tracker() -> Any:
    from codecarbon import OfflineEmissionsTracker

    tracker = OfflineEmissionsTracker(
        country_iso_code=COUNTRY, output_methods=[], tracking_mode="machine", log_level="critical",
        measure_power_secs=NEVER, allow_multiple_runs=True,
    )
    tracker.start_task("first")  # detects the hardware, which takes seconds: not while a trial runs
    tracker.stop_task("first")
    return tracker


def _answer(tracker: Any, data: Any, busy: float) -> dict[str, Any]:
    from importlib.metadata import version

    parts = {}
    for hardware in tracker._hardware:
        name = type(hardware).__name__.lower()
        kind = next((kind for kind in ("cpu", "gpu", "ram") if kind in name), "cpu")
        provenance, how = _how(kind, hardware)
        parts[kind] = {"joules": getattr(data, f"{kind}_energy") * JOULES, "provenance": provenance, "how": how}
    measured = bool(parts) and all(part["provenance"] == "measured" for part in parts.values())
    return {
        "joules": data.energy_consumed * JOULES, "provenance": "measured" if measured else "modelled", "parts": parts,
        "seconds": data.duration, "tool": f"CodeCarbon {version('codecarbon')}", "observer_seconds": busy,
    }


def _how(kind: str, hardware: Any) -> tuple[str, str]:
    """Return (measured or modelled, by which counter or model)."""
    if kind == "gpu":
        return "measured", "NVML energy counter"
    if kind == "ram":
        return "modelled", "a constant by size and number of modules"
    mode, watts = str(getattr(hardware, "_mode", "")), getattr(hardware, "_tdp", None)
    if mode == "intel_rapl":
        return "measured", "RAPL counters"
    if mode == "cpu_load":
        return "modelled", f"by load, {watts} W nominal"
    return "modelled", f"{mode or 'unknown'}, {watts} W nominal"


if __name__ == "__main__":
    main()
