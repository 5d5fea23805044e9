"""Main effects as the page shows them: a sentence and a row of a forest plot each, with what they depend on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from repro.compare import METRICS
from repro.compare.design.effect import FEW, Interaction, MainEffect
from repro.compare.findings import Findings
from repro.record.folder.store import Record
from repro.suite.metrics import DEFAULT
from repro.tables.text import Number, number, plural, ratios

from ..axis import Axis, around_one
from ..cells import goal

COLORS = 8
"""Colours of report.css: all levels of a factor have one."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One interaction: a main effect at two levels of another factor."""

    factor: str
    level: str
    reference: str
    here: Number
    there: Number
    ratio: Number
    interval: tuple[Number, Number] | None
    p: Number | None
    flagged: bool
    words: str


@dataclass(frozen=True, slots=True)
class EffectRow:
    """One main effect."""

    index: int
    """Index in `effects` of `repro compare --json`."""
    factor: str
    level: str
    reference: str
    scope: str
    said: tuple[str, str]
    color: int
    n: int
    ratio: Number | None
    interval: tuple[Number, Number] | None
    p: Number | None
    verdict: str
    because: str
    settles: str
    also: str
    cautions: tuple[str, ...]
    refused: bool
    dot: float | None
    whisker: tuple[float, float] | None
    clipped: tuple[bool, bool]
    seeds: tuple[tuple[float, str], ...]
    """(x per cent, tooltip) of every seed."""
    words: str
    differences: tuple[Difference, ...]

    @property
    def flagged(self) -> tuple[Difference, ...]:
        return tuple(item for item in self.differences if item.flagged)


@dataclass(frozen=True, slots=True)
class Effects:
    """All main effects on one axis."""

    rows: tuple[EffectRow, ...]
    axis: Axis
    one: float
    what: str
    sides: tuple[str, str]
    drawn: bool
    goal: str
    """` to reach top1 of at least 0.96`; "" if the metric asks for no target, or cells have different ones."""
    few: int = FEW
    """Contrasts of single cells above which they are folded."""

    @property
    def differences(self) -> int:
        """Number of interactions that were tested."""
        return sum(len(row.differences) for row in self.rows)


def page_effects(findings: Findings) -> Effects:
    """Return the main effects that the suite asks for."""
    found = findings.effects
    axis = around_one(_extent(found))
    scale = METRICS[found[0].pooled.metric if found else DEFAULT]
    factors = list(dict.fromkeys(item.factor for item in found))
    return Effects(
        rows=tuple(_row(index, item, axis, factors.index(item.factor) % COLORS) for index, item in enumerate(found)),
        axis=axis, one=axis.at(1.0), what="times" if scale.clock else scale.noun, sides=(scale.below, scale.above),
        drawn=any(item.pooled.ratio is not None for item in found),
        goal=_goal(findings.record) if scale.to_target else "",
    )


def _goal(record: Record) -> str:
    goals = {goal(cell.choices) for cell in record.plan.cells}
    return f" to reach {goals.pop()}" if len(goals) == 1 else ""


def _extent(found: Sequence[MainEffect]) -> list[float]:
    """Return the values that the axis must hold: ratios, seeds, and intervals up to four times beyond them."""
    values = [pair.candidate / pair.baseline for item in found for pair in item.pooled.pairs]
    values += [item.pooled.ratio for item in found if item.pooled.ratio is not None]
    low, high = min(values, default=1.0), max(values, default=1.0)
    ends = [end for item in found if item.pooled.interval
            for end in (item.pooled.interval.low, item.pooled.interval.high)]
    return values + [min(max(end, low / 4), high * 4) for end in ends]


def _row(index: int, item: MainEffect, axis: Axis, color: int) -> EffectRow:
    pooled, interval = item.pooled, item.pooled.interval
    texts = ratios([pooled.ratio, *([interval.low, interval.high] if interval else [])]) if pooled.ratio else []
    ends = (texts[1], texts[2]) if len(texts) == 3 else None
    limits = f", 95 % interval {ends[0]} to {ends[1]}" if ends else ""
    return EffectRow(
        index=index, factor=item.factor, level=item.level, reference=item.reference, scope=item.scope,
        said=METRICS[pooled.metric].says, color=color, n=pooled.n, ratio=texts[0] if texts else None, interval=ends,
        p=number(pooled.p_adjusted), verdict=pooled.verdict, because=pooled.because, settles=pooled.settles,
        also=pooled.also, cautions=pooled.cautions, refused=pooled.refused,
        dot=axis.at(pooled.ratio) if pooled.ratio else None,
        whisker=(axis.at(interval.low), axis.at(interval.high)) if interval else None,
        clipped=(not axis.holds(interval.low), not axis.holds(interval.high)) if interval else (False, False),
        seeds=tuple((axis.at(pair.candidate / pair.baseline),
                     f"seed {pair.repeat}: {ratios([pair.candidate / pair.baseline])[0]}") for pair in pooled.pairs),
        words=f"ratio {texts[0]}{limits}, {plural(pooled.n, 'seed')}" if texts else f"no result: {pooled.because}",
        differences=tuple(_difference(other) for other in item.interactions),
    )


def _difference(item: Interaction) -> Difference:
    limits = (item.interval.low, item.interval.high) if item.interval else ()
    texts = ratios([item.ratio_here, item.ratio_there, item.ratio, *limits])
    return Difference(
        factor=item.factor, level=item.level, reference=item.reference, here=texts[0], there=texts[1], ratio=texts[2],
        interval=(texts[3], texts[4]) if limits else None, p=number(item.p_adjusted), flagged=item.flagged,
        words=item.words,
    )
