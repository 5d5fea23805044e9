"""Comparisons as the page shows them: the headline, the forest plot and its table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from repro.compare import Comparison, compare, summarize
from repro.store import Record

from .page_axis import Axis, around_one
from .page_cells import CellMark, goal, marks
from .page_text import Number, number, plural, ratios, seconds

CLOCKS = {"tta_wall": "wall clock", "tta_train": "training clock", "tta_cold": "cold start to target"}


@dataclass(frozen=True, slots=True)
class Ratio:
    """One comparison: a row of the forest plot and of its table."""

    candidate: CellMark
    baseline: CellMark
    primary: bool
    metric: str
    clock: str
    goal: str
    n: int
    ratio: Number | None
    interval: tuple[Number, Number] | None
    level: str
    speedup: Number | None
    base_median: Number | None
    verdict: str
    because: str
    dot: float | None
    """Per cent of the width, as are the ends of the whisker."""
    whisker: tuple[float, float] | None
    clipped: tuple[bool, bool]
    """Ends of the interval that lie beyond the axis: drawn as arrows."""
    pairs: tuple[tuple[float, float, str], ...]
    """(x per cent, y pixels, what a pointer is told)."""
    words: str


@dataclass(frozen=True, slots=True)
class Forest:
    """All comparisons on one axis."""

    axis: Axis
    one: float
    """Where 1 lies, per cent."""
    primary: Ratio | None
    exploratory: tuple[Ratio, ...]
    drawn: bool
    """False: no pair of trials has run, so there is nothing to draw."""
    level: str
    """Nominal coverage of the intervals, in words; empty where there is none."""


def forest(record: Record) -> Forest:
    """Every comparison that the plan asks for."""
    found = compare(record.plan, record.results)
    axis = around_one(_extent(found))
    known = marks(record)
    built = [_ratio(record, item, known, axis) for item in found]
    return Forest(
        axis=axis, one=axis.at(1.0), primary=next((item for item in built if item.primary), None),
        exploratory=tuple(item for item in built if not item.primary),
        drawn=any(item.pairs for item in built), level=next((item.level for item in built if item.level), ""),
    )


def _extent(found: Sequence[Comparison]) -> list[float]:
    """What the axis must hold: ratios and pairs; intervals too, up to the point where one would flatten all others."""
    values = [pair.candidate / pair.baseline for item in found for pair in item.pairs]
    values += [item.ratio for item in found if item.ratio is not None]
    low, high = min(values, default=1.0), max(values, default=1.0)
    ends = [end for item in found if item.interval for end in (item.interval.low, item.interval.high)]
    return values + [min(max(end, low / 4), high * 4) for end in ends]


def _ratio(record: Record, item: Comparison, known: dict[str, CellMark], axis: Axis) -> Ratio:
    baseline = record.cell(item.baseline)
    base = summarize(baseline, record.of_cell(item.baseline), item.metric)  # type: ignore[arg-type]  # stored as text
    interval = item.interval
    texts = ratios([item.ratio, *([interval.low, interval.high] if interval else [])]) if item.ratio else []
    return Ratio(
        candidate=known[item.candidate], baseline=known[item.baseline], primary=item.primary, metric=item.metric,
        clock=CLOCKS[item.metric], goal=goal(record.cell(item.candidate).choices), n=item.n,
        ratio=texts[0] if texts else None, interval=(texts[1], texts[2]) if len(texts) == 3 else None,
        level=f"{interval.level:.0%}".replace("%", "\N{NO-BREAK SPACE}%") if interval else "",
        speedup=number(item.speedup), base_median=seconds(base.median), verdict=item.verdict, because=item.because,
        dot=axis.at(item.ratio) if item.ratio else None,
        whisker=(axis.at(interval.low), axis.at(interval.high)) if interval else None,
        clipped=(not axis.holds(interval.low), not axis.holds(interval.high)) if interval else (False, False),
        pairs=tuple(
            (axis.at(pair.candidate / pair.baseline), 8.0 + 6.0 * (index % 3),
             f"seed {pair.repeat}: {seconds(pair.candidate)} / {seconds(pair.baseline)} = "
             f"{ratios([pair.candidate / pair.baseline])[0]}")
            for index, pair in enumerate(item.pairs)
        ),
        words=_words(item, [text.text for text in texts]),
    )


def _words(item: Comparison, texts: Sequence[str]) -> str:
    """The drawing in one sentence."""
    if len(texts) < 3 or item.interval is None:
        return f"no ratio: {item.because}"
    return f"ratio {texts[0]}, {item.interval.level:.0%} interval {texts[1]} to {texts[2]}, {plural(item.n, 'pair')}"
