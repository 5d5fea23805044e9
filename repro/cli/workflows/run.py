"""Runs from start to report: execute a plan, resume it or submit it, write the report, finish the replay to MLflow."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from repro.cli.terminal import command
from repro.cli.workflows.progress import TerminalWatcher, Told, duration
from repro.cli.workflows.tuning import BETWEEN_SECONDS, Phases, begin, choose, waits_for_choice
from repro.compare.design.calibration import keep_calibration
from repro.compare.findings import Findings, findings
from repro.compare.runs.asked import keep_answers
from repro.core.devices import CPU
from repro.core.errors import Exit, OutputError, ReproError, UsageError
from repro.core.files import write_model
from repro.core.machine import Machine, detect
from repro.launchers.nodes.slurm_job import in_job
from repro.launchers.nodes.slurm_submit import job_machines, submit
from repro.launchers.slurm import Slurm
from repro.record.folder import limits
from repro.record.folder.index import seal, unseal
from repro.record.folder.registration import register
from repro.record.folder.resume import plan_differences, reopen
from repro.record.folder.store import TUNING, Record, RunFolder, read_record
from repro.record.folder.stored_code import allow_code_of, classes_from_files
from repro.record.questions import begun_here, keep_begun
from repro.record.result.status import meaning
from repro.record.tuning import FROZEN, Tuning, read_tuning, tuning_of
from repro.reporting import Reporter, reporter
from repro.runner.context import Options, Watcher
from repro.runner.energy_meter import EnergyMeter
from repro.runner.pool.coordinator import PooledRun
from repro.runner.pool.engines import FILE as POOL
from repro.runner.pool.engines import StoredPool, check_options, engine_of, stored_pool
from repro.runner.run import (
    Messages,
    Run,
    RunSession,
    base_of,
    dated,
    discarded_if_unstarted,
    exit_code,
    has_begun,
    open_session,
    prepare,
)
from repro.runner.signals import Interrupts
from repro.runner.tracking import Tracker, TrackingEnd
from repro.runner.tracking_store import first_words
from repro.seams.launching import Launcher
from repro.suite.file import SuiteFile
from repro.suite.kinds.program_files import ProgramFiles
from repro.suite.planning.cell import Cell
from repro.suite.planning.consent import permissions, permits, require_allowed, require_code
from repro.suite.planning.cost import estimate, over_time_limits
from repro.suite.planning.matrix import expand_matrix
from repro.suite.planning.plan import Plan

DEFAULTS = Options()
FINISH_SECONDS = 60.0
"""Longest wait at the end of a run for a tracking server that answers; the record is complete without it."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of a run: its exit code, results and files."""

    exit_code: Exit
    next_step: str
    """The command that follows."""
    folder: Path
    report: str
    tracking: TrackingEnd | None
    trials: dict[str, int]
    found: Findings
    tuning: Tuning | None = None
    """None: its settings were not tuned in this run."""
    unwritten: str = ""
    """Why the report could not be written, as on a full disk."""

    def as_json(self) -> dict[str, Any]:
        found = self.found
        return {
            "exit_code": int(self.exit_code), "run": str(self.folder), "report": self.report,
            **({"unwritten": self.unwritten} if self.unwritten else {}),
            "mlflow": self.tracking.uri if self.tracking else None,
            "mlflow_problem": self.tracking.problem if self.tracking else "",
            "mlflow_left": self.tracking.left if self.tracking else "", "trials": self.trials,
            "calibration": found.calibration.model_dump(mode="json") if found.calibration else None,
            "cells": [item.model_dump(mode="json") for item in found.summaries],
            "training": list(found.figures.values()),
            "comparisons": [item.model_dump(mode="json", by_alias=True) for item in found.comparisons],
            "claims": [item.model_dump(mode="json") for item in found.claims],
            "effects": [item.model_dump(mode="json", by_alias=True) for item in found.effects],
            "warnings": [item.line for item in found.warnings],
            **({"tuning": self.tuning.as_json()} if self.tuning else {}),
        }

    def warning(self) -> str:
        """Return what the tracking server rejected and how to send it again; "" if nothing."""
        if self.tracking is None or not (self.tracking.problem or self.tracking.pending):
            return ""
        problem = self.tracking.problem or "the replay is not finished"
        left = f"{self.tracking.left} still to be replayed: " if self.tracking.left else ""
        again = command(f"report {shlex.quote(str(self.folder))} --to mlflow")
        return f"mlflow: {left}{problem}; nothing is lost, to replay: {again}"


