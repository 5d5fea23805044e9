"""One world's suite, run and disturbed until every planned fault has happened."""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import repro
from repro.bundle.verify import verify
from repro.core.errors import ReproError
from repro.record.folder import index as record_index
from repro.record.folder.ledger import Attempt, read_attempts
from repro.record.folder.lock import NAME
from repro.record.folder.store import read_record
from repro.record.result.results import Result
from repro.record.result.status import meaning
from tests.chaos import faults
from tests.chaos.faults import ANY_TIME, BETWEEN, SIGNALS, UNSEEN, Fault
from tests.chaos.observed import (
    _allowed,
    _checkpoint_kept,
    _identity,
    _kept,
    _ledger_lines,
    _namespaces,
    _orphans,
    _ranks_run,
)
from tests.chaos.server import Server, doubled, points
from tests.chaos.tally import Broken, Tally
from tests.chaos.worlds import World

ROOT = Path(repro.__file__).parents[1]
PLUGINS = Path(__file__).parent / "plugins"
LATE_SHARE = 0.8
"""Share of faults in a world with resumed trials that wait until the running trial has a checkpoint."""
ENDED = ("ok", "missed", "lost")
"""Statuses of attempts that need no other, and of those whose checkpoints went when they had ended."""
RESUMED = ("warnings",)
"""The part of a result about its resumption from a checkpoint."""
ENDS_SECONDS = 300
"""Seconds that a start may need on a busy machine."""


