"""The factors of a ratio of times, and the ratio of restricted means if trials missed; drawn on the ratio's axis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from repro.compare import Bounds, Comparison
from repro.suite.metrics import METRICS
from repro.tables.text import Number, number, plural, ratios, seconds

from ..axis import Axis

Kind = Literal["samples", "throughput", "restricted"]
PATHS: dict[Kind, str] = {"samples": "split.samples", "throughput": "split.throughput", "restricted": "restricted"}
"""Path of the value of each kind in the comparison as JSON."""


@dataclass(frozen=True, slots=True)
class Factor:
    """One value with its interval below a comparison."""

    name: str
    """On the page: `samples to the target`."""
    kind: Kind
    shown: Number
    ends: tuple[Number, Number] | None
    inverse: bool
    """True if it is drawn as 1 / value, so that on the logarithmic axis the factors add up to the ratio."""
    dot: float
    whisker: tuple[float, float] | None
    clipped: tuple[bool, bool]
    words: str

    @property
    def path(self) -> str:
        """Path of the value in the comparison as JSON."""
        return PATHS[self.kind]


def factors(item: Comparison, axis: Axis) -> tuple[Factor, ...]:
    """Return samples to the target and throughput of a ratio of times, or the restricted means if there is no ratio."""
    found: list[Factor] = []
    if item.split is not None:
        samples, throughput = item.split.samples, item.split.throughput
        found = [_factor("samples to the target", "samples", samples.value, samples.interval, axis),
                 _factor("throughput up to the target", "throughput", throughput.value, throughput.interval, axis)]
    if item.restricted is not None and item.ratio is None:
        mean, scale = item.restricted, METRICS[item.metric]
        unit = seconds(mean.horizon) if scale.timed else number(mean.horizon, 4, scale.unit)
        found.append(_factor(f"mean up to the horizon of {unit}", "restricted", mean.ratio, mean.interval, axis))
    return tuple(found)


def drawn_values(item: Comparison) -> list[float]:
    """Return the positions of `factors` on the axis, as ratios."""
    values = [item.split.samples.value, 1 / item.split.throughput.value] if item.split else []
    return values + ([item.restricted.ratio] if item.restricted and item.ratio is None else [])


def _factor(name: str, kind: Kind, value: float, interval: Bounds | None, axis: Axis) -> Factor:
    inverse = kind == "throughput"
    ends = (interval.low, interval.high) if interval else None
    texts = ratios([value, *(ends or ())])
    at = 1 / value if inverse else value
    drawn = ((1 / ends[1], 1 / ends[0]) if inverse else ends) if ends else None
    limits = f", interval {texts[1]} to {texts[2]}" if ends else ""
    return Factor(
        name=name, kind=kind, shown=texts[0], ends=(texts[1], texts[2]) if ends else None, inverse=inverse,
        dot=axis.at(at), whisker=(axis.at(drawn[0]), axis.at(drawn[1])) if drawn else None,
        clipped=(not axis.holds(drawn[0]), not axis.holds(drawn[1])) if drawn else (False, False),
        words=f"{name}: ratio {texts[0]}{limits}" + ("; drawn inverted, as time per sample" if inverse else ""),
    )


@dataclass(frozen=True, slots=True)
class SideFigure:
    """One further statistic of a comparison."""

    name: str
    path: str
    shown: Number
    ends: tuple[Number, Number] | None = None
    note: str = ""


def side_figures(item: Comparison) -> tuple[SideFigure, ...]:
    """Return p, the unpaired ratio, the order of single trials, the log-rank test and equivalence, as far as known."""
    found: list[SideFigure] = []
    if (p := number(item.p)) is not None:
        found.append(SideFigure("p", "p", p, note="not corrected" if item.primary else "before correction"))
    if (p := number(item.p_adjusted)) is not None:
        found.append(SideFigure("p after Holm", "p_adjusted", p, note=f"over {plural(item.family, 'contrast')}"))
    if item.welch is not None and item.paired:
        found.append(_estimate("Ratio without pairing (Welch on logs)", "welch", item.welch.value,
                               item.welch.interval))
    if item.probability_less is not None:
        found.append(_estimate("P(candidate trial has the smaller value)", "probability_less",
                               item.probability_less.value, item.probability_less.interval))
    if (p := number(item.log_rank_p)) is not None:
        found.append(SideFigure("Log-rank p", "log_rank_p", p))
    if item.equivalence is not None and (p := number(item.equivalence.p)) is not None:
        found.append(SideFigure(f"Equivalent within {item.equivalence.margin:.2g}: p", "equivalence.p", p))
    return tuple(found)


def _estimate(name: str, path: str, value: float, interval: Bounds | None) -> SideFigure:
    values: Sequence[float] = [value, *((interval.low, interval.high) if interval else ())]
    texts = ratios(values) if path == "welch" else [shown for x in values if (shown := number(x, 2)) is not None]
    return SideFigure(name, f"{path}.value", texts[0], (texts[1], texts[2]) if interval else None)