def run_suite(
    plan: Plan, suite_text: str, out: Path | None, track: bool, options: Options = DEFAULTS, told: Told = None,
    pool: StoredPool | None = None,
) -> Ended:
    """Run a plan to its end, or to Ctrl-C; then report the completed trials.

    Args:
        told: is called with each event of the progress.
        pool: where its blocks run; None: one after another in this process.

    Raises:
        UsageError: the plan is larger than one run can be, or cannot have these options.
        ReproError: the run could not be started, or the parity gate stopped it.
    """
    _check_options(plan, options)
    limits.check_size(plan)
    folder = prepare(plan, suite_text, out or dated(plan.suite.suite))
    _note_begun(folder.root, plan)
    if pool is not None:
        write_model(folder.root / POOL, pool)
    with discarded_if_unstarted(folder), opened(
            folder, plan, options, messages(folder.root, plan), event=told) as (run, session):
        return _carry_out(run, session, track)


def run_phases(
    phases: Phases, suite_text: str, out: Path | None, track: bool, options: Options, told: Told = None
) -> Ended:
    """Tune the contenders of a suite, then score them with the chosen settings.

    Raises:
        UsageError: a phase is larger than one run can be, or cannot have these options.
        ReproError: a phase could not be run, or nothing could be chosen.
        KeyboardInterrupt: a signal ended the tuning.
    """
    _check_options(phases.draft, options)
    root = begin(phases, suite_text, out)
    _note_begun(root / TUNING, phases.tuning)
    with discarded_if_unstarted(RunFolder(root), RunFolder(root).tuning):
        _tune(root, phases.tuning, options, track, event=told)
    return _score(root, track, options, event=told)


def resume_suite(
    root: Path, track: bool, options: Options = DEFAULTS, allowed: Sequence[str] = (), code: str | None = None
) -> Ended:
    """Resume a run under the plan that it began with: completed trials are kept, missing ones run.

    Args:
        allowed: values of options that may lead out of the run, `SEAM.OPTION=VALUE`.
        code: hash of the code that the run folder brings and may run; None: none may.

    Raises:
        UsageError: failed runs of a contest would be started again.
        ReproError: it cannot be resumed: no run folder, another writer, another machine.
    """
    if waits_for_choice(root):
        if options.again:
            raise UsageError("--rerun-failed: a tuning ranks settings by all their trials as they ended; leave it out")
        _tune(root, consented(root / TUNING, allowed, code), options, track, new=False)
        return _score(root, track, options)
    _, written = reopen(root)
    if written.kind == "tuning":
        raise UsageError(f"{root}: is the tuning of the run {root.resolve().parent.name}; resume that: "
                         f"{command(f'run --resume {shlex.quote(str(root.parent))}')}")
    if written.whole is not None:
        raise UsageError(f"{root}: is a part of a run in a pool; resume that run: it runs what is missing of this")
    if options.again and written.design.is_contest:
        raise UsageError("--rerun-failed: a contest counts every declared run once, also one that failed; make a new "
                         "run")
    _check_options(consented(root, allowed, code), options)
    return _score(root, track, options, new=False)


def _tune(root: Path, plan: Plan, options: Options, track: bool, new: bool = True, event: Told = None) -> None:
    """Run the trials of a tuning that are missing, choose, and write the plan of the scored run.

    Raises:
        KeyboardInterrupt: a signal ended it; completed trials are kept.
        TrialError: trials are missing, because the suite stops after a failure.
        OutputError: no trial of any contender could be judged.
        ReproError: it could not be run.
    """
    told = messages(root, plan, "completed tuning trials are kept", "the settings are being chosen")
    own = replace(options, budget_seconds=None, register=None)
    with opened(RunFolder(root).tuning, plan, own, told, new, event) as (run, session):
        seconds = estimate(plan).full_budget_seconds
        about = "" if seconds is None else \
            f", about {duration(seconds)} if every trial uses its whole budget (modelled)"
        run.watcher.stage(f"phase 1 of 2: tuning, {len(plan.order)} trials of {len(plan.cells)} settings{about}")
        run.tracking = tracker = Tracker(run.folder.root) if track else None
        ended = session.execute(run)
        if tracker is not None:
            tracker.finish(BETWEEN_SECONDS if ended.record is not None else 0.0)
        found = tuning_of(ended.completed())
        _note_begun(root, choose(root, found, detect()))
        for item in found.lost:
            run.watcher.stage(f"warning: {item.label} is not scored: no trial of its tuning could be judged "
                              f"({item.ends})")
        run.watcher.stage(f"phase 2 of 2: scoring, with the settings in {root / FROZEN}")