@dataclass
class Drive:
    """One world's suite, run and disturbed in a folder until all faults of a plan have happened."""

    folder: Path
    world: World
    seeds: int | None = None
    control: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The results of the suite without faults."""
    server: Server | None = None
    until: float = math.inf
    """Monotonic time after which no more faults happen; the run that they happened to is brought to its end."""
    tally: Tally = field(default_factory=Tally)
    ended: dict[str, bytes] = field(default_factory=dict)
    """Accepted results, by trial."""
    lost: dict[str, int] = field(default_factory=dict)
    """Attempts that were damaged after their end, by trial."""
    owed: set[tuple[str, int]] = field(default_factory=set)
    """(trial, attempt) that had kept a checkpoint when something was done to it."""
    torn: set[str] = field(default_factory=set)
    """Trials whose log was cut: a checkpoint that has such a log is passed over."""
    spaces: set[tuple[str, str]] = field(default_factory=set)
    """(network namespace, who is in it) of the start that runs; the kernel gives numbers again, also to other lanes."""
    signalled: str = ""
    """The signal that was sent to it."""
    lasts: float = 10.0
    """Seconds that a start takes which begins a run and comes to its own end."""

    def undisturbed(self) -> dict[str, dict[str, Any]]:
        run = self.folder / "control"
        process = self._start(run)
        said = process.communicate(timeout=600)[1]
        self._must("control", process.returncode == 0, f"the undisturbed run ended with {process.returncode}: {said}")
        found = self._figures(run)
        shutil.rmtree(run)
        return found

    def go(self, planned: Sequence[Fault]) -> Tally:
        """Let every fault happen; as many runs as that takes."""
        left = list(planned)
        while left:
            run = self.folder / f"run{self.tally.folders}"
            self.ended, self.lost, self.owed, self.torn = {}, {}, set(), set()
            self._through(run, left)
            self.tally.folders += 1
            shutil.rmtree(run)
        return self.tally

    def _through(self, run: Path, left: list[Fault]) -> None:
        """One run, from its start to its last trial, with faults as long as there are some left."""
        used_up = False
        for _ in range(60):
            fresh, begin = not run.exists(), time.monotonic()
            process = self._start(run, used_up)
            self.spaces = set()
            self._disturb(process, run, left)
            try:
                said = process.communicate(timeout=ENDS_SECONDS)[1]
            except subprocess.TimeoutExpired:
                process.kill()
                raise Broken(f"{run}: did not end within {ENDS_SECONDS} s") from None
            if fresh and process.returncode in (0, 1, 3):
                self.lasts = time.monotonic() - begin
            self._after(process, run, said)
            if not self._damage(run, left) and process.returncode in (0, 3):
                return self._complete(run)
            used_up = process.returncode == 1  # a trial failed as often as its suite allows, all by our doing
        raise Broken(f"{run}: not complete after 60 starts")

    def _start(self, run: Path, used_up: bool = False) -> subprocess.Popen[str]:
        begun = (run / "plan.json").is_file()
        if not begun and run.is_dir():
            shutil.rmtree(run)  # killed before there was a plan: nothing to resume
        suite = self.folder / "suite.yaml"
        if not suite.is_file():
            suite.write_text(self.world.suite(self.seeds))
        again = ["--rerun-failed"] if used_up else []
        what = ["run", *(["--resume", str(run), *again] if begun else [str(suite), "--out", str(run)])]
        self.tally.starts += 1
        return self._repro(*what, *([] if self.server else ["--no-mlflow"]))

    def _repro(self, *arguments: str, **more: str) -> subprocess.Popen[str]:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(PLUGINS)]), "OMP_NUM_THREADS": "1",
                       "MLFLOW_DISABLE_TELEMETRY": "true"}
        if self.server:
            environment["MLFLOW_TRACKING_URI"] = self.server.uri
        return subprocess.Popen(
            [sys.executable, "-m", "repro", *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
            stdin=subprocess.DEVNULL, cwd=self.folder, env=environment | more,
        )

    def _command(self, *arguments: str, **more: str) -> tuple[int, str]:
        process = self._repro(*arguments, **more)
        said = process.communicate(timeout=ENDS_SECONDS)[1]
        return process.returncode, said

    # ---- faults

    def _disturb(self, process: subprocess.Popen[str], run: Path, left: list[Fault]) -> None:
        """Faults that need ranks that run, one after the other, each when the one before has had its effect."""
        self.signalled = ""
        if time.monotonic() > self.until:
            left.clear()
        while (fault := next((item for item in left if item.kind not in BETWEEN), None)) and process.poll() is None:
            if fault.kind in ANY_TIME:
                self._any_time(fault, process, run, left)
                continue
            if not _ranks_run(process, run):
                continue
            if time.monotonic() > self.until:
                left.clear()
                return
            wait_seconds = fault.wait_seconds
            if self.world.resumes and fault.share < LATE_SHARE:
                if not _checkpoint_kept(process, run):
                    continue
                wait_seconds /= 1 if self.world.real else 3  # invented trials have half a second left by then
            time.sleep(wait_seconds)
            before = _ledger_lines(run)
            self._note_ended(run)
            kept = _kept(run)
            if self.world.launcher != "local":
                self.spaces |= faults.namespaces_of(process.pid)
            if not self._inflict(fault, process, run):
                self.tally.missed += process.poll() is None
                time.sleep(0.1)
                continue
            self.owed |= kept
            if fault.kind == "truncate log":
                self.torn |= {path.parent.name for path in run.glob("trials/*/result_*.txt")}
            left.remove(fault)
            self.tally.faults[fault.kind] += 1
            late = time.monotonic() + ENDS_SECONDS
            while process.poll() is None and time.monotonic() < late and fault.kind not in UNSEEN and (
                    _ledger_lines(run) <= before or fault.kind in (*SIGNALS, "full disk")):
                time.sleep(0.05)

    def _any_time(self, fault: Fault, process: subprocess.Popen[str], run: Path, left: list[Fault]) -> None:
        """At a random moment of the start, all equally likely."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(fault.share * self.lasts)
        self._note_ended(run)
        kept = _kept(run)
        if process.poll() is not None or not self._inflict(fault, process, run):
            self.tally.missed += 1
            self.lasts *= 0.9  # starts that go on are shorter: in the end it must come
            return
        self.owed |= kept
        left.remove(fault)
        self.tally.faults[fault.kind] += 1
        with contextlib.suppress(subprocess.TimeoutExpired):  # reported by the next wait
            process.wait(ENDS_SECONDS)

    def _inflict(self, fault: Fault, process: subprocess.Popen[str], run: Path) -> bool:
        if fault.kind == "kill tracking server":
            return self.server is not None and self.server.kill()
        done = faults.inflict(fault, process.pid, run)
        self.signalled = fault.kind if done and fault.kind in (*SIGNALS, "terminate any time") else ""
        return done

    def _damage(self, run: Path, left: list[Fault]) -> bool:
        """Inflict a fault that needs a run without a writer; return True if there was one."""
        done = False
        while fault := next((item for item in left if item.kind in BETWEEN), None):
            self._note_ended(run)
            whole = [name for name in sorted(self.ended) if name not in self.lost or self.lost[name] == 0]
            if not whole:
                break
            name = whole[int(fault.share * 1e6) % len(whole)]
            left.remove(fault)
            self.tally.faults[fault.kind] += 1
            self.lost[name] = json.loads(self.ended.pop(name))["attempt"]
            self._refused(run, fault, name)
            done = True
        return done

    def _refused(self, run: Path, fault: Fault, name: str) -> None:
        """Every reader names a damaged file in one line; there is no other effect."""
        file = faults.damage(fault, run / "trials" / name)
        found = verify(run)
        place = f"trials/{name}/"
        self._must("damage is named", any(item.place.startswith(place) for item in found.problems),
                   f"{run}: {place}{file} was cut, and verify says {[item.text() for item in found.problems]}")
        if fault.kind == "cut result":
            try:
                read_record(run)
            except ReproError as error:
                named = any(f"{other}/{file}" in str(error) for other in self.lost)  # the first of those that are cut
                self._must("one line", named and "\n" not in str(error), f"{run}: {error}")
            else:
                raise Broken(f"{run}: {place}{file} was cut, and the record was read")

    def _note_ended(self, run: Path) -> None:
        """Accepted results must stay to the end, byte for byte."""
        for path in run.glob("trials/*/result.json"):
            name = path.parent.name
            text = path.read_bytes()
            try:
                found = Result.model_validate_json(text)
            except ValueError:
                if name in self.lost:
                    continue  # damaged by us
                raise
            if not meaning(found.status).reruns and found.attempt > self.lost.get(name, 0):
                self.ended.setdefault(name, text)

    # ---- what must hold

    def _must(self, what: str, holds: bool, problem: str) -> None:
        self.tally.checks[what] += 1
        if not holds:
            raise Broken(f"{self.world.name}: {problem}")

    def _after(self, process: subprocess.Popen[str], run: Path, said: str) -> None:
        """Check the invariants of a run after any end."""
        faults.ballast(run).unlink(missing_ok=True)
        code = process.returncode
        self._must("no traceback", "Traceback" not in said and "internal error" not in said, f"{run}: {said}")
        self._must("can be resumed", "cannot be resumed" not in said, f"{run}: {said}")
        self._must("exit code", code in _allowed(self.signalled), f"{run}: exit code {code}, signal "
                   f"{self.signalled}: {said}")
        cut = code in (-signal.SIGKILL, -signal.SIGTERM)
        self._must("no lock", cut or not (run / NAME).exists(), f"{run}: lock left: {said}")
        late = time.monotonic() + 15
        while (orphans := _orphans(process.pid)) and time.monotonic() < late:
            time.sleep(0.1)
        self._must("no process", not orphans, f"{run}: processes left: {orphans}")
        while (kept := self.spaces & _namespaces()) and time.monotonic() < late:
            time.sleep(0.1)
        if self.world.launcher != "local":
            self._must("no namespace", not kept, f"{run}: namespaces left: {kept}")
        if code == 130 and "killed; completed trials" not in said and (run / "environment.json").is_file():
            self._must("report", (run / "report" / "report.html").is_file(), f"{run}: interrupted, no report: {said}")
        for name, text in self.ended.items():
            path = run / "trials" / name / "result.json"
            self._must("nothing lost", path.is_file() and path.read_bytes() == text,
                       f"{path}: an accepted result was lost or changed")
        if (run / "environment.json").is_file() and not self._still_damaged(run):
            read_record(run)
            problems = [item.text() for item in verify(run).problems if not (cut and item.place == record_index.NAME)]
            self._must("partial record sound", not problems, f"{run}: {problems}")

    def _still_damaged(self, run: Path) -> bool:
        """Return True if a start was ended before it could set aside the damaged files."""
        told = {(item.trial_id, item.attempt) for item in read_attempts(run / "ledger.jsonl") if item.status == "lost"}
        return any(attempt and (name, attempt) not in told for name, attempt in self.lost.items())

    def _complete(self, run: Path) -> None:
        """Check the invariants of a run that is reported complete."""
        record = read_record(run)
        self._must("complete", not record.missing(), f"{run}: trials missing")
        self._must("no lock", not (run / NAME).exists(), f"{run}: lock left")
        self._must("no half file", not list(run.rglob(".*.tmp")), f"{run}: half-written files left")
        for result in record.results:
            same = [item for item in read_attempts(run / "ledger.jsonl") if item.trial_id == result.trial_id]
            good = [item for item in same if item.status in ("ok", "missed")]
            name, numbers = f"{run}: {result.trial_id}", [item.attempt for item in same]
            self._must("counted once", len(good) == 1 and good[0].attempt == result.attempt,
                       f"{name} counted {len(good)} times")
            self._must("attempts in a row", sorted(numbers) == list(range(1, len(same) + 1)), f"{name}: {numbers}")
            self._went_on(name, result, same)
            gone = [item.attempt for item in same if item.status == "lost"]
            wanted = [self.lost[result.trial_id]] if result.trial_id in self.lost else []
            self._must("only the damaged again", gone == wanted, f"{name}: attempts {gone} lost, {wanted} were damaged")
            self.tally.attempts.update(item.status for item in same)
            self.tally.trials += 1
        if self.control:
            self._must("as undisturbed", self._figures(run) == self.control,
                       f"{run}: figures differ from an undisturbed run's")
        code, said = self._command("verify", str(run))
        self._must("repro verify", code == 0, f"{run}: repro verify ends with {code}: {said}")
        if self.server:
            self._tracked(run)

    def _went_on(self, name: str, result: Result, same: Sequence[Attempt]) -> None:
        """The attempt after one that failed with a checkpoint resumes from it, and the result records this."""
        if not self.world.resumes:
            self._must("from its start", not any(item.resumed_from for item in same), f"{name} was resumed unasked")
            return
        torn = result.trial_id in self.torn
        after = {item.attempt: item.resumed_from or (torn and item.passed_over) for item in same}
        for item in same:
            if (result.trial_id, item.attempt) in self.owed and item.status not in ENDED:
                self._must("from its checkpoint", bool(after.get(item.attempt + 1)),
                           f"{name}: attempt {item.attempt} {item.status} with a checkpoint kept, and the next one "
                           "started again")
            if item.resumed_from:
                self.tally.resumed[item.status] += 1
        good = next(item for item in same if item.attempt == result.attempt)
        self._must("says so", bool(result.resumed) == bool(good.resumed_from),
                   f"{name}: resumed from {good.resumed_from!r}, and the result says {result.resumed}")

    def _figures(self, run: Path) -> dict[str, dict[str, Any]]:
        """Every result without what may differ: which attempt it is of, and clocks where they are real."""
        results = read_record(run).results
        if self.world.real:
            return {item.trial_id: {"hashes": item.hashes, "curve": [(at.samples, at.value) for at in item.curve]}
                    for item in results}
        drop = {"attempt", "reasons", "network", *(RESUMED if self.world.resumes else ())}
        found = {item.trial_id: item.model_dump(mode="json", exclude=drop) for item in results}
        for figures in found.values():
            figures["phases"].pop("lost", None)  # nothing, on a separate clock
        return found

    def _tracked(self, run: Path) -> None:
        """The server has the same points as a replay into a separate store, each once."""
        assert self.server is not None
        self.server.wait()
        code, said = self._command("report", str(run), "--to", "mlflow")
        self._must("replay", code == 0, f"{run}: the remaining replay ends with {code}: {said}")
        alone = self.folder / "alone.db"
        code, said = self._command("report", str(run), "--to", "mlflow", MLFLOW_TRACKING_URI=f"sqlite:///{alone}")
        self._must("replay", code == 0, f"{run}: the replay to a new store ends with {code}: {said}")
        name = _identity(run)
        have, wanted = points(self.server.database, name), points(alone, name)
        alone.unlink()
        self._must("every point once", bool(wanted) and have == wanted, f"{run}: {len(wanted - have)} of {len(wanted)} "
                   f"points are missing on the server, {len(have - wanted)} are there that should not be")
        twice = doubled(self.server.database, name)
        self._must("no point twice", not twice, f"{run}: {twice[:3]}")
        self.tally.checks["points"] += sum(wanted.values())
