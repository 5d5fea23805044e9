"""Runs from start to report: execute a plan or resume it, write the report, finish the replay to MLflow."""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from repro.cli.terminal import command
from repro.cli.workflows.progress import TerminalWatcher
from repro.cli.workflows.tuning import Phases, begin, refuse_tuning_alone, tune, waits_for_choice
from repro.compare.design.calibration import keep_calibration
from repro.compare.findings import Findings, findings
from repro.core import registry
from repro.core.errors import Exit, UsageError
from repro.core.machine import detect
from repro.record.folder import limits
from repro.record.folder.index import seal, unseal
from repro.record.folder.resume import plan_differences, reopen
from repro.record.folder.store import Record, RunFolder, read_record
from repro.record.folder.stored_code import allow_code_of, classes_from_files
from repro.record.tuning import FOLDER, Tuning, read_tuning
from repro.reporting import Reporter
from repro.runner.context import Options, Watcher
from repro.runner.energy_meter import EnergyMeter
from repro.runner.run import Run, discarded_if_unstarted, exit_code, has_begun, prepare
from repro.runner.session import Messages, RunSession, open_session
from repro.runner.signals import Interrupts
from repro.runner.tracking import Tracker, TrackingEnd
from repro.suite.planning.consent import code_permission, permissions, require_allowed, require_code
from repro.suite.planning.plan import Plan, over_time_limits

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

    def as_json(self) -> dict[str, Any]:
        found = self.found
        return {
            "exit_code": int(self.exit_code), "run": str(self.folder), "report": self.report,
            "mlflow": self.tracking.uri if self.tracking else None,
            "mlflow_problem": self.tracking.problem if self.tracking else "",
            "mlflow_left": self.tracking.left if self.tracking else "", "trials": self.trials,
            "calibration": found.calibration.model_dump(mode="json") if found.calibration else None,
            "cells": [item.model_dump(mode="json") for item in found.summaries],
            "training": list(found.figures.values()),
            "comparisons": [item.model_dump(mode="json", by_alias=True) for item in found.comparisons],
            "claims": [item.model_dump(mode="json") for item in found.claims],
            "effects": [item.as_json() for item in found.effects], "warnings": [item.line for item in found.warnings],
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
    plan: Plan, suite_text: str, out: Path | None, track: bool, strict: bool = False, energy: bool = False,
    budget_seconds: float | None = None,
) -> Ended:
    """Run a plan to its end, or to Ctrl-C; then report the completed trials.

    Args:
        energy: measure it with CodeCarbon in a separate process.
        budget_seconds: end a sequential run at the last look that this time reaches.

    Raises:
        UsageError: the plan is larger than one run can be.
        ReproError: the run could not be started, or the parity gate stopped it.
    """
    _check_options(plan, energy, budget_seconds)
    limits.check_size(plan)
    folder = prepare(plan, suite_text, out or Path("runs") / f"{plan.suite.suite}-{time.strftime('%Y%m%d-%H%M%S')}")
    with discarded_if_unstarted(folder), TerminalWatcher() as watcher, \
            open_session(folder, watcher, _messages(folder, plan)) as session:
        for text in (*limits.warnings(plan), *over_time_limits(plan)):
            watcher.stage(f"warning: {text}")
        run = Run(plan, folder, detect(), watcher, Options(strict=strict, energy=energy, budget_seconds=budget_seconds))
        return _carry_out(run, session, track)


def run_phases(
    phases: Phases, suite_text: str, out: Path | None, track: bool, strict: bool = False, energy: bool = False,
    budget_seconds: float | None = None,
) -> Ended:
    """Tune the contenders of a suite, then score them with the chosen settings; the arguments are those of `run_suite`.

    Raises:
        UsageError: a phase is larger than one run can be.
        ReproError: a phase could not be run, or nothing could be chosen.
        KeyboardInterrupt: a signal ended the tuning.
    """
    _check_options(phases.draft, energy, budget_seconds)
    root = begin(phases, suite_text, out)
    options = Options(strict=strict, energy=energy)
    with discarded_if_unstarted(RunFolder(root), RunFolder(root / FOLDER)):
        tune(root, phases.tuning, options, track, new=True)
    return _score(root, track, replace(options, budget_seconds=budget_seconds), new=True)


