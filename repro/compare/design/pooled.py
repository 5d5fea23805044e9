"""Trials of several cells as one trial per seed: the geometric mean over cells.

A main effect compares levels, not cells. Cells that share a seed are no independent replicates, so each seed gives one
value per level, and the usual comparison of pairs judges those: every rule for cells holds for levels too.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from repro.record.result.metric_values import read
from repro.record.result.results import Bracket, Point, Result
from repro.suite.metrics import METRICS


class PooledResult(Result):
    """One seed's result over several cells: of every metric the geometric mean, whatever its path."""

    means: Mapping[str, float | None]
    """By path of the metric."""

    def at(self, path: str) -> float | None:
        return self.means[path]


def pool(name: str, cells: Sequence[Mapping[int, Result]]) -> list[Result]:
    """Return one result per seed that all cells have, every figure the geometric mean over the cells.

    Args:
        name: id of the level that the cells have.
        cells: of each cell, seed -> its result, all with a figure.
    """
    seeds = sorted(set.intersection(*(set(found) for found in cells))) if cells else []
    return [_pooled(name, seed, [found[seed] for found in cells]) for seed in seeds]


def _pooled(name: str, seed: int, trials: Sequence[Result]) -> Result:
    means = {spec.path: _mean(read(item, spec) for item in trials) for spec in METRICS.values()}
    figures: dict[str, Any] = {path: mean for path, mean in means.items() if path in Result.model_fields}
    # Not validated: a mean of counts is no whole number.
    return PooledResult.model_construct(
        trial_id=f"{name}-{seed}", cell_id=name, repeat=seed, attempt=1, status="ok", bracket=_bracket(trials),
        curve=_positions(trials), hashes=_weights(trials),
        warnings=tuple(part for item in trials for part in item.resumed), means=means, **figures,
    )


def _bracket(trials: Sequence[Result]) -> Bracket | None:
    found = [item.bracket for item in trials if item.bracket is not None]
    if len(found) < len(trials):
        return None
    ends: dict[str, Any] = {name: _mean((getattr(item, name) for item in found), zero=0.0)
                            for name in Bracket.model_fields}
    return Bracket.model_construct(**ends)


def _positions(trials: Sequence[Result]) -> tuple[Point, ...]:
    """Return the samples at the evaluations that all trials have, by which grids are compared."""
    return tuple(
        Point(samples=round(_mean(point.samples for point in points) or 0), epochs=0.0, wall_seconds=0.0,
              train_seconds=0.0, value=None)
        for points in zip(*(item.curve for item in trials), strict=False))


def _weights(trials: Sequence[Result]) -> dict[str, str]:
    """Return the final weights of all trials as one hash: equal for two levels whose cells trained the same."""
    found = [item.hashes.get("final_weights", "") for item in trials]
    return {"final_weights": "+".join(found)} if all(found) else {}


def _mean(values: Iterable[float | None], zero: float | None = None) -> float | None:
    """Return the geometric mean; None if a value is missing or negative, `zero` if one is 0."""
    known = list(values)
    numbers = [float(value) for value in known if value is not None and math.isfinite(value) and value > 0]
    if len(numbers) == len(known):
        return math.exp(math.fsum(map(math.log, numbers)) / len(numbers))
    return zero if all(value is not None and value >= 0 for value in known) else None
