"""The estimate of several experiments together: by other formulas, by statsmodels, and its coverage."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats as scipy_stats

from repro.stats.random_effects import random_effects


def data_sets() -> list[tuple[list[float], list[float]]]:
    generator = np.random.default_rng(38)
    found = []
    for number in range(10):
        count = (2, 3, 4, 5, 6, 8, 10, 12, 20, 40)[number]
        variances = generator.uniform(0.5, 3, count) * 10.0 ** generator.uniform(-5, -1)
        effects = generator.normal(0.05, np.sqrt(variances * (1 + (number % 3))))
        found.append((effects.tolist(), variances.tolist()))
    return found


@pytest.mark.parametrize("number", range(10))
def test_it_equals_generalized_least_squares_and_statsmodels(number: int) -> None:
    """tau by the trace of the residual projection, the mean by solving the normal equations."""
    effects, variances = data_sets()[number]
    found, count = random_effects(effects, variances), len(effects)
    y, ones = np.array(effects), np.ones((len(effects), 1))

    def projection(inverse: np.ndarray) -> np.ndarray:
        return inverse - inverse @ ones @ np.linalg.solve(ones.T @ inverse @ ones, ones.T @ inverse)

    fixed = projection(np.diag(1 / np.array(variances)))
    q = float(y @ fixed @ y)
    between = max(0.0, (q - (count - 1)) / float(np.trace(fixed)))
    inverse = np.diag(1 / (np.array(variances) + between))
    mean = float(np.linalg.solve(ones.T @ inverse @ ones, ones.T @ inverse @ y)[0])
    knapp = float(y @ projection(inverse) @ y) / (count - 1) / (ones.T @ inverse @ ones).item()
    assert (found.mean, found.heterogeneity, found.between**2, found.deviation) == pytest.approx(
        (mean, q, between, math.sqrt(knapp)), rel=1e-9, abs=1e-15)
    assert found.heterogeneity_p == pytest.approx(1 - scipy_stats.chi2.cdf(q, count - 1), abs=1e-9)
    half = scipy_stats.t.ppf(0.975, count - 1) * math.sqrt(max(knapp, 1 / (ones.T @ inverse @ ones).item()))
    assert (found.interval.low, found.interval.high) == pytest.approx((mean - half, mean + half), rel=1e-9)
    meta = pytest.importorskip("statsmodels.stats.meta_analysis")
    if found.between == 0:  # statsmodels lets it become negative
        return
    theirs = meta.combine_effects(y, np.array(variances), method_re="dl")
    assert (found.mean, found.between**2, found.deviation) == pytest.approx(
        (theirs.mean_effect_re, theirs.tau2, theirs.sd_eff_w_re_hksj), rel=1e-9, abs=1e-12)


def test_equal_effects_have_no_spread_and_two_have_no_prediction() -> None:
    found = random_effects([0.1, 0.1], [0.01, 0.04])
    assert (found.mean, found.between, found.inconsistent, found.prediction) == (pytest.approx(0.1), 0, 0, None)
    assert found.interval.high - found.interval.low > 0, "never narrower than the figures themselves allow"


@pytest.mark.slow
@pytest.mark.parametrize("records", [3, 6, 12])
@pytest.mark.parametrize("ratio", [0.0, 1.0, 3.0])
def test_its_interval_covers_the_mean(records: int, ratio: float) -> None:
    """Records of 7 to 20 pairs; `ratio` is the spread between records over the standard error of one of 12 pairs."""
    generator = np.random.default_rng([records, int(ratio)])
    covered = predicted = 0
    for _ in range(1000):
        pairs = generator.integers(7, 21, records)
        true = generator.normal(0, ratio * 0.01 / math.sqrt(12), records)
        logs = [generator.normal(mean, 0.01, count) for mean, count in zip(true, pairs, strict=True)]
        found = random_effects([float(item.mean()) for item in logs],
                               [float(item.var(ddof=1)) / len(item) for item in logs])
        covered += found.interval.low <= 0 <= found.interval.high
        assert found.prediction is not None
        predicted += found.prediction.low <= generator.normal(0, ratio * 0.01 / math.sqrt(12)) <= found.prediction.high
    assert covered >= 930, covered
    assert predicted >= 930, predicted


@pytest.mark.parametrize(("effects", "variances", "said"), [
    ([1.0], [1.0], "at least 2"), ([1.0, 2.0], [1.0], "one length"), ([1.0, math.nan], [1.0, 1.0], "finite"),
    ([1.0, 2.0], [1.0, 0.0], "positive")])
def test_it_refuses_what_has_no_meaning(effects: list[float], variances: list[float], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        random_effects(effects, variances)