def _score(root: Path, track: bool, options: Options, new: bool) -> Ended:
    """Execute the plan of a run folder, from its beginning or from where it was cut."""
    folder, plan = reopen(root)
    machine = detect()
    with TerminalWatcher() as watcher, open_session(folder, watcher, _messages(folder, plan), options.force) as session:
        if new:
            for text in (*limits.warnings(plan), *over_time_limits(plan)):
                watcher.stage(f"warning: {text}")
        else:
            session.accept(plan, plan_differences(plan, machine), options.force)
        return _carry_out(Run(plan, folder, machine, watcher, options), session, track)


def resume_suite(
    root: Path, track: bool, force: bool = False, again: bool = False, strict: bool = False, energy: bool = False,
    allowed: Sequence[str] = (), budget_seconds: float | None = None, code: str | None = None,
) -> Ended:
    """Resume a run under the plan that it began with: completed trials are kept, missing ones run.

    Args:
        force: also if machine, code, plan or record have changed.
        again: also start trials again that crashed or hung.
        allowed: values of options that may lead out of the run, `SEAM.OPTION=VALUE`.
        code: hash of the code that the run folder brings and may run; None: none may.

    Raises:
        UsageError: failed runs of a contest would be started again.
        ReproError: it cannot be resumed: no run folder, another writer, another machine.
    """
    options = Options(force=force, again=again, strict=strict, energy=energy)
    if waits_for_choice(root):
        if again:
            raise UsageError("--rerun-failed: a tuning ranks settings by all their trials as they ended; leave it out")
        tune(root, _consented(root / FOLDER, allowed, code), options, track, new=False)
        return _score(root, track, replace(options, budget_seconds=budget_seconds), new=True)
    _, written = reopen(root)
    refuse_tuning_alone(root, written)
    if again and written.design.is_contest:
        raise UsageError("--rerun-failed: a contest counts every declared run once, also one that failed; make a new "
                         "run")
    plan = _consented(root, allowed, code)
    _check_budget(plan, budget_seconds)
    return _score(root, track, replace(options, budget_seconds=budget_seconds), new=False)


def _consented(root: Path, allowed: Sequence[str], code: str | None) -> Plan:
    """Return the plan of a run folder whose code and options the user lets run.

    Raises:
        UsageError: they are not allowed.
        OutputError: it is no run folder, or its plan is damaged.
    """
    folder, plan = reopen(root)
    if Path(plan.base).is_absolute():
        raise UsageError(f"{folder.plan}: base: is a path of a machine; a run names the folder of its suite relative "
                         "to itself")
    require_code(str(root), plan.cells, code, plan.base)
    if files := classes_from_files(plan):
        allow_code_of(folder.code, ((item.kind, item.code) for item in files))
        folder, plan = reopen(root)  # with the classes instead of their stand-ins
    require_allowed(str(root), plan.cells, allowed)
    return plan


def _check_options(plan: Plan, energy: bool, budget_seconds: float | None) -> None:
    """Check options before a folder is made.

    Raises:
        UsageError: the plan cannot have them.
    """
    if energy:
        EnergyMeter.needed()
    _check_budget(plan, budget_seconds)


def _check_budget(plan: Plan, budget_seconds: float | None) -> None:
    if budget_seconds is not None and not plan.design.looks:
        raise UsageError("--budget ends a sequential run at a look; a fixed number of pairs has none: add "
                         "--until-settled")


def _messages(folder: RunFolder, plan: Plan) -> Messages:
    return Messages(kept="reporting the completed trials", closing="the report is being written",
                    next_step=f"resume with: {_resume_command(folder.root, plan)}")


def _resume_command(root: Path, plan: Plan) -> str:
    return command(f"run --resume {shlex.quote(str(root))}{permissions(plan.cells)}"
                   f"{code_permission(plan.cells, plan.base)}")


def _next_step(record: Record, code: Exit) -> str:
    """Return the command that follows, with a word on what it does."""
    if code == Exit.INTERRUPTED:
        return _resume_command(record.folder.root, record.plan)
    if code == Exit.TRIAL_FAILED and not record.plan.design.is_contest and record.plan.design.scored:
        return f"{_resume_command(record.folder.root, record.plan)} --rerun-failed"
    return f"{command(f'bundle {shlex.quote(str(record.folder.root))}')}  (one file, which others verify and run again)"


