"""Results + baseline -> Comparisons: the verdicts on pairs of cells, with reasons.

The declared primary contrast is tested alone at the 5 % level; Holm corrects all others over the family shown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from repro.compare.cells import CellIndex, CellPair, ComparedCell, by_cell, contrast_pairs
from repro.compare.design.chosen import Chosen, one_of_searches
from repro.compare.design.standing import Standing, asked_otherwise
from repro.compare.evidence import drift
from repro.compare.evidence.evidence import ComparisonRequest, examine
from repro.compare.evidence.read_back import ReadBack
from repro.compare.figures import DECIDED, Comparison
from repro.compare.verdict.verdict import judged
from repro.record.folder.execution import Execution
from repro.record.folder.store import without_collector
from repro.record.result.results import Result
from repro.suite.metrics import METRICS
from repro.suite.model import MARGIN, Metric, Unit
from repro.suite.planning.plan import Plan


@without_collector()  # else every result of the record is visited again for every few contrasts
def compare(
    plan: Plan, results: Sequence[Result], metric: Metric | None = None, baseline: Mapping[str, Any] | None = None,
    execution: Execution | None = None, *, one_family: bool = False, pilot: bool = False,
    only: CellPair | None = None, margin: float | None = None,
) -> list[Comparison]:
    """Compare the declared contrast first, then every other cell with its baseline and, if processes vary, with one
    process of the same kind.

    A contrast is primary only by the metric and against the baseline that were declared. With another metric
    it still comes first, but in the family of the others.

    Args:
        metric: None: the declared contrast's, else the wall clock.
        baseline: factors that select the cells to compare against; None: the suite's.
        execution: the starts of all trials, for blocks and drift; None: in the order of the plan.
        one_family: Holm over all contrasts, the declared one too: together they err in 5 %.
        pilot: the spread of the times is asked, whatever the qualities of a contest.
        only: the two cells to compare, instead of all contrasts.
        margin: largest difference that counts as the same; None: the suite's.
    """
    suite = plan.suite
    if not plan.design.scored:  # its trials choose settings; they are no result about any
        return []
    chosen = metric or suite.metric
    index = CellIndex(plan.cells)
    first, contrasts = (None, [only]) if only else contrast_pairs(index, suite, baseline)
    undeclared = () if pilot else asked_otherwise(suite, chosen, baseline)
    standing, spec = Standing(plan, results, execution), METRICS[chosen]
    trials, doubts = by_cell(standing.used), drift.doubts(plan, standing.used, execution)
    unit: Unit = "block" if plan.has_twins else suite.unit
    nodes, alone = doubts.nodes(unit), by_cell(execution.alone if execution else ())
    found = judged([
        examine(index.cells[one], index.cells[other], trials[one], trials[other], ComparisonRequest(
            metric=chosen, primary=(one, other) == first and chosen == suite.metric and not one_family,
            planned=plan.design.common, margin=suite.margin if margin is None else margin,
            margin_declared=margin in (None, suite.margin), horizon=suite.horizon_of(chosen),
            refusals=(*doubts.refusals(one, other, spec), *one_of_searches(plan),
                      *(standing.waits if pilot else standing.refusals(one, spec))),
            cautions=(*doubts.reruns(spec, (one, other)), *doubts.cautions(one, other),
                      *(() if pilot else standing.cautions(one, other, spec)), *undeclared),
            slots=doubts.slots(one, other), apart=doubts.apart(one, other), carry=doubts.carry(one, other),
            nodes=nodes, alone=(alone[one], alone[other]), unit=unit,
        ))
        for one, other in contrasts
    ])
    read_back, chosen_settings = ReadBack(plan, results), Chosen(plan)
    counted = [item.model_copy(update={"failed_starts": doubts.failed_starts(spec, (item.candidate, item.baseline))})
               for item in found]
    return [chosen_settings.qualified(item).model_copy(update={
                "differs": read_back.differences(item.candidate, item.baseline)})
            for item in map(standing.placed, counted)]


ASKED_AFTERWARDS = "exploratory: it was asked for after the results were seen, so it has no verdict"


def explore(
    plan: Plan, results: Sequence[Result], pair: CellPair, metric: Metric, margin: float,
    execution: Execution | None = None,
) -> Comparison:
    """Compare two cells that were chosen after the results were seen: all figures, and no verdict."""
    found, = compare(plan, results, metric, execution=execution, only=pair, margin=margin)
    shown = f"{ASKED_AFTERWARDS}; declared beforehand, the reason would read: {found.because}"
    because = shown if found.verdict in DECIDED else f"{ASKED_AFTERWARDS}; {found.because}"
    return found.model_copy(update={"verdict": "exploratory", "because": because, "advice": None})


def contrast(
    candidate: ComparedCell, baseline: ComparedCell, candidate_results: Sequence[Result],
    baseline_results: Sequence[Result], metric: Metric, primary: bool, planned: int | None = None, *,
    margin: float = MARGIN, horizon: float | None = None, paired: bool = True,
) -> Comparison:
    """Compare one candidate with one baseline, in a separate family.

    Args:
        planned: pairs that the plan requires. While some are missing there is no verdict, because stopping at a good
            moment would choose it.
        paired: False if trials of one repeat share nothing, such as those of two machines: Welch on logs.
    """
    asked = ComparisonRequest(
        metric=metric, primary=primary, planned=planned, margin=margin, horizon=horizon, paired=paired)
    return judged([examine(candidate, baseline, candidate_results, baseline_results, asked)])[0]
