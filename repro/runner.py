"""The parent: plan -> launch -> collect -> report. It knows neither what an engine is nor what a report looks like."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from repro import fingerprint, guards, lost, parity, post_mortem, resume
from repro.errors import Exit, GuardError, ParityError, ReproError
from repro.events import read_events
from repro.fingerprint import DataSet, Environment
from repro.machine import Machine
from repro.monitor import Monitor
from repro.plan import Cell, Plan
from repro.results import Result, derive
from repro.seams import Engine, Launcher, Order, Outcome, Workload
from repro.spec import Trial, canonical
from repro.store import Attempt, Record, RunFolder, read_model, read_record, write_json, write_model, write_text
from repro.sums import seal, unseal

FAILED = ("crashed", "hung", "timed_out", "out_of_memory", "invalid")
STOPPED_WORDS = {"crashed": "crashed", "hung": "hung", "timed_out": "ran into its time limit",
                 "out_of_memory": "ran out of memory", "invalid": "left an invalid log"}
WORKER = "repro.worker:main"
PARITY_WORKER = "repro.parity_worker:main"


class Watcher(Protocol):
    """What wants to hear how a run goes (a terminal, a test)."""

    def stage(self, text: str) -> None:
        """A part of the run other than a trial begins."""

    def trial_started(self, number: int, count: int, trial: Trial, cell: Cell) -> None: ...
    def trial_ticked(self, value: float | None, epochs: float, samples_per_second: float | None) -> None: ...
    def trial_ended(self, result: Result, seconds: float) -> None: ...


class Tracking(Protocol):
    """A tracking server's reader of the run folder, working in a process of its own."""

    def sync(self, wait_seconds: float = 0.0) -> None:
        """Ask for a replay of what is new; wait for it at most so long."""

    @property
    def problem(self) -> str:
        """Why the last replay failed; "" when it did not."""