def _carry_out(run: Run, session: RunSession, track: bool) -> Ended:
    """Execute a run, then write its report and finish tracking, unless the run was refused."""
    page, folder, watcher = reporter("html"), run.folder, run.watcher
    run.tracking = tracker = Tracker(folder.root) if track else None
    ended = session.execute(run)
    unstarted = not run.has_written or not has_begun(folder)
    if not folder.environment.is_file() or (ended.problem and unstarted):
        if tracker:
            tracker.finish(0.0)
        raise ended.problem or ended.interrupt or KeyboardInterrupt
    if ended.interrupt is None and ended.problem is None:
        watcher.stage("writing the report")
    paths, tracking = _conclude(folder, page, tracker, session.interrupts, watcher)
    if ended.problem is not None:
        raise ended.problem
    record = ended.record or read_record(folder.root)
    code = Exit.INTERRUPTED if ended.interrupt else exit_code(record.results, record.planned)
    if code in (Exit.DONE, Exit.NOT_REPRODUCED) and any(item.set_ is None for item in record.plan.suite.settings):
        code = Exit.TRIAL_FAILED  # the tuning trials of a contender
    return _summarize(record, code, paths, tracking)


def _conclude(
    folder: RunFolder, page: Reporter, tracker: Tracker | None, interrupts: Interrupts, watcher: Watcher
) -> tuple[list[str], TrackingEnd | None]:
    """Write the report and finish the last replay.

    The user's calibration of this suite is copied next to the record first, so that the page, the end of the run and
    `repro compare` say the same of false positives, also if the run folder is moved to another machine.
    """
    record = read_record(folder.root)
    if problem := keep_calibration(record):
        unseal(folder)  # a process that is killed here must not leave an index that does not hold
        folder.append_incident("calibration", problem)
        seal(folder)
        record = read_record(folder.root)
    paths = page.write(record, folder.reports)
    if tracker is None:
        return paths, None
    end: TrackingEnd | None = None
    try:
        with interrupts.interruptible():
            end = tracker.finish(FINISH_SECONDS, watcher.stage)
    except KeyboardInterrupt:  # the record is complete; only the replay is interrupted
        end = end or tracker.finish(0.0)
    return paths, end


def _summarize(record: Record, code: Exit, paths: list[str], tracking: TrackingEnd | None) -> Ended:
    trials: dict[str, int] = {}
    for result in record.results:
        trials[result.status] = trials.get(result.status, 0) + 1
    return Ended(
        exit_code=code, next_step=_next_step(record, code), folder=record.folder.root,
        report=paths[0], tracking=tracking, trials=trials,
        found=findings(record), tuning=read_tuning(record.folder.root),
    )


def write_reports(
    run: Path, targets: list[str], out: Path | None, only: str | None = None, prefix: str = ""
) -> list[str]:
    """Write the record of `run` with each of the reporters `targets`; return the paths and URLs written.

    Args:
        only: option of reporters that narrow.
        prefix: letters for reporters with an option `prefix`, which keep the names of several records apart.

    Raises:
        UnknownName: there is no such reporter.
        OutputError: `run` is no run folder, or `out` cannot be written.
        TrackingError: a tracking server rejected the record.
    """
    reporters = [reporter(name.strip(), only, prefix) for name in targets if name.strip()]
    if not reporters:
        raise UsageError("--to names no reporter; see `repro list reporters`")
    record = read_record(run)
    tuning = read_tuning(record.folder.root)
    before = [tuning.record] if tuning is not None else []
    return [place for item in reporters for part in (*(before if item.of_each_phase else ()), record)
            for place in item.write(part, out or part.folder.reports)]


def reporter(name: str, only: str | None = None, prefix: str = "") -> Reporter:
    """Load a reporter with its default options, and with `only` and `prefix` if it knows them.

    Raises:
        UsageError: the prefix has other characters than letters.
    """
    if prefix and not re.fullmatch("[A-Za-z]+", prefix):
        raise UsageError(f"--prefix {prefix}: names of macros have letters only, as in --prefix Large")
    kind: Any = registry.load("reporter", name)
    options = {"only": only} if only and kind.narrows else {}
    options |= {"prefix": prefix} if prefix and "prefix" in kind.model_fields else {}
    found = kind(**options)
    assert isinstance(found, Reporter)
    return found
