"""CodeCarbon in a separate process: one per node, at idle priority, offline.

It reads `start` and `stop` from standard input and answers each with a line of JSON on standard output. It ends when
its input ends, so it cannot outlive the run. `energy_meter` starts it with a reduced environment: CodeCarbon would read
settings, for example a server to send to, from the user's home, the working folder and variables.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any

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
