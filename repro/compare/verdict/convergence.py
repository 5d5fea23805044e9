"""Equivalence of every cell's samples to the target with the baseline's, per workload, global batch and precision.

Engines and algorithms that do the same arithmetic must reach the target after the same number of samples. That is an
equivalence, so two one-sided tests show it, not the lack of a difference, and no finer than the evaluation grid:
nothing is known between two evaluations.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal

from repro import stats
from repro.compare import Comparison
from repro.compare.cells import CellIndex, by_cell, rerun_refusals
from repro.compare.evidence.evidence import ComparisonRequest, examine
from repro.compare.figures import Bounds, Pair
from repro.compare.verdict.verdict import judged
from repro.core import pattern
from repro.core.frozen import Frozen
from repro.core.numbers import known_median
from repro.record.result.results import Bracket, Result
from repro.suite.kinds.training import TrainingConfig
from repro.suite.planning.cell import Cell
from repro.suite.planning.plan import Plan

Converged = Literal["equivalent", "faster", "slower", "inconclusive"]
GROUP = ("workload", "batch.global", "precision")
"""Cells that differ in one of these may need different samples."""
ALPHA = 0.05


class Convergence(Frozen):
    """One cell's samples to the target against its baseline's."""

    workload: str
    global_batch: int
    precision: str
    candidate: str
    baseline: str
    candidate_label: str
    baseline_label: str
    verdict: Converged
    """faster, slower: fewer or more samples."""
    because: str
    n: int
    ratio: float | None
    interval: Bounds | None
    """95 % interval of the ratio."""
    p: float | None
    """p of the equivalence, Holm over all rows."""
    margin: float
    grid: float | None
    """Median distance between evaluations at the target, relative to the samples there."""


def check(plan: Plan, results: Sequence[Result]) -> list[Convergence]:
    """Compare every cell with the baseline cell of its workload, global batch and precision; one family under Holm.

    1. The comparison of samples to the target, as of any metric (t intervals and TOST on logs, exact sign-flip test).
    2. If all pairs have one ratio, as on a coarse grid, there is no spread to test by: the sign test on what is
       certain. The crossing of each trial is in its bracket, so each pair's ratio is in a known range; pairs whose
       whole range is inside the margin on one side count for that side. If the median ratio were outside, each pair
       would be inside with probability 1/2 at most, so p = P(Bin(n, 1/2) >= count), the larger of both sides.
    """
    if plan.design.judges != "trial" or not all(isinstance(cell.choices, TrainingConfig) for cell in plan.cells):
        return []  # of a program nothing says that its data and its model are those of another
    if plan.searches > 1:
        return []  # one search is one figure
    trials = by_cell(item for item in results if not plan.design.looks or item.repeat < plan.design.common)
    cells = {cell.cell_id: cell for cell in plan.cells}
    asked = ComparisonRequest(metric="samples", planned=plan.design.common, margin=plan.suite.margin,
                              refusals=rerun_refusals(plan))
    found = judged([examine(cells[one], cells[other], trials[one], trials[other], asked)
                    for one, other in _groups(plan, CellIndex(plan.cells))])
    certain = [_certain(item, trials, plan.suite.margin) for item in found]
    adjusted = stats.holm([1.0 if p is None else p for p in certain]) if certain else []
    return [
        _row(item, cells[item.candidate], None if p is None else q, trials, plan)
        for item, p, q in zip(found, certain, adjusted, strict=True)
    ]


def _groups(plan: Plan, index: CellIndex) -> list[tuple[str, str]]:
    """Return every cell with the first of its group that matches the suite's baseline, else with the first."""
    bases: dict[object, str] = {}
    for preferred in (True, False):
        for cell_id, data in index.factors.items():
            if not preferred or pattern.matches(data, plan.suite.baseline):
                bases.setdefault(index.values(cell_id, GROUP), cell_id)
    found = [(cell_id, bases[index.values(cell_id, GROUP)]) for cell_id in index.cells]
    return [(one, other) for one, other in found if one != other]


