"""Comparison of the same cells of several runs of each side: the run is the unit, because runs differ as wholes.

Trials of one run share the state of the machine, so they are no independent sample of what runs differ by. Each run
gives one figure a cell, the geometric mean of its trials. Welch's test on their logs compares the two sets of runs. It
holds only if a change of the machine over time meets both sides alike, that is if the runs were made in turns. If most
runs of one side came first, such a change looks like a difference, and there is no verdict.
"""

from __future__ import annotations

from collections.abc import Sequence

from repro.compare.design.pooled import MeanTrial, mean_bracket, means
from repro.compare.design.standing import Standing
from repro.compare.evidence.evidence import ComparisonRequest, examine
from repro.compare.evidence.pairing import cell_trials
from repro.compare.figures import Comparison
from repro.compare.runs.two_runs import Named, Ran, forced
from repro.compare.verdict.verdict import judged
from repro.core.errors import UsageError
from repro.record.result.results import Result
from repro.suite.metrics import METRICS, MetricSpec
from repro.suite.model import Metric
from repro.suite.planning.cell import Cell

UNIT = ("each figure is the geometric mean of one run's trials: the run is the unit, because its trials share the "
        "state of the machine")
NOT_IN_TURNS = ("the runs of the two sides were not made in turns, so a change of the machine meanwhile looks like a "
                "difference; make them alternately, one of each side after the other")


def versus_several(
    before: Sequence[Ran], after: Sequence[Ran], metric: Metric | None = None, force: bool = False
) -> list[Comparison]:
    """Compare every cell of the runs `after` with the same cell of the runs `before`: one family, Holm's correction.

    Raises:
        UsageError: the suite digests or the methods differ without `force`, or a cell is not in every run.
    """
    every = [*before, *after]
    cautions = dict.fromkeys((UNIT, *(text for other in every[1:] for text in forced(every[0], other, force))))
    plan = after[0].plan
    chosen = metric or plan.suite.metric
    cells = [cell for cell in plan.cells if all(cell.cell_id in {item.cell_id for item in run.plan.cells}
                                                for run in every)]
    if not cells:
        raise UsageError("the runs have no cell in common")
    doubts = (NOT_IN_TURNS,) if METRICS[chosen].clocked and not in_turns(before, after) else ()
    claimed = [(run.name, Standing(run.plan, run.results)) for run in after]
    return judged([
        examine(
            Named(cell.cell_id, f"{cell.label} [{_runs(len(after))}]", cell.choices),
            Named(cell.cell_id, f"{cell.label} [{_runs(len(before))} against]", cell.choices),
            _means(after, cell, METRICS[chosen]), _means(before, cell, METRICS[chosen]),
            ComparisonRequest(
                metric=chosen, margin=plan.suite.margin, paired=False, withhold=False, cautions=tuple(cautions),
                refusals=(*doubts, *_lacking(every, cell, METRICS[chosen]),
                          *_unclaimed(claimed, cell, METRICS[chosen]))),
        )
        for cell in cells
    ])


def _runs(count: int) -> str:
    return "1 run" if count == 1 else f"{count} runs"


def in_turns(before: Sequence[Ran], after: Sequence[Ran]) -> bool:
    """Return True if the runs alternate in time; False if a start is unknown.

    After every run, each side has made its share of the runs so far, to within less than one run. With equal numbers
    that is one run of each side in every two, in either order: ABABAB or ABBABA, not AABB.
    """
    known = [(run.environment.started_ms, number) for number, side in enumerate((before, after)) for run in side
             if run.environment is not None]
    total = len(before) + len(after)
    if len(known) < total:
        return False
    later, made = len(after), 0
    for place, (_, number) in enumerate(sorted(known), 1):
        made += number
        if abs(made * total - place * later) >= total:
            return False
    return True


def _lacking(runs: Sequence[Ran], cell: Cell, spec: MetricSpec) -> tuple[str, ...]:
    """Return why a run has no figure: trials that have not run, or that ended without it."""
    found = []
    for run in runs:
        trials = cell_trials(run.name, _common(run, cell), spec)
        if trials.n < run.plan.design.common:
            found.append(f"{trials.n} of {run.plan.design.common} planned trials of {run.name} have run")
        elif trials.without or trials.wrong:
            found.append(trials.wrong or f"{trials.without_words()}, so that run has no mean")
    return tuple(found)


def _unclaimed(runs: Sequence[tuple[str, Standing]], cell: Cell, spec: MetricSpec) -> tuple[str, ...]:
    """Return why runs of a contest are no result: the candidate's quality is not shown."""
    return tuple(f"{name}: {text}" for name, standing in runs
                 for text in standing.unclaimed(cell.cell_id, spec))


def _common(run: Ran, cell: Cell) -> list[Result]:
    """Return the trials that every run has: of a sequential run those up to its first look, so that it does not matter
    where it stopped.
    """
    found = run.results_of(cell.cell_id)
    if run.plan.kind == "reproduction":
        return list(found)
    return [item for item in found if item.repeat < run.plan.design.common]


def _means(runs: Sequence[Ran], cell: Cell, spec: MetricSpec) -> list[MeanTrial]:
    """Return one mean a run, of every figure over its trials; the grid of evaluations is that of its first trial."""
    found = []
    for number, run in enumerate(runs):
        trials = cell_trials(run.name, _common(run, cell), spec)
        if trials.values and not trials.wrong and not trials.without:
            of_run = [trials.results[repeat] for repeat in sorted(trials.values)]
            found.append(MeanTrial(
                repeat=number, means=means(of_run, zero=0.0), bracket=mean_bracket(of_run),
                curve=tuple(of_run[0].curve), effective=of_run[0].effective, resumed=tuple(of_run[0].resumed)))
    return found
