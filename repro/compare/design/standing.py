"""What the design of a plan lets its results say: which of them count, which verdicts wait, and what qualifies them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from typing import Any

from repro.compare.cells import CellIndex, ComparedCell, by_cell, factors_of, primary_pair, rerun_refusals
from repro.compare.design.sequential import (
    WAITS,
    TakenLook,
    after_stop,
    before_looks,
    last_look,
    placed,
)
from repro.compare.evidence.pairing import listed
from repro.compare.evidence.repeated import repeated_in
from repro.compare.figures import Claim, ClaimVerdict, Comparison, bounds
from repro.record.folder.execution import Execution
from repro.record.folder.ledger import ENDS
from repro.record.result.remarks import joined
from repro.record.result.results import Result
from repro.record.result.status import meaning
from repro.stats import QualityClaim, mean_interval, or_none, quality_claim
from repro.stats.sequential import StoppedMean
from repro.suite.metrics import MetricSpec
from repro.suite.model import Metric, Suite
from repro.suite.planning.plan import Plan

UNDECLARED = "{what}: the best of k of them shows a difference where there is none in up to 1 - 0.95^k (3: 14 %)"


def asked_otherwise(suite: Suite, metric: Metric, baseline: Mapping[str, Any] | None = None) -> tuple[str, ...]:
    """Return the cautions on a metric or a baseline that the suite does not declare."""
    return tuple(UNDECLARED.format(what=f"{what} was not declared") for what, other in (
        (f"the metric {metric}", metric != suite.metric), ("this baseline", baseline not in (None, suite.baseline)))
        if other)


def figures_in_words(found: QualityClaim, target: float, direction: str, alpha: float) -> tuple[ClaimVerdict, str]:
    """Return the verdict of a test of the mean and the sentence with its figures."""
    figures = f"mean {found.mean:.5f}, target {target:g}, one-sided p = {found.p:.3g}, n = {found.n}"
    if found.supported:
        return "supported", f"{figures}: p is at most {alpha:g}"
    above = found.mean > target
    short = above if direction == "lower" else found.mean < target
    side = f"the mean is {'above' if above else 'below'} the target" if short else f"p is above {alpha:g}"
    return "not supported", f"{figures}: {side}"


def claims(plan: Plan, results: Sequence[Result]) -> tuple[Claim, ...]:
    """Return the claim of every cell of a contest, in the order of the plan; () for any other design.

    The claim is that the mean quality at the end of all declared runs is at least as good as the target. A run without
    a quality at its end is never left out: the claim is then not supported if the cell's own doing ended it (it
    diverged, ran out of memory or into its time limit), because the mean over all runs is no number, and cannot be
    tested if its end tells nothing of the cell.
    """
    if not plan.design.is_contest:
        return ()
    trials = by_cell(results)
    return tuple(claim_of(cell, trials[cell.cell_id], plan.suite.seeds) for cell in plan.cells)


def claim_of(cell: ComparedCell, results: Sequence[Result], declared: int) -> Claim:
    """Judge the claim of one cell, by all of its declared runs."""
    stop = factors_of(cell)["stop"]
    qualities = [item.final for item in results if _has_quality(item)]
    again = sum(item.attempt > 1 and not item.resumed for item in results)
    found = Claim(
        cell_id=cell.cell_id, label=cell.label, metric=stop["metric"], direction=stop["direction"],
        target=stop["target"], alpha=stop["alpha"], declared=declared, n=len(qualities), verdict="cannot be tested",
        because="", cautions=(f"{again} of its runs were started again after an interruption; a run that is "
                              "interrupted while its quality looks bad is missing from the claim",) if again else ())
    if refusal := _refusal(results, declared):
        verdict, because = refusal
        return found.model_copy(update={"verdict": verdict, "because": because})
    if repeated := repeated_in(cell, results):
        return found.model_copy(update={"because": f"{joined(repeated)}; a t test needs different trainings"})
    values = [value for value in qualities if value is not None]
    if len(values) < 2:
        return found.model_copy(update={"because": "one run: a t test needs at least two"})
    tested = or_none(lambda: quality_claim(values, found.target, found.direction, found.alpha))
    if tested is None:
        return found.model_copy(update={"because": f"all {len(values)} values of {found.metric} are equal: a t test "
                                                   "needs values that differ"})
    verdict, because = figures_in_words(tested, found.target, found.direction, found.alpha)
    return found.model_copy(update={
        "verdict": verdict, "because": because, "mean": tested.mean, "deviation": tested.deviation, "p": tested.p,
        "interval": bounds(mean_interval(values))})


def _has_quality(item: Result) -> bool:
    return meaning(item.status).reached and item.final is not None and math.isfinite(item.final)


def _refusal(results: Sequence[Result], declared: int) -> tuple[ClaimVerdict, str] | None:
    """Return the verdict on a cell not all of whose declared runs have a quality, and why; None: all have."""
    repeats = Counter(item.repeat for item in results)
    if twice := [repeat for repeat, count in repeats.items() if count > 1]:
        return "cannot be tested", f"seed {twice[0]} appears twice"
    missing = declared - len(results)
    without = [item for item in results if not _has_quality(item)]
    own = Counter(meaning(item.status).words for item in without if meaning(item.status).counts)
    if own:
        return "not supported", f"of {declared} declared runs {_ends(own)}, so there is no mean over all runs"
    other = Counter(meaning(item.status).words for item in without)
    parts = ([_ends(other)] if other else []) + ([f"{missing} did not run"] if missing > 0 else [])
    if not parts:
        return None
    return "cannot be tested", f"of {declared} declared runs {' and '.join(parts)}, and the claim is about all of them"


def _ends(ends: Mapping[str, int]) -> str:
    """`2 diverged and 1 ran out of memory`."""
    return listed([f"{count} {words}" for words, count in sorted(ends.items())])


class Standing:
    """The results of a plan under its design; each part is computed when it is first asked for."""

    def __init__(self, plan: Plan, results: Sequence[Result], execution: Execution | None = None) -> None:
        self.plan = plan
        self.results = results
        self._execution = execution

    @cached_property
    def _last(self) -> TakenLook | None:
        """Of a sequential run: its last look; None before the first."""
        return last_look(self.plan, self.results, self._execution) if self.plan.design.looks else None

    @cached_property
    def claims(self) -> Mapping[str, Claim]:
        """Cell id -> its claim of quality, in the order of the plan; none but of a contest."""
        return {item.cell_id: item for item in claims(self.plan, self.results)}

    @cached_property
    def used(self) -> Sequence[Result]:
        """The results that contrasts beside the primary are judged by: of a sequential run those up to its first look,
        so that the stop cannot choose them."""
        if not self.plan.design.looks:
            return self.results
        return tuple(item for item in self.results if item.repeat < self.plan.design.common)

    def judged_repeats(self, cells: Collection[str]) -> int:
        """Return how many repeats the verdict on these cells is on: of a sequential run those of its last look for the
        primary contrast, those of its first for others."""
        last = self._look_of(cells)
        return self.plan.design.common if last is None else last.stage.n

    def after_stop(self, cells: Collection[str]) -> StoppedMean | None:
        """Return the mean log ratio of these cells, corrected for the stop of a sequential run; None: none is due."""
        last = self._look_of(cells)
        return None if last is None else after_stop(self.plan, last)

    def ended_open(self, cells: Collection[str]) -> bool:
        """Return whether these cells ended at a look of an open-ended design, where nothing corrects their mean."""
        last = self._look_of(cells)
        return last is not None and last.stage.anytime and last.decision in ENDS

    def _look_of(self, cells: Collection[str]) -> TakenLook | None:
        """Return the last look of a sequential run if these are the cells of its primary contrast."""
        primary = primary_pair(CellIndex(self.plan.cells), self.plan.suite.primary) if self._last else None
        return self._last if primary is not None and set(cells) == set(primary) else None

    @property
    def waits(self) -> tuple[str, ...]:
        """Why no contrast beside the primary has a verdict, or not yet."""
        if not self.plan.design.looks:
            return rerun_refusals(self.plan)
        return () if self._last is not None and self._last.decision in ENDS else (WAITS,)

    def refusals(self, candidate: str, spec: MetricSpec) -> tuple[str, ...]:
        """Return why a candidate gets no verdict by a metric, whatever its figures."""
        return (*self.waits, *self.unclaimed(candidate, spec))

    def unclaimed(self, candidate: str, spec: MetricSpec) -> tuple[str, ...]:
        """Return why a candidate cannot be called faster: its quality is not shown. A baseline is compared as it is."""
        claim = self.claims.get(candidate)
        if claim is None or claim.supported or not spec.speed:
            return ()
        return (f"the candidate's claim of quality is {claim.in_short}, so a time to its end is no result",)

    def cautions(self, candidate: str, baseline: str, spec: MetricSpec) -> tuple[str, ...]:
        """Return what a reader must know of the claims of two cells."""
        found: list[str] = []
        for name, claim in (("candidate", self.claims.get(candidate)), ("baseline", self.claims.get(baseline))):
            if claim is None:
                continue
            if not claim.supported and (name == "baseline" or not spec.speed):
                found.append(f"the {name}'s claim of quality is {claim.in_short}")
            found += [f"{name}: {text}" for text in claim.cautions]
        return tuple(found)

    def placed(self, item: Comparison) -> Comparison:
        """Return a comparison; in place of the primary contrast of a sequential run that of its last look."""
        if not item.primary or not self.plan.design.looks:
            return item
        return placed(self.plan, self._last) if self._last else before_looks(self.plan, self.used, item)
