"""Advice for a suite: run its pilot, or read one; check the predictions by a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import Any

import yaml

from repro.bundle.source import open_record
from repro.cli.workflows.run import execute
from repro.core.errors import UsageError
from repro.core.frozen import Frozen
from repro.core.machine import detect
from repro.core.random_streams import fresh_seed
from repro.papers.advise.exchange import Estimated, estimated
from repro.papers.advise.pilot import check_suite, families_of, pilot_suite
from repro.papers.advise.predict import Advice, advise, step_of, unfit
from repro.record.folder.store import Record, read_record
from repro.record.result.status import meaning
from repro.runner.run import dated, discarded_if_unstarted, prepare
from repro.suite.model import Suite
from repro.suite.planning.cell import Cell
from repro.suite.planning.plan import Drawn, Plan, make_plan


class CheckRow(Frozen):
    """One family with one number of workers."""

    family: str
    workers: int
    predicted: Estimated
    measured: Estimated | None
    """By seed of the check, over one worker of the same seed; None: `why`."""
    ratio: float | None
    """Predicted over measured."""
    why: str = ""


def check(advice: Advice, record: Record) -> tuple[CheckRow, ...]:
    """Return all predictions whose workers the record ran, or should have run."""
    families = {label: {cell.choices.processes: cell for cell in cells}
                for label, cells in families_of(record.plan).items()}
    rows = []
    for item in advice.families:
        cells = families.get(item.family, {})
        for row in item.workers:
            if row.workers in cells:
                measured = _speed_ups(record, cells, row.workers) if 1 in cells else []
                found = estimated(measured) if measured else None
                rows.append(CheckRow(
                    family=item.family, workers=row.workers, predicted=row.speed_up, measured=found,
                    ratio=row.speed_up.value / found.value if found else None,
                    why="" if found else "no seed has a completed trial with this number of workers and with one"))
    return tuple(rows)


def _speed_ups(record: Record, cells: dict[int, Cell], workers: int) -> Sequence[float]:
    def steps(count: int) -> dict[int, float]:
        return {item.repeat: step_of(item) for item in record.of_cell(cells[count].cell_id)
                if meaning(item.status).completed and item.steps}

    alone, together = steps(1), steps(workers)
    return [workers * alone[repeat] / seconds for repeat, seconds in together.items() if repeat in alone]


MOST_CELLS = 40
"""Of a pilot or a check: more take longer than what they are to save."""


class Advised(Frozen):
    """The advice, and what a check of it found, as `repro advise --json` prints them."""

    advice: Advice
    check: Path | None
    """Folder of the check."""
    checked: tuple[CheckRow, ...]


def advise_suite(
    plan: Plan, pilot: Path | None, out: Path | None, workers: Sequence[int], efficiency: float,
    available_mib: float | None, steps: int, checked: bool,
) -> Advised:
    """Return the advice for a suite.

    Args:
        pilot: a run or bundle of its pilot; None: run one.
        out: folder of the pilot, with `-check` behind it that of the check; None: below `runs/`.
        steps: timed steps of a trial.
        checked: also run what is predicted.

    Raises:
        KeyboardInterrupt: a signal ended a run.
        UsageError: `pilot` is no pilot of this suite.
        ReproError: a run could not be completed, or the suite can have no advice.
    """
    wanted = pilot_suite(plan, steps)
    folder = out or dated(wanted.suite)
    if pilot is None:
        found = advise(_run(wanted, folder, "the advice"), str(folder), efficiency, available_mib, workers)
    else:
        with open_record(pilot) as root:
            record = read_record(root)
            _require_same(record, wanted, pilot)
            found = advise(record, str(pilot), efficiency, available_mib, workers)
    if not checked:
        return Advised(advice=found, check=None, checked=())
    place = folder.with_name(f"{folder.name}-check")
    return Advised(advice=found, check=place, checked=check(
        found, _run(check_suite(plan, workers, steps), place, "the check")))


def _run(suite: Suite, place: Path, what: str) -> Record:
    plan = make_plan(suite, detect(), drawn=Drawn(fresh_seed(), fresh_seed()))
    if len(plan.cells) > MOST_CELLS:
        raise UsageError(f"{suite.suite} would have {len(plan.cells)} cells; {MOST_CELLS} are the most: choose levels "
                         "of the suite's factors with -o")
    reasons = [unfit(cells) for cells in families_of(plan).values()]
    if all(reasons):
        raise UsageError(f"no advice: {reasons[0]}")
    text = yaml.safe_dump(suite.model_dump(mode="json", by_alias=True, exclude_unset=True), sort_keys=False)
    folder = prepare(plan, text, place)
    with discarded_if_unstarted(folder):
        return execute(plan, folder, kept=f"{what} needs all trials; completed ones stay in {folder.root}",
                                next_step=f"complete it with repro run --resume {quote(str(folder.root))}")


def _require_same(record: Record, wanted: Suite, pilot: Path) -> None:
    """Raise a UsageError if the record is no pilot, or one of another suite or of other settings."""
    found = record.plan.suite
    for name in ("suite", "trial", "matrix"):
        if getattr(found, name) != getattr(wanted, name):
            what = f"{found.suite!r}, not of {wanted.suite!r}" if name == "suite" else \
                f"{wanted.suite!r} with another {name} ({_different(getattr(found, name), getattr(wanted, name))})"
            raise UsageError(f"{pilot}: is a run of {what}; leave out --pilot to run the pilot of this suite")


def _different(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    """Return the fields in which two differ, with what was found."""
    return ", ".join(f"{key}: {found.get(key)} there, {wanted.get(key)} requested"
                     for key in sorted({*found, *wanted}) if found.get(key) != wanted.get(key))