def pair_ranges(
    pairs: Sequence[Pair], candidate: Mapping[int, Bracket], baseline: Mapping[int, Bracket]
) -> list[tuple[float, float]]:
    """Return the range of each pair's log ratio of true crossings: (log(miss / hit'), log(hit / miss')).

    -inf and inf if the first evaluation already hit.
    """
    found = []
    for pair in pairs:
        ours, theirs = candidate[pair.repeat], baseline[pair.repeat]
        low = math.log(ours.miss_samples / theirs.hit_samples) if ours.miss_samples else -math.inf
        high = math.log(ours.hit_samples / theirs.miss_samples) if theirs.miss_samples else math.inf
        found.append((low, high))
    return found


def certain_p(ranges: Sequence[tuple[float, float]], margin: float) -> float:
    """Return p of the two one-sided sign tests that the median ratio is within 1/(1 + margin) to 1 + margin.

    Raises:
        ValueError: no ranges.
    """
    from scipy.stats import binom

    if not ranges:
        raise ValueError("no pairs, no test")
    edge = math.log1p(margin)
    below = sum(high < edge for _, high in ranges)
    above = sum(low > -edge for low, _ in ranges)
    return float(binom.sf(min(below, above) - 1, len(ranges), 0.5))


def _certain(found: Comparison, trials: Mapping[str, Sequence[Result]], margin: float) -> float | None:
    """Return p of the certain test of one row; None if pairs have a spread, or a pair lacks its brackets."""
    ours, theirs = ({item.repeat: item.bracket for item in trials[name] if item.bracket is not None}
                    for name in (found.candidate, found.baseline))
    known = all(pair.repeat in ours and pair.repeat in theirs for pair in found.pairs)
    if found.ratio is None or found.interval is not None or not known:
        return None
    return certain_p(pair_ranges(found.pairs, ours, theirs), margin)


def _row(
    found: Comparison, cell: Cell, certain: float | None, trials: Mapping[str, Sequence[Result]], plan: Plan
) -> Convergence:
    grid = known_median(
        item.bracket.hit_samples / item.bracket.miss_samples - 1 if item.bracket.miss_samples else math.inf
        for name in (found.candidate, found.baseline) for item in trials[name] if item.bracket is not None)
    verdict, because, p = _verdict(found, certain, grid, plan)
    choices = cell.training
    return Convergence(
        workload=choices.workload.label, global_batch=choices.batch.global_, precision=choices.precision.label,
        candidate=found.candidate, baseline=found.baseline, candidate_label=found.candidate_label,
        baseline_label=found.baseline_label, verdict=verdict, because=because, n=found.n, ratio=found.ratio,
        interval=found.interval, p=p, margin=plan.suite.margin, grid=grid,
    )


def _verdict(
    found: Comparison, certain: float | None, grid: float | None, plan: Plan
) -> tuple[Converged, str, float | None]:
    """(verdict, because, p of the equivalence)."""
    test = found.equivalence
    p = None if test is None else test.p if test.p_adjusted is None else test.p_adjusted
    if found.verdict == "same":
        return "equivalent", found.because, p
    if found.verdict in ("faster", "slower"):
        return found.verdict, found.because, p
    complete = len(found.pairs) >= plan.design.common
    if certain is not None and certain <= ALPHA and complete:
        text = (f"in {found.n} pairs the brackets of the crossings are so close that a median ratio outside "
                f"{plan.suite.margin:.0%} would have a probability of {certain:.2g} (sign test)").replace("%", " %")
        return "equivalent", text, certain
    because = found.because
    if complete and not found.refused and grid is not None and grid > plan.suite.margin:
        shown = f"{grid:.0%}" if math.isfinite(grid) else "as far as the first of them"
        because += (f"; evaluations are {shown} apart at the target, too far to show equivalence within "
                    f"{plan.suite.margin:.0%}: evaluate more often").replace("%", " %")
    return "inconclusive", because, p
