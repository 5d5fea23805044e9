"""The tuning as the page shows it: budgets, costs, spaces, the whole search, and the best so far."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from repro.compare.findings import findings
from repro.compare.tuning_check import Budget, TuningCheck, near_an_end, untuned_optimizers
from repro.core.numbers import significant
from repro.record.folder.store import Record
from repro.record.tuning import RULE, TriedSetting, TunedContender, Tuning
from repro.suite.field_problem import as_text
from repro.suite.metrics import METRICS
from repro.suite.model import Metric
from repro.suite.tune import Axis, setting_text
from repro.tables.text import plural, wrapped

from ..page.cells import ContenderMark, contender_mark
from ..page.charts.plot import DASHES as PATTERNS
from ..page.charts.plot import Chart, layout
from ..page.charts.scaling import ScalingView
from .tables import end_of, figure_text, is_lower_better

TOP, BOTTOM, LOST = 34.0, 190.0, 204.0
"""Pixels from the top: best and worst end of an axis, and the place of settings without a figure."""
HEIGHT = 216
SHADES = 5
"""Classes s0 (best) to s4 of report.css."""
WIDE = 10.0
"""Largest over least figure from which on its axis is logarithmic."""


@dataclass(frozen=True, slots=True)
class DrawnAxis:
    """One axis: a field, or the figure."""

    name: str
    at: float
    """Per cent of the width."""
    left: bool
    """Its ticks stand left of it: the first axis."""
    ticks: tuple[tuple[float, str], ...]
    """(pixels from the top, text)."""


@dataclass(frozen=True, slots=True)
class DrawnSetting:
    """One line."""

    segments: tuple[tuple[float, float, float, float], ...]
    """(x1 per cent, y1 pixels, x2, y2)."""
    style: str
    """Its classes: a shade by its figure, or missed, abandoned, failed; best for the chosen one."""
    words: str


@dataclass(frozen=True, slots=True)
class Parallel:
    """The whole search of one contender."""

    axes: tuple[DrawnAxis, ...]
    settings: tuple[DrawnSetting, ...]
    """The best last, on top of the others."""
    least_width: int
    """Pixels below which the drawing scrolls."""
    height: int = HEIGHT


def parallel(contender: TunedContender, metric: str) -> Parallel:
    """Draw the settings of a contender."""
    names = sorted(contender.space.space)
    places = [round(13.0 + 73.0 * index / max(1, len(names)), 3) for index in range(len(names) + 1)]
    lower = is_lower_better(contender, metric)
    scale = _Scale([item.figure for item in contender.settings if item.figure is not None], lower)
    axes = [DrawnAxis(name, at, at == places[0], _ticks(contender.space.space[name]))
            for name, at in zip(names, places, strict=False)]
    axes.append(DrawnAxis(METRICS[metric].noun, places[-1], False, scale.ticks))
    drawn = []
    for item in sorted(contender.settings, key=lambda item: -item.rank):
        heights = [_height(contender.space.space[name], item.values[name]) for name in names]
        points = list(zip(places, [*heights, scale.height(item.figure)], strict=True))
        drawn.append(DrawnSetting(
            tuple((*one, *other) for one, other in pairwise(points)),
            f"{_style(item, scale)}{' best' if item is contender.chosen else ''}", _words(item, metric)))
    return Parallel(tuple(axes), tuple(drawn), 160 * (len(names) + 1))


class _Scale:
    """The axis of the figure: the best at the top."""

    def __init__(self, values: Sequence[float], lower: bool) -> None:
        self._log = bool(values) and min(values) > 0 and max(values) / min(values) >= WIDE
        ends = [self._of(value) for value in values] or [0.0]
        low, high = min(ends), max(ends)
        self._best, self._worst = (low, high) if lower else (high, low)
        shown = sorted(set(values), reverse=not lower)
        marks = [(self.height(value), f"{value:,.4g}") for value in (*shown[:1], *shown[1:][-1:])]
        self.ticks = (*marks, (LOST, "missed"))

    def _of(self, value: float) -> float:
        return math.log(value) if self._log else value

    def share(self, value: float) -> float:
        """Return 0 for the best figure and 1 for the worst."""
        width = self._worst - self._best
        return (self._of(value) - self._best) / width if width else 0.0

    def height(self, value: float | None) -> float:
        return LOST if value is None else round(TOP + self.share(value) * (BOTTOM - 14 - TOP), 1)


def _style(item: TriedSetting, scale: _Scale) -> str:
    if item.figure is None:
        return end_of(item).replace(" ", "-")
    return f"s{min(SHADES - 1, int(scale.share(item.figure) * SHADES))}"


def _words(item: TriedSetting, metric: str) -> str:
    quality = "" if item.quality is None else f", best quality {significant(item.quality, 4)}"
    return (f"setting {item.number}, rank {item.rank}: {setting_text(item.values)}: {METRICS[metric].noun} "
            f"{figure_text(item, metric)}{quality}")


def _height(axis: Axis, value: Any) -> float:
    """Return where a value lies on its axis, the least at the bottom."""
    if axis.choices is not None:
        index = next((place for place, choice in enumerate(axis.choices) if choice == value), 0)
        part = index / (len(axis.choices) - 1) if len(axis.choices) > 1 else 0.5
    else:
        low, high = axis.ends
        part = math.log(value / low) / math.log(high / low) if axis.log else (value - low) / (high - low)
    return round(BOTTOM - min(1.0, max(0.0, part)) * (BOTTOM - TOP), 1)


def _ticks(axis: Axis) -> tuple[tuple[float, str], ...]:
    if axis.choices is not None:
        shown = axis.choices if len(axis.choices) <= 8 else (axis.choices[0], axis.choices[-1])
        return tuple((_height(axis, choice), as_text(choice)) for choice in shown)
    return tuple((_height(axis, end), f"{end:g}") for end in axis.ends)


@dataclass(frozen=True, slots=True)
class TunedRow:
    """One contender."""

    mark: ContenderMark
    budget: Budget
    contender: TunedContender | None
    """None: the tuning is not in the record."""
    drawn: Parallel | None
    near: tuple[str, ...]
    """Fields whose chosen value is near an end of its range."""


@dataclass(frozen=True, slots=True)
class TuningView:
    """The section."""

    check: TuningCheck
    rows: tuple[TunedRow, ...]
    charts: tuple[Chart, ...]
    rule: str = RULE
    end_of: Callable[[TriedSetting], str] = end_of
    figure_text: Callable[[TriedSetting, str], str] = figure_text
    setting_text: Callable[[Mapping[str, Any]], str] = setting_text

    @property
    def metric(self) -> Metric:
        """The metric that judges settings."""
        return self.check.tune.metric

    @property
    def noun(self) -> str:
        """Its name."""
        return METRICS[self.metric].noun

    @property
    def most(self) -> int:
        """The most tuning trials of a contender."""
        return max((row.budget.given for row in self.rows), default=0)

    @property
    def spaces(self) -> list[tuple[str, str, str, str, str]]:
        """(contenders, field, values, width, origin) of every field of every space."""
        groups: dict[str, list[Budget]] = {}
        for item in self.check.budgets:
            groups.setdefault(item.space.model_dump_json(), []).append(item)
        return [("; ".join(item.label for item in members), name, axis.text(), axis.width,
                 " ".join(members[0].space.origin.split()))
                for members in groups.values() for name, axis in sorted(members[0].space.space.items())]


@dataclass(frozen=True, slots=True)
class Untuned:
    """Optimizers are compared, and nothing says where their settings come from."""

    check: None = None
    charts: tuple[Chart, ...] = ()


def page_tuning(record: Record, _: ScalingView) -> TuningView | Untuned | None:
    """Return the tuning of a record; None if there is nothing to say about one."""
    found = findings(record).tuning
    if found is None:
        return Untuned() if untuned_optimizers(record) else None
    contenders = found.tuning.contenders if found.tuning else [None] * len(found.budgets)
    rows = tuple(_row(index, budget, contender, found.tune.metric)
                 for index, (budget, contender) in enumerate(zip(found.budgets, contenders, strict=False)))
    return TuningView(found, rows, _charts(found.tuning, found.tune.metric) if found.tuning else ())


def _row(index: int, budget: Budget, contender: TunedContender | None, metric: Metric) -> TunedRow:
    best = contender.chosen if contender else None
    return TunedRow(
        contender_mark(index, budget.label), budget, contender, parallel(contender, metric) if contender else None,
        tuple(near_an_end(budget.space, best.values)) if best else ())


def _charts(tuning: Tuning, metric: str) -> tuple[Chart, ...]:
    """Return one chart a task: the best figure after so many settings, in the order in which they were drawn."""
    groups: dict[str, list[tuple[int, TunedContender]]] = {}
    for index, item in enumerate(tuning.contenders):
        task = next((one.cell.choices.task for one in item.settings if one.cell is not None), "")
        groups.setdefault(task, []).append((index, item))
    found = []
    for place, (task, members) in enumerate(groups.items()):
        lines = [line for index, item in members if (line := _best_so_far(index, item, metric))]
        if not lines:
            continue
        title = f"{METRICS[metric].noun}{f' on {task}' if task else ''}"
        looks = layout("settings tried", METRICS[metric].title)
        found.append(Chart(f"tuning-{place}", title, "in the order of drawing", {"data": lines, "layout": looks},
                           f"best {title} after so many settings; {plural(len(lines), 'line')}, one per contender"))
    return tuple(found)


def _best_so_far(index: int, contender: TunedContender, metric: str) -> dict[str, Any] | None:
    """Return the line of a contender; None if no setting has a figure."""
    lower = is_lower_better(contender, metric)
    best: float | None = None
    x: list[int] = []
    y: list[float] = []
    for item in contender.settings:
        if item.figure is not None and (best is None or (item.figure < best if lower else item.figure > best)):
            best = item.figure
        if best is not None:
            x.append(item.number)
            y.append(best)
    if not x:
        return None
    mark = contender_mark(index, contender.label)
    color = f"--c{mark.color}"
    return {
        "type": "scatter", "mode": "lines+markers", "uid": f"tuning-{index}", "name": f"contender {index + 1}",
        "legendgroup": f"tuned-{index}", "meta": [wrapped(mark.name)], "x": x, "y": y,
        "line": {"color": color, "dash": PATTERNS[mark.dash], "width": 2, "shape": "hv"},
        "marker": {"symbol": mark.symbol, "size": 6, "color": color},
        "hovertemplate": f"%{{meta[0]}}<br>best of %{{x}} settings: %{{y:,.4~r}} {METRICS[metric].unit}<extra></extra>",
    }
