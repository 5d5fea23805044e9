"""Runs a small suite again and again, lets planned faults happen to it, resumes it, and checks what must hold.

    python -m tests.chaos.drive --faults 200 --seed 1 [--engine slow|ddp] [--folder DIR]

Each trial counted once; nothing that had ended lost or changed; no process left; no lock and no half-written file left;
resuming completes; every figure as in an undisturbed run (engine `slow`, whose figures are exact).
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

import repro
from repro import registry
from repro.lock import NAME
from repro.resume import RERUN
from repro.store import read_record
from tests.chaos import faults
from tests.chaos.faults import Fault

ROOT = Path(repro.__file__).parents[1]
PLUGINS = Path(__file__).parent / "plugins"
SUITE = """\
suite: chaos
seeds: {seeds}
on_failure: rerun
attempts: 10
trial:
  workload: {workload}
  processes: {processes}
  batch: {{global: 64}}
  optimizer: {{kind: sgd, lr: 0.05}}
  stop: {{metric: top1, target: {target}, max_epochs: 6}}
  evaluate_every: {every}
  device: cpu
  timeout_seconds: 60
  stall_seconds: {stall}
matrix:
  engine: {engines}
"""
SETTINGS: dict[str, dict[str, Any]] = {
    "slow": {"workload": "digits", "processes": 2, "target": 0.9, "every": 256, "stall": 4,
             "engines": "[{kind: slow, samples_scale: 500}, {kind: slow, samples_scale: 500, step_seconds: 0.02}]"},
    "ddp": {"workload": "digits-mlp", "processes": 2, "target": 0.85, "every": 720, "stall": 8, "engines": "[ddp]"},
}


class Broken(AssertionError):
    """Something that must hold does not."""


@dataclass
class Tally:
    """What happened."""

    faults: Counter[str] = field(default_factory=Counter)
    missed: int = 0
    """Faults that came too late to hit anything."""
    folders: int = 0
    starts: int = 0
    trials: int = 0
    attempts: Counter[str] = field(default_factory=Counter)

    def text(self, seconds: float) -> str:
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(self.faults.items()))
        ends = ", ".join(f"{count} {status}" for status, count in sorted(self.attempts.items()))
        return (f"{sum(self.faults.values())} faults injected ({kinds}); {self.missed} came too late\n"
                f"{self.folders} runs in {self.starts} starts, {self.trials} trials, attempts: {ends}\n"
                f"0 invariants broken, {seconds:.0f} s")


@dataclass
class Drive:
    """One suite, run and disturbed in a folder until all faults of a plan have happened."""

    folder: Path
    engine: str = "slow"
    seeds: int = 2
    small: bool = False
    """The folder is a small file system of its own, which may be filled."""
    tally: Tally = field(default_factory=Tally)
    control: dict[str, dict[str, Any]] = field(default_factory=dict)
    ended: dict[str, bytes] = field(default_factory=dict)

    def undisturbed(self) -> None:
        """What the suite comes to when nothing happens to it."""
        run = self.folder / "control"
        process = self._start(run)
        _, said = process.communicate(timeout=600)
        _must(process.returncode in (0, 3), f"the undisturbed run ended with {process.returncode}: {said}")
        self.control = self._figures(run)
        shutil.rmtree(run)

    def go(self, planned: list[Fault]) -> Tally:
        """Let every fault happen; as many runs as that takes."""
        left, number = list(planned), 0
        while left:
            run = self.folder / f"run{number}"
            number += 1
            self.ended = {}
            self._through(run, left)
            self.tally.folders += 1
            shutil.rmtree(run)
        return self.tally

    def _through(self, run: Path, left: list[Fault]) -> None:
        """One run, from its start to its last trial, with faults as long as there are some left."""
        for _ in range(100):
            process = self._start(run)
            self._disturb(process, run, left)
            try:
                _, said = process.communicate(timeout=180)
            except subprocess.TimeoutExpired:
                process.kill()
                raise Broken(f"{run}: did not end within 180 s") from None
            self._after(process, run, said)
            if process.returncode in (0, 3):
                return self._complete(run)
        raise Broken(f"{run}: not complete after 100 starts")

    def _start(self, run: Path) -> subprocess.Popen[str]:
        begun = (run / "plan.json").is_file()
        if not begun and run.is_dir():
            for path in sorted(run.rglob("*"), reverse=True):  # killed before there was a plan: nothing to resume
                path.rmdir() if path.is_dir() else path.unlink()
        (self.folder / "suite.yaml").write_text(SUITE.format(seeds=self.seeds, **SETTINGS[self.engine]))
        what = ["--resume", str(run)] if begun else [str(self.folder / "suite.yaml"), "--out", str(run)]
        path = os.pathsep.join([str(ROOT), str(PLUGINS)])
        self.tally.starts += 1
        return subprocess.Popen(
            [sys.executable, "-m", "repro", "run", *what, "--no-mlflow"], stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL, cwd=self.folder,
            env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        )

    def _disturb(self, process: subprocess.Popen[str], run: Path, left: list[Fault]) -> None:
        while left and process.poll() is None:
            if not _ranks_run(process, run):
                continue
            fault = left[0]
            time.sleep(fault.wait_seconds)
            before = _ledger_lines(run)
            self._note_ended(run)
            if not faults.inflict(fault, process.pid, run):
                self.tally.missed += process.poll() is None
                continue
            left.pop(0)
            self.tally.faults[fault.kind] += 1
            while process.poll() is None and _ledger_lines(run) <= before:
                time.sleep(0.02)  # until it has had its effect

    def _note_ended(self, run: Path) -> None:
        """Results that stand: they must be there to the end, byte for byte."""
        for path in run.glob("trials/*/result.json"):
            text = path.read_bytes()
            if json.loads(text)["status"] not in RERUN:
                self.ended.setdefault(path.parent.name, text)

    def _after(self, process: subprocess.Popen[str], run: Path, said: str) -> None:
        """What must hold however a run ended."""
        faults.ballast(run).unlink(missing_ok=True)
        _must("Traceback" not in said and "internal error" not in said, f"{run}: {said}")
        _must("cannot be resumed" not in said, f"{run}: {said}")
        _must(process.returncode in (0, 1, 2, 3, 130, -9, -2), f"{run}: exit code {process.returncode}: {said}")
        _must(process.returncode == -9 or not (run / NAME).exists(), f"{run}: lock left: {said}")
        late = time.monotonic() + 10
        while (orphans := _orphans(process.pid)) and time.monotonic() < late:
            time.sleep(0.05)
        _must(not orphans, f"{run}: processes left: {orphans}")
        if process.returncode == 130 and "killed; what has ended" not in said:
            _must((run / "report" / "report.html").is_file(), f"{run}: interrupted once, and no report: {said}")
        for name, text in self.ended.items():
            path = run / "trials" / name / "result.json"
            _must(path.is_file() and path.read_bytes() == text, f"{path}: a result that stood was lost or changed")
        if (run / "environment.json").is_file():
            read_record(run)

    def _complete(self, run: Path) -> None:
        """What must hold of a run that says it is complete."""
        record = read_record(run)
        _must(not record.missing(), f"{run}: trials missing")
        _must(not (run / NAME).exists(), f"{run}: lock left")
        _must(not list(run.rglob(".*.tmp")), f"{run}: half-written files left")
        keys = [(item.trial_id, item.attempt) for item in record.attempts]
        _must(len(keys) == len(set(keys)), f"{run}: an attempt twice in the ledger")
        for result in record.results:
            same = [item for item in record.attempts if item.trial_id == result.trial_id]
            good = [item for item in same if item.status in ("ok", "missed")]
            name, numbers = f"{run}: {result.trial_id}", [item.attempt for item in same]
            _must(len(good) == 1 and good[0].attempt == result.attempt, f"{name} counted {len(good)} times")
            _must(numbers == list(range(1, len(same) + 1)), f"{name}: attempts not numbered in a row")
            self.tally.attempts.update(item.status for item in same)
            self.tally.trials += 1
        if self.control:
            _must(self._figures(run) == self.control, f"{run}: figures differ from the undisturbed run")

    def _figures(self, run: Path) -> dict[str, dict[str, Any]]:
        """Every result without what may differ: which attempt it is of, and clocks where they are real."""
        drop = {"attempt", "reason"}
        if self.engine != "slow":
            return {item.trial_id: {"hashes": item.hashes,
                                    "curve": [(point.samples, point.value) for point in item.curve]}
                    for item in read_record(run).results}
        return {item.trial_id: item.model_dump(mode="json", exclude=drop) for item in read_record(run).results}


def _must(holds: bool, problem: str) -> None:
    if not holds:
        raise Broken(problem)


def _ranks_run(process: subprocess.Popen[str], run: Path) -> bool:
    """Wait until all ranks of a trial are there; False: the run ended before."""
    while process.poll() is None:
        if len(faults.ranks_of(process.pid)) >= 2 and (run / "ledger.jsonl").is_file():
            return True
        time.sleep(0.02)
    return False


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


def know_the_engine() -> None:
    """Make the engine `slow` known to this process too: it reads the records."""
    sys.path.insert(0, str(PLUGINS))
    registry._third_party.cache_clear()


def main() -> None:
    know_the_engine()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--faults", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--engine", choices=sorted(SETTINGS), default="slow")
    parser.add_argument("--seeds", type=int, default=6, help="repeats of every cell")
    parser.add_argument("--folder", type=Path, help="a small file system of its own, which may be filled")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=asked.folder) as folder:
        drive = Drive(Path(folder), asked.engine, asked.seeds)
        kinds = faults.KINDS if asked.folder else tuple(kind for kind in faults.KINDS if kind != "full disk")
        begin = time.monotonic()
        drive.undisturbed()
        tally = drive.go(faults.plan(asked.seed, asked.faults, 2, kinds))
        print(tally.text(time.monotonic() - begin))


if __name__ == "__main__":
    main()
