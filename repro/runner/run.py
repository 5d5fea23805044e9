"""One execution of a plan: session, preflight checks, parity gate, trials. It depends on no engine and on no report."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from repro.compare.runs.asked import asked_before
from repro.core.errors import Exit, OutputError, ReproError, interrupter
from repro.core.files import write_model, write_text
from repro.core.machine import Machine
from repro.record.environment.differences import Difference, other_code
from repro.record.environment.environment import Environment
from repro.record.environment.plugin_code import PluginCode, plugin_code
from repro.record.folder import resume
from repro.record.folder.index import seal_again, unseal
from repro.record.folder.ledger import ADJUSTED_MS
from repro.record.folder.lock import RunLock
from repro.record.folder.resume import began_elsewhere, require_same, require_unmodified, trials_to_run
from repro.record.folder.store import Record, RunFolder, read_record
from repro.record.folder.stored_code import copy_code, keep_code
from repro.record.hopeless import HopelessRule
from repro.record.result.results import Result
from repro.record.result.status import meaning
from repro.runner import preflight
from repro.runner.attempt import TrialStarter, remove_useless
from repro.runner.context import Options, RunContext, Watcher
from repro.runner.energy_meter import EnergyMeter
from repro.runner.gate import ParityGate
from repro.runner.launching import Launchers
from repro.runner.machine_watch import MachineWatch, only_run_that_times
from repro.runner.node_history import NodeHistory
from repro.runner.preflight import Preflight
from repro.runner.program_gate import ProgramTraces, states_gate
from repro.runner.signals import Interrupts
from repro.runner.tracking import Replays, Tracker
from repro.runner.trials import Looks, Trials
from repro.suite.model import Trial
from repro.suite.planning.plan import Plan


@dataclass(frozen=True, slots=True)
class Findings:
    """Findings of a session before a run starts, recorded as soon as the run is known to be allowed."""

    stale_lock: str = ""
    """The ended owner whose lock was replaced; "" if there was none."""
    differences: tuple[Difference, ...] = ()
    """Differences of plan and record with which the run is resumed by `--force`."""


@contextmanager
def unsealed(context: RunContext, damage: Sequence[resume.Damaged]) -> Iterator[None]:
    """Open the folder for writing: repair it, remove the index that no longer holds; seal it at the end.

    Raises:
        OutputError: the folder cannot be written.
    """
    folder, plan = context.folder, context.plan
    resume.set_aside(folder, damage)
    try:
        unseal(folder)
        folder.mend()
        resume.record_set_aside(folder, plan, damage)
        resume.complete_ledger(folder, plan)
        resume.describe_again(folder, plan)
        for item in damage:
            context.watcher.stage(f"warning: {item.trial_id}: {item.why}; set aside, the trial runs again")
        yield
    finally:
        seal_again(folder)


def record_start(context: RunContext, findings: Findings, preflight: Preflight) -> None:
    """Record the environment, or its differences from the first start, and the warnings of the checks."""
    folder = context.folder
    if findings.stale_lock:
        folder.append_incident("lock", f"the lock of {findings.stale_lock}, which no longer runs, was replaced")
    if not folder.environment.is_file():
        write_model(folder.environment, preflight.environment)
        if load := preflight.environment.high_load:
            context.watcher.stage(f"warning: the load is {load:g} on {preflight.environment.cores} cores; other work "
                                  "slows trials down, some more than others")
        if asked := asked_before(context.plan):
            context.warn("asked", asked)
    for item in (*findings.differences, *preflight.differences):
        folder.append_incident("difference", item.text, difference=item.kind)
    for text in preflight.warnings:
        context.warn("machine", text)


def record_edits(context: RunContext, began_with: Sequence[PluginCode]) -> None:
    """Record the plug-ins whose source is no longer that with which this execution began.

    A rank imports what the fork server has not, so trials before and after the edit may have run different code.
    """
    try:
        found = list(other_code(began_with, plugin_code(context.plan, context.folder.root)))
    except OSError as error:
        found = [f"the source of a plug-in can no longer be read ({error.strerror})"]
    for text in found:
        context.warn("edited", f"{text}; it was edited during the run, so trials may have run different code")


@dataclass(slots=True)
class Run:
    """One execution of a plan; a resumed run has several."""

    # Six are given; the other three are its own.

    plan: Plan
    folder: RunFolder
    machine: Machine
    watcher: Watcher
    options: Options = field(default_factory=Options)
    tracking: Tracker | None = None
    is_settled: Callable[[int], bool] | None = None
    """Tells after the trials of some repeats whether the run ends; None: it runs its whole plan."""
    launchers: Launchers = field(default_factory=Launchers, init=False)
    watch: MachineWatch = field(default_factory=MachineWatch, init=False)
    has_written: bool = field(default=False, init=False)
    """False: this execution was refused and left the folder unmodified."""

    def execute(self, findings: Findings | None = None) -> Record:
        """Run every trial of the plan that has not ended yet; return the record, read back from disk.

        Args:
            findings: incidents before this execution, to be recorded if it is not refused.

        Raises:
            ParityError: two engines do not train alike; no trial was timed.
            TrialError: the data are not what the workload declares.
            UsageError: the run began on another machine or with other code.
            GuardError: strict, and the machine would spoil the figures.
        """
        context = RunContext(self.plan, self.folder, self.watcher)
        with ExitStack() as stack:
            waited = stack.enter_context(only_run_that_times(self.watcher.stage, self.plan.kind == "shard"))
            self.watcher.stage("checking data and starting processes")
            meter = stack.enter_context(closing(EnergyMeter())) if self.options.energy else None
            checked = preflight.check(self.plan, self.machine, self.folder, self.options)
            damage = resume.find(self.folder, self.plan)
            self.has_written = True
            stack.enter_context(unsealed(context, damage))
            record_start(context, findings or Findings(), checked)
            if waited:
                text = f"{waited:.1f} s for another run that timed its trials on this machine"
                self.folder.append_incident("waited", text)
            stack.callback(record_edits, context, checked.environment.plugins)  # before the folder is sealed
            record = read_record(self.folder.root)
            trials = trials_to_run(record, self.options.again)
            remove_useless(context, record, trials, began_elsewhere(record))
            looks = Looks.of(context, record.looks, trials, self.options.budget_seconds, self.is_settled)
            if not trials:
                looks.end_before(None)
                return read_record(self.folder.root)
            self.folder.clear_cache()
            stack.callback(self.folder.clear_cache)  # after the launchers are closed
            stack.callback(self.launchers.close)
            self._run(context, record, trials, meter, looks, checked.environment)
        return read_record(self.folder.root)

    def _run(
        self, context: RunContext, record: Record, trials: list[Trial], meter: EnergyMeter | None, looks: Looks,
        environment: Environment,
    ) -> None:
        """Open the launchers, pass the gate, run the trials."""
        if record.attempts:
            done = len(self.plan.order) - len(trials)
            # Between two executions no watch sees that the clock is set.
            newest = max((*(item.started_ms for item in record.starts), *(item.at_ms for item in record.incidents)),
                         default=0)
            if (behind_ms := newest - time.time() * 1e3) > ADJUSTED_MS:
                context.warn("clock", f"the wall clock was set back by {behind_ms / 1e3:.0f} s or more before the run "
                                      "was resumed")
            self.folder.append_incident("resumed", f"resumed after {done} of {len(self.plan.order)} trials had ended")
        nodes = NodeHistory(context, self.launchers, environment, record.node_history)
        nodes.begin(self.launchers.open(self.plan, self.folder.root, self.watcher.stage))
        replays = Replays(self.tracking, self.watcher)
        replays.begin()
        gate = ProgramTraces(context) if states_gate(self.plan) else ParityGate(context, self.launchers)
        gate.require(record)
        replays.wait_for_first()
        starter = TrialStarter(context, self.launchers, nodes, replays, meter, HopelessRule.of(self.plan))
        Trials(context, starter, self.watch, self.options.strict, looks).run(record, trials)


def prepare(plan: Plan, suite_text: str, out: Path, brought: Path | None = None) -> RunFolder:
    """Create a run folder that holds the plan, and the source of its classes from files and of its programs.

    Args:
        brought: folder with the source that a record brings; None: the plan was made from files of this machine.

    Raises:
        OutputError: it cannot be written, or is not empty.
    """
    return fill(RunFolder.create(out), plan, suite_text, brought)


def dated(name: str) -> Path:
    """Return the folder of a run that is made now."""
    return Path("runs") / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"


def fill(folder: RunFolder, plan: Plan, suite_text: str, brought: Path | None = None) -> RunFolder:
    """Write what `prepare` does into a folder that exists; the plan last, so that a folder with a plan is whole.

    Raises:
        OutputError: it cannot be written.
    """
    if brought is not None:
        copy_code(brought, folder.code, plan)
    else:
        keep_code(folder.code, plan)
    base = base_of(folder.root, plan)
    write_text(folder.suite, suite_text)
    write_model(folder.plan, plan.model_copy(update={"base": base}))
    return folder


def base_of(root: Path, plan: Plan) -> str:
    """Return the folder of a plan's suite relative to the folder of its run; "": it runs stored source."""
    return os.path.relpath(root.resolve() / plan.base, root.resolve()) if plan.base else ""