@dataclass(slots=True)
class Run:
    """One execution of a plan."""

    plan: Plan
    folder: RunFolder
    machine: Machine
    watcher: Watcher
    tracking: Tracking | None = None
    sync_seconds: float = 15.0
    """Least time between two replays to the tracking server while trials run."""
    force: bool = False
    """Go on with a run also where machine or code are not what they were."""
    again: bool = False
    """Also start trials again that crashed or hung."""
    strict: bool = False
    """Refuse, or stop, where a guard would warn."""
    befell: Sequence[tuple[str, str]] = ()
    """Incidents (kind, text) from before this start, to be written once it is known that the run may go on."""
    _launchers: dict[str, Launcher] = field(default_factory=dict)
    _synced: float = field(default_factory=time.monotonic)
    _clock: guards.ClockWatch = field(default_factory=guards.ClockWatch)

    def execute(self) -> Record:
        """Run every trial of the plan that has not ended yet; the record, read back from disk.

        Raises:
            ParityError: two engines do not train alike; no trial was timed.
            TrialError: the data are not what the workload declares.
            UsageError: a run is to go on that began on another machine.
            GuardError: strict, and something would spoil the figures.
        """
        self.watcher.stage("checking data and starting processes")
        now = fingerprint.take(self.machine, tuple(data_sets(self.plan)))
        other, spoiling = self._checked(now)
        with ExitStack() as stack:
            self._reopen()  # from here on the folder is written; who was refused has left it as it was
            stack.callback(seal, self.folder)  # whatever ends the run: what there is then is what is told apart later
            stack.callback(self._close)
            self._environment(now, other, spoiling)
            record = read_record(self.folder.root)
            trials = resume.to_do(record, self.again)
            if not trials:
                return record
            if record.attempts:
                done = len(self.plan.order) - len(trials)
                text = f"went on after {done} of {len(self.plan.order)} trials had ended"
                self.folder.append_incident("resumed", text)
            self._open()
            if self.tracking:
                self.tracking.sync()
            self._parity()
            if self.tracking:
                self.tracking.sync(wait_seconds=30.0)
                if self.tracking.problem:
                    self.watcher.stage(f"mlflow: {self.tracking.problem}; the run goes on without")
            self._trials(record, trials)
        return read_record(self.folder.root)

    def _checked(self, now: Environment) -> tuple[list[str], list[str]]:
        """(how machine and code differ from those the run began with, what of the machine speaks against it)."""
        found = guards.before(self.plan, self.machine, self.folder.root, now.load_1min if self.strict else None)
        if self.strict and found:
            raise GuardError(f"--strict: this machine is not fit for the run: {'; '.join(found)}")
        if not self.folder.environment.is_file():
            return [], found
        other = resume.differences(read_model(self.folder.environment, Environment), now)
        resume.refuse(self.folder.root, other, self.force)
        return other, found

    def _reopen(self) -> None:
        """Take away what a killed writer left half done and the index, which no longer holds; set damage aside."""
        found = lost.find(self.folder, self.plan)
        lost.set_aside(self.folder, found)
        unseal(self.folder)
        self.folder.mend()
        lost.write_down(self.folder, self.plan, found)
        lost.settle(self.folder, self.plan)
        for item in found:
            self.watcher.stage(f"warning: {item.trial_id}: {item.why}; set aside, the trial is run again")
        for kind, text in self.befell:
            self.folder.append_incident(kind, text)

    def _environment(self, now: Environment, other: list[str], spoiling: list[str]) -> None:
        """What this run is made with, or how it no longer is; and what of the machine speaks against it."""
        if not self.folder.environment.is_file():
            write_model(self.folder.environment, now)
        for text in other:
            self.folder.append_incident("difference", text)
        for text in spoiling:
            self._warn("machine", text)

    def _warn(self, kind: str, text: str, trial_id: str = "") -> None:
        """Into the record and to whoever watches."""
        self.folder.append_incident(kind, text, trial_id)
        self.watcher.stage(f"warning: {text}")

    def _trials(self, record: Record, trials: list[Trial]) -> None:
        """Start each trial, as often as the suite says."""
        ended = len(self.plan.order) - len(trials)
        for number, trial in enumerate(trials, ended + 1):
            failed, attempt = resume.failures(record, trial.trial_id), record.next_attempt(trial.trial_id)
            while True:
                result = self._trial(number, len(self.plan.order), trial, attempt)
                failed += result.status in resume.RERUN
                if result.status not in resume.RERUN or not resume.may_run_again(self.plan, failed):
                    break
                text = f"attempt {attempt} {result.status} ({result.reason}); started again"
                self._warn("rerun", text, trial.trial_id)
                attempt += 1
            if self.plan.suite.on_failure == "stop" and result.status in FAILED:
                text = f"stopped after a trial that {STOPPED_WORDS[result.status]}, as the suite's on_failure says"
                self._warn("stopped", text, trial.trial_id)
                return

    def _guard(self, trial_id: str) -> None:
        """Between trials: whether the clock was set or the machine slept."""
        for text in self._clock.look():
            self._warn("clock", f"{text} while this trial ran", trial_id)
            if self.strict:
                raise GuardError(f"--strict: {text} during {trial_id}; what has run is kept")

    def _open(self) -> None:
        modules = preload(self.plan)
        for cell in self.plan.cells:
            launcher = cell.choices.launcher.get(Launcher)
            key = canonical(cell.choices.launcher)
            if key not in self._launchers:
                self._launchers[key] = launcher
                launcher.open(modules, self.plan.device)
            self._launchers[key].prepare(cell.choices.processes)
        if self.folder.launchers.is_file():
            return  # a run that goes on: what its first start took stands
        seconds = [known for item in self._launchers.values() if (known := item.preload_seconds) is not None]
        write_json(self.folder.launchers, {"preload_seconds": sum(seconds) if seconds else None})

    def _close(self) -> None:
        for launcher in self._launchers.values():
            launcher.close()

    def launch(self, trial: Trial, entry: str, folder: Path, payload: dict[str, Any]) -> Outcome:
        """Start one entry point on all ranks of a trial."""
        choices = trial.choices
        launcher = self._launchers[canonical(choices.launcher)]
        folder.mkdir(parents=True, exist_ok=True)
        payload = {
            **payload, "trial": trial.model_dump(mode="json", by_alias=True),
            "simulated": choices.engine.kind == "fake", "launched_ns": time.monotonic_ns(),
        }
        progress = folder / payload["log"] if "log" in payload else None
        then = post_mortem.before(folder)
        outcome = launcher.launch(Order(
            entry=entry, payload=payload, processes=choices.processes, device=choices.device, folder=folder,
            timeout_seconds=choices.timeout_seconds, stall_seconds=choices.stall_seconds, progress=progress,
        ))
        return post_mortem.explained(outcome, then)

    def _parity(self) -> None:
        groups = parity.groups(self.plan)
        if not groups:
            write_json(self.folder.parity_verdict, {"needed": False, "why": parity.why_not(self.plan)})
            return
        findings: list[dict[str, Any]] = []
        for group in groups:
            self.watcher.stage(f"parity gate: {group.title}")
            findings += self._parity_group(group)
            write_json(self.folder.parity_verdict, {"needed": True, "tolerance": parity.TOLERANCE,
                                                    "steps": parity.STEPS, "findings": findings})
        bad = next((item for item in findings if item["problem"]), None)
        if bad:
            raise ParityError(f"parity gate: {bad['candidate']} against {bad['reference']}: {bad['problem']}; "
                              "no trial was timed")

    def _parity_group(self, group: parity.Group) -> list[dict[str, Any]]:
        members = (group.reference, *group.candidates)
        traces = {member.trial_id: self._traces(member, member.trial_id, 0.0) for member in members}
        findings = parity.judge_group(group, traces)
        if not any(item["problem"] for item in findings):
            return findings
        # Before anybody is accused: how far does the reference leave itself when its weights are off by rounding?
        again = self._traces(group.reference, f"{group.reference.trial_id}-disturbed", parity.DISTURBANCE)
        return parity.judge_group(group, traces, again[0])

    def _traces(self, member: Trial, name: str, disturbance: float) -> list[parity.Trace]:
        folder = self.folder.parity / name
        outcome = self.launch(member, PARITY_WORKER, folder, {"steps": parity.STEPS, "disturbance": disturbance})
        if not outcome.ok:
            raise ParityError(f"parity gate: {parity.name(member)} did not run: {why(outcome)} (logs in {folder})")
        return parity.read_traces(folder, member.choices.processes)

    def _trial(self, number: int, count: int, trial: Trial, attempt: int) -> Result:
        """One start of one trial."""
        cell = next(cell for cell in self.plan.cells if cell.cell_id == trial.cell_id)
        folder = self.folder.trial(trial.trial_id)
        self.watcher.trial_started(number, count, trial, cell)
        folder.mkdir(parents=True, exist_ok=True)
        write_model(self.folder.trial_file(trial.trial_id), trial)
        log = self.folder.log(trial.trial_id, attempt)
        start = _Start(trial, attempt, round(time.time() * 1e3), time.monotonic())
        # Written before the launch: an end that nobody lives to write down still leaves the start.
        self.folder.append_attempt(start.ended("started", "the run ended before this attempt did"))
        try:
            with Monitor(log, self.folder.system_log(trial.trial_id, attempt), self.watcher.trial_ticked, self._live):
                outcome = self.launch(trial, WORKER, folder, {"log": log.name})
        except KeyboardInterrupt:
            self.folder.append_attempt(start.ended("interrupted", "Ctrl-C"))
            raise
        except ReproError as error:
            self.folder.append_attempt(start.ended("not_launched", str(error)))
            raise
        result = derive(trial, attempt, read_events(log)[0], outcome)
        if outcome.ok and (damage := post_mortem.damage(log)):
            # Not invalid: that is a trial that was another one than asked for. This one's record was lost.
            result = Result(trial_id=trial.trial_id, cell_id=trial.cell_id, repeat=trial.repeat, attempt=attempt,
                            status="crashed", reason=f"{damage}, though every rank ended well")
        write_model(self.folder.result(trial.trial_id), result)
        self.folder.append_attempt(start.ended(result.status, result.reason))
        self.watcher.trial_ended(result, time.monotonic() - start.monotonic)
        self._guard(trial.trial_id)
        self._between(wait_seconds=5.0)
        return result

    def _live(self) -> None:
        """A long trial appears in the tracking server while it runs."""
        self._between(wait_seconds=0.0)

    def _between(self, wait_seconds: float) -> None:
        if self.tracking and time.monotonic() - self._synced > self.sync_seconds:
            self._synced = time.monotonic()
            self.tracking.sync(wait_seconds=wait_seconds)