def _score(root: Path, track: bool, options: Options, new: bool = True, event: Told = None) -> Ended:
    """Execute the plan of a run folder, from its beginning or from where it was cut."""
    folder, plan = reopen(root)
    with opened(folder, plan, options, messages(root, plan), new, event) as (run, session):
        return _carry_out(run, session, track)


@contextmanager
def opened(
    folder: RunFolder, plan: Plan, options: Options, told: Messages, new: bool = True, event: Told = None
) -> Iterator[tuple[Run | PooledRun, RunSession]]:
    """Open the session of a run that begins, with warnings about its plan, or goes on where it was cut."""
    pool = stored_pool(folder)
    # The plan of a pool is for its lanes, not for the computer of the coordinator.
    machine = detect() if pool is None else Machine(plan.device, plan.device_count, plan.cores, plan.cpp_compiler)
    if pool is not None and (options.again or options.budget_seconds is not None):
        raise UsageError("--rerun-failed and --budget: not in a pool, whose blocks run as a whole")
    with TerminalWatcher(told=event) as watcher, open_session(folder, watcher, told) as session:
        if new:
            for text in (*limits.warnings(plan), *over_time_limits(plan)):
                watcher.stage(f"warning: {text}")
            if options.register is not None:
                watcher.stage(register(folder, plan, machine, options.register))
        else:
            session.accept(plan, plan_differences(plan, machine), options.force)
        if pool is None:
            yield Run(plan, folder, machine, watcher, options), session
            return
        with closing(engine_of(pool, plan, folder, watcher.stage)) as engine:
            yield PooledRun(plan, folder, watcher, engine, pool.pool.blocks_per_task), session


def consented(root: Path, allowed: Sequence[str], code: str | None) -> Plan:
    """Return the plan of a run folder whose code and options the user lets run: they are allowed, or this is the user's
    own run, begun here with the same.

    Raises:
        UsageError: they are not allowed.
        OutputError: it is no run folder, or its plan is damaged.
    """
    folder, plan = reopen(root)
    if Path(plan.base).is_absolute():
        raise UsageError(f"{folder.plan}: base: is a path of a machine; a run names the folder of its suite relative "
                         "to itself")
    own = code is None and not allowed and begun_here(root, permits(plan.cells, plan.base))
    if not own:
        require_code(str(root), plan.cells, code, plan.base)
    if files := classes_from_files(plan):
        allow_code_of(folder.code, ((item.kind, item.code) for item in files))
        folder, plan = reopen(root)  # with the classes instead of their stand-ins
    if not own:
        require_allowed(str(root), plan.cells, allowed)
    return plan


def _check_options(plan: Plan, options: Options) -> None:
    """Check options before anything is written."""
    if options.energy:
        require_energy(plan)
    if options.budget_seconds is not None and not plan.design.looks:
        raise UsageError("--budget ends a sequential run at a look; a fixed number of pairs has none: add "
                         "--until-settled")


def require_energy(plan: Plan) -> None:
    """Check that the energy of trials can be measured.

    Raises:
        UsageError: CodeCarbon is not installed, or trials take computers that it does not see.
    """
    EnergyMeter.needed()
    launchers = [(cell.choices.launcher.get(Launcher), cell.choices.ranks) for cell in plan.cells]
    if any(item.origin == "measured" and item.nodes_of(ranks) > 1 for item, ranks in launchers):
        raise UsageError("--energy: is that of this computer alone, and trials of this suite take several; leave it "
                         "out")


def messages(
    root: Path, plan: Plan, kept: str = "reporting the completed trials", closing: str = "the report is being written"
) -> Messages:
    """Return the messages for a user who interrupts a run."""
    return Messages(kept, f"resume with: {_resume_command(root, plan)}", closing)


def _note_begun(root: Path, plan: Plan) -> None:
    """Note that this user begins a run here, so that resuming it asks for no consent."""
    keep_begun(root, permits(plan.cells, base_of(root, plan)))


def _resume_command(root: Path, plan: Plan) -> str:
    base = base_of(root, plan)
    own = begun_here(root, permits(plan.cells, base))
    return command(f"run --resume {shlex.quote(str(root))}{'' if own else permissions(plan.cells, base)}")


