"""Suites to plans, runs and gates: what `repro.plan`, `repro.run`, `repro.gate` and the commands of these names do."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from repro.cli.workflows.progress import duration
from repro.core.errors import SuiteError, UsageError
from repro.core.machine import Machine, detect
from repro.core.random_streams import fresh_seed
from repro.suite.file import SuiteFile, read_suite
from repro.suite.model import Suite
from repro.suite.planning.consent import refuse_credentials
from repro.suite.planning.cost import estimate
from repro.suite.planning.plan import Drawn, Plan, make_plan
from repro.tables.tables import Table
from repro.tables.values import plain

if TYPE_CHECKING:
    from pandas import DataFrame

    from repro.api.opened import Run
    from repro.cli.workflows.tuning import Phases

SuiteSource = str | Path | Mapping[str, Any] | Suite
"""The name of a bundled suite, a path, the content of a suite file, or a suite that was read."""
Event = Mapping[str, Any]
"""`event` names its kind: stage, trial_started, trial_ticked, trial_ended, look_taken; the others are its figures."""


def expand(source: SuiteFile, overrides: Sequence[str], machine: Machine | None = None) -> Plan:
    """Expand a suite to its plan for a machine (None: this one), with an order drawn for this call, and a master seed
    too unless the suite states one.

    Raises:
        SuiteError: no cell can run here, or none can have the declared metric.
        UsageError: an option holds a credential, or the suite is to be tuned first.
    """
    if source.suite.tune is not None:
        raise source.problem("the settings of this suite are to be tuned first: use `repro run`, then the tuned.yaml "
                             "that it writes; or add -o tune=null", ("tune",))
    plan = make_plan(source.suite, machine or detect(), source.problem, bool(overrides),
                     Drawn(fresh_seed(), fresh_seed()), folder=source.folder)
    # Not when a record is expanded again: earlier versions took such suites.
    if why := next((why for cell in plan.cells if (why := cell.choices.lacks(plan.suite.metric))), ""):
        raise source.problem(why, ("primary", "metric"))
    refuse_credentials(plan, os.environ)
    return plan


def planned(
    source: SuiteFile, overrides: Sequence[str], machines: Sequence[Machine | None] = ()
) -> tuple[Plan, Phases | None]:
    """Return the plan that is scored, and both phases of a suite that is tuned first: the plan is then their draft.

    Args:
        machines: the plan is for the first of them on which it can run; none: for this one.

    Raises:
        SuiteError: no cell can run there, or a setting of a contender is wrong.
        UsageError: an option holds a credential.
    """
    from repro.cli.workflows.tuning import plan_phases

    *others, machine = machines or (None,)
    for other in others:
        with suppress(SuiteError):
            return planned(source, overrides, (other,))
    if source.suite.tune is None:
        return expand(source, overrides, machine), None
    phases = plan_phases(source, overrides, machine)
    return phases.draft, phases


class Planned:
    """The plan of a suite for this machine; `repro.plan` makes it."""

    def __init__(self, found: Plan, phases: Phases | None) -> None:
        self._plan, self._phases = found, phases

    @property
    def seconds(self) -> float | None:
        """Time if every trial uses its whole budget, estimated; None: unknown, as of a program."""
        return estimate(self._plan).full_budget_seconds

    @property
    def cells(self) -> DataFrame:
        """One row per cell: its id, label and factors."""
        return self._frame("cells", [
            {"cell_id": cell.cell_id, "cell": plain(cell.label),
             **{f"factor.{key}": plain(value) for key, value in cell.factors.items()}} for cell in self._plan.cells])

    @property
    def trials(self) -> DataFrame:
        """One row per trial, in the order of execution of this call."""
        return self._frame("trials", [{"trial_id": item.trial_id, "cell_id": item.cell_id, "seed": item.repeat}
                                      for item in self._plan.trials()])

    @property
    def skipped(self) -> DataFrame:
        """One row per combination that cannot run here, with the reason."""
        return self._frame("skipped", [{"cell": plain(item.label), "reason": plain(item.reason)}
                                       for item in self._plan.skipped])

    def _frame(self, name: str, rows: Sequence[dict[str, Any]]) -> DataFrame:
        from repro.api.frames import frame

        return frame(Table(name, "", tuple(rows)))

    def __repr__(self) -> str:
        tuned = f", after {len(self._phases.tuning.order)} trials of tuning" if self._phases else ""
        about = "duration unknown" if self.seconds is None else (
            f"about {duration(self.seconds)} if every trial uses its whole budget")
        return (f"suite {self._plan.suite.suite}: {len(self._plan.order)} trials of {len(self._plan.cells)} cells, "
                f"{len(self._plan.skipped)} combinations skipped{tuned}; {about}")


def plan(suite: SuiteSource, overrides: Sequence[str] = (), *, seeds: int | None = None) -> Planned:
    """Expand a suite to the trials that it runs here; trains nothing.

    Args:
        suite: the name of a bundled suite, a path, the content of a suite file, or a suite that was read.
        overrides: as `-o` of the command line: `["processes=1,2", "optimizer.lr=0.1"]`.
        seeds: repeats of every cell; None: the suite's.

    Raises:
        SuiteError: the suite or an override is wrong, or no cell can run here.
        UsageError: an option holds a credential.
    """
    return Planned(*planned(_read(suite, overrides, seeds, None), overrides))


def run(
    suite: SuiteSource, overrides: Sequence[str] = (), *, seeds: int | None = None, master_seed: int | None = None,
    out: str | Path | None = None, mlflow: bool = True, on_event: Callable[[Event], None] | None = None,
) -> Run:
    """Run a suite as `repro run` does, and return its record.

    A failed trial is no error: its row says how it ended. Ctrl-C ends the run in order: completed trials are reported,
    then KeyboardInterrupt is raised and names the folder; a second one ends this process with all that it started.

    Args:
        suite, overrides, seeds: as `repro.plan`.
        master_seed: seed of all random numbers of the trials; None: the suite's, else drawn.
        out: run folder to create; None: runs/SUITE-DATE-TIME.
        mlflow: replay the run to MLflow.
        on_event: is called with each step of the progress; what it raises is shown as a warning.

    Raises:
        SuiteError: the suite or an override is wrong, or no cell can run here.
        ReproError: the run could not be started (another thread than the main one calls this), or the parity gate
            stopped it.
        KeyboardInterrupt: a signal ended the run.
    """
    from repro.api import opened as records
    from repro.cli.workflows.run import run_phases, run_suite
    from repro.cli.workflows.seen_data import refuse_same_data
    from repro.core.errors import Exit, OutputError, RunInterrupted
    from repro.runner.context import Options

    if threading.current_thread() is not threading.main_thread():
        raise UsageError("repro.run: only the main thread receives the signals that end a run in order; call it in the "
                         "main thread, or start `repro run` as a process")
    source = _read(suite, overrides, seeds, master_seed)
    found, phases = planned(source, overrides)
    if source.suite.master_seed is not None:
        stated = ("master_seed",) not in source.overrides
        refuse_same_data(phases.tuning if phases else found, Path("runs"), stated)
    place = Path(out) if out is not None else None
    ended = run_phases(phases, source.text, place, mlflow, Options(), on_event) if phases else \
        run_suite(found, source.text, place, mlflow, Options(), on_event)
    if ended.exit_code == Exit.INTERRUPTED:
        raise RunInterrupted(f"the completed trials are in {ended.folder}; resume with: {ended.next_step}")
    if ended.unwritten:
        raise OutputError(f"{ended.unwritten}; {ended.next_step}")
    return records.open(ended.folder)


def gate(suite: SuiteSource, overrides: Sequence[str] = (), *, only: Sequence[str] = ()) -> DataFrame:
    """Run only the parity gate of a suite, as `repro gate` does; return one row per check of each candidate.

    Args:
        only: cells, each by label, id or pattern; empty: all.

    Raises:
        SuiteError, UsageError: as `repro.plan`; an entry of `only` matches no cell, or nothing can be compared.
        KeyboardInterrupt: a signal ended it; nothing of it is kept.
    """
    from repro.api.frames import frame
    from repro.cli.workflows.gate import run_gate
    from repro.core.errors import RunInterrupted

    source = _read(suite, overrides, None, None)
    try:
        rows = run_gate(planned(source, overrides)[0], source.text, only)
    except KeyboardInterrupt:
        raise RunInterrupted("the gate was interrupted, and nothing of it is kept; call it again") from None
    return frame(Table("gate", "", tuple(rows)))


def _read(suite: SuiteSource, overrides: Sequence[str], seeds: int | None, master_seed: int | None) -> SuiteFile:
    if isinstance(overrides, str):
        raise UsageError(f"overrides {overrides!r}: are a list of texts, such as [\"processes=1,2\"]")
    content = suite.model_dump(mode="json", by_alias=True, exclude_defaults=True) if isinstance(suite, Suite) else \
        suite if isinstance(suite, Mapping) else str(suite)
    return read_suite(content, overrides, None, {"seeds": seeds, "master_seed": master_seed})
