"""The diagnostic of normality: a published answer, its level, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest

from repro.stats.interval import shapiro_p

WEIGHTS = [148, 154, 158, 160, 161, 162, 166, 170, 182, 195, 236]
"""Pounds of eleven men; the example of Shapiro and Wilk (1965), who find W = 0.79, p below 0.01."""


def test_the_example_of_its_authors() -> None:
    assert 0.005 < shapiro_p(WEIGHTS) < 0.01


def test_its_level_over_normal_values() -> None:
    generator = np.random.default_rng(20151102)
    rejected = sum(shapiro_p(generator.normal(size=8).tolist()) <= 0.05 for _ in range(1000))
    assert 30 <= rejected <= 70


@pytest.mark.parametrize(("values", "says"), [
    ([1.0, 2.0], "3 are the least"), ([1.0, 1.0, 1.0], "do not spread"), ([1.0, 2.0, float("nan")], "finite"),
])
def test_invalid_samples_are_refused(values: list[float], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        shapiro_p(values)
