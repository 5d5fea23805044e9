"""Kaplan-Meier, log-rank and competing ends against published data sets, lifelines and counting by hand."""

from __future__ import annotations

import itertools
import math
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import CensoredData, chi2, logrank

from repro.stats import cumulative_incidence, kaplan_meier, log_rank

CALM = settings(max_examples=40, deadline=None, derandomize=True, database=None)
MERCAPTOPURINE = [6, 6, 6, 6.5, 7, 9.5, 10, 10.5, 11.5, 13, 16, 17.5, 19.5, 20.5, 22, 23, 25.5, 32.5, 32.6, 34.5, 35.5]
"""Freireich et al. 1963, weeks in remission, as in Cox & Oakes 1984; fractions represent 6+, 9+, ..."""
PLACEBO = [1, 1, 2, 2, 3, 4, 4, 5, 5, 8, 8, 8, 8, 11, 11, 12, 12, 15, 17, 22, 23]
MAINTAINED = [(9, 1), (13, 1), (13, 0), (18, 1), (23, 1), (28, 0), (31, 1), (34, 1), (45, 0), (48, 1), (161, 0)]
"""Acute myelogenous leukaemia, weeks (Miller 1981, p. 49)."""
NOT_MAINTAINED = [(5, 1), (5, 1), (8, 1), (8, 1), (12, 1), (16, 0), (23, 1), (27, 1), (30, 1), (33, 1), (43, 1),
                  (45, 1)]

Sample = tuple[list[float], list[bool]]


def treated() -> Sample:
    return [float(math.floor(time)) for time in MERCAPTOPURINE], [time == int(time) for time in MERCAPTOPURINE]


def placebo() -> Sample:
    return [float(time) for time in PLACEBO], [True] * len(PLACEBO)


def sample(rows: list[tuple[int, int]]) -> Sample:
    return [float(time) for time, _ in rows], [bool(hit) for _, hit in rows]


OUTCOMES = st.lists(st.tuples(st.integers(1, 30), st.booleans()), min_size=1, max_size=25)


# ---- the curve


def test_the_curve_of_the_remission_data_is_the_published_one() -> None:
    curve = kaplan_meier(*treated())
    assert [time for time, _ in curve] == [6, 7, 10, 13, 16, 22, 23]
    # Cox & Oakes 1984, table 4.1 / Kleinbaum & Klein 2012, p. 66
    assert [1 - share for _, share in curve] == pytest.approx(
        [0.8571, 0.8067, 0.7529, 0.6902, 0.6275, 0.5378, 0.4482], abs=5e-5)


@CALM
@given(OUTCOMES)
def test_the_curve_agrees_with_lifelines(rows: list[tuple[int, int]]) -> None:
    from lifelines import KaplanMeierFitter

    times, hits = sample(rows)
    curve = kaplan_meier(times, hits)
    theirs = KaplanMeierFitter().fit(times, hits)
    assert [1 - share for _, share in curve] == pytest.approx(
        [float(theirs.predict(time)) for time, _ in curve], abs=1e-9)


def test_without_misses_the_curve_is_the_share_of_runs_and_order_does_not_matter() -> None:
    assert dict(kaplan_meier([4, 2, 1, 3], [True] * 4)) == pytest.approx({1: 0.25, 2: 0.5, 3: 0.75, 4: 1.0})
    assert kaplan_meier([3, 4], [False, False]) == ()
    mixed = kaplan_meier([4, 2, 1, 3], [False, True, True, True])
    assert mixed == kaplan_meier([1, 2, 3, 4], [True, True, True, False])


@pytest.mark.parametrize(("times", "hits", "problem"), [
    ([], [], "at least one"), ([1], [True, False], "as many times as outcomes"), ([math.nan], [True], "finite"),
    ([math.inf], [False], "finite"), ([-1], [True], "negative"),
])
def test_invalid_runs_are_refused(times: list[float], hits: list[bool], problem: str) -> None:
    for refuse in (lambda: kaplan_meier(times, hits), lambda: log_rank(times, hits, [1, 2], [True, True])):
        with pytest.raises(ValueError, match=problem):
            refuse()


