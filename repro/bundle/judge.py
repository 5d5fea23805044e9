"""Judgement of a second execution: reproduced bit for bit if the suite promises that, else within the margin.

In the words of ACM's Artifact Review and Badging v1.1 this is *results reproduced*: the same experiment, run with the
first team's artifacts, gives the same results within a tolerance stated beforehand. (The same team on the same machine
is *repeatability*; with other artifacts it would be *replicability*, which running a bundle again cannot show.)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from repro.bundle.difference import ExecutionDifference, between_executions
from repro.compare import Comparison
from repro.compare.cells import Named
from repro.compare.evidence.evidence import NO_SPREAD, ComparisonRequest, Evidence, examine
from repro.compare.evidence.pairing import Observed, cell_trials, mismatch
from repro.compare.verdict.sentences import describe_resumed_trials, grids_alone, too_coarse
from repro.compare.verdict.verdict import judged
from repro.core.errors import visible
from repro.record.folder.store import Record
from repro.record.result.results import Result
from repro.record.result.status import meaning
from repro.suite.metrics import METRICS
from repro.suite.model import Metric, Suite
from repro.suite.planning.cell import Cell

Answer = Literal["reproduced", "not reproduced", "inconclusive"]
LEAST_EXACT = 5
"""Fewest pairs with one identical ratio that count as "same" without a test: 0.5^5 is below 5 %."""
SAME_LEVEL, DIFFERENT_LEVEL = 0.90, 0.95
"""Of the intervals of the crossings: two one-sided tests at 5 % each, and one two-sided test at 5 %."""
ALL_HASHES = ("data", "init_weights", "weights_step_1", "weights_step_10", "data_order", "augmentation",
              "final_weights")
"""In the order in which a trial records them: the first different one shows where the two executions diverge."""


@dataclass(frozen=True, slots=True)
class CellAnswer:
    """The answer for one cell that was executed twice."""

    cell_id: str
    label: str
    answer: Answer
    how: Literal["bitwise", "equivalence"]
    because: str
    trials: int
    equal_weights: int
    """Number of trials that ended with identical weights, whether promised or not."""
    comparison: Comparison | None
    """The times of the second execution against those of the first; not judged in bitwise cells."""
    resumed: tuple[str, ...] = ()
    """Cautions about resumed trials and repeated trainings; `because` covers the others of the comparison."""


@dataclass(frozen=True, slots=True)
class Reproduction:
    """The answer for all cells together, and the differences between the executions."""

    answer: Answer
    cells: tuple[CellAnswer, ...]
    differences: tuple[ExecutionDifference, ...]
    metric: Metric
    margin: float

    def as_json(self) -> dict[str, Any]:
        return {
            "schema": 1, "answer": self.answer, "terms": "ACM Artifact Review and Badging v1.1: results reproduced",
            "metric": self.metric, "margin": self.margin,
            "cells": [{
                "cell": item.cell_id, "label": item.label, "answer": item.answer, "how": item.how,
                "because": item.because, "trials": item.trials, "equal_weights": item.equal_weights,
                "comparison": item.comparison.model_dump(mode="json", by_alias=True) if item.comparison else None,
            } for item in self.cells],
            "differences": [asdict(item) for item in self.differences],
        }

    def text(self) -> str:
        lines = []
        for item in self.cells:
            lines.append(visible(f"{item.label}: {item.answer} ({item.how}): {item.because}"))
            if item.how == "equivalence" and METRICS[self.metric].of == "operations":
                pass  # a measurement ends with no weights
            elif item.how == "equivalence":
                lines.append(f"  {item.equal_weights} of {item.trials} trials end with identical weights")
            elif item.comparison and item.comparison.ratio is not None:
                lines.append(f"  also measured, not judged: {item.comparison.metric} is {item.comparison.ratio:.3f} x")
            lines += [f"  caution: {text}" for text in item.resumed]
        if self.differences:
            lines.append("differences between the two executions"
                         + (":" if self.answer == "reproduced" else ", which could explain the answer:"))
            lines += [f"  {item.text()}" for item in self.differences]
        else:
            lines.append("no recorded difference in code, libraries, hardware, settings or data")
        return "\n".join([*lines, "", f"results {self.answer} ({self._criterion()})"])

    def _criterion(self) -> str:
        """Return the criterion that the second execution had to meet."""
        words = {"bitwise": "weights and evaluations bit for bit",
                "equivalence": f"{self.metric} within a margin of {100 * self.margin:g}%"}
        return "; ".join(words[how] for how in dict.fromkeys(item.how for item in self.cells))


def judge(first: Record, second: Record, chosen: Sequence[tuple[str, int]]) -> Reproduction:
    """Judge the second record against the first.

    Args:
        chosen: (cell id, repeat) of the trials to run again, decided before they ran.
    """
    suite = first.plan.suite
    metric = suite.metric
    cells = [cell for cell in first.plan.cells if any(cell.cell_id == name for name, _ in chosen)]
    first_side, second_side = ({cell.cell_id: [item for item in record.of_cell(cell.cell_id)
                                               if (cell.cell_id, item.repeat) in set(chosen)] for cell in cells}
                               for record in (first, second))
    planned = Counter(name for name, _ in chosen)
    examined = [
        examine(Named(cell.cell_id, f"{cell.label} [again]", cell.choices),
                Named(cell.cell_id, cell.label, cell.choices), again, before,
                _request(suite, metric, before, again, planned[cell.cell_id]))
        for cell in cells for before, again in [(first_side[cell.cell_id], second_side[cell.cell_id])]
    ]
    answers = tuple(_cell(cell, evidence, found, planned[cell.cell_id])
                    for cell, evidence, found in zip(cells, examined, judged(examined), strict=True))
    return Reproduction(_together(answers), answers, tuple(between_executions(first, second)), metric, suite.margin)


def _request(
    suite: Suite, metric: Metric, first: Sequence[Result], second: Sequence[Result], planned: int,
) -> ComparisonRequest:
    missing = tuple(f"{len(found)} of {planned} chosen trials {where} have a result"
                    for where, found in (("of the record", first), ("of the second execution", second))
                    if len(found) < planned)
    return ComparisonRequest(metric=metric, margin=suite.margin, horizon=suite.horizon, refusals=missing,
                             paired=not _unpaired(first, second, metric))


def _unpaired(first: Sequence[Result], second: Sequence[Result], metric: Metric) -> bool:
    """Return whether hashes that contradict the plan, or a trial without a counterpart, rule out pairing by seed."""
    one, other = cell_trials("", first, METRICS[metric]), cell_trials("", second, METRICS[metric])
    return one.results.keys() != other.results.keys() or mismatch(one, other) is not None


def _cell(cell: Cell, evidence: Evidence, compared: Comparison, planned: int) -> CellAnswer:
    again = evidence.ours.results
    pairs = [(item, again[repeat]) for repeat, item in evidence.theirs.results.items() if repeat in again]
    equal = sum(one.hashes.get("final_weights") == other.hashes.get("final_weights") is not None
                for one, other in pairs)
    real = cell.choices.origin != "simulated"  # a simulated engine has no weights
    bitwise = cell.choices.repeatability == "bitwise" and real
    answer, because = _bitwise(pairs, planned) if bitwise else _equivalent(evidence, compared)
    return CellAnswer(cell.cell_id, cell.label, answer, "bitwise" if bitwise else "equivalence", because, len(pairs),
                      equal if real else 0, compared,
                      (*describe_resumed_trials(evidence), *(item.words for item in evidence.repeated[:1])))


def _bitwise(pairs: Sequence[tuple[Observed, Observed]], planned: int) -> tuple[Answer, str]:
    """Compare the weights of every trial by all hashes that both have, and the value of every evaluation."""
    for one, other in pairs:
        if (why := _first_difference(one, other)) and not any(meaning(item.status).by_chance for item in (one, other)):
            return "not reproduced", f"seed {one.repeat}: {why}"
    unlike = [f"seed {one.repeat} ended as {one.status} in the record and as {other.status} in the second execution"
              for one, other in pairs
              if one.status != other.status or not {"final_weights"} <= one.hashes.keys() & other.hashes.keys()]
    if unlike:
        return "inconclusive", f"{unlike[0]}: without final weights there is nothing to compare"
    if len(pairs) < planned or not pairs:
        return "inconclusive", f"{len(pairs)} of {planned} chosen trials have a result in both executions"
    steps = sum("weights_step_1" in one.hashes for one, _ in pairs)
    return "reproduced", f"the weights of all {len(pairs)} trials are identical at the end" + (
        " and at steps 1 and 10" if steps == len(pairs) else "")


def _first_difference(one: Observed, other: Observed) -> str:
    """Return the first difference between two executions of one trial, or ""."""
    for name in ALL_HASHES:
        ours, theirs = one.hashes.get(name), other.hashes.get(name)
        if ours is not None and theirs is not None and ours != theirs:
            return f"{name.replace('_', ' ')} differ ({ours[:12]} and {theirs[:12]})"
    for number, (mine, its) in enumerate(zip(one.curve, other.curve, strict=False), 1):
        if mine.value != its.value or mine.samples != its.samples:
            return f"evaluation {number} gave {mine.value} and {its.value}"
    return ""


def _equivalent(item: Evidence, found: Comparison) -> tuple[Answer, str]:
    """Two one-sided tests inside the margin; not reproduced only if the whole interval lies outside of it.

    Every cell must pass, so "reproduced" needs no correction for their number (an intersection-union test); a cell
    that differs must do so by a verdict, which carries Holm's. As in a comparison, "reproduced" must hold for every
    position of the crossings between two evaluations, and between unlike evaluation grids so must "not reproduced".
    """
    edge = 1 + (found.equivalence.margin if found.equivalence else 0.0)
    if found.verdict == "inconclusive" and found.ratio is None:  # a reason against any verdict
        return "inconclusive", found.because
    if (exact := _exact(item, found)) is not None:
        return exact
    if found.ratio is not None and found.interval is not None and found.equivalence is not None:
        low, high = found.interval.low, found.interval.high
        figures = f"{found.metric} is {found.ratio:.3f} x the record's ({low:.3f} to {high:.3f}, " \
                  f"margin {1 / edge:.3f} to {edge:.3f}, {found.n} {'pairs' if found.paired else 'a side'})"
        if found.equivalence.equivalent and found.n >= LEAST_EXACT:
            if not item.is_fine(SAME_LEVEL):
                return "inconclusive", f"{figures}; {too_coarse(item)}"
            return "reproduced", f"{figures}; two one-sided tests, p = {found.equivalence.p:.2g}"
        if (low > edge or high < 1 / edge) and not _lies_outside(item, edge):
            return "inconclusive", f"{figures}: {grids_alone(item)}"
        if found.verdict not in ("inconclusive", "exploratory", "same") and (low > edge or high < 1 / edge):
            return "not reproduced", f"{figures}: the whole interval lies outside the margin"
        return "inconclusive", f"{figures}: {_undecided(found)}"
    if found.verdict not in ("inconclusive", "exploratory", "same"):
        return "not reproduced", f"the second execution is {found.verdict}: {found.because}"
    return "inconclusive", found.because


def _lies_outside(item: Evidence, edge: float) -> bool:
    """Return False if evaluation grids that differ leave it open that the crossings are inside the margin."""
    found = item.corrected(DIFFERENT_LEVEL)
    return found is not None and (found.low > edge or found.high < 1 / edge)


def _exact(item: Evidence, found: Comparison) -> tuple[Answer, str] | None:
    """Judge pairs that all have one ratio, as simulated times do; None if the ratios vary.

    Equal simulated figures are one computation, on any grid. Equal measured ones, such as counts of samples, may hide
    different crossings between two evaluations.
    """
    ratios = [pair.candidate / pair.baseline for pair in found.pairs if pair.baseline]
    if len(ratios) < 2 or found.interval is not None or found.ratio is None:
        return None
    if max(abs(ratio - 1) for ratio in ratios) < NO_SPREAD:
        text = f"{found.metric} equals the record's in all {len(ratios)} pairs"
        if item.baseline.choices.origin != "simulated" and not item.is_fine(SAME_LEVEL):
            return "inconclusive", f"{text}; {too_coarse(item)}"
        return ("reproduced", text) if len(ratios) >= LEAST_EXACT else (
            "inconclusive", f"{text}; at least {LEAST_EXACT} pairs are required")
    if found.verdict in ("inconclusive", "exploratory", "same"):
        return None
    return "not reproduced", f"{found.metric} is {found.ratio:.4f} x the record's in every pair"


def _undecided(found: Comparison) -> str:
    if found.n < LEAST_EXACT:
        return f"{found.n} trials are too few; at least {LEAST_EXACT} are required, more make the interval narrower"
    if found.verdict in ("faster", "slower", "higher", "lower"):
        return f"the second execution is {found.verdict}, but not certainly by more than the margin"
    return "neither certainly inside nor certainly outside the margin; run more trials"


def _together(cells: Sequence[CellAnswer]) -> Answer:
    """Return "not reproduced" if one cell is not; "reproduced" only if all cells are."""
    answers = {item.answer for item in cells}
    if "not reproduced" in answers:
        return "not reproduced"
    return "reproduced" if answers == {"reproduced"} else "inconclusive"
