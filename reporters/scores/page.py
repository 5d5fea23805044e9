"""Scores over workloads on the page and in a paper: the profiles as steps with bands, and the tables behind them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from repro.compare import METRICS, MetricSpec
from repro.record.folder.store import Record
from repro.scores.scores import TWICE, ContenderScore, Outcome, Scores, ranking, record_scores
from repro.tables.text import plural, wrapped

from ..page.cells import ContenderMark, contender_mark
from ..page.charts.plot import DASHES as PATTERNS
from ..page.charts.plot import Chart, layout
from ..page.charts.scaling import ScalingView
from ..paper.figures import COLORS, LINES, SMALL, Drawing, left_out, shown_text
from ..paper.figures import PATTERNS as PAPER_PATTERNS

BANDS_UP_TO = 4
"""Contenders up to which bands are visible at first."""
TICKS = (1, 1.2, 1.5, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
"""Labelled factors of a profile."""


@dataclass(frozen=True, slots=True)
class ContenderRow:
    """One contender in both tables."""

    mark: ContenderMark
    item: ContenderScore
    times: tuple[tuple[int, Outcome, bool], ...]
    """Of each workload: index in `scores.outcomes` of `repro scores --json`, the outcome, whether it is the best."""
    steps: list[tuple[float, float]]
    """(factor of the best time, share of workloads from there on)."""


@dataclass(frozen=True, slots=True)
class ScoreView:
    """The section."""

    found: Scores
    taus: tuple[float, ...]
    """Factors of the best time of the columns."""
    bands: bool
    """True if bands are visible at first."""
    rows: tuple[ContenderRow, ...]
    charts: tuple[Chart, ...]
    reason: str = ""

    @property
    def spec(self) -> MetricSpec:
        """The metric of the figures."""
        return METRICS[self.found.metric]


@dataclass(frozen=True, slots=True)
class Withheld:
    """No ranking, for a reason."""

    reason: str
    charts: tuple[Chart, ...] = ()


def page_scores(record: Record, _: ScalingView) -> ScoreView | Withheld | None:
    """Return the scores; None if the record has fewer than two workloads or contenders."""
    found = record_scores(record)
    if found is None:
        return None
    if isinstance(found, str):
        return Withheld(found)
    rows = tuple(_row(index, item, found) for index, item in enumerate(found.contenders))
    return ScoreView(found, tuple(sorted({TWICE, found.tau_max})), len(rows) <= BANDS_UP_TO and found.draws > 0, rows,
                     (_chart(found, rows),))


def _row(index: int, item: ContenderScore, found: Scores) -> ContenderRow:
    places = {(outcome.contender, outcome.workload): place for place, outcome in enumerate(found.outcomes)}
    outcomes = [(places[item.name, workload.name], found.outcome(item.name, workload.name), workload.best)
                for workload in found.workloads]
    return ContenderRow(
        contender_mark(index, item.name), item,
        tuple((place, outcome, outcome.median is not None and outcome.median == best)
              for place, outcome, best in outcomes), _changes(found.taus, item.profile))


def _chart(found: Scores, rows: Sequence[ContenderRow]) -> Chart:
    looks = layout(f"factor of the best {'time' if METRICS[found.metric].timed else 'figure'}", "share of workloads")
    looks["xaxis"] |= {"type": "log", "rangemode": "normal", "range": [0, math.log10(found.taus[-1])],
                       "tickvals": [tick for tick in TICKS if tick <= found.taus[-1]]}
    looks["yaxis"] |= {"range": [-0.03, 1.05], "tickformat": ".0%"}
    pairs = list(zip(rows, found.contenders, strict=True))
    return Chart(
        "scores-profiles", "performance profiles", f"up to {found.taus[-1]:.3g} times the best",
        {"data": [*(_band(row.mark, item, found.taus) for row, item in pairs if item.low),
                  *(_line(row.mark, item, found.taus) for row, item in pairs)], "layout": looks},
        f"share of workloads that a contender solves within a factor of the best {METRICS[found.metric].noun}; "
        f"{plural(len(rows), 'line')}, one per contender")


def _line(mark: ContenderMark, item: ContenderScore, taus: Sequence[float]) -> dict[str, Any]:
    x, y = _stairs(taus, item.profile)
    color = f"--c{mark.color}"
    return {
        "type": "scatter", "mode": "lines", "name": f"contender {mark.index + 1}", "uid": f"profile-{mark.index}",
        "legendgroup": f"contender-{mark.index}", "meta": [wrapped(mark.name)], "x": x, "y": y,
        "line": {"color": color, "dash": PATTERNS[mark.dash], "width": 2.4},
        "hovertemplate": "%{meta[0]}<br>within %{x:.3~g} x the best on %{y:.0%} of the workloads<extra></extra>",
    }


def _band(mark: ContenderMark, item: ContenderScore, taus: Sequence[float]) -> dict[str, Any]:
    low, high = _stairs(taus, item.low), _stairs(taus, item.high)
    color = f"--c{mark.color}"
    return {
        "type": "scatter", "mode": "lines", "uid": f"profileband-{mark.index}", "name": f"band of {mark.index + 1}",
        "legendgroup": f"contender-{mark.index}", "x": [*high[0], *reversed(low[0])],
        "y": [*high[1], *reversed(low[1])], "fill": "toself", "fillcolor": color, "line": {"width": 0, "color": color},
        "opacity": 0.14, "hoverinfo": "skip", "showlegend": False,
    }


def _changes(taus: Sequence[float], values: Sequence[float]) -> list[tuple[float, float]]:
    """Return the first factor with each value."""
    return [(tau, value) for place, (tau, value) in enumerate(zip(taus, values, strict=True))
            if not place or value != values[place - 1]]


def _stairs(taus: Sequence[float], values: Sequence[float]) -> tuple[list[float], list[float]]:
    """Return the corners of a step function that holds each value up to the next factor."""
    found = _changes(taus, values)
    x, y = [], []
    for (tau, value), (following, _) in zip(found, [*found[1:], (taus[-1], 0.0)], strict=True):
        x += [float(f"{tau:.7g}"), float(f"{following:.7g}")]
        y += [value, value]
    return x, y


# ---- for a paper


def profiles(record: Record) -> list[Drawing]:
    """Make the figure of performance profiles; none without scores over workloads."""
    found = ranking(record)
    if found is None:
        return []
    shown = found.contenders[:LINES]
    bands = f"; bands: 95 % of {found.draws:,} draws of the seeds" if found.draws else ""
    caption = (f"Performance profiles over {plural(len(found.workloads), 'workload')}: share of them that a contender "
               f"solves within a factor of the best {METRICS[found.metric].noun} there{bands}. A missed workload is "
               f"within no factor. Figures: {' and '.join(found.origins)}."
               f"{left_out(shown, found.contenders, 'contender')}")
    return [Drawing("profiles", caption, 2.8 + 0.17 * len(shown), partial(_draw_profiles, found))]


def _draw_profiles(found: Scores, figure: Any) -> None:
    pane = figure.subplots()
    for index, item in enumerate(found.contenders[:LINES]):
        if item.low:
            pane.fill_between(found.taus, item.low, item.high, step="post", color=COLORS[index], alpha=0.12,
                              linewidth=0)
        pane.step(found.taus, item.profile, where="post", color=COLORS[index], linewidth=1.2,
                  linestyle=PAPER_PATTERNS[index], label=shown_text(item.name))
    pane.set_xscale("log")
    pane.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    pane.xaxis.set_minor_formatter("")
    pane.set_xticks([tick for tick in TICKS if tick <= found.taus[-1]])
    pane.set_xlim(1, found.taus[-1])
    pane.set_ylim(-0.03, 1.05)
    pane.set_xlabel(f"factor of the best {METRICS[found.metric].noun}")
    pane.set_ylabel(shown_text(f"share of workloads [{' and '.join(found.origins)}]"))
    figure.legend(loc="outside lower left", ncols=1, fontsize=SMALL)