@dataclass(frozen=True, slots=True)
class _Start:
    """An attempt that has begun."""

    trial: Trial
    attempt: int
    started_ms: int
    monotonic: float

    def ended(self, status: str, reason: str) -> Attempt:
        """The line of the ledger that says how it ended."""
        return Attempt(
            trial_id=self.trial.trial_id, cell_id=self.trial.cell_id, repeat=self.trial.repeat, attempt=self.attempt,
            started_ms=self.started_ms, seconds=round(time.monotonic() - self.monotonic, 3), status=status,
            reason=reason,
        )


def prepare(plan: Plan, suite_text: str, out: Path) -> RunFolder:
    """A new run folder with the plan in it.

    Raises:
        OutputError: it cannot be written, or holds something already.
    """
    folder = RunFolder.create(out)
    write_text(folder.suite, suite_text)
    write_model(folder.plan, plan)
    return folder


def preload(plan: Plan) -> list[str]:
    """Modules that the ranks of this plan will need, in order, each once."""
    modules = [name for cell in plan.cells for choice in cell.choices.plugins() for name in choice.plugin.preload]
    return list(dict.fromkeys([*modules, "repro.worker", "repro.parity_worker"]))


def data_sets(plan: Plan) -> Iterable[DataSet]:
    """Identity of every data set in the plan, its content checked.

    Raises:
        TrialError: the content is not what the workload declares.
    """
    seen: set[str] = set()
    for cell in plan.cells:
        choice = cell.choices.workload
        workload = choice.get(Workload)
        if canonical(choice) in seen or not cell.choices.engine.get(Engine).needs_parts:
            continue
        seen.add(canonical(choice))
        identity = workload.identity()
        yield DataSet(
            workload=choice.label, name=identity.name, version=identity.version, sha256=identity.sha256,
            train_samples=identity.train_samples, eval_samples=identity.eval_samples, licence=identity.licence,
            source=identity.source, synthetic=workload.synthetic,
        )


def why(outcome: Outcome) -> str:
    """The first rank that failed and its reason, in one line."""
    if outcome.timed_out:
        return f"timed out after {outcome.seconds:.0f} s"
    first = outcome.cause
    if first is None:
        return "no rank failed"
    tail = f"; its log ends: {first.tail}" if first.tail else ""
    return f"rank {first.rank}: {first.reason or f'exit code {first.exit_code}'}{tail}"


def exit_code(results: Iterable[Result], planned: int) -> Exit:
    """0 all reached their target; 1 a trial failed or is missing; 3 a target was missed."""
    statuses = [result.status for result in results]
    if len(statuses) < planned or any(status in FAILED for status in statuses):
        return Exit.TRIAL_FAILED
    return Exit.DONE if all(status == "ok" for status in statuses) else Exit.NOT_REPRODUCED


