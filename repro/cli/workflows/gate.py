"""The parity gate alone: what an author of a plug-in runs before anything is timed."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from repro.cli.workflows.progress import TerminalWatcher
from repro.compare.cells import select_cells
from repro.core.errors import UsageError
from repro.runner.context import RunContext
from repro.runner.gate import ParityGate
from repro.runner.launching import Launchers
from repro.runner.program_gate import ProgramTraces
from repro.runner.run import prepare
from repro.suite.kinds.program import ProgramConfig
from repro.suite.planning.cell import Cell
from repro.suite.planning.plan import Plan
from repro.worker.gate.parity import skipped

Row = dict[str, Any]
"""One check of one candidate: candidate, group, check, passed; step, tensor, size, tolerance and text of a failure."""


def run_gate(
    plan: Plan, suite_text: str, only: Sequence[str], against: Path | None = None, save: Path | None = None
) -> list[Row]:
    """Compare the cells of a plan with the plain reference loop, programs with their baseline; nothing is timed.

    Args:
        only: cells, each by label, id or pattern (`engine=ddp,processes=2`); empty: all.
        against: of programs: file of a stored trace to compare with instead.
        save: of programs: file for the baseline's trace.

    Raises:
        UsageError: an entry of `only` matches no cell, or nothing can be compared.
    """
    chosen = plan.model_copy(update={"cells": choose(plan, only)})
    with tempfile.TemporaryDirectory(prefix="repro-gate-") as place, TerminalWatcher() as watcher:
        folder = prepare(chosen, suite_text, Path(place) / "gate")
        if programs := [cell for cell in chosen.cells if isinstance(cell.choices, ProgramConfig)]:
            if len(programs) < 2 and against is None and save is None:
                raise UsageError("one program has nothing to be compared with: add a level to the suite's matrix, or "
                                 "compare it with a stored trace (--against)")
            traces = ProgramTraces(RunContext(chosen, folder, watcher), against, save)
            return [row for item in traces.run(programs) for row in rows_of(item)]
        if against is not None or save is not None:
            raise UsageError("--against and --save are for suites of programs")
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
    return [row for item in findings for row in rows_of(item)]


def choose(plan: Plan, only: Sequence[str]) -> tuple[Cell, ...]:
    """Return the cells that an entry of `only` selects, in the order of the plan.

    Raises:
        UsageError: an entry matches no cell.
    """
    if not only:
        return plan.cells
    wanted = {cell.cell_id for entry in only for cell in select_cells(plan.cells, entry, "--only")}
    return tuple(cell for cell in plan.cells if cell.cell_id in wanted)


def rows_of(finding: Mapping[str, Any]) -> list[Row]:
    """Return the checks of one candidate; of one that did not start, that."""
    checks = finding["checks"] or {"start": {"text": finding["problem"]} if finding["problem"] else None}
    blank = {"step": None, "tensor": "", "size": None, "tolerance": None}
    # Of programs: what was compared, and what could not be seen.
    scope = [finding["scope"]] if finding.get("scope") and not finding["problem"] else []
    limits = "; ".join((*scope, *finding.get("limits", ())))
    rows = [{"candidate": finding["candidate"], "group": finding["group"], "check": check, "passed": found is None,
             **blank, "text": "", **(found or {})} for check, found in checks.items()]
    if limits:
        rows[-1]["text"] = "; ".join(filter(None, (rows[-1]["text"], limits)))
    return rows
