"""Doubts about how a run was made: a machine that drifts, an order that was not kept.

Cells take turns in blocks of one seed, in an order drawn for each run, so a machine that slows down slows no cell more
than another on average. The test compares seconds per sample with the order of execution. Seeds are drawn
independently, so without drift every order of a cell's times is equally likely, and a rank test keeps its level.

Where a run drifts, the ratio of each pair is adjusted for the places of its two trials. The slope is that of the means
of blocks, which do not change if the two trials of a pair are swapped. So under the null hypothesis the adjusted log
ratio only changes its sign, and the sign-flip test stays exact.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Literal

import numpy as np

from repro import stats
from repro.record.result.results import Result, figure
from repro.stats.interval import from_log
from repro.suite.metrics import DEFAULT, METRICS
from repro.suite.planning.plan import Plan

Severity = Literal["warn", "refuse"]
ALPHA = 0.05
LEAST = 5
"""Fewest trials that can show a trend (four have 4! orders: p is 2/24 at least)."""
FLAT = 1e-9
"""Range of log times below which all differences are rounding."""
TOLERATED = 0.2
"""Share of a cell's trials that may run outside their block (reruns) with its pairs still interleaved."""


@dataclass(frozen=True, slots=True)
class Caution:
    """A fact that a reader of a verdict must know, or that forbids the verdict."""

    cell_id: str | None
    """None: the whole run."""
    severity: Severity
    text: str


@dataclass(frozen=True, slots=True)
class Drift:
    """A trend of the machine over one run."""

    words: str
    per_place: float
    """Change of the log time from one place in the order of execution to the next (Theil-Sen, of the blocks' means)."""
    places: Mapping[str, Mapping[int, int]]
    """Cell -> repeat -> place."""


@dataclass(frozen=True, slots=True)
class Slots:
    """The places of pairs in the order of execution, on a machine that drifted."""

    per_place: float
    """Change of the log time from one place to the next."""
    apart: Mapping[int, float]
    """Repeat -> place of the candidate's trial less that of the baseline's."""

    def shift(self, repeat: int) -> float:
        """Return the share of the log ratio of times that the machine explains."""
        return self.per_place * self.apart.get(repeat, 0)


@dataclass(frozen=True, slots=True)
class _Placed:
    """One trial at its place in the order of execution."""

    place: int
    repeat: int
    log_seconds: float


def doubts(plan: Plan, results: Sequence[Result], started_ms: Mapping[str, float] | None = None) -> Doubts:
    """Return the doubts that the order of execution raises, with the drift of the run.

    1. A cell with more than half of its trials outside their blocks has no verdict: a change of the machine between it
       and the others would look like a difference, which no test within a cell could detect.
    2. A cell with more than `TOLERATED` outside has none if its times follow the order (Holm over all cells).
    3. A run, or a cell, whose times follow the order although blocks were kept gets a warning; for the trend
       of a run the ratios of its pairs are adjusted.

    Args:
        started_ms: trial id -> its start, from the ledger; without it, or if starts are equal, the order of the plan
            counts, which the runner follows.
    """
    by_cell = _in_order(plan, results, started_ms or {})
    apart = _apart(by_cell)
    whole = _run_drift(plan, by_cell, apart)
    return Doubts(_cautions(plan, by_cell, apart, whole), whole)


def _cautions(
    plan: Plan, by_cell: Mapping[str, Sequence[_Placed]], apart: Mapping[str, float], whole: Drift | None
) -> list[Caution]:
    labels = {cell.cell_id: cell.label for cell in plan.cells}
    found = [
        Caution(cell, "refuse", f"{labels[cell]}: {_percent(share, 0)} of its trials ran at a different time from "
                                "the others of their seed, so a change of the machine looks the same as a difference")
        for cell, share in apart.items() if share > 0.5
    ]
    if whole is not None:
        return [*found, Caution(None, "warn", f"the machine drifted during the run: {whole.words}; ratios of times are "
                                "adjusted for the places of their trials in the order of execution")]
    for cell, trend in _cell_trends(by_cell).items():
        if apart.get(cell, 0.0) > 0.5:
            continue
        if apart.get(cell, 0.0) > TOLERATED:
            text = (f"{labels[cell]}: {trend}, and {_percent(apart[cell], 0)} of its trials ran at a different time "
                    "from the others of their seed, so pairs do not share the drift")
            found.append(Caution(cell, "refuse", text))
        else:
            found.append(Caution(cell, "warn", f"{labels[cell]}: {trend}; a ratio is an average over this change"))
    return found


@dataclass(frozen=True, slots=True)
class Doubts:
    """The cautions of a run, looked up for pairs of cells."""

    found: Sequence[Caution]
    drift: Drift | None = None

    def refusals(self, candidate: str, baseline: str) -> tuple[str, ...]:
        """Return why these two cells get no verdict."""
        return self._texts((None, candidate, baseline), "refuse")

    def cautions(self, candidate: str, baseline: str) -> tuple[str, ...]:
        """Return the cautions about their verdict."""
        return self._texts((None, candidate, baseline), "warn")

    def slots(self, candidate: str, baseline: str) -> Slots | None:
        """Return how far apart the trials of each pair of two cells ran, if the machine drifted."""
        if self.drift is None:
            return None
        ours, theirs = self.drift.places.get(candidate, {}), self.drift.places.get(baseline, {})
        return Slots(self.drift.per_place, {repeat: ours[repeat] - theirs[repeat] for repeat in ours
                                            if repeat in theirs})

    def _texts(self, cells: tuple[str | None, ...], severity: Severity) -> tuple[str, ...]:
        return tuple(dict.fromkeys(item.text for cell_id in cells for item in self.found
                                   if (item.cell_id, item.severity) == (cell_id, severity)))


