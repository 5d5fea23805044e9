"""The parent: plan -> launch -> collect -> report. It knows neither what an engine is nor what a report looks like."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from repro.core.errors import (
    CheckpointRefused,
    Exit,
    GuardError,
    OutputError,
    ParityError,
    ReproError,
    interrupter,
)
from repro.core.events import read_events
from repro.core.files import read_model, write_json, write_model, write_text
from repro.core.machine import Machine
from repro.core.throttle import ThrottleWatch
from repro.record import damaged, environment, post_mortem, resume
from repro.record.checkpoint import Checkpoints, Resumption
from repro.record.derive import derive, with_energy
from repro.record.energy import Energy
from repro.record.environment import DataSet, Environment
from repro.record.index import seal_again, unseal
from repro.record.ledger import Attempt
from repro.record.results import RERUN, Result
from repro.record.store import Record, RunFolder, read_record
from repro.runner import preflight
from repro.runner.energy_meter import EnergyMeter
from repro.runner.monitor import Monitor
from repro.seams.launching import Launcher, LaunchRequest, LaunchResult
from repro.seams.training import Engine, Workload
from repro.suite.cell import Cell
from repro.suite.identity import canonical
from repro.suite.model import Trial
from repro.suite.plan import Plan
from repro.worker import parity

FAILED = ("crashed", "hung", "timed_out", "out_of_memory", "invalid")
STOPPED_WORDS = {"crashed": "crashed", "hung": "hung", "timed_out": "ran into its time limit",
                 "out_of_memory": "ran out of memory", "invalid": "left an invalid log"}
WORKER = "repro.worker.main:main"
PARITY_WORKER = "repro.worker.gate_worker:main"
SYNC_SECONDS = 15.0


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
    sync_seconds: float = SYNC_SECONDS
    """Least time between two replays to the tracking server while trials run."""
    force: bool = False
    """Go on with a run also where machine or code are not what they were."""
    again: bool = False
    """Also start trials again that crashed or hung."""
    strict: bool = False
    """Refuse, or stop, where a guard would warn."""
    befell: Sequence[tuple[str, str]] = ()
    """Incidents (kind, text) from before this start, to be written once it is known that the run may go on."""
    energy: EnergyMeter | None = None
    """None: no energy is tracked."""
    begun: bool = False
    """Whether this start has written into the folder: one that was refused has not."""
    _launchers: dict[str, Launcher] = field(default_factory=dict)
    _synced: float = field(default_factory=time.monotonic)
    _clock: preflight.ClockWatch = field(default_factory=preflight.ClockWatch)
    _throttle: ThrottleWatch = field(default_factory=ThrottleWatch)

    def execute(self) -> Record:
        """Run every trial of the plan that has not ended yet; the record, read back from disk.

        Raises:
            ParityError: two engines do not train alike; no trial was timed.
            TrialError: the data are not what the workload declares.
            UsageError: a run is to go on that began on another machine.
            GuardError: strict, and something would spoil the figures.
        """
        self.watcher.stage("checking data and starting processes")
        now = environment.take(self.machine, tuple(data_sets(self.plan)))
        other, spoiling = self._checked(now)
        with ExitStack() as stack:
            self._reopen(stack)
            stack.callback(self._close)
            self._environment(now, other, spoiling)
            record = read_record(self.folder.root)
            trials = resume.to_do(record, self.again)
            # Once something differed a checkpoint may be of there or of here, whatever this start is like.
            elsewhere = bool(other) or any(item.kind == "difference" for item in record.incidents)
            self._drop_checkpoints(record, trials, elsewhere)
            if not trials:
                return record
            if record.attempts:
                done = len(self.plan.order) - len(trials)
                text = f"went on after {done} of {len(self.plan.order)} trials had ended"
                self.folder.append_incident("resumed", text)
            self._open()
            if self.tracking:
                self.tracking.sync()
            if not self._parity_stands(record):
                self._parity(begun=bool(record.attempts))
            if self.tracking:
                self.tracking.sync(wait_seconds=30.0)
                if self.tracking.problem:
                    self.watcher.stage(f"mlflow: {self.tracking.problem}; the run goes on without")
            self._trials(record, trials)
        return read_record(self.folder.root)

    def _checked(self, now: Environment) -> tuple[list[str], list[str]]:
        """(how machine and code differ from those the run began with, what of the machine speaks against it)."""
        load = max(now.load_1min or 0.0, preflight.load_now() or 0.0) if self.strict else None
        found = preflight.before(self.plan, self.machine, self.folder.root, load)
        if self.strict and found:
            raise GuardError(f"--strict: this machine is not fit for the run: {'; '.join(found)}")
        if not self.folder.environment.is_file():
            return [], found
        other = resume.differences(read_model(self.folder.environment, Environment), now)
        resume.refuse(self.folder.root, other, self.force)
        return other, found

    def _reopen(self, stack: ExitStack) -> None:
        """Take away what a killed writer left half done and the index, which no longer holds; set damage aside.

        Args:
            stack: told to make the index anew, whatever ends the run, this function included.
        """
        found = damaged.find(self.folder, self.plan)
        self.begun = True  # from here on the folder is written; who was refused has left it as it was
        damaged.set_aside(self.folder, found)
        stack.callback(seal_again, self.folder)
        unseal(self.folder)
        self.folder.mend()
        damaged.write_down(self.folder, self.plan, found)
        damaged.settle(self.folder, self.plan)
        for item in found:
            self.watcher.stage(f"warning: {item.trial_id}: {item.why}; set aside, the trial is run again")
        for kind, text in self.befell:
            self.folder.append_incident(kind, text)

    def _drop_checkpoints(self, record: Record, trials: list[Trial], elsewhere: bool) -> None:
        """Of trials that have ended: whoever was killed right after the result could not remove them.

        Args:
            elsewhere: machine or code are, or were at a start between, not what the run began with. No trial is then
                measured half there, half here: those to come begin anew.
        """
        if elsewhere:
            self._forget(trials)
        waiting = {trial.trial_id for trial in trials}
        for result in record.results:
            if result.trial_id not in waiting and result.status not in RERUN:
                Checkpoints(self.folder.checkpoints(result.trial_id)).remove()

    def _forget(self, trials: list[Trial]) -> None:
        """Take away the checkpoints of trials to come; for another machine or other code they are none.

        Raises:
            OutputError: one cannot be taken away.
        """
        for trial in trials:
            kept = Checkpoints(self.folder.checkpoints(trial.trial_id))
            names = kept.names()
            kept.remove()
            if left := kept.names():
                raise OutputError(f"{kept.root / left[0]}: may be of another machine or other code, and cannot be "
                                  "removed")
            if names:
                self._warn("checkpoint", f"{names[0]} may be of another machine or other code: the trial begins anew",
                           trial.trial_id)

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
        self._throttle.device = self.plan.device
        self._throttle.begin()
        for number, trial in enumerate(trials, ended + 1):
            failed, attempt = resume.failures(record, trial.trial_id), record.next_attempt(trial.trial_id)
            while True:
                result = self._trial(number, len(self.plan.order), trial, attempt)
                if result is None:  # it was to go on from a checkpoint that it refused: the one before, or none
                    attempt += 1
                    continue
                failed += result.status in RERUN
                if result.status not in RERUN or not resume.may_run_again(self.plan, failed):
                    break
                text = f"attempt {attempt} {result.status} ({result.reason}); started again"
                if self.plan.suite.keeps_checkpoints:
                    text += ", from its last checkpoint where there is one"
                self._warn("rerun", text, trial.trial_id)
                attempt += 1
            if self.plan.suite.on_failure == "stop" and result.status in FAILED:
                text = f"stopped after a trial that {STOPPED_WORDS[result.status]}, as the suite's on_failure says"
                self._warn("stopped", text, trial.trial_id)
                return

    def _guard(self, trial_id: str) -> None:
        """Between trials: whether the clock was set, the machine slept, or something held it back."""
        found = [("clock", text) for text in self._clock.look()]
        found += [("throttled", text) for text in self._throttle.look()]
        for kind, text in found:
            self._warn(kind, f"{text} while this trial ran", trial_id)
        if self.strict and found:
            raise GuardError(f"--strict: {found[0][1]} during {trial_id}; what has run is kept")

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

    def launch(self, trial: Trial, entry: str, folder: Path, payload: dict[str, Any]) -> LaunchResult:
        """Start one entry point on all ranks of a trial.

        Args:
            payload: its `spent_seconds`, if any, have gone of the trial's time limit already.
        """
        choices = trial.choices
        launcher = self._launchers[canonical(choices.launcher)]
        folder.mkdir(parents=True, exist_ok=True)
        payload = {
            **payload, "trial": trial.model_dump(mode="json", by_alias=True),
            "simulated": choices.engine.kind == "fake", "launched_ns": time.monotonic_ns(),
        }
        progress = folder / payload["log"] if "log" in payload else None
        left = choices.timeout_seconds - payload.get("spent_seconds", 0.0)
        then = post_mortem.before(folder)
        try:
            outcome = launcher.launch(LaunchRequest(
                entry=entry, payload=payload, processes=choices.processes, device=choices.device, folder=folder,
                timeout_seconds=left, stall_seconds=choices.stall_seconds, progress=progress,
            ))
        finally:
            post_mortem.hide(folder)
        return post_mortem.explained(outcome, then)

    def _parity_stands(self, record: Record) -> bool:
        """Whether the gate was passed at an earlier start, by this very code on this machine."""
        elsewhere = any(item.kind == "difference" for item in record.incidents)
        return parity.passed(self.plan, record.parity) and not elsewhere

    def _parity(self, begun: bool) -> None:
        """Run the gate.

        Args:
            begun: trials of this run have been started before.

        Raises:
            ParityError: it was not passed.
        """
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
                              f"no {'more trials are' if begun else 'trial was'} timed")

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

    def _trial(self, number: int, count: int, trial: Trial, attempt: int) -> Result | None:
        """One start of one trial; None: it refused the checkpoint that it was to go on from, which is gone now."""
        cell = next(cell for cell in self.plan.cells if cell.cell_id == trial.cell_id)
        self.watcher.trial_started(number, count, trial, cell)
        self.folder.trial(trial.trial_id).mkdir(parents=True, exist_ok=True)
        write_model(self.folder.trial_file(trial.trial_id), trial)
        kept = Checkpoints(self.folder.checkpoints(trial.trial_id))
        point, passed = self._point(trial, kept)
        start = _Start(trial, attempt, round(time.time() * 1e3), time.monotonic(), _named(point), "; ".join(passed))
        outcome = self._ranks(start, kept, point)
        late: KeyboardInterrupt | None = None
        used: Energy | None = None
        try:
            used = self.energy.stop() if self.energy is not None else None
        except KeyboardInterrupt as error:
            late = error
        # One that cannot be taken away would be refused for ever: that attempt counts as one that crashed.
        if point is not None and (refusal := refused(outcome)) and kept.refuse(point.path.name):
            self.folder.append_attempt(start.ended("refused", refusal))
            self._warn("checkpoint", refusal, trial.trial_id)
            if late is not None:
                raise late
            return None
        try:
            result = self._keep(start, outcome, used)
        except KeyboardInterrupt as error:
            result, late = self._keep(start, outcome, used), error
        if result.status not in RERUN:
            kept.remove()
        if late is not None:  # this trial had ended: only the ones to come are not run
            raise late
        self.watcher.trial_ended(result, time.monotonic() - start.monotonic)
        self._guard(trial.trial_id)
        self._between(wait_seconds=5.0)
        return result

    def _ranks(self, start: _Start, kept: Checkpoints, point: Resumption | None) -> LaunchResult:
        """An attempt from its line in the ledger to the end of its ranks.

        Raises:
            KeyboardInterrupt: a signal ended it; the ledger says so.
            ReproError: it could not be launched; the ledger says so.
        """
        trial = start.trial
        log = self.folder.log(trial.trial_id, start.attempt)
        try:
            # Written before the launch: an end that nobody lives to write down still leaves the start.
            self.folder.append_attempt(start.ended("started", "the run ended before this attempt did"))
            if self.energy is not None:
                self.energy.start()
            spent = _spent(trial, point)
            if point is not None and spent >= trial.choices.timeout_seconds:
                with suppress(OSError):  # all that is known of a trial that no rank goes on with
                    log.write_bytes(point.log())
                return LaunchResult((), spent, timed_out=True)
            with Monitor(log, self.folder.system_log(trial.trial_id, start.attempt), self.watcher.trial_ticked,
                         self._live):
                outcome = self.launch(trial, WORKER, self.folder.trial(trial.trial_id), {
                    "log": log.name, "attempt": start.attempt, "checkpoints": self._keeping(trial, kept, point),
                    "spent_seconds": spent,
                })
            return replace(outcome, seconds=outcome.seconds + spent) if outcome.timed_out else outcome
        except KeyboardInterrupt as error:
            self.folder.append_attempt(start.ended("interrupted", interrupter(error)))
            raise
        except ReproError as error:
            self.folder.append_attempt(start.ended("not_launched", str(error)))
            raise

    def _keep(self, start: _Start, outcome: LaunchResult, used: Energy | None) -> Result:
        """The result of an attempt whose ranks have ended, into its file and into the ledger; may be done again."""
        trial, attempt = start.trial, start.attempt
        log = self.folder.log(trial.trial_id, attempt)
        result = derive(trial, attempt, read_events(log)[0], outcome)
        if outcome.timed_out and not outcome.ends:
            limit = trial.choices.timeout_seconds
            reason = (f"nothing was left of its time limit of {limit:g} s when it went on: {outcome.seconds:.0f} s "
                      "had passed since it was first started")
            result = result.model_copy(update={"reason": reason})
        if outcome.ok and (damage := post_mortem.damage(log)):
            # Not invalid: that is a trial that was another one than asked for. This one's record was lost.
            result = Result(trial_id=trial.trial_id, cell_id=trial.cell_id, repeat=trial.repeat, attempt=attempt,
                            status="crashed", reason=f"{damage}, though every rank ended well")
        if used is not None:
            result = with_energy(result, used)
        elif self.energy is not None:
            problem = self.energy.problem or "was interrupted"
            self._warn("energy", f"no energy is known of this trial: the tracker {problem}", trial.trial_id)
        write_model(self.folder.result(trial.trial_id), result)
        self.folder.append_attempt(start.ended(result.status, result.reason))
        return result

    def _point(self, trial: Trial, kept: Checkpoints) -> tuple[Resumption | None, list[str]]:
        """Where a trial goes on from (None: from its start), and what of newer checkpoints forbids it."""
        if not self._keeps(trial):
            return None, []
        kept.tidy()
        point, passed = kept.newest(trial.trial_id, trial.choices.processes)
        for text in passed:
            self._warn("checkpoint", text, trial.trial_id)
        return point, passed

    def _keeps(self, trial: Trial) -> bool:
        return self.plan.suite.keeps_checkpoints and trial.choices.engine.get(Engine).checkpoints

    def _keeping(self, trial: Trial, kept: Checkpoints, point: Resumption | None) -> dict[str, Any] | None:
        """What the ranks are told of checkpoints; None: they keep none."""
        if not self._keeps(trial):
            return None
        return {
            "folder": kept.root.name, "every": self.plan.suite.checkpoint_every,
            "resume": point.path.name if point else None, "shift_ns": point.shift_ns if point else 0,
            "clock": point.clock if point else "monotonic",
        }

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
    resumed_from: str = ""
    passed_over: str = ""

    def ended(self, status: str, reason: str) -> Attempt:
        """The line of the ledger that says how it ended."""
        return Attempt(
            trial_id=self.trial.trial_id, cell_id=self.trial.cell_id, repeat=self.trial.repeat, attempt=self.attempt,
            started_ms=self.started_ms, seconds=round(time.monotonic() - self.monotonic, 3), status=status,
            reason=reason, resumed_from=self.resumed_from, passed_over=self.passed_over,
        )


def _spent(trial: Trial, point: Resumption | None) -> float:
    """Seconds of its time limit that a trial has used before it goes on; 0 for one on a clock of its engine's own."""
    if point is None or not trial.choices.engine.get(Engine).needs_parts:
        return 0.0
    return max(0.0, point.spent_seconds())


def _named(point: Resumption | None) -> str:
    """A checkpoint as the ledger says it."""
    return f"{point.path.name} of attempt {point.checkpoint.attempt}" if point else ""


def refused(outcome: LaunchResult) -> str:
    """What a rank found wrong with the checkpoint that it was to go on from; "" where it found nothing."""
    prefix = f"{CheckpointRefused.__name__}: "
    return next((end.reason.removeprefix(prefix) for end in outcome.ends if end.reason.startswith(prefix)), "")


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
    """Modules that the ranks of this plan will need, in order, each once.

    An engine without parts trains nothing: its optimizer and workload name modules that no rank of it touches.
    """
    modules = [name for cell in plan.cells for choice in cell.choices.plugins() for name in choice.plugin.preload
               if choice.seam in ("engine", "launcher") or cell.choices.engine.get(Engine).needs_parts]
    return list(dict.fromkeys([*modules, "repro.worker.main", "repro.worker.gate_worker"]))


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
            source=identity.source, synthetic=workload.synthetic, test_views=workload.test_views,
        )


def why(outcome: LaunchResult) -> str:
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


