"""Settings are drawn once, from a named stream: the same seed gives the same ones, none twice, in their ranges."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import pytest
from scipy.stats import qmc

from repro.suite.field_problem import FieldProblem
from repro.suite.tune import Axis, Search, Settings, draw_settings, grid_values, space_size

SPACE = {"optimizer.lr": Axis(log=(1e-4, 1.0)), "optimizer.momentum": Axis(linear=(0.5, 0.99)),
         "batch.global": Axis.model_validate([32, 64, 128]), "epochs": Axis.model_validate({"int": [1, 9]})}
SEARCHES: tuple[Search, ...] = ("random", "halton")


def drawn(search: Search, trials: int, seed: int = 7, name: str = "a", space: Mapping[str, Axis] = SPACE) -> list[
        Settings]:
    return list(draw_settings(space, search, trials, seed, name))


@pytest.mark.parametrize("search", SEARCHES)
def test_the_same_seed_gives_the_same_settings_and_more_trials_begin_alike(search: Search) -> None:
    first = drawn(search, 20)
    assert drawn(search, 20) == first
    assert drawn(search, 30)[:20] == first, "a larger budget goes on, it does not start over"
    assert drawn(search, 20, space=dict(reversed(SPACE.items()))) == first, "the order of writing has no effect"


@pytest.mark.parametrize("search", SEARCHES)
def test_another_seed_or_contender_gives_others(search: Search) -> None:
    assert not any(one == other for one in drawn(search, 20) for other in drawn(search, 20, seed=8))
    assert not any(one == other for one in drawn(search, 20) for other in drawn(search, 20, name="b"))


@pytest.mark.parametrize("search", SEARCHES)
def test_every_value_is_in_its_range_and_no_setting_twice(search: Search) -> None:
    found = drawn(search, 200)
    for item in found:
        assert 1e-4 <= item["optimizer.lr"] <= 1.0
        assert 0.5 <= item["optimizer.momentum"] <= 0.99
        assert item["batch.global"] in (32, 64, 128) and type(item["batch.global"]) is int
        assert item["epochs"] in range(1, 10) and type(item["epochs"]) is int
    assert len({tuple(sorted(item.items())) for item in found}) == 200
    assert {item["epochs"] for item in found} == set(range(1, 10))


def test_a_logarithmic_range_is_uniform_in_the_logarithm() -> None:
    shares = [(math.log10(item["lr"]) + 4) / 4 for item in drawn("random", 400, space={"lr": Axis(log=(1e-4, 1))})]
    assert np.histogram(shares, 4, (0, 1))[0] == pytest.approx([100] * 4, abs=30)


def test_halton_is_more_even_than_random() -> None:
    """The centred discrepancy of 64 points in two dimensions, over 20 seeds (Niederreiter 1992, chapter 3)."""
    plane = {"a": Axis(linear=(0, 1)), "b": Axis(linear=(0, 1))}

    def discrepancy(search: Search, seed: int) -> float:
        points = np.array([[item["a"], item["b"]] for item in drawn(search, 64, seed, space=plane)])
        return float(qmc.discrepancy(points))

    both = [(discrepancy("halton", seed), discrepancy("random", seed)) for seed in range(20)]
    assert sum(even < uneven for even, uneven in both) >= 19
    assert np.mean([even for even, _ in both]) < 0.3 * np.mean([uneven for _, uneven in both])


def test_a_small_space_is_emptied_without_repeats() -> None:
    space = {"a": Axis.model_validate([1, 2, 3]), "b": Axis.model_validate({"int": [1, 2]})}
    for search in SEARCHES:
        assert len({tuple(item.items()) for item in drawn(search, 6, space=space)}) == 6
        with pytest.raises(FieldProblem, match="7 trials are more than the space has settings: 6"):
            drawn(search, 7, space=space)


def test_a_grid_has_its_ends_and_its_points_in_a_drawn_order() -> None:
    space = {"lr": Axis.model_validate({"log": [0.001, 1], "points": 4}), "b": Axis.model_validate([1, 2])}
    assert grid_values(space["lr"]) == [0.001, 0.01, 0.1, 1.0]
    assert space_size(space, "grid") == 8
    found = drawn("grid", 8, space=space)
    assert {(item["lr"], item["b"]) for item in found} == {(lr, b) for lr in (0.001, 0.01, 0.1, 1.0) for b in (1, 2)}
    assert drawn("grid", 8, seed=8, space=space) != found
    with pytest.raises(FieldProblem, match="9 trials are more than the grid has settings: 8"):
        drawn("grid", 9, space=space)
    assert grid_values(Axis.model_validate({"int": [1, 10], "points": 4})) == [1, 4, 7, 10]
    assert list(grid_values(Axis.model_validate({"int": [3, 5]}))) == [3, 4, 5]
    with pytest.raises(FieldProblem, match="needs the number of points"):
        drawn("grid", 2, space={"lr": Axis(log=(0.001, 1))})
