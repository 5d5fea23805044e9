"""Main effects: each level of a factor against the reference, paired over all combinations of the other factors.

The unit of replication is the seed. Within a seed the effect is averaged over the combinations, as log ratios, each
combination alike; the averages are compared as the pairs of two cells are, with Holm over the main effects shown. Only
combinations with both levels count, so that the other factors are the same on both sides. Interactions say whether an
effect depends on another factor, by differences of the effect between two of its levels within a seed.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

import numpy as np

from repro import stats
from repro.compare.cells import Combination, Factors, Level, Match, Named, by_cell, design_of
from repro.compare.design.chosen import Chosen, one_of_searches
from repro.compare.design.effect import Interaction, MainEffect
from repro.compare.design.standing import Standing, asked_otherwise
from repro.compare.evidence import drift
from repro.compare.evidence.evidence import NO_SPREAD, ComparisonRequest, Evidence, examine, p_without_spread
from repro.compare.evidence.pairing import CellTrials, cell_trials, mismatch, pairs_of
from repro.compare.evidence.pooled import pool
from repro.compare.evidence.read_back import ReadBack
from repro.compare.evidence.repeated import repeated_in
from repro.compare.figures import Repeated, bounds
from repro.compare.verdict.family import ALPHA
from repro.compare.verdict.verdict import judged
from repro.record.folder.execution import Execution
from repro.record.result.remarks import joined
from repro.record.result.results import Result
from repro.record.result.status import meaning
from repro.stats import log_ratios
from repro.suite.model import Metric
from repro.suite.planning.cell import Cell
from repro.suite.planning.plan import Plan

Effects = Mapping[Combination, Sequence[float]]
"""Combination of the other factors -> log(candidate / baseline) of every seed."""


def interactions(
    measured: Sequence[tuple[Match, Effects]], factors: Factors, wanted: Mapping[str, Any]
) -> list[tuple[Interaction, ...]]:
    """Return the interactions of each main effect, flagged at 5 % by Holm over all of them.

    The test is Student's t over seeds. It warns of an average that stands for two effects; it decides no verdict, so
    the exact test, whose least p a family this large could not pass, is not asked.

    Args:
        wanted: the baseline pattern, which selects the levels to compare with.
    """
    every = [list(_differences(match, effects, factors, wanted)) for match, effects in measured]
    adjusted = iter(stats.holm([item.p for found in every for item in found]))
    return [tuple(item.model_copy(update={"p_adjusted": p, "flagged": p <= ALPHA})
                  for item, p in zip(found, adjusted, strict=False)) for found in every]


def _differences(match: Match, effects: Effects, factors: Factors, wanted: Mapping[str, Any]) -> Iterator[Interaction]:
    """Yield every level of every other factor against the reference, or the first that the effect was measured at."""
    for place, factor in enumerate(match.others):
        by_level: dict[object, dict[Combination, Sequence[float]]] = {}
        for combination, values in effects.items():
            rest = combination[:place] + combination[place + 1:]
            by_level.setdefault(combination[place], {})[rest] = values
        levels = [level for level in factors.levels(factor) if level.value in by_level]
        reference = factors.reference(factor, wanted)
        base = reference if reference in levels or not levels else levels[0]
        for level in levels:
            found = None if level == base else _difference(
                factor, level, by_level[level.value], base, by_level[base.value])
            if found is not None:
                yield found


def _difference(factor: str, level: Level, here: Effects, reference: Level, there: Effects) -> Interaction | None:
    shared = [rest for rest in here if rest in there]
    if not shared or len(here[shared[0]]) < 2:
        return None
    ours = np.mean([here[rest] for rest in shared], axis=0)
    theirs = np.mean([there[rest] for rest in shared], axis=0)
    steady = float(np.std(ours - theirs, ddof=1)) < NO_SPREAD
    above, below = np.exp(ours), np.exp(theirs)
    _, interval = stats.paired_ratio(above, below)
    p = p_without_spread(ours - theirs) if steady else stats.paired_p(above, below)
    return Interaction(
        factor=factor, level=level.label, reference=reference.label, combinations=len(shared),
        ratio_here=math.exp(float(np.mean(ours))), ratio_there=math.exp(float(np.mean(theirs))),
        interval=None if steady else bounds(interval), p=p, p_adjusted=p, flagged=False,
    )


@dataclass(frozen=True, slots=True)
class _Pair:
    """The trials of two cells that differ in the factor only."""

    cells: tuple[Cell, Cell]
    ours: CellTrials
    theirs: CellTrials

    @property
    def repeated(self) -> tuple[Repeated, ...]:
        """The cells with fewer trainings than trials."""
        sides = zip(self.cells, (self.ours, self.theirs), strict=True)
        return tuple(found for cell, side in sides for found in repeated_in(cell, side.results.values()))

    @property
    def failed(self) -> bool:
        """A trial failed, which tells nothing about either level."""
        return any(not meaning(status).counts for side in (self.ours, self.theirs) for status in side.without)


def main_effects(
    plan: Plan, results: Sequence[Result], metric: Metric | None = None, baseline: Mapping[str, Any] | None = None,
    execution: Execution | None = None,
) -> list[MainEffect]:
    """Return the main effects that the suite asks for; none for a calibration, whose cells come twice.

    Args:
        metric: None: the declared contrast's, else the wall clock.
        baseline: factors that select the levels to compare against; None: the suite's.
        execution: the starts of all trials, for blocks and drift; None: in the order of the plan.
    """
    suite = plan.suite
    if not suite.contrasts or plan.has_twins:
        return []
    factors = Factors(plan.cells, suite)
    wanted = suite.baseline if baseline is None else baseline
    matches = [match for name in suite.contrasts for match in factors.matches(name, wanted)]
    standing = Standing(plan, results, execution)
    doubts = drift.doubts(plan, standing.used, execution)
    trials = by_cell(standing.used)
    asked = ComparisonRequest(metric=metric or suite.metric, planned=plan.design.common, margin=suite.margin,
                              horizon=suite.horizon_of(metric or suite.metric),
                              refusals=(*standing.waits, *one_of_searches(plan)),
                              cautions=asked_otherwise(suite, metric or suite.metric, baseline),
                              nodes=doubts.nodes(suite.unit), unit=suite.unit)
    measured = [_measure(match, trials, asked, doubts) for match in matches]
    verdicts = judged([item.evidence for item in measured])
    found = interactions([(item.match, item.effects) for item in measured], factors, wanted)
    read_back, chosen = ReadBack(plan, results), Chosen(plan)
    return [
        MainEffect(factor=item.match.factor, level=item.match.candidate.label, reference=item.match.baseline.label,
                   combinations=len(item.pairs), incomplete=item.match.incomplete, failed=item.failed,
                   pooled=chosen.qualified(verdict, item.pairs).model_copy(update={
                       "failed_starts": doubts.failed_starts(asked.scale, *item.pairs), "differs": tuple(dict.fromkeys(
                           found for pair in item.pairs for found in read_back.differences(*pair)))}),
                   interactions=differences)
        for item, verdict, differences in zip(measured, verdicts, found, strict=True)
    ]


@dataclass(frozen=True, slots=True)
class _Measured:
    """One main effect before the correction for their number."""

    match: Match
    evidence: Evidence
    effects: Effects
    """Empty if there is no result."""
    pairs: tuple[tuple[str, str], ...]
    """Cells of each combination that counts."""
    failed: int


def _measure(
    match: Match, trials: Mapping[str, list[Result]], asked: ComparisonRequest, doubts: drift.Doubts
) -> _Measured:
    every = {key: _Pair(cells, *(cell_trials(cell.label, trials[cell.cell_id], asked.scale) for cell in cells))
             for key, cells in match.cells.items()}
    pairs = {key: pair for key, pair in every.items() if not pair.failed}
    names = tuple((one.cell_id, other.cell_id) for one, other in (pair.cells for pair in pairs.values()))
    asked = replace(asked, refusals=(*asked.refusals, *_first(doubts.refusals(*name, asked.scale) for name in names)),
                    cautions=(*doubts.reruns(asked.scale, *names), *_first(doubts.cautions(*name) for name in names),
                              *asked.cautions),
                    slots=_slots(names, doubts),
                    apart=frozenset().union(*(doubts.apart(*name) for name in names)))
    designs = {design_of(cell) for pair in pairs.values() for cell in pair.cells}
    design = designs.pop() if len(designs) == 1 else None
    sides = [pool([side.results for side in found]) for found in (
        [pair.ours for pair in pairs.values()], [pair.theirs for pair in pairs.values()])]
    evidence = examine(_cell(match.factor, match.candidate, design), _cell(match.factor, match.baseline, design),
                       sides[0], sides[1], asked)
    repeated = tuple(dict.fromkeys(found for pair in pairs.values() for found in pair.repeated))
    evidence = replace(evidence, repeated=repeated)
    if refusal := _refusal(pairs.values()) or (joined(repeated) if asked.scale.by_training else ""):
        evidence = replace(evidence, refusal=refusal, advice=None)
    seeds = {pair.repeat for pair in evidence.pairs}
    effects = {} if evidence.refusal else {
        key: _logs(pair, seeds, doubts, asked) for key, pair in pairs.items()}
    return _Measured(match, evidence, effects, names, len(every) - len(pairs))


def _slots(names: Sequence[tuple[str, str]], doubts: drift.Doubts) -> drift.Slots | None:
    """Return how far apart the pairs of a seed ran on average, if the machine drifted."""
    found = [slots for name in names if (slots := doubts.slots(*name)) is not None]
    if not found:
        return None
    repeats = set.intersection(*(set(slots.apart) for slots in found))
    return drift.Slots(found[0].per_place, {repeat: fmean(slots.apart[repeat] for slots in found)
                                            for repeat in repeats})


def _cell(factor: str, level: Level, design: Any) -> Named:
    return Named(f"{factor}: {level.label}", level.label, {"stop": {"design": design}})


def _refusal(pairs: Collection[_Pair]) -> str:
    """Return why the combinations cannot be pooled; "" if they can."""
    if not pairs:
        return "no combination of the other factors has both levels with trials that did not fail"
    sides = [side for pair in pairs for side in (pair.ours, pair.theirs)]
    wrong = next((side.wrong for side in sides if side.wrong), "")
    if wrong:
        return wrong
    missed = [side for side in sides if side.without]
    if missed:
        total = sum(sum(side.without.values()) for side in missed)
        return (f"{total} of {sum(side.n for side in sides)} trials have no figure ({missed[0].without_words()}"
                f"{' and others' if len(missed) > 1 else ''}); a mean over the other trials would hide them, so only "
                "the contrasts of single cells show this factor")
    unlike = next((found for pair in pairs if (found := mismatch(pair.ours, pair.theirs))), None)
    return f"{unlike.text}, so they are not pairs" if unlike else ""


def _logs(pair: _Pair, seeds: Collection[int], doubts: drift.Doubts, asked: ComparisonRequest) -> list[float]:
    """Return the log ratio of each of the seeds, in their order, adjusted for the drift of the machine."""
    found = sorted((item for item in pairs_of(pair.ours, pair.theirs) if item.repeat in seeds),
                   key=lambda item: item.repeat)
    logs = log_ratios([item.candidate for item in found], [item.baseline for item in found])
    slots = doubts.slots(*(cell.cell_id for cell in pair.cells)) if asked.scale.clocked else None
    sign = asked.scale.drift_sign
    return [float(value) - (sign * slots.shift(item.repeat) if slots else 0.0)
            for value, item in zip(logs, found, strict=True)]


def _first(texts: Iterable[Sequence[str]]) -> tuple[str, ...]:
    """Return the different texts, at most three."""
    return tuple(dict.fromkeys(text for found in texts for text in found))[:3]