# ---- two curves


def test_log_rank_of_the_remission_data_is_the_published_one() -> None:
    statistic, p = log_rank(*treated(), *placebo())
    assert statistic == pytest.approx(16.79, abs=0.005)  # Kleinbaum & Klein 2012, p. 71
    assert p == pytest.approx(chi2.sf(statistic, 1), abs=3e-5)  # exact: other, not far


def test_log_rank_of_the_leukaemia_data_is_the_published_one() -> None:
    statistic, p = log_rank(*sample(MAINTAINED), *sample(NOT_MAINTAINED))
    assert statistic == pytest.approx(3.396, abs=5e-4)  # R: survdiff(Surv(time, status) ~ x, aml): 3.4, p = 0.07
    assert chi2.sf(statistic, 1) == pytest.approx(0.0653, abs=5e-5)
    assert p == pytest.approx(0.0653, abs=0.02)  # exact: other, not far


@pytest.mark.slow
@CALM
@given(OUTCOMES.filter(lambda rows: len({time for time, hit in rows if hit}) > 1), OUTCOMES)
def test_the_log_rank_statistic_agrees_with_lifelines(
    rows: list[tuple[int, int]], others: list[tuple[int, int]]
) -> None:
    from lifelines.statistics import logrank_test

    (a, hits_a), (b, hits_b) = sample(rows), sample(others)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # lifelines uses what pandas 4 will drop
        theirs = logrank_test(a, b, hits_a, hits_b)
    if math.isfinite(theirs.test_statistic):
        assert log_rank(a, hits_a, b, hits_b)[0] == pytest.approx(theirs.test_statistic, abs=1e-6)


def test_p_counts_every_deal() -> None:
    generator = np.random.default_rng(5)
    for _ in range(100):
        times, hits = np.ceil(generator.exponential(5, 9)), generator.random(9) < 0.7
        hits[0] = True

        def distance(chosen: tuple[int, ...], times: np.ndarray = times, hits: np.ndarray = hits) -> float:
            """|observed - expected| of the first cell, by the textbook's table of times."""
            mine, total = np.isin(np.arange(9), chosen), 0.0
            for time in np.unique(times[hits]):
                now, risk = hits & (times == time), times >= time
                total += np.sum(now & mine) - np.sum(now) * np.sum(risk & mine) / np.sum(risk)
            return abs(total)

        far = [distance(chosen) for chosen in itertools.combinations(range(9), 4)]
        expected = np.mean(np.array(far) >= far[0] - 1e-9)
        assert log_rank(times[:4], hits[:4], times[4:], hits[4:])[1] == pytest.approx(expected, abs=1e-12)


def two_cells(count: int) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(6)
    times, hits = np.ceil(20 * generator.lognormal(0, 0.3, 2 * count)), generator.random(2 * count) < 0.8
    times[:count] *= 1.1
    return times, hits


def test_p_of_forty_runs_is_the_share_of_drawn_deals() -> None:
    times, hits = two_cells(20)
    when, together = np.unique(times[hits], return_counts=True)
    hazard = np.cumsum(together / [np.sum(times >= time) for time in when])
    scores = hits - np.where(times >= when[0], hazard[np.searchsorted(when, times, side="right") - 1], 0)
    generator = np.random.default_rng(7)
    sums = np.array([generator.permutation(scores)[:20].sum() for _ in range(40_000)])
    drawn = np.mean(np.abs(sums) >= abs(scores[:20].sum()) - 1e-9)
    assert 0.002 < drawn < 0.2
    assert log_rank(times[:20], hits[:20], times[20:], hits[20:])[1] == pytest.approx(drawn, abs=0.006)


