"""Results + baseline -> Comparisons: what can be said of two cells, and why.

The declared primary contrast stands alone at the 5 % level; all others are corrected by Holm over the family shown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from repro.compare.cells import CellIndex, ComparedCell, baseline_pairs, factors_of, primary_pair, scaling_pairs
from repro.compare.evidence import ComparisonRequest, examine
from repro.compare.figures import (
    DECIDED,
    Bounds,
    Comparison,
    Equivalence,
    Estimate,
    Metric,
    Pair,
    Restricted,
    Split,
    Verdict,
)
from repro.compare.metric import SCALES, STATUS_WORDS, MetricSpec
from repro.compare.noted import Noted
from repro.compare.pairing import PAIRED_HASHES
from repro.compare.summary import Summary, summarize
from repro.compare.verdict import judged
from repro.record.results import Result
from repro.suite.model import MARGIN
from repro.suite.plan import Plan

__all__ = [
    "DECIDED",
    "PAIRED_HASHES",
    "SCALES",
    "STATUS_WORDS",
    "Bounds",
    "ComparedCell",
    "Comparison",
    "Equivalence",
    "Estimate",
    "Metric",
    "MetricSpec",
    "Pair",
    "Restricted",
    "Split",
    "Summary",
    "Verdict",
    "compare",
    "contrast",
    "factors_of",
    "summarize",
]


def compare(
    plan: Plan, results: Sequence[Result], metric: Metric | None = None, baseline: Mapping[str, Any] | None = None,
    started_ms: Mapping[str, float] | None = None,
) -> list[Comparison]:
    """The declared contrast first, then every other cell against its baseline and, where processes vary, against one
    process of its own kind.

    A contrast is primary only as it was declared: by its own metric and against its own baseline. Asked for in another
    way it stands first all the same, in the family of the others.

    Args:
        metric: what to compare by; None: the declared contrast's, else the wall clock.
        baseline: factors that single out the cells to compare against; None: the suite's.
        started_ms: trial id -> when it began, for finding drift; None: in the order of the plan.
    """
    suite = plan.suite
    declared = suite.primary.metric if suite.primary else "tta_wall"
    chosen: Metric = metric or declared
    index = CellIndex(plan.cells)
    first = primary_pair(index, suite.primary) if baseline is None else None
    reference = suite.baseline if baseline is None else baseline
    matrix = list(suite.matrix)
    scaling = scaling_pairs(index, matrix) if baseline is None else []
    contrasts = list(dict.fromkeys([*([first] if first else []), *baseline_pairs(index, matrix, reference), *scaling]))
    by_cell: dict[str, list[Result]] = {}
    for result in results:
        by_cell.setdefault(result.cell_id, []).append(result)
    noted = Noted(plan, results, started_ms)
    return judged([
        examine(index.cells[one], index.cells[other], by_cell.get(one, []), by_cell.get(other, []), ComparisonRequest(
            metric=chosen, primary=(one, other) == first and chosen == declared, planned=suite.seeds,
            margin=suite.margin, horizon=suite.horizon, refusals=noted.refusals(one, other),
            cautions=noted.cautions(one, other),
        ))
        for one, other in contrasts
    ])


def contrast(
    candidate: ComparedCell, baseline: ComparedCell, candidate_results: Sequence[Result],
    baseline_results: Sequence[Result], metric: Metric, primary: bool, planned: int | None = None, *,
    margin: float = MARGIN, horizon: float | None = None, paired: bool = True,
) -> Comparison:
    """One candidate against one baseline, in a family of its own.

    Args:
        planned: pairs that the plan asks for. While some are missing there is no verdict: who may stop at a good moment
            can choose it.
        paired: False where trials of one repeat share nothing, as those of two machines: Welch on logs.
    """
    asked = ComparisonRequest(
        metric=metric, primary=primary, planned=planned, margin=margin, horizon=horizon, paired=paired)
    return judged([examine(candidate, baseline, candidate_results, baseline_results, asked)])[0]
