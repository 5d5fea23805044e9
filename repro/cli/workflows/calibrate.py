"""Calibration of a suite: run cells against themselves, or use the twins of a stored run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any

from repro.bundle.source import is_bundle, open_record
from repro.cli.workflows.run import opened
from repro.compare import factors_of
from repro.compare.cells import CellIndex, primary_pair
from repro.compare.design.calibration import (
    FILE,
    Calibration,
    add,
    calibration,
    conditions_of,
    nulls_of,
    place_for,
    twin_plan,
)
from repro.compare.design.twins import ASSUMED, smallest_found
from repro.core import pattern
from repro.core.errors import Exit, UsageError
from repro.core.files import write_model
from repro.core.machine import detect
from repro.record.folder import limits
from repro.record.folder.store import Record, read_record
from repro.runner.context import Options
from repro.runner.pool.engines import FILE as POOL
from repro.runner.pool.engines import StoredPool
from repro.runner.run import Messages, dated, discarded_if_unstarted, prepare
from repro.suite.model import Suite
from repro.suite.planning.cell import Cell
from repro.suite.planning.plan import Plan, expand_again


@dataclass(frozen=True, slots=True)
class Calibrated:
    """The result of a calibration, and the file that holds it."""

    calibration: Calibration
    added: int
    """Number of nulls that this call added."""
    path: Path
    run: Path
    """The run folder that the nulls come from."""
    left_out: tuple[str, ...]
    """Cells that gave no null, with the reason."""

    @property
    def exit_code(self) -> Exit:
        return Exit.NOT_REPRODUCED if self.calibration.failures else Exit.DONE

    def as_json(self) -> dict[str, Any]:
        return {"calibration": self.calibration.model_dump(mode="json", by_alias=True), "added": self.added,
                "failures": list(self.calibration.failures), "unfound": self.calibration.unfound,
                "path": str(self.path), "run": str(self.run), "left_out": list(self.left_out)}

    def text(self) -> str:
        lines = [f"{item.label}: {item.n} pairs, {item.metric}: {item.verdict}"
                 + (f", ratio {item.ratio:.4f}" if item.ratio is not None else "")
                 + (f", p = {item.p:.3g}" if item.p is not None else "") for item in self.calibration.nulls]
        lines += [f"no null: {text}" for text in self.left_out]
        lines += ["", f"{self.calibration.word}: {self.calibration.sentence()}", self.calibration.unfound,
                  f"machine: {self.calibration.machine}", f"file:    {self.path}",
                  f"run:     {self.run}"]
        return "\n".join(lines)


def choose_cells(plan: Plan, wanted: dict[str, Any] | None) -> list[Cell]:
    """Return the cells that match a pattern; without one the baseline of the primary contrast, else the first cell.

    Raises:
        UsageError: no cell matches.
    """
    if wanted is None:
        first = primary_pair(CellIndex(plan.cells), plan.suite.primary)
        return [cell for cell in plan.cells if first is not None and cell.cell_id == first[1]] or [plan.cells[0]]
    found = [cell for cell in plan.cells if pattern.matches(factors_of(cell), wanted)]
    if not found:
        shown = ", ".join(f"{key}={value}" for key, value in wanted.items())
        known = "; ".join(cell.label for cell in plan.cells[:8])
        raise UsageError(f"--cell {shown}: matches no cell; cells: {known}")
    return found


def reach(plan: Plan, wanted: dict[str, Any] | None, pairs: int | None, nulls: int) -> str:
    """Say before anything runs what a calibration can find.

    Raises:
        UsageError: no cell matches.
    """
    count = nulls * len(choose_cells(plan, wanted))
    total = count * _pairs(plan, pairs)
    found = smallest_found(count, total, ASSUMED)
    return (f"{count} comparison{'s' if count > 1 else ''} of twins, {total} pairs, find with 80 % probability {found} "
            f"(ratios of pairs that vary by {100 * ASSUMED:g} %; in proportion for others); --nulls makes it finer")


def calibrate(
    plan: Plan, suite_text: str, wanted: dict[str, Any] | None, pairs: int | None, nulls: int, to: Path | None,
    pool: StoredPool | None = None,
) -> Calibrated:
    """Run cells against themselves and keep the nulls.

    Args:
        pool: where its blocks run, all lanes at once; None: one after another in this process.
        pairs: pairs of each null; None: the number of seeds of the suite.
        to: the file of the calibration; None: the user's file for this suite.

    Raises:
        KeyboardInterrupt: a signal ended the run; `replay` accepts the completed trials.
        ReproError: the plan cannot be a calibration, or the run failed; `replay` accepts the completed trials.
    """
    each = _pairs(plan, pairs)
    twins = twin_plan(plan, choose_cells(plan, wanted), each, nulls)
    limits.check_size(twins)
    folder = prepare(twins, suite_text, dated(f"{plan.suite.suite}-calibrate"))
    if pool is not None:
        write_model(folder.root / POOL, pool)
    told = Messages(f"no null is kept; completed trials stay in {folder.root}",
                    f"for their nulls repeat the command with --from {quote(str(folder.root))}",
                    closing="the record is being closed")
    with discarded_if_unstarted(folder), opened(folder, twins, Options(), told) as (run, session):
        record = session.execute(run).completed()
    return _store(record, twins.cells, plan.suite, each, to or place_for(plan.digest, pool is not None), folder.root)


def replay(run: Path, plan: Plan, wanted: dict[str, Any] | None, pairs: int | None, to: Path | None) -> Calibrated:
    """Take nulls from the twins of a stored calibration.

    Raises:
        UsageError: the record is of another suite, or no cell gives a null.
        OutputError: no run folder or bundle, or a damaged one.
    """
    if to is None and is_bundle(run):
        raise UsageError(f"{run}: is a bundle, which is never changed; name the file of the calibration with --to")
    with open_record(run) as root:
        record = read_record(root)
        then = record.plan
        # The digest that the suite has by the method and the master seed of the stored plan.
        suite = plan.suite.model_copy(update={"master_seed": then.master_seed})
        if then.digest != expand_again(then.model_copy(update={"suite": suite}), detect()).digest:
            raise UsageError(f"{run}: is a run of {then.suite.suite!r} with digest {then.digest[:16]}, not of "
                             f"{plan.suite.suite!r} with {plan.digest[:16]}; a calibration requires a run of the same "
                             "suite")
        cells = then.cells if wanted is None else choose_cells(then, wanted)
        return _store(record, cells, plan.suite, _pairs(plan, pairs), to or run / FILE, run)


def _pairs(plan: Plan, pairs: int | None) -> int:
    return pairs or max(plan.design.common, 6)


def _store(record: Record, cells: Sequence[Cell], suite: Suite, pairs: int, to: Path, run: Path) -> Calibrated:
    nulls, problems = nulls_of(record, cells, suite.metric, pairs)
    if not nulls:
        raise UsageError(f"{run}: gives no comparison of a cell with itself: {problems[0]}")
    found = add(to, calibration(suite.suite, record.plan.digest, record.plan.method, conditions_of(record),
                                nulls))
    return Calibrated(found, len(nulls), to, run, tuple(problems))
