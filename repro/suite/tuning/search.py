"""Drawing settings from a space: all before the first trial, from a named random stream, without repeats."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from repro.core.random_streams import Streams
from repro.suite.field_problem import FieldProblem
from repro.suite.tune import Axis, Search

DIGITS = 4
"""Significant digits of a drawn number: what people copy is what ran."""
BLOCK = 64
"""Points of a low-discrepancy sequence that are drawn at once."""
MAX_DRAWS = 100_000
MAX_GRID = 100_000
Settings = dict[str, Any]
"""Field (dotted path) -> value."""


def draw_settings(
    space: Mapping[str, Axis], search: Search, trials: int, master_seed: int, contender: str
) -> tuple[Settings, ...]:
    """Return `trials` different settings; the same for the same arguments, whatever else a suite holds.

    random: every field on its own. halton: the Halton sequence, one prime a field, rotated by a random vector
    (Cranley and Patterson 1976). grid: the points of the grid in a random order, the first `trials` of them.

    Args:
        master_seed: of the tuning.
        contender: text that identifies the contender; two contenders draw from two streams.

    Raises:
        FieldProblem: the space has fewer settings than `trials`, or search grid and a range without points.
    """
    names = sorted(space)  # the order of writing has no effect
    size = space_size(space, search)
    if size < trials:
        noun = "the grid" if search == "grid" else "the space"
        raise FieldProblem(f"{trials} trials are more than {noun} has settings: {size:,.0f}", ("trials",))
    generator = Streams(master_seed, 0).generator(f"tuning {contender}")
    if search == "grid":
        values = [grid_values(space[name]) for name in names]
        chosen = np.unravel_index(generator.permutation(int(size))[:trials], [len(item) for item in values])
        return tuple({name: item[place] for name, item, place in zip(names, values, places, strict=True)}
                     for places in zip(*(axis.tolist() for axis in chosen), strict=True))
    axes = [space[name] for name in names]
    found: dict[str, Settings] = {}
    for point in itertools.islice(_points(search, len(names), generator), MAX_DRAWS):
        setting = {name: value_at(axis, float(at)) for name, axis, at in zip(names, axes, point, strict=True)}
        found.setdefault(json.dumps(setting, sort_keys=True), setting)
        if len(found) == trials:
            return tuple(found.values())
    raise FieldProblem(f"{MAX_DRAWS:,} draws gave {len(found)} different settings of {trials}; use search: grid, or "
                       "fewer trials", ("trials",))


def _points(search: Search, fields: int, generator: np.random.Generator) -> Iterator[np.ndarray]:
    """Yield points of the unit cube, one coordinate a field."""
    if search == "random":
        while True:
            yield generator.random(fields)
    from scipy.stats import qmc  # takes a second, which commands that draw nothing need not wait

    shift = generator.random(fields)
    sequence = qmc.Halton(fields, scramble=False)  # scrambling may differ between versions of scipy
    while True:
        yield from (sequence.random(BLOCK) + shift) % 1.0


def space_size(space: Mapping[str, Axis], search: Search) -> float:
    """Return how many different settings a space has; infinity if a range is continuous.

    Raises:
        FieldProblem: search grid, and a continuous range without points, or a grid beyond any use.
    """
    size = math.prod(_axis_size(name, axis, search) for name, axis in space.items())
    if search == "grid" and size > MAX_GRID:
        raise FieldProblem(f"its grid has {size:,.0f} settings; at most {MAX_GRID:,} are allowed", ("space",))
    return size


def _axis_size(name: str, axis: Axis, search: Search) -> float:
    if axis.choices is not None:
        return len(axis.choices)
    if search == "grid" and axis.points is None and axis.int_ is None:
        raise FieldProblem("search: grid needs the number of points of a range, for example {log: [0.001, 1], "
                           "points: 7}", ("space", name))
    if search != "grid" and axis.points is not None:
        raise FieldProblem(f"points belong to search: grid, not to {search}", ("space", name, "points"))
    if search == "grid" and axis.points is not None:
        return len(grid_values(axis))
    return axis.int_[1] - axis.int_[0] + 1 if axis.int_ is not None else math.inf


def grid_values(axis: Axis) -> Sequence[Any]:
    """Return the values of an axis in a grid, ends included."""
    if axis.choices is not None:
        return axis.choices
    if axis.points is None:
        assert axis.int_ is not None, "checked"
        return range(axis.int_[0], axis.int_[1] + 1)
    shares = [place / (axis.points - 1) for place in range(axis.points)]
    if axis.int_ is not None:
        low, high = axis.int_
        return list(dict.fromkeys(round(low + share * (high - low)) for share in shares))
    return list(dict.fromkeys(_between(axis, share) for share in shares))


def value_at(axis: Axis, at: float) -> Any:
    """Return the value of an axis at a share in [0, 1)."""
    if axis.choices is not None:
        return axis.choices[int(at * len(axis.choices))]
    if axis.int_ is not None:
        low, high = axis.int_
        return low + int(at * (high - low + 1))
    return _between(axis, at)


def _between(axis: Axis, share: float) -> float:
    low, high = axis.ends
    value = low * (high / low) ** share if axis.log else low + share * (high - low)
    return min(high, max(low, float(f"{value:.{DIGITS}g}")))