def has_begun(folder: RunFolder) -> bool:
    """Return True if the gate was reached in this folder, or a trial."""
    reached = (folder.parity, folder.parity_verdict, folder.shards, folder.solo.root)
    return folder.has_trials or any(path.exists() for path in reached)


@contextmanager
def discarded_if_unstarted(folder: RunFolder, first: RunFolder | None = None) -> Iterator[None]:
    """Remove a new run folder if an error ends the context before anything ran; an interrupted run can be resumed.

    Args:
        first: the folder of what runs first; None: it is `folder`.
    """
    try:
        yield
    except Exception:
        if not has_begun(first or folder):
            shutil.rmtree(folder.root, ignore_errors=True)
        raise


def exit_code(results: Iterable[Result], planned: int) -> Exit:
    """0: all trials reached their target; 1: a trial failed or is missing; 3: a trial missed its target or diverged."""
    statuses = [result.status for result in results]
    if len(statuses) < planned or any(meaning(status).failed for status in statuses):
        return Exit.TRIAL_FAILED
    return Exit.DONE if all(meaning(status).reached for status in statuses) else Exit.NOT_REPRODUCED


@dataclass(frozen=True, slots=True)
class Messages:
    """The texts that a command shows to the user who interrupts it."""

    kept: str
    """The treatment of completed trials."""
    next_step: str
    """The command to continue."""
    closing: str
    """The work after the last trial, when a signal no longer interrupts."""


