"""Observations of a run from outside: its ranks, checkpoints, ledger, namespaces."""

from __future__ import annotations

import importlib
import json
import signal
import subprocess
import time
from pathlib import Path

import psutil

from repro.record.folder.store import read_record
from tests.chaos import faults


def _allowed(signalled: str) -> set[int]:
    """Exit codes of a start that was sent this signal."""
    if not signalled:
        return {0, 1, 2, 3, 130, -signal.SIGKILL}
    if signalled == "terminate any time":  # also before the command line answers to signals, and after
        return {0, 3, 130, -signal.SIGTERM}
    return {0, 3, 130, -signal.SIGINT} if signalled == "interrupt twice" else {0, 3, 130}


def _identity(run: Path) -> str:
    return str(importlib.import_module("repro.reporters.tracking.state").identity(read_record(run)))


def _ranks_run(process: subprocess.Popen[str], run: Path) -> bool:
    """Wait until all ranks of a trial are there; False: the run ended before."""
    while process.poll() is None:
        if len(faults.ranks_of(process.pid)) >= 2 and (run / "ledger.jsonl").is_file():
            return True
        time.sleep(0.05)
    return False


def _checkpoint_kept(process: subprocess.Popen[str], run: Path) -> bool:
    """Wait until the running attempt has written a checkpoint; False: its ranks, or the run, ended before."""
    while process.poll() is None and len(faults.ranks_of(process.pid)) >= 2:
        if any(_by(path) == _attempt(path) for path in run.glob("trials/*/checkpoints")):
            return True
        time.sleep(0.01)
    return False


def _by(checkpoints: Path) -> int | None:
    """The attempt that wrote the newest of a trial's checkpoints; None: there is none, or it is gone again."""
    try:
        return int(json.loads((max(checkpoints.glob("step_*")) / "checkpoint.json").read_bytes())["attempt"])
    except (ValueError, OSError):
        return None


def _attempt(checkpoints: Path) -> int:
    """The last attempt of the trial that these checkpoints are of; in the ledger before its ranks are started."""
    lines = (checkpoints.parents[2] / "ledger.jsonl").read_text().splitlines(keepends=True)
    told = [json.loads(line) for line in lines if line.endswith("\n")]
    return max((item["attempt"] for item in told if item["trial_id"] == checkpoints.parent.name), default=0)


def _kept(run: Path) -> set[tuple[str, int]]:
    """(trial, attempt) of the running attempt if it has a complete checkpoint."""
    return {(path.parent.name, _attempt(path)) for path in run.glob("trials/*/checkpoints")
            if any(path.glob("step_*/checkpoint.json"))}


def _ledger_lines(run: Path) -> int:
    try:
        return (run / "ledger.jsonl").read_bytes().count(b"\n")
    except OSError:
        return 0


def _orphans(owner: int) -> list[str]:
    """Processes that belong to a run whose launching process was `owner`."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("REPRO_OWNER", "").startswith(f"{owner}:") and \
                    process.status() != psutil.STATUS_ZOMBIE:
                found.append(f"{process.pid} {' '.join(process.cmdline())[:80]}")
        except (psutil.Error, OSError):
            continue
    return found


def _namespaces() -> set[tuple[str, str]]:
    """Return (network namespace, process) for every process that is in one or holds it open."""
    found = set()
    for pid in psutil.pids():
        try:
            who = faults.who(pid)
            found.add((faults.net_of(pid), who))
            held = [str(path.readlink()) for path in Path(f"/proc/{pid}/fd").iterdir()]
        except OSError:
            continue
        found |= {(name, who) for name in held if name.startswith("net:[")}
    return found
