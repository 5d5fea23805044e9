"""The claim of a contest: scipy's own one-sample t test, and what it refuses."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import ttest_1samp

from repro.stats import quality_claim

LOSSES = [3.2784, 3.2771, 3.2777, 3.2790, 3.2794, 3.2813, 3.2772, 3.2772, 3.2785, 3.2783]


@pytest.mark.parametrize(("direction", "side"), [("lower", "less"), ("higher", "greater")])
def test_it_is_scipys_one_sided_test(direction: str, side: str) -> None:
    rng = np.random.default_rng(20260717)
    for n in (2, 3, 5, 10, 40):
        values = rng.normal(3.279, 0.0015, n).round(4)
        found = quality_claim(values.tolist(), 3.28, direction, 0.01)  # type: ignore[arg-type]
        expected = ttest_1samp(values, 3.28, alternative=side)
        assert abs(found.p - expected.pvalue) <= 1e-9
        assert abs(found.mean - values.mean()) <= 1e-12 and abs(found.deviation - values.std(ddof=1)) <= 1e-12
        assert found.n == n and found.supported is bool(expected.pvalue <= 0.01)


def test_the_level_decides() -> None:
    p = quality_claim(LOSSES, 3.28).p
    assert p == pytest.approx(0.00177038025, abs=1e-9)
    assert quality_claim(LOSSES, 3.28, alpha=0.01).supported
    assert not quality_claim(LOSSES, 3.28, alpha=0.001).supported
    assert not quality_claim(LOSSES, 3.28, "higher").supported


def test_a_mean_at_the_target_is_supported_in_alpha_of_samples() -> None:
    """The error rate of the claim, at n = 3 and 10: 3,000 samples, so 0.01 has a standard error of 0.0018."""
    rng = np.random.default_rng(20261122)
    for n in (3, 10):
        rate = np.mean([quality_claim(row, 3.28).supported for row in rng.normal(3.28, 0.0014, (3000, n))])
        assert abs(rate - 0.01) < 3.3 * 0.0018


@given(st.lists(st.integers(32_000, 33_600), min_size=2, max_size=30).filter(lambda found: len(set(found)) > 1))
def test_the_two_directions_mirror_each_other(counts: list[int]) -> None:
    values = [count / 1e4 for count in counts]
    lower = quality_claim(values, 3.28)
    higher = quality_claim([-value for value in values], -3.28, "higher")
    assert lower.p == pytest.approx(higher.p, abs=1e-12)
    assert lower.p + quality_claim(values, 3.28, "higher").p == pytest.approx(1.0, abs=1e-9)


@pytest.mark.parametrize(("values", "target", "alpha", "match"), [
    ([], 3.28, 0.01, "at least 2"), ([3.27], 3.28, 0.01, "at least 2"),
    ([3.27, 3.27], 3.28, 0.01, "values that differ"),
    ([3.27, math.nan], 3.28, 0.01, "finite"), ([3.27, 3.28], math.inf, 0.01, "target"),
    ([3.27, 3.28], 3.28, 0.0, "alpha"), ([3.27, 3.28], 3.28, 0.5, "alpha"),
])
def test_values_without_meaning_are_refused(values: list[float], target: float, alpha: float, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        quality_claim(values, target, alpha=alpha)