def test_beyond_a_hundred_runs_p_is_that_of_scipy() -> None:
    times, hits = two_cells(60)
    statistic, p = log_rank(times[:60], hits[:60], times[60:], hits[60:])
    sides = [CensoredData(times[part][hits[part]], right=times[part][~hits[part]])
             for part in (slice(0, 60), slice(60, 120))]
    assert p == pytest.approx(logrank(*sides).pvalue, rel=1e-12)
    assert p == pytest.approx(chi2.sf(statistic, 1), rel=1e-9)


def test_log_rank_is_the_same_for_swapped_cells_and_one_for_one_curve() -> None:
    one, other = sample(MAINTAINED), sample(NOT_MAINTAINED)
    assert log_rank(*one, *other) == pytest.approx(log_rank(*other, *one))
    assert log_rank(*one, *one)[1] == 1.0
    assert log_rank([2, 2], [True, True], [2, 2], [True, True]) == (0.0, 1.0)


def test_log_rank_sees_a_cell_that_never_reaches() -> None:
    statistic, p = log_rank([1, 2, 3, 4, 5], [True] * 5, [9] * 5, [False] * 5)
    assert p == pytest.approx(2 / math.comb(10, 5)) and statistic > 8
    assert log_rank([2, 3], [True, True], [1], [False]) == (0.0, 1.0)  # watched at no time at which one reached
    with pytest.raises(ValueError, match="no run reached the target"):
        log_rank([1, 2], [False] * 2, [3, 4], [False] * 2)


# ---- competing ends


def test_cumulative_incidence_by_hand() -> None:
    # at risk 5: 1/5 reached; 4: 1/4 of 4/5 diverged; 3: one cut off; 2: 1/2 of 3/5 reached; 1: the rest diverged
    found = cumulative_incidence([1, 2, 3, 4, 5], ["reached", "diverged", None, "reached", "diverged"])
    assert dict(found["reached"]) == pytest.approx({1: 0.2, 2: 0.2, 4: 0.5, 5: 0.5})
    assert dict(found["diverged"]) == pytest.approx({1: 0.0, 2: 0.2, 4: 0.2, 5: 0.5})


def test_one_cause_is_the_kaplan_meier_curve_and_reading_divergence_as_censored_would_promise_too_much() -> None:
    curve = kaplan_meier(*treated())
    causes = ["reached" if hit else None for hit in treated()[1]]
    assert dict(cumulative_incidence(treated()[0], causes)["reached"]) == pytest.approx(
        dict(curve))
    times, ends = [1.0, 2.0, 3.0, 4.0], ["diverged", "reached", "diverged", "reached"]
    assert cumulative_incidence(times, ends)["reached"][-1][1] == pytest.approx(0.5)
    assert kaplan_meier(times, [end == "reached" for end in ends])[-1][1] == 1.0  # must not be reported


@pytest.mark.slow
@CALM
@given(st.lists(st.sampled_from(["reached", "diverged", None]), min_size=2, max_size=20), st.randoms())
def test_cumulative_incidence_agrees_with_lifelines_and_sums_to_one(causes: list[str | None], shuffler) -> None:
    from lifelines import AalenJohansenFitter

    times = [float(time) for time in range(1, len(causes) + 1)]
    shuffler.shuffle(times)
    found = cumulative_incidence(times, causes)
    for number, cause in enumerate(["reached", "diverged"], start=1):
        if cause in found:
            fitter = AalenJohansenFitter(calculate_variance=False)
            events = [{"reached": 1, "diverged": 2, None: 0}[end] for end in causes]
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                theirs = fitter.fit(times, events, event_of_interest=number).cumulative_density_.iloc[:, 0]
            expected = [theirs[time] for time, _ in found[cause]]
            assert [share for _, share in found[cause]] == pytest.approx(expected, abs=1e-9)
    if found and None not in causes:
        assert sum(steps[-1][1] for steps in found.values()) == pytest.approx(1)