@dataclass(frozen=True, slots=True)
class Execution:
    """The end of a run: a record, a signal, or an error."""

    record: Record | None
    """None: the run did not reach its end."""
    interrupt: KeyboardInterrupt | None
    problem: ReproError | None
    """Reason why the run failed, or why its record could not be sealed."""

    def completed(self) -> Record:
        """Return the record of a run that reached its end.

        Raises:
            KeyboardInterrupt: a signal ended the run.
            ReproError: it failed.
        """
        if self.interrupt is not None:
            raise self.interrupt
        if self.problem is not None:
            raise self.problem
        assert self.record is not None
        return self.record


class Executed(Protocol):
    """A run in this process, or in a pool."""

    has_written: bool

    def execute(self, findings: Findings | None = None) -> Record: ...


class RunSession:
    """The right to write one run folder, for as long as `open_session` is entered."""

    def __init__(self, folder: RunFolder, lock: RunLock, interrupts: Interrupts, watcher: Watcher,
                 messages: Messages) -> None:
        self.interrupts = interrupts
        self._folder, self._watcher, self._messages = folder, watcher, messages
        self._findings = Findings(stale_lock=lock.stale)

    def accept(self, plan: Plan, differences: Sequence[Difference], force: bool) -> None:
        """Check that the record was not modified and does not differ otherwise; the run records what `force` accepts.

        Raises:
            UsageError: it was or does, and `force` is False.
            OutputError: the index or one of the files cannot be read.
        """
        found = (*differences, *require_unmodified(self._folder, plan, force))
        require_same(self._folder.root, found, force)
        self._findings = Findings(self._findings.stale_lock, found)

    def execute(self, run: Executed) -> Execution:
        """Execute `run` to its end, to a signal or to an error; the record is sealed unless the run was refused."""
        record, problem, interrupt = None, None, None
        try:
            try:
                record = run.execute(self._findings)
            except ReproError as error:
                problem = error
            self.interrupts.finish()  # up to here a signal raises, from here on it is only answered
        except KeyboardInterrupt as error:
            self.interrupts.finish()
            interrupt = error
            kept = self._messages.kept if self._folder.environment.is_file() else "nothing has run yet"
            self._watcher.stage(f"interrupted by {interrupter(error)}; {kept}; {self._messages.next_step}")
        if run.has_written:
            try:
                seal_again(self._folder)  # the signal may have interrupted the sealing
            except OutputError as error:
                problem = problem or error
        if problem is not None and interrupt is None and self._folder.has_trials:
            self._watcher.stage(f"{self._messages.kept}; {self._messages.next_step}")
        return Execution(record, interrupt, problem)


@contextmanager
def open_session(folder: RunFolder, watcher: Watcher, messages: Messages) -> Iterator[RunSession]:
    """Hold the lock of `folder` and handle signals as `Interrupts` does.

    Raises:
        OutputError: another process writes this folder, or it cannot be written.
    """
    with RunLock(folder.root).acquire(watcher.stage) as lock, \
            Interrupts(lock, messages.next_step, messages.closing) as interrupts:
        yield RunSession(folder, lock, interrupts, watcher, messages)
