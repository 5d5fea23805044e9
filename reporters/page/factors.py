"""What a ratio of times is made of, and what stands for it where trials missed: drawn on the ratio's own axis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from repro.compare import Bounds, Comparison
from repro.suite.metrics import METRICS

from .axis import Axis
from .text import Number, number, plural, ratios, seconds


@dataclass(frozen=True, slots=True)
class Factor:
    """One dot and its interval below a comparison."""

    name: str
    """In words: `samples to the target`."""
    path: str
    """Where its figure stands in the comparison as JSON."""
    shown: Number
    ends: tuple[Number, Number] | None
    inverse: bool
    """Drawn as 1 / figure, so that the factors' lengths on the logarithmic axis add up to the ratio's."""
    dot: float
    whisker: tuple[float, float] | None
    clipped: tuple[bool, bool]
    words: str


def factors(item: Comparison, axis: Axis) -> tuple[Factor, ...]:
    """Samples to the target and throughput of a ratio of times; the restricted means where there is no ratio."""
    found: list[Factor] = []
    if item.split is not None:
        for name, path, part, inverse in (
            ("samples to the target", "split.samples", item.split.samples, False),
            ("throughput up to it", "split.throughput", item.split.throughput, True),
        ):
            found.append(_factor(name, path, part.value, part.interval, inverse, axis))
    if item.restricted is not None and item.ratio is None:
        mean, scale = item.restricted, METRICS[item.metric]
        unit = seconds(mean.horizon) if scale.timed else number(mean.horizon, 4, scale.unit)
        found.append(_factor(f"mean up to the horizon of {unit}", "restricted", mean.ratio, mean.interval, False, axis))
    return tuple(found)


def drawn_values(item: Comparison) -> list[float]:
    """Where the dots of `factors` lie, as ratios."""
    values = [item.split.samples.value, 1 / item.split.throughput.value] if item.split else []
    return values + ([item.restricted.ratio] if item.restricted and item.ratio is None else [])


def _factor(name: str, path: str, value: float, interval: Bounds | None, inverse: bool, axis: Axis) -> Factor:
    ends = (interval.low, interval.high) if interval else None
    texts = ratios([value, *(ends or ())])
    at = 1 / value if inverse else value
    drawn = ((1 / ends[1], 1 / ends[0]) if inverse else ends) if ends else None
    limits = f", interval {texts[1]} to {texts[2]}" if ends else ""
    return Factor(
        name=name, path=path, shown=texts[0], ends=(texts[1], texts[2]) if ends else None, inverse=inverse,
        dot=axis.at(at), whisker=(axis.at(drawn[0]), axis.at(drawn[1])) if drawn else None,
        clipped=(not axis.holds(drawn[0]), not axis.holds(drawn[1])) if drawn else (False, False),
        words=f"{name}: ratio {texts[0]}{limits}" + ("; drawn upside down, as time a sample" if inverse else ""),
    )


@dataclass(frozen=True, slots=True)
class SideFigure:
    """One figure beside a ratio."""

    name: str
    path: str
    shown: Number
    ends: tuple[Number, Number] | None = None
    note: str = ""


def side_figures(item: Comparison) -> tuple[SideFigure, ...]:
    """p, the unpaired ratio, the order of single trials, the log-rank test, equivalence: as far as there are any."""
    found: list[SideFigure] = []
    if (p := number(item.p)) is not None:
        found.append(SideFigure("p", "p", p, note="alone" if item.primary else "before correction"))
    if (p := number(item.p_adjusted)) is not None:
        found.append(SideFigure("p after Holm", "p_adjusted", p, note=f"over {plural(item.family, 'contrast')}"))
    if item.welch is not None and item.paired:
        found.append(_estimate("Ratio without pairing (Welch on logs)", "welch", item.welch.value,
                               item.welch.interval))
    if item.probability_less is not None:
        found.append(_estimate("P(a candidate trial has less)", "probability_less", item.probability_less.value,
                               item.probability_less.interval))
    if (p := number(item.log_rank_p)) is not None:
        found.append(SideFigure("Log-rank p", "log_rank_p", p))
    if item.equivalence is not None and (p := number(item.equivalence.p)) is not None:
        found.append(SideFigure(f"Same within {item.equivalence.margin:.2g}: p", "equivalence.p", p))
    return tuple(found)


def _estimate(name: str, path: str, value: float, interval: Bounds | None) -> SideFigure:
    values: Sequence[float] = [value, *((interval.low, interval.high) if interval else ())]
    texts = ratios(values) if path == "welch" else [shown for x in values if (shown := number(x, 2)) is not None]
    return SideFigure(name, f"{path}.value", texts[0], (texts[1], texts[2]) if interval else None)
