"""Looks of a sequential design: the primary contrast judged at each declared look, until one settles it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from repro.compare.cells import CellIndex, by_cell, primary_pair
from repro.compare.evidence import drift
from repro.compare.evidence.evidence import ComparisonRequest, examine
from repro.compare.evidence.stage import Stage
from repro.compare.figures import DECIDED, Advice, Bounds, Comparison, Estimate, LookPlace, TimeSplit
from repro.compare.verdict.verdict import judged
from repro.record.folder.execution import Execution
from repro.record.folder.ledger import ENDS, Decision, Look
from repro.record.result.results import Result
from repro.record.result.status import meaning
from repro.stats.sample import or_none
from repro.stats.sequential import StoppedMean, median_unbiased
from repro.suite.metrics import METRICS
from repro.suite.planning.plan import Plan

WAITS = "judged once, when the primary contrast is settled or its last look has been taken"


@dataclass(frozen=True, slots=True)
class TakenLook:
    """One look that was taken: what was found, and what follows."""

    stage: Stage
    found: Comparison
    decision: Decision

    @property
    def ends(self) -> bool:
        """No later look is taken."""
        return self.decision != "continues"

    def line(self) -> Look:
        """Return it as a line of the record, without its time."""
        found, test = self.found, self.found.equivalence
        return Look(
            number=self.stage.number, of=self.stage.of, n=self.stage.n, decision=self.decision, verdict=found.verdict,
            nominal=self.stage.difference, same_nominal=self.stage.same, p=found.p, same_p=test.p if test else None,
            ratio=found.ratio, low=found.interval.low if found.interval else None,
            high=found.interval.high if found.interval else None,
        )


def stages(plan: Plan) -> list[Stage]:
    """Return the declared looks."""
    design = plan.design
    if design.sequential is None:
        return []
    count = len(design.looks)
    if design.anytime:
        return [Stage(number, count, n, anytime=True) for number, n in enumerate(design.looks, 1)]
    return [Stage(number, count, level.n, level.difference, level.same)
            for number, level in enumerate(design.sequential.levels(), 1)]


def looks_taken(
    plan: Plan, results: Sequence[Result], execution: Execution | None = None
) -> Iterator[TakenLook]:
    """Yield every look that the results allow, up to the one that ends the run."""
    for stage in stages(plan):
        found = take_look(plan, results, stage, execution)
        if found is None:
            return
        yield found
        if found.ends:
            return


def take_look(
    plan: Plan, results: Sequence[Result], stage: Stage, execution: Execution | None = None
) -> TakenLook | None:
    """Judge the primary contrast with the pairs of one look; None: some of them have not run.

    Trials after the look are not used, those of other cells only to find drift.
    """
    index = CellIndex(plan.cells)
    pair = primary_pair(index, plan.suite.primary)
    assert pair is not None, "a plan with looks has both cells"
    known = [item for item in results if item.repeat < stage.n]
    sides = [[item for item in known if item.cell_id == name] for name in pair]
    if any({item.repeat for item in side} != set(range(stage.n)) for side in sides):
        return None
    doubts, spec = drift.doubts(plan, known, execution), METRICS[plan.suite.metric]
    alone = by_cell(execution.alone if execution else ())
    found = judged([examine(index.cells[pair[0]], index.cells[pair[1]], sides[0], sides[1], ComparisonRequest(
        metric=plan.suite.metric, primary=True, planned=stage.n, margin=plan.suite.margin, horizon=plan.suite.horizon,
        refusals=doubts.refusals(*pair, spec), cautions=(*doubts.reruns(spec, pair), *doubts.cautions(*pair)),
        slots=doubts.slots(*pair), apart=doubts.apart(*pair), carry=doubts.carry(*pair), stage=stage,
        nodes=doubts.nodes("block"), alone=(alone[pair[0]], alone[pair[1]]),
    ))])[0].model_copy(update={"failed_starts": doubts.failed_starts(spec, pair)})
    decision: Decision
    if found.verdict in DECIDED:
        decision = "settled"
    elif any(not meaning(item.status).counts for side in sides for item in side):
        decision = "failed"
    else:
        decision = "last" if stage.number == stage.of else "continues"
    return TakenLook(stage, found, decision)


def last_look(
    plan: Plan, results: Sequence[Result], execution: Execution | None
) -> TakenLook | None:
    """Return the last look that was taken, or the first that ends the run.

    An e-process is judged by its largest value so far, so an earlier look ends the run only if the later ones would,
    too: of its hundreds of looks those before an open one need not be taken again.
    """
    if not plan.design.anytime:
        taken = list(looks_taken(plan, results, execution))
        return taken[-1] if taken else None
    found: TakenLook | None = None
    for stage in reversed(stages(plan)):
        earlier = take_look(plan, results, stage, execution)
        if found is not None and (earlier is None or earlier.decision != "settled"):
            return found
        found = earlier if earlier is not None else found
        if found is not None and found.decision != "settled":
            return found
    return found


def before_looks(plan: Plan, early: Sequence[Result], primary: Comparison) -> Comparison:
    """Return the primary contrast of a run whose first look was not taken, with what it waits for."""
    have = len({item.repeat for item in early if item.cell_id == primary.candidate}
               & {item.repeat for item in early if item.cell_id == primary.baseline})
    looks = plan.design.looks
    if have >= looks[0]:
        return primary
    text = f"look 1 of {len(looks)} at {looks[0]} pairs: {have} have run"
    return primary.model_copy(update={"because": text, "advice": Advice(kind="missing_pairs")})


def placed(plan: Plan, last: TakenLook) -> Comparison:
    """Return the comparison of a look with its place among all looks."""
    stage, following = last.stage, None if last.ends else plan.design.looks[last.stage.number]
    place = LookPlace(number=stage.number, of=stage.of, n=stage.n, nominal=stage.difference,
                      same_nominal=stage.same, anytime=stage.anytime, next_n=following)
    because, advice = _words(last, following)
    mean, split = after_stop(plan, last), last.found.split
    unbiased = mean and Estimate(value=math.exp(mean.value), interval=Bounds(
        low=math.exp(mean.low), high=math.exp(mean.high), level=mean.level))
    # The figures next to the verdict stand without intervals that take no account of the looks.
    return last.found.model_copy(update={
        "look": place, "because": because, "advice": advice, "unbiased": unbiased,
        "cautions": (*last.found.cautions, *_stopped(last)), "welch": None, "probability_less": None,
        "split": split and TimeSplit(samples=split.samples.model_copy(update={"interval": None}),
                                     throughput=split.throughput.model_copy(update={"interval": None}))})


def after_stop(plan: Plan, last: TakenLook) -> StoppedMean | None:
    """Return the mean log ratio of a run that ended at a look, corrected for the stop; None: it goes on or failed, it
    has no ratio or no spread, or its looks are open-ended."""
    if last.decision not in ENDS or last.stage.anytime or last.found.ratio is None:
        return None
    taken = [stage for stage in stages(plan) if stage.number <= last.stage.number]
    logs = [math.log(ratio) for ratio in last.found.judged_ratios]
    return or_none(lambda: median_unbiased(logs, [stage.n for stage in taken], [stage.difference for stage in taken]))


def _stopped(last: TakenLook) -> tuple[str, ...]:
    """Return the caution on an estimate that its stop exaggerates, and that cannot be corrected, or not alone."""
    if last.decision != "settled" or last.found.verdict == "same" or last.found.ratio is None:
        return ()
    if last.stage.anytime:
        return ("the run ended when it was settled: after such a stop the ratio is on average too far from 1",)
    return ("settled at its first look: runs that end there show a ratio that is on average too far from 1; the "
            "median-unbiased one is right over all stops, not for these",) if last.stage.number == 1 else ()


def _words(last: TakenLook, following: int | None) -> tuple[str, Advice | None]:
    stage, found = last.stage, last.found
    at = f"after {stage.n} pairs" if stage.anytime else f"look {stage.number} of {stage.of} at {stage.n} pairs"
    if last.decision == "settled":
        nominal = stage.same if found.verdict == "same" else stage.difference
        where = at if stage.anytime else f"at {at} (a p of at most {nominal:.3g} is needed)"
        return f"settled {where}: {found.because}", None
    if following is not None:
        return f"{at}: continues; {found.because}", Advice(kind="next_look", n=following)
    if last.decision == "failed":
        return f"{at}: {found.because}", found.advice
    tested = found.advice is not None and found.advice.kind == "tested"
    return f"{at}, the last: {found.because}", Advice(kind="looks_used_up") if tested else found.advice
