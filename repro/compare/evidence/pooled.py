"""Means of several trials: over cells for a main effect, over the trials of a run if the run is the unit.

A main effect compares levels, not cells. Cells that share a seed are no independent replicates, so each seed gives one
value per level, and the usual comparison of pairs judges those: every rule for cells holds for levels too.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import geometric_mean
from typing import Any

from repro.compare.evidence.pairing import Observed
from repro.record.result.result_warnings import Resumed
from repro.record.result.results import Bracket, Point
from repro.suite.metrics import METRICS


@dataclass(frozen=True, slots=True)
class MeanTrial:
    """The figures of a trial that a comparison reads, as means of several trials that all have them."""

    repeat: int
    means: Mapping[str, float | None]
    """Path of a metric -> its mean."""
    parts: Sequence[Observed]
    """The trials themselves."""
    bracket: Bracket | None
    curve: tuple[Point, ...] = ()
    only_numbered: bool = False
    hashes: Mapping[str, str] = field(default_factory=dict)
    effective: Mapping[str, str] = field(default_factory=dict)
    resumed: tuple[Resumed, ...] = ()
    tta_wall_bounds: tuple[float, float] | None = None
    startup_seconds: float | None = None
    attempt: int = 1
    status: str = "ok"
    samples: int | None = None
    init_seconds: float | None = None
    phases: Mapping[str, float] = field(default_factory=dict)

    def at(self, path: str) -> float | None:
        """Return the mean at the path of a metric."""
        return self.means[path]

    @property
    def samples_to_target(self) -> float | None:
        return self.means["samples_to_target"]

    @property
    def run_seconds(self) -> float | None:
        return self.means.get("run_seconds")


def pool(cells: Sequence[Mapping[int, Observed]]) -> list[MeanTrial]:
    """Return one mean per seed that all cells have, over the cells.

    Args:
        cells: of each cell, seed -> its trial, all with a figure.
    """
    seeds = sorted(set.intersection(*(set(found) for found in cells))) if cells else []
    return [mean_trial(seed, [found[seed] for found in cells]) for seed in seeds]


def mean_trial(repeat: int, trials: Sequence[Observed], zero: float | None = None) -> MeanTrial:
    """Return the mean of trials.

    Args:
        zero: the mean of a metric of which one value is 0.
    """
    # The evaluations that all trials have, by which grids are compared.
    curve = tuple(
        Point(samples=round(_mean(point.samples for point in points) or 0), wall_seconds=0.0, train_seconds=0.0,
              epochs=_mean((point.epochs for point in points), 0.0) or 0.0, value=None)
        for points in zip(*(item.curve for item in trials), strict=False))
    means = {spec.path: _mean((item.at(spec.path) for item in trials), zero) for spec in METRICS.values()}
    # The final weights of all trials as one hash: equal for two levels whose cells trained the same.
    weights = [item.hashes.get("final_weights", "") for item in trials]
    return MeanTrial(repeat=repeat, means=means, parts=trials, bracket=_mean_bracket(trials), curve=curve,
                     only_numbered=all(item.only_numbered for item in trials),
                     hashes={"final_weights": "+".join(weights)} if all(weights) else {},
                     resumed=tuple(part for item in trials for part in item.resumed),
                     tta_wall_bounds=_mean_bounds(trials),
                     startup_seconds=_mean((item.startup_seconds for item in trials), 0.0),
                     init_seconds=_mean((item.init_seconds for item in trials), 0.0))


def _mean_bracket(trials: Sequence[Observed]) -> Bracket | None:
    """Return the mean ends of the brackets; None if a trial has none."""
    found = [item.bracket for item in trials if item.bracket is not None]
    if len(found) < len(trials):
        return None
    ends: dict[str, Any] = {name: _mean((getattr(item, name) for item in found), zero=0.0)
                            for name in Bracket.model_fields}
    return Bracket.model_construct(**ends)  # not validated: a mean of counts is no whole number


def _mean_bounds(trials: Sequence[Observed]) -> tuple[float, float] | None:
    """Return the mean ends of the bounds of the wall clock; None if every trial's is known."""
    if all(item.tta_wall_bounds is None for item in trials):
        return None
    ends = [item.tta_wall_bounds or (item.at("tta_wall"), item.at("tta_wall")) for item in trials]
    return _mean((low for low, _ in ends), 0.0) or 0.0, _mean((high for _, high in ends), 0.0) or 0.0


def _mean(values: Iterable[float | None], zero: float | None = None) -> float | None:
    """Return the geometric mean; None if a value is missing or negative, `zero` if one is 0."""
    known = list(values)
    numbers = [float(value) for value in known if value is not None and math.isfinite(value) and value > 0]
    if len(numbers) == len(known):
        return geometric_mean(numbers)
    return zero if all(value is not None and value >= 0 for value in known) else None