def _percent(share: float, digits: int) -> str:
    return f"{100 * share:.{digits}f} %"


def seconds_per_sample(result: Result) -> float | None:
    """Return how slow the machine was in a trial: seconds per sample, else the time to the target."""
    rate = result.samples_per_second if result.train_samples_per_second is None else result.train_samples_per_second
    if rate is not None:
        return 1 / rate if math.isfinite(rate) and rate > 0 else None
    value = figure(result, METRICS[DEFAULT])
    return value if value is not None and math.isfinite(value) and value > 0 else None


def _in_order(plan: Plan, results: Sequence[Result], started_ms: Mapping[str, float]) -> dict[str, list[_Placed]]:
    """Return cell -> its trials with a time, in order of execution; places count the trials of the whole run."""
    planned = {(plan.cells[index].cell_id, repeat): place for place, (index, repeat) in enumerate(plan.order)}
    known = [item for item in results if (item.cell_id, item.repeat) in planned]
    complete = all(item.trial_id in started_ms for item in known)
    known.sort(key=lambda item: (started_ms[item.trial_id] if complete else 0.0, planned[item.cell_id, item.repeat]))
    found: dict[str, list[_Placed]] = {}
    for place, item in enumerate(known):
        seconds = seconds_per_sample(item)
        if seconds is not None:
            found.setdefault(item.cell_id, []).append(_Placed(place, item.repeat, math.log(seconds)))
    return found


def _apart(by_cell: Mapping[str, Sequence[_Placed]]) -> dict[str, float]:
    """Return cell -> share of its trials that ran further from the middle of their seed's block than a block is long.

    Only cells with such a trial are in it; an empty result means that blocks were kept throughout.
    """
    places: dict[int, list[int]] = {}
    for ran in (ran for trials in by_cell.values() for ran in trials):
        places.setdefault(ran.repeat, []).append(ran.place)
    middles = {repeat: median(found) for repeat, found in places.items()}
    shares = {
        cell: sum(abs(ran.place - middles[ran.repeat]) > max(1, len(by_cell) - 1) for ran in trials) / len(trials)
        for cell, trials in by_cell.items()
    }
    return {cell: share for cell, share in shares.items() if share > 0}


def _run_drift(plan: Plan, by_cell: Mapping[str, Sequence[_Placed]], apart: Mapping[str, float]) -> Drift | None:
    """Return the drift of all cells: each block's mean residual (log time less the cell's mean) against its order."""
    from scipy.stats import theilslopes

    if any(share > TOLERATED for share in apart.values()):
        return None
    residuals: dict[int, list[float]] = {}
    places: dict[int, list[int]] = {}
    for trials in by_cell.values():
        level = fmean(ran.log_seconds for ran in trials)
        for ran in trials:
            residuals.setdefault(ran.repeat, []).append(ran.log_seconds - level)
            places.setdefault(ran.repeat, []).append(ran.place)
    middles = {repeat: median(found) for repeat, found in places.items()}
    blocks = sorted(residuals, key=lambda repeat: middles[repeat])
    values = [fmean(residuals[repeat]) for repeat in blocks]
    if not _can_trend(values):
        return None
    rho, p = stats.order_trend(list(range(len(values))), values)
    if p > ALPHA:
        return None
    return Drift(
        _trend_words(rho, p, values), float(theilslopes(values, [middles[repeat] for repeat in blocks]).slope),
        {cell: {ran.repeat: ran.place for ran in trials} for cell, trials in by_cell.items()})


def _cell_trends(by_cell: Mapping[str, Sequence[_Placed]]) -> dict[str, str]:
    """Return the cells whose own times follow the order of execution, Holm over all cells.

    Tests start with the strongest trend and stop at the first that is none, as Holm's procedure steps down: thousands
    of cells cost thousands of rank correlations but only a few exact tests.
    """
    values = {cell: [ran.log_seconds for ran in trials] for cell, trials in by_cell.items()}
    strengths = {cell: abs(_rank_correlation(found)) * math.sqrt(len(found) - 1)
                 for cell, found in values.items() if _can_trend(found)}
    trends: dict[str, str] = {}
    for done, cell in enumerate(sorted(strengths, key=lambda name: (-strengths[name], name))):
        rho, p = stats.order_trend(list(range(len(values[cell]))), values[cell])
        adjusted = p * (len(strengths) - done)
        if adjusted > ALPHA:
            break
        trends[cell] = _trend_words(rho, adjusted, values[cell])
    return trends


def _can_trend(values: Sequence[float]) -> bool:
    return len(values) >= LEAST and max(values) - min(values) > FLAT


def _rank_correlation(values: Sequence[float]) -> float:
    """Spearman's rho of values in order, ties left in order: a screen before the test."""
    count = len(values)
    ranks = np.argsort(np.argsort(np.asarray(values), kind="stable"))
    return 1 - 6 * float(np.sum((ranks - np.arange(count)) ** 2)) / (count * (count**2 - 1))


def _trend_words(rho: float, p: float, values: Sequence[float]) -> str:
    """`later trials took longer, the second half 8.1 % longer a sample (rank correlation 0.89, p = 0.0011)`."""
    half = len(values) // 2
    change = from_log(float(np.mean(values[-half:]) - np.mean(values[:half]))) - 1
    word, later = ("longer" if value > 0 else "less time" for value in (change, rho))
    return (f"later trials took {later}, the second half {_percent(abs(change), 1)} {word} a sample "
            f"(rank correlation with the order {rho:.2f}, p = {p:.2g})")