def _next_step(record: Record, code: Exit) -> str:
    """Return what follows: a command, with a word on what it does, or what is to be mended first."""
    if code == Exit.INTERRUPTED:
        return _resume_command(record.folder.root, record.plan)
    failed = any(meaning(item.status).reruns for item in record.results)
    if code == Exit.TRIAL_FAILED and failed and not record.plan.design.is_contest and record.plan.design.scored:
        again = f"{_resume_command(record.folder.root, record.plan)} --rerun-failed"
        if all(meaning(item.status).reruns for item in record.results):
            return f"mend what the reasons above name, and run the suite again; if the cause lay outside of it: {again}"
        return again
    if any(item.status == "invalid" for item in record.results):
        return "mend what the reason of each invalid trial names, and run the suite again (--resume leaves them so)"
    return f"{command(f'bundle {shlex.quote(str(record.folder.root))}')}  (one file, which others verify and run again)"


def _carry_out(run: Run | PooledRun, session: RunSession, track: bool) -> Ended:
    """Execute a run, then write its report and finish tracking, unless the run was refused."""
    page, folder, watcher = reporter("html"), run.folder, run.watcher
    if track and (words := first_words()):
        watcher.stage(words)
    run.tracking = tracker = Tracker(folder.root) if track else None
    ended = session.execute(run)
    unstarted = not run.has_written or not has_begun(folder)
    if not folder.environment.is_file() or (ended.problem and unstarted):
        if tracker:
            tracker.finish(0.0)
        raise ended.problem or ended.interrupt or KeyboardInterrupt
    if ended.interrupt is None and ended.problem is None:
        watcher.stage("writing the report")
    path, tracking, problem = _conclude(folder, page, tracker, session.interrupts, watcher)
    if ended.problem is not None:
        raise ended.problem
    record = ended.record or read_record(folder.root)
    code = Exit.INTERRUPTED if ended.interrupt else exit_code(record.results, record.planned)
    if code in (Exit.DONE, Exit.NOT_REPRODUCED) and any(item.set_ is None for item in record.plan.suite.settings):
        code = Exit.TRIAL_FAILED  # the tuning trials of a contender
    return _summarize(record, code, path, tracking, problem)


def _conclude(
    folder: RunFolder, page: Reporter, tracker: Tracker | None, interrupts: Interrupts, watcher: Watcher
) -> tuple[str, TrackingEnd | None, OutputError | None]:
    """Write the report and finish the last replay; return the page, the end of the replay, and why there is no page.

    The user's calibration of this suite is copied next to the record first, so that the page, the end of the run and
    `repro compare` say the same of false positives, also if the run folder is moved to another machine.
    """
    path, unwritten = "", None
    try:
        record = read_record(folder.root)
        if problem := keep_calibration(record):
            unseal(folder)  # a process that is killed here must not leave an index that does not hold
            folder.append_incident("calibration", problem)
            seal(folder)
            record = read_record(folder.root)
        path = page.write(record, folder.reports)[0]
    except OutputError as error:
        unwritten = error
    if tracker is None:
        return path, None, unwritten
    end: TrackingEnd | None = None
    try:
        with interrupts.interruptible():
            end = tracker.finish(FINISH_SECONDS, watcher.stage)
    except KeyboardInterrupt:  # the record is complete; only the replay is interrupted
        end = end or tracker.finish(0.0)
    return path, end, unwritten


def _summarize(
    record: Record, code: Exit, report: str, tracking: TrackingEnd | None, unwritten: ReproError | None = None
) -> Ended:
    found, root = findings(record), record.folder.root
    keep_answers(record, found.comparisons)
    if unwritten:
        again = _resume_command(root, record.plan) if record.missing() else command(f"report {shlex.quote(str(root))}")
        step = f"make room or mend what the error names, then: {again}"
    else:
        step = _next_step(record, code)
    return Ended(
        exit_code=unwritten.exit_code if unwritten and code != Exit.INTERRUPTED else code, folder=root, next_step=step,
        report=report, tracking=tracking, trials=dict(Counter(result.status for result in record.results)),
        found=found, tuning=read_tuning(root), unwritten=str(unwritten or ""),
    )


