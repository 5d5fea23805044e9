"""Scores over workloads as the page shows them: the profiles as steps with bands, and the tables behind them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from repro.compare import METRICS
from repro.compare.figures import Estimate
from repro.compare.findings import Findings
from repro.compare.ranking.scores import TWICE, ContenderScore, NotScored, Outcome, Scores
from repro.tables.text import Number, number, plural, seconds, share, visible, without_paths, wrapped

from ..cells import COLORS, DASHES, SYMBOLS
from ..charts.curves import DASHES as PATTERNS
from ..charts.curves import Chart, layout

BANDS_UP_TO = 4
"""Contenders up to which bands are visible at first."""
TICKS = (1, 1.2, 1.5, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)


@dataclass(frozen=True, slots=True)
class ContenderMark:
    """Mark of a contender, distinct also without colour."""

    index: int
    name: str
    color: int
    dash: str
    symbol: str


@dataclass(frozen=True, slots=True)
class TimeCell:
    """One contender on one workload."""

    index: int
    """Index in `scores.outcomes` of `repro scores --json`."""
    median: Number | None
    reached: int
    n: int
    best: bool


@dataclass(frozen=True, slots=True)
class ContenderRow:
    """One contender in both tables."""

    mark: ContenderMark
    score: Number | None
    band: tuple[Number, Number] | None
    best_on: Number | None
    within: tuple[Number | None, ...]
    solved: int
    mean: Number | None
    ends: tuple[Number, Number] | None
    withheld: str
    times: tuple[TimeCell, ...]
    steps: tuple[tuple[Number | None, Number | None], ...]
    """(factor of the best time, share of workloads from there on)."""


@dataclass(frozen=True, slots=True)
class ScoreView:
    """The section."""

    found: Scores | None
    reason: str
    """Reason for a missing ranking; "" if there is one."""
    noun: str
    factors: tuple[str, ...]
    """Factors of the best time of the columns."""
    bands: bool
    end: str
    """tau_max."""
    width: str
    """tau_max - 1."""
    rows: tuple[ContenderRow, ...]
    charts: tuple[Chart, ...]


def page_scores(findings: Findings) -> ScoreView | None:
    """Return the scores; None if the record has fewer than two workloads or contenders."""
    found = findings.scores
    if found is None:
        return None
    if isinstance(found, NotScored):
        return ScoreView(None, found.reason, "", (), False, "", "", (), ())
    taus = sorted({TWICE, found.tau_max})
    rows = tuple(_row(index, item, found, taus) for index, item in enumerate(found.contenders))
    return ScoreView(
        found=found, reason="", noun=METRICS[found.metric].noun, factors=tuple(f"{tau:g}" for tau in taus),
        bands=len(rows) <= BANDS_UP_TO and found.draws > 0, end=f"{found.tau_max:g}",
        width=f"{found.tau_max - 1:g}", rows=rows, charts=(_chart(found, rows),))


def _row(index: int, item: ContenderScore, found: Scores, taus: Sequence[float]) -> ContenderRow:
    mark = ContenderMark(index, visible(without_paths(item.name)), index % COLORS, DASHES[index % len(DASHES)],
                         SYMBOLS[index % len(SYMBOLS)])
    places = {(outcome.contender, outcome.workload): place for place, outcome in enumerate(found.outcomes)}
    return ContenderRow(
        mark=mark, score=number(item.score.value), band=_ends(item.score), best_on=share(item.best_share),
        within=tuple(share(found.within(item, tau)) for tau in taus), solved=item.solved,
        mean=number(item.mean_ratio.value) if item.mean_ratio else None, ends=_ends(item.mean_ratio),
        withheld=item.withheld,
        times=tuple(_time(places[item.name, workload.name], found.outcome(item.name, workload.name),
                          workload.best, found.metric) for workload in found.workloads),
        steps=tuple((number(tau), share(value)) for tau, value in _changes(found.taus, item.profile)))


def _time(index: int, item: Outcome, best: float | None, metric: str) -> TimeCell:
    text = seconds if METRICS[metric].timed else number
    return TimeCell(index, text(item.median), item.reached, item.n,
                    item.median is not None and item.median == best)


def _ends(found: Estimate | None) -> tuple[Number, Number] | None:
    if found is None or found.interval is None:
        return None
    low, high = number(found.interval.low), number(found.interval.high)
    return (low, high) if low and high else None


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
