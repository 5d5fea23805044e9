"""Main effects as the page shows them: a sentence and a row of a forest plot each, with what they depend on."""

from __future__ import annotations

from dataclasses import dataclass

from repro.compare import MetricSpec
from repro.compare.design.effect import Interaction, MainEffect
from repro.compare.findings import Findings
from repro.suite.metrics import DEFAULT, METRICS
from repro.tables.text import Number, plural, ratios

from ..axis import Axis, RatioMark, around_one, ratio_mark
from ..cells import COLORS, goal
from ..speedup import extent


@dataclass(frozen=True)
class EffectRow(RatioMark):
    """One main effect."""

    index: int
    """Index in `effects` of `repro compare --json`."""
    effect: MainEffect
    color: int
    """That of all levels of its factor."""
    seeds: tuple[tuple[float, str], ...]
    """(x per cent, tooltip) of every seed."""
    words: str
    differences: tuple[tuple[Interaction, list[Number]], ...]
    """Interactions with their ratio here, there, of the two, and the interval of the last."""


@dataclass(frozen=True, slots=True)
class Effects:
    """All main effects on one axis."""

    rows: tuple[EffectRow, ...]
    axis: Axis
    spec: MetricSpec
    goal: str
    """` to reach top1 of at least 0.96`; "" if the metric asks for no target, or cells have different ones."""

    @property
    def differences(self) -> int:
        """Number of interactions that were tested."""
        return sum(len(row.differences) for row in self.rows)


def page_effects(findings: Findings) -> Effects:
    """Return the main effects that the suite asks for."""
    found = findings.effects
    axis = around_one(extent([item.pooled for item in found]))
    spec = METRICS[found[0].pooled.metric if found else DEFAULT]
    factors = list(dict.fromkeys(item.factor for item in found))
    goals = {goal(cell.choices) for cell in findings.record.plan.cells}
    return Effects(
        tuple(_row(index, item, axis, factors.index(item.factor) % COLORS) for index, item in enumerate(found)),
        axis, spec, f" to reach {goals.pop()}" if spec.to_target and len(goals) == 1 else "")


def _row(index: int, item: MainEffect, axis: Axis, color: int) -> EffectRow:
    pooled, mark = item.pooled, ratio_mark(axis, item.pooled.ratio, item.pooled.interval)
    limits = f", 95 % interval {mark.interval[0]} to {mark.interval[1]}" if mark.interval else ""
    return EffectRow(
        **vars(mark), index=index, effect=item, color=color,
        seeds=tuple((axis.at(pair.candidate / pair.baseline),
                     f"seed {pair.repeat}: {ratios([pair.candidate / pair.baseline])[0]}") for pair in pooled.pairs),
        words=f"ratio {mark.ratio}{limits}, {plural(pooled.n, 'seed')}" if mark.ratio else
        f"no result: {pooled.because}",
        differences=tuple((other, ratios([
            other.ratio_here, other.ratio_there, other.ratio,
            *((other.interval.low, other.interval.high) if other.interval else ())])) for other in item.interactions),
    )