def execute(
    plan: Plan, folder: RunFolder, kept: str, next_step: str, force: bool = False,
    is_settled: Callable[[int], bool] | None = None,
) -> Record:
    """Run the trials of the plan that have no result yet.

    Args:
        kept: what becomes of completed trials if a signal ends the run; shown to the user.
        next_step: how to continue after that; shown to the user.
        force: also if machine, code or record differ from those that the run began with.
        is_settled: tells after the trials of some repeats whether the run ends.

    Raises:
        KeyboardInterrupt: a signal ended it; completed trials are kept.
        ReproError: it could not be completed.
    """
    messages = Messages(kept, next_step, closing="the record is being closed")
    with TerminalWatcher() as watcher, open_session(folder, watcher, messages) as session:
        session.accept(plan, (), force)
        run = Run(plan, folder, detect(), watcher, Options(force=force), is_settled=is_settled)
        return session.execute(run).completed()


def machines_of_job(
    source: SuiteFile, options: Sequence[str], tell: Callable[[str], None]
) -> tuple[Machine, ...]:
    """Return what the nodes of the job may be that runs a suite; empty: it runs in this process, on this machine.

    Args:
        options: of sbatch.
        tell: is given how to ask for GPUs that the partition has and a suite could use.

    Raises:
        SuiteError: the suite is wrong on every machine.
    """
    suite = source.suite
    levels = (suite.trial.get("launcher"), *suite.matrix.get("launcher", ()))
    if in_job() or not any((level.get("kind") if isinstance(level, dict) else level) == "slurm" for level in levels):
        return ()
    cells, _ = expand_matrix(suite, source.problem, ProgramFiles(source.folder, suite.programs))
    found, hint = job_machines(options, slurm_nodes(cells))
    if hint and any(cell.choices.device != CPU for cell in cells):
        tell(f"the nodes of the job have GPUs and it asks for none: add {hint} after --")
    return found


def slurm_nodes(cells: Iterable[Cell]) -> int:
    """Return the most nodes that trials of launcher slurm take; 0: none has this launcher."""
    plugins = (cell.choices.launcher.plugin for cell in cells)
    return max((plugin.nodes for plugin in plugins if isinstance(plugin, Slurm)), default=0)


def submitted(
    plan: Plan, options: Sequence[str], arguments: Sequence[str], out: Path | None, flags: Sequence[str]
) -> str:
    """Submit a plan of launcher slurm, one job for all its trials; return the message for the user.

    Args:
        options: of sbatch.
        arguments: of this command.
        flags: those of them that a resumed run needs as well.

    Returns:
        "" if this process is where the plan runs.

    Raises:
        UsageError: Slurm refuses, or `options` are given to a plan that needs no job.
    """
    if "--energy" in flags:
        require_energy(plan)
    place = out or dated(plan.suite.suite)
    first = [*_before_options(arguments), *([] if out else ["--out", str(place)])]
    return _submit(plan, options, first, ["run", "--resume", str(place), *flags], place)


def submitted_again(root: Path, options: Sequence[str], arguments: Sequence[str]) -> str:
    """Submit a job that resumes a run of launcher slurm; for arguments and errors see `submitted`. A pool goes on in
    this process, its lanes with these options from now on."""
    if (pool := stored_pool(RunFolder(root))) is not None:
        check_options(pool.pool, options)
        if options:
            write_model(root / POOL, pool.model_copy(update={"options": tuple(options)}))
        return ""
    if in_job() and not options:
        return ""
    _, plan = reopen(root / TUNING if waits_for_choice(root) else root)
    again = _before_options(arguments)
    return _submit(plan, options, again, again, root)


def _before_options(arguments: Sequence[str]) -> list[str]:
    return list(arguments[: arguments.index("--")]) if "--" in arguments else list(arguments)


def _submit(plan: Plan, options: Sequence[str], first: Sequence[str], again: Sequence[str], place: Path) -> str:
    nodes = slurm_nodes(plan.cells)
    if not nodes or in_job():
        if options:
            kinds = ", ".join(dict.fromkeys(cell.choices.launcher.kind for cell in plan.cells))
            raise UsageError(f"{options[0]}: only launcher slurm outside a job takes options after --; here it is "
                             f"{kinds}{', in a job' * in_job()}")
        return ""
    plans = [RunFolder(place).plan, RunFolder(place).tuning.plan]
    job = submit(plan.suite.suite, nodes, first, again, plans, place, options)
    return (f"job {job} is submitted; its output: {place}.slurm.log, the run: {place}\n"
            f"next: squeue --job {job}; scancel {job} ends it, and what has run stays")
