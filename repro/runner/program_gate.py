"""The parity gate of a program suite: the first steps of its cells, each traced twice, against the baseline's."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from repro.compare.cells import CellIndex, baseline_pairs
from repro.core.errors import TrialError
from repro.core.files import write_json
from repro.core.numbers import spans
from repro.program.gate.judge import Difference, Intended, check_wrapper, culprit, judge
from repro.program.gate.runs import trace_program
from repro.program.gate.sight import Sight, distance, repeats, sight_of
from repro.program.gate.trace import Trace, read_trace, read_zip, write_zip
from repro.record.folder.resume import began_elsewhere
from repro.record.folder.store import Gate, Record
from repro.runner.context import RunContext
from repro.runner.gate import as_json, require_no_problem
from repro.suite.kinds.program import ProgramConfig, ProgramGate
from repro.suite.model import Trial
from repro.suite.planning.cell import Cell
from repro.suite.planning.plan import Plan

GROUP = "programs"
STORED = "the stored trace"


@dataclass(frozen=True, slots=True)
class Variant:
    """One cell, traced."""

    run: Trace
    null: Trace | None
    """The same from weights that are one last place away."""
    unrepeated: str = ""
    """How an equal start differs by more than rounding; "": it does not, or there was no reason to try."""


class ProgramTraces:
    """Traces the cells of a plan of programs and compares them with one of them, or with a stored trace."""

    def __init__(self, context: RunContext, against: Path | None = None, save: Path | None = None) -> None:
        """
        Args:
            against: file of a stored trace, the reference; None: the suite's baseline is.
            save: file for the trace of the baseline.
        """
        self.context, self._against, self._save = context, against, save

    def require(self, record: Record) -> None:
        """Run the gate that the suite states, unless an earlier start of this run has passed it with these files.

        A program that is passed variables of this process may train differently under each start: it is compared again.

        Raises:
            ParityError: it was not passed.
        """
        cells = [cell for cell in self.context.plan.cells if _stated(cell) is not None]
        passes_variables = any(isinstance(cell.choices, ProgramConfig) and cell.choices.engine.passes for cell in cells)
        same = not began_elsewhere(record) and not passes_variables
        if same and passed(self.context.plan, record.parity):
            return
        findings = self.run(cells)
        # A problem of a resumed run is not written: its trials so far ran under the earlier verdict.
        if not (record.attempts and record.parity and any(item["problem"] for item in findings)):
            steps = max((step for cell in cells for step in _options(cell).traced), default=0)
            write_json(self.context.folder.parity_verdict, {"needed": True, "tolerance": 0.0, "steps": steps,
                                                            "findings": findings})
        require_no_problem(findings, resumed=bool(record.attempts))

    def run(self, cells: Sequence[Cell]) -> list[dict[str, Any]]:
        """Compare each cell with its reference; return one finding for each."""
        starts = None if self._against is None else read_zip(self._against)
        stored = None if starts is None else Variant(starts["run"], starts.get("null"))
        references = references_of(self.context.plan, cells)
        traced: dict[str, Variant | str] = {}
        return [self._compared(cell, references[cell.cell_id], stored, traced) for cell in cells]

    def _compared(
        self, cell: Cell, reference: Cell, stored: Variant | None, traced: dict[str, Variant | str]
    ) -> dict[str, Any]:
        """Return the finding of one cell; `traced`: variants by cell, or why there is none."""
        name = reference.label if stored is None else STORED
        theirs = self._variant(reference, traced) if stored is None else stored
        if isinstance(theirs, str):
            return _not_run(cell, name, theirs if cell is reference else f"{name} {theirs}")
        if stored is None and cell is reference:
            wrapper = {"wrapper": check_wrapper(theirs.run, _intended(cell))}
            return _finding(cell, name, wrapper, 0.0, []) | {"against": cell.cell_id}
        ours = self._variant(cell, traced)
        if isinstance(ours, str):
            return _not_run(cell, name, ours)
        return self._judge(cell, ours, theirs, name) | {"against": reference.cell_id if stored is None else ""}

    def _variant(self, cell: Cell, traced: dict[str, Variant | str]) -> Variant | str:
        if cell.cell_id not in traced:
            try:
                # With several baselines (other factors), the first is saved.
                traced[cell.cell_id] = self._trace(cell, self._save if not traced else None)
            except TrialError as error:
                traced[cell.cell_id] = str(error)
        return traced[cell.cell_id]

    def _trace(self, cell: Cell, save: Path | None) -> Variant:
        """Trace a cell, then once more from weights one last place of its narrowest type away.

        If the two differ by more than rounding, a third start from equal weights tells whether it draws without a
        seed: such a difference would widen every tolerance.
        """
        plan, folder = self.context.plan, self.context.folder
        trial, steps = plan.trial(cell, 0), _options(cell).traced
        base = (folder.root.resolve() / plan.base).resolve() if plan.base else None
        starts: dict[str, Mapping[str, bytes]] = {}
        self.context.watcher.stage(f"parity gate: {cell.label}")
        starts["run"] = trace_program(trial, base, folder.code, steps, os.environ)
        run = read_trace(starts["run"])
        starts["null"] = trace_program(trial, base, folder.code, steps, os.environ, run.width)
        if save is not None:
            write_zip(save, starts)
        null = read_trace(starts["null"])
        if not repeats(run, null):
            return Variant(run, null)
        return Variant(run, null, repeats(run, read_trace(trace_program(trial, base, folder.code, steps, os.environ))))

    def _judge(self, cell: Cell, ours: Variant, theirs: Variant, name: str) -> dict[str, Any]:
        nulls = [(side.run, side.null) for side in (theirs, ours) if side.null is not None]
        sight = sight_of(ours.run, theirs.run, nulls)
        for side, text in (("the reference", theirs.unrepeated), ("this variant", ours.unrepeated)):
            if text:
                sight.unrepeated = f"{side}, started again with the same seed, {text}"
        if missing := [number for number in _options(cell).traced if number not in theirs.run.numbers]:
            return _not_run(cell, name, f"{name} does not have step {missing[0]}: store it again with this suite's "
                            f"`gate`, or compare only steps up to {max(theirs.run.numbers, default=0)}")
        checks = judge(ours.run, theirs.run, sight, _intended(cell))
        found = _finding(cell, name, checks, _largest(ours.run, theirs.run), _limits(ours.run, theirs.run, sight))
        steps = [number for number in ours.run.numbers if number <= sight.blind]
        return found | {"scope": f"steps {spans(steps)} were compared, no others and no evaluation"}


def references_of(plan: Plan, cells: Sequence[Cell]) -> dict[str, Cell]:
    """Return cell -> the cell that it is compared with: the baseline with all other factors equal, else the first."""
    suite, by_id = plan.suite, {cell.cell_id: cell for cell in cells}
    wanted = suite.baseline
    if not wanted and suite.primary is not None:
        ours = suite.primary.candidate
        wanted = {name: value for name, value in suite.primary.baseline.items() if ours.get(name) != value}
    index = CellIndex(cells)
    bases = index.matching(wanted) if wanted else []
    mates = dict(baseline_pairs(index, list(suite.matrix), wanted)) if bases else {}
    first = by_id[bases[0]] if bases else cells[0]
    return {cell.cell_id: cell if cell.cell_id in bases else by_id[mates[cell.cell_id]] if cell.cell_id in mates
            else first for cell in cells}


def states_gate(plan: Plan) -> bool:
    """Return True if a cell of a plan states a gate of programs."""
    return any(_stated(cell) is not None for cell in plan.cells)


def gated(context: RunContext, trial: Trial) -> dict[str, str]:
    """Return what the gate of this run has compared of the cell of a trial, with its very files, and with which cell;
    nothing if it has not."""
    path = context.folder.parity_verdict
    if not isinstance(trial.choices, ProgramConfig) or trial.choices.gate is None or not path.is_file():
        return {}
    gate = Gate.model_validate_json(path.read_bytes())
    if len(gate.findings) < 2 or (trial.cell_id, trial.choices.engine.sha256) not in gate.programs:
        return {}
    found = next(item for item in gate.findings if item.cell == trial.cell_id)
    limits = {"gated_limits": "; ".join(found.limits)} if found.limits else {}
    return {"gated": "yes", "gated_against": found.against, **limits}


def passed(plan: Plan, verdict: Mapping[str, Any] | None) -> bool:
    """Return True if `verdict` covers every cell of `plan` that states a gate, with its very files."""
    found = Gate.model_validate(verdict or {}).programs
    return all((cell.cell_id, cell.choices.engine.sha256) in found for cell in plan.cells
               if isinstance(cell.choices, ProgramConfig) and cell.choices.gate is not None)


def _stated(cell: Cell) -> ProgramGate | None:
    return cell.choices.gate if isinstance(cell.choices, ProgramConfig) else None


def _options(cell: Cell) -> ProgramGate:
    return _stated(cell) or ProgramGate(steps=ProgramGate.model_fields["steps"].default, later=(), wrapper="")


def _intended(cell: Cell) -> Intended:
    assert isinstance(cell.choices, ProgramConfig)
    return Intended(cell.choices.processes, cell.choices.wrapper)


def _finding(
    cell: Cell, reference: str, checks: Mapping[str, Difference | None], largest: float, limits: Sequence[str]
) -> dict[str, Any]:
    assert isinstance(cell.choices, ProgramConfig)
    worst = culprit(checks)
    return {"group": GROUP, "kind": "program", "reference": reference, "candidate": cell.label, "cell": cell.cell_id,
            "files": cell.choices.engine.sha256, "problem": worst.text if worst is not None else "",
            "largest_difference": largest, "limits": [*limits],
            "checks": {name: item and as_json(item, item.text) for name, item in checks.items()}}


def _not_run(cell: Cell, reference: str, problem: str) -> dict[str, Any]:
    return {**_finding(cell, reference, {}, 0.0, ()), "problem": problem}


def _limits(run: Trace, reference: Trace, sight: Sight) -> list[str]:
    """Return what the comparison cannot see, in words."""
    found = []
    if math.isfinite(sight.blind):
        blind = int(sight.blind)
        found.append(f"cannot see the direction of an update from step {blind} on, only its size to 10 %, nor losses "
                     f"and gradients after step {blind}: there a start one last place away changes the update by more "
                     "than 10 %")
    last = max((step.number for step in run.steps if step.number < sight.blind), default=0)
    if unseen := sight.unseen(last):
        found.append(f"cannot see the update of {len(unseen)} of {len(run.header.shapes)} tensors in step {last}, such "
                     f"as {unseen[0]!r}: it follows rounding")
    sides = (run, reference)
    for what, seen in (("loss", all(step.ranks[0].loss for side in sides for step in side.steps)),
                       ("gradient", all(step.gradient.whole for side in sides for step in side.steps)),
                       ("samples fed", all(any(step.fed) for side in sides for step in side.steps)),
                       ("settings of the optimizer", all(step.settings for side in sides for step in side.steps))):
        if not seen:
            found.append(f"cannot see the {what}")
    return found


def _largest(ours: Trace, theirs: Trace) -> float:
    """Return the largest relative difference of an update over all tensors together."""
    right = {step.number: step.update for step in theirs.steps}
    return max((distance(step.update, right[step.number]) / (right[step.number].norm or 1.0)
                for step in ours.steps if step.number in right), default=0.0)
