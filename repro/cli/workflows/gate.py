"""The parity gate alone: what an author of a plug-in runs before anything is timed."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from repro.cli.workflows.progress import TerminalWatcher
from repro.compare.cells import factors_of
from repro.compare.runs.runs import read_pattern
from repro.core import pattern
from repro.core.errors import Exit, UsageError
from repro.runner.context import RunContext
from repro.runner.gate import ParityGate
from repro.runner.launching import Launchers
from repro.runner.run import prepare
from repro.suite.planning.cell import Cell
from repro.suite.planning.plan import Plan
from repro.worker.gate.parity import skipped

REQUESTS = ("optimizer",)
"""Checks of what was requested. They run last, but what they find explains differences from the first step on."""
HEAD = ("candidate", "group", "check", "result", "step", "tensor", "difference", "tolerance")


@dataclass(frozen=True, slots=True)
class Row:
    """One check of one candidate."""

    candidate: str
    group: str
    check: str
    passed: bool
    step: int | None = None
    tensor: str = ""
    size: float | None = None
    tolerance: float | None = None
    text: str = ""


@dataclass(frozen=True, slots=True)
class Gated:
    """The outcome of the gate."""

    rows: tuple[Row, ...]

    @property
    def exit_code(self) -> Exit:
        return Exit.DONE if all(row.passed for row in self.rows) else Exit.TRIAL_FAILED


def run_gate(plan: Plan, suite_text: str, only: Sequence[str]) -> Gated:
    """Compare the cells of a plan with the plain reference loop; nothing is timed and nothing is kept.

    Args:
        only: cells, each by label, id or pattern (`engine=ddp,processes=2`); empty: all.

    Raises:
        UsageError: an entry of `only` matches no cell, or nothing can be compared.
    """
    chosen = plan.model_copy(update={"cells": choose(plan, only)})
    with tempfile.TemporaryDirectory(prefix="repro-gate-") as place, TerminalWatcher() as watcher:
        folder = prepare(chosen, suite_text, Path(place) / "gate")
        launchers = Launchers()
        try:
            launchers.open(chosen, folder.root, watcher.stage)
            findings = ParityGate(RunContext(chosen, folder, watcher), launchers).run(every=True)
        finally:
            launchers.close()
    if not findings and (left_out := skipped(chosen)):
        reasons = "; ".join(dict.fromkeys(left_out.values()))
        raise UsageError(f"the gate leaves every cell out (gate.skip, or the optimizer's own reason): {reasons}")
    if not findings:
        raise UsageError("the gate has nothing to compare: no cell trains a model by an engine other than the "
                         "reference's, single")
    return Gated(tuple(row for item in findings for row in _rows(item)))


def choose(plan: Plan, only: Sequence[str]) -> tuple[Cell, ...]:
    """Return the cells that an entry of `only` selects, in the order of the plan.

    Raises:
        UsageError: an entry matches no cell.
    """
    if not only:
        return plan.cells
    wanted: set[str] = set()
    for entry in only:
        found = {cell.cell_id for cell in plan.cells if _selects(entry, cell)}
        if not found:
            known = "; ".join(cell.label for cell in plan.cells[:8])
            raise UsageError(f"--only {entry}: matches no cell; cells: {known}")
        wanted |= found
    return tuple(cell for cell in plan.cells if cell.cell_id in wanted)


def _selects(entry: str, cell: Cell) -> bool:
    if entry in (cell.cell_id, cell.label):
        return True
    return "=" in entry and pattern.matches(factors_of(cell), read_pattern(entry, "--only"))


def _rows(finding: dict[str, Any]) -> list[Row]:
    names = finding["candidate"], finding["group"]
    if not finding["checks"]:
        return [Row(*names, "start", not finding["problem"], text=finding["problem"])]
    return [Row(*names, check, found is None, **({} if found is None else found))
            for check, found in finding["checks"].items()]


def gate_text(found: Gated) -> str:
    """Return a table with a line for each check, and the failures in words below it, causes before symptoms."""
    table = [HEAD, *(_cells(row) for row in found.rows)]
    widths = [max(len(line[column]) for line in table) for column in range(len(HEAD))]
    lines = ["  ".join(f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True)).rstrip() for line in table]
    compared = list(dict.fromkeys((row.candidate, row.group) for row in found.rows))
    failed = sorted((row for row in found.rows if not row.passed), key=lambda row: (
        compared.index((row.candidate, row.group)), row.check not in REQUESTS, row.step or 0))
    return "\n".join([*lines, "", *([f"{row.candidate}: {row.text}" for row in failed] or ["all checks passed"])])


def _cells(row: Row) -> tuple[str, ...]:
    return (row.candidate, row.group, row.check, "pass" if row.passed else "FAIL",
            "" if row.step is None else str(row.step), row.tensor,
            "" if row.size is None else f"{row.size:.3g}", "" if row.tolerance is None else f"{row.tolerance:.3g}")
