"""What a verdict is on: unseen slow trials, failures, stops, settings of one search."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from benchmarks.verdicts.experiment import made_plan, simulated
from benchmarks.verdicts.sequential_runs import Experiment
from repro import stats
from repro.compare import Comparison, compare, contrast
from repro.compare.design.chosen import Chosen
from repro.compare.verdict.condition import parse
from repro.record.result.results import Result
from repro.stats.exact_tests import sign_flip_any
from repro.stats.sequential import look_levels, median_unbiased, stagewise_p
from repro.tables.verdicts import comparison_sentence
from tests.made_cells import BASELINE, CANDIDATE, result, trials
from tests.made_tuned import make_tuned


def against(candidate: list[Result], baseline: list[Result]) -> Comparison:
    return contrast(CANDIDATE, BASELINE, candidate, baseline, "tta_wall", primary=True)


# ---- same


def test_flips_of_many_pairs_are_those_of_all_flips() -> None:
    logs = np.random.default_rng(3).standard_t(2, 23) + 0.4
    assert sign_flip_any(logs.tolist()) == pytest.approx(stats.sign_flip(logs.tolist(), limit=23), rel=0.01)
    tied = np.round(logs, 1).tolist()  # sums of such figures tie, and a grid may round equal ones apart
    assert stats.sign_flip(tied, limit=23) <= sign_flip_any(tied) <= 1.01 * stats.sign_flip(tied, limit=23)
    assert sign_flip_any([0.0] * 30) == 1.0
    assert sign_flip_any([0.1] * 30) == pytest.approx(2 / 2**30)


def test_same_needs_the_sign_flips_of_each_side_too() -> None:
    """Two of three pairs are at the margin: the t tests reject, the flips of the shifted pairs do not, at any n."""
    logs, edge = [-0.1054, -0.0953, 0.2007] * 3, math.log(1.1)
    both = stats.equivalent_pairs(logs, 0.1)
    assert stats.tost(logs, 0.1).equivalent and not both.equivalent
    assert both.p == pytest.approx(stats.sign_flip([value + edge for value in logs]) / 2)
    sides = [result(cell, k, math.exp(value)) for cell, values in ((CANDIDATE, logs), (BASELINE, [0.0] * 9))
             for k, value in enumerate(values)]
    found = contrast(CANDIDATE, BASELINE, sides[:9], sides[9:], "tta_wall", primary=True, margin=0.1)
    assert found.verdict == "inconclusive" and found.equivalence is not None and found.equivalence.p == both.p


@pytest.mark.parametrize(("n", "words"), [(10, "rarer than 26 %"), (28, "rarer than 10 %"), (29, "")])
def test_same_of_few_pairs_says_what_could_go_unseen(n: int, words: str) -> None:
    found = against(trials(CANDIDATE, [10 + 0.01 * (k % 2) for k in range(n)]),
                    trials(BASELINE, [10 + 0.01 * ((k + 1) % 2) for k in range(n)]))
    assert found.verdict == "same" and "of the geometric mean of the ratios of pairs" in found.because
    assert ("could go unseen" in found.because) == bool(words) and words in found.because
    assert found.levels is not None
    assert (found.levels.candidate_p90 is None) == (n < 20)


def test_the_ratio_of_means_stands_beside_that_of_pairs() -> None:
    ours = [10.0] * 18 + [30.0] * 2
    found = against(trials(CANDIDATE, ours), trials(BASELINE, [10 + k / 100 for k in range(20)]))
    assert found.levels is not None and found.ratio is not None
    assert found.levels.mean_ratio == pytest.approx(np.mean(ours) / 10.095) and found.levels.mean_ratio > found.ratio
    assert found.levels.candidate_p90 == pytest.approx(np.quantile(ours, 0.9))


# ---- failures


def failing(count: int, seconds: float) -> list[Result]:
    return [result(CANDIDATE, k, None, "diverged", run_seconds=3.0) if k < count else
            result(CANDIDATE, k, seconds + k / 100) for k in range(20)]


def test_quicker_but_failing_more_is_not_faster() -> None:
    """First in 15 of 20 pairs, and the mean up to the last success is smaller; but 5 of 20 never succeed."""
    found = against(failing(5, 9.5), trials(BASELINE, [10 + k / 100 for k in range(20)]))
    assert found.p is not None and found.p < 0.05
    assert (found.verdict, found.qualifier) == ("inconclusive", "")
    assert "failures 5 of 20 against 0 of 20, exact p = 0.0471" in found.because
    assert "x the baseline's" in found.because


def test_much_quicker_is_faster_when_it_succeeds_and_never_without_these_words() -> None:
    found = against(failing(3, 1.0), trials(BASELINE, [10 + k / 100 for k in range(20)]))
    assert found.verdict == "faster"
    assert found.spoken == "faster when it succeeds; failures 3 of 20 against 0 of 20"
    assert f": {found.spoken};" in comparison_sentence(found)
    assert "faster when it succeeds" in parse("faster").failure(found)
    assert "faster when it succeeds" in parse("not-faster").failure(found)
    assert parse("failures > 0").failure(found).endswith("failures = 3, failures > 0")


def test_the_rule_is_the_same_for_swapped_cells() -> None:
    ours = [item.model_copy(update={"cell_id": BASELINE.cell_id}) for item in failing(3, 1.0)]
    found = against(trials(CANDIDATE, [10 + k / 100 for k in range(20)]), ours)
    assert found.spoken == "slower when the baseline succeeds; failures 0 of 20 against 3 of 20"


def test_as_many_failures_need_no_words() -> None:
    ours, theirs = failing(3, 1.0), [item.model_copy(update={"cell_id": BASELINE.cell_id}) for item in failing(3, 9.0)]
    assert against(ours, theirs).spoken == "faster"


# ---- stops


def test_the_stagewise_p_is_that_of_simulated_paths() -> None:
    looks, bounds, effect = (8, 12, 16), (2.5, 2.3), 0.4
    steps = np.random.default_rng(8).normal(effect, 1, (40_000, 16)).cumsum(axis=1)
    seen = np.array([steps[:, n - 1] / math.sqrt(n) for n in looks])
    up = (seen[0] > bounds[0]) | ((np.abs(seen[0]) <= bounds[0]) & (seen[1] > bounds[1]))
    here = (np.abs(seen[0]) <= bounds[0]) & (np.abs(seen[1]) <= bounds[1]) & (seen[2] >= 1.7)
    assert stagewise_p(looks, bounds, 1.7, effect) == pytest.approx(float(np.mean(up | here)), abs=0.008)


def test_at_the_first_look_it_is_the_plain_mean() -> None:
    logs = np.random.default_rng(2).normal(0.05, 0.07, 8).tolist()
    found, (ratio, interval) = median_unbiased(logs, (8,), (0.01,)), stats.paired_ratio(np.exp(logs), [1.0] * 8)
    assert math.exp(found.value) == pytest.approx(ratio)
    assert (math.exp(found.low), math.exp(found.high)) == pytest.approx((interval.low, interval.high))
    assert found.error == pytest.approx(float(np.std(logs, ddof=1)) / math.sqrt(8))


@pytest.mark.slow
def test_the_corrected_mean_has_the_true_one_as_its_median() -> None:
    levels, generator, truth = look_levels((8, 12, 16, 20)), np.random.default_rng(12), math.log(1.05)
    naive, corrected = [], []
    for _ in range(150):
        logs = generator.normal(truth, 0.05 * math.sqrt(2), 20)
        taken = next((k for k, level in enumerate(levels, 1)
                      if stats.paired_p(np.exp(logs[:level.n]), [1.0] * level.n) <= level.difference), 4)
        logs = logs[:levels[taken - 1].n]
        naive.append(float(np.mean(logs)))
        corrected.append(median_unbiased(logs.tolist(), [item.n for item in levels[:taken]],
                                         [item.difference for item in levels[:taken]]).value)
    assert np.mean(naive) > truth + 0.002
    assert abs(float(np.median(corrected)) - truth) < 0.008  # 0.5 points, and the error of 150 experiments


def test_a_stopped_run_shows_both_ratios() -> None:
    design = Experiment(30, ratio=1.1, spread=0.05, sequential='{"looks": [10, 15, 20, 30]}')
    found = [next(item for item in compare(run.plan, run.results) if item.primary)
             for run in (simulated(design, np.random.default_rng(seed)) for seed in range(6))]
    later = next(item for item in found if item.verdict == "slower" and item.look and item.look.number > 1)
    assert later.unbiased is not None and later.ratio is not None and 1 < later.unbiased.value < later.ratio
    first = next(item for item in found if item.look and item.look.number == 1)
    assert first.unbiased is not None and first.unbiased.value == pytest.approx(first.ratio)
    assert any(text.startswith("settled at its first look") for text in first.cautions)


# ---- settings of one search


def test_a_verdict_between_tuned_contenders_is_on_their_settings(tmp_path: Path) -> None:
    record = make_tuned(tmp_path / "run")
    chosen = Chosen(record.plan)
    found = against(trials(CANDIDATE, [1.0 + k / 100 for k in range(8)]), trials(BASELINE, [2.0] * 8))
    by_where = {str(item.where): item for item in record.plan.suite.settings}
    assert len(by_where) == 4
    tuned = list(compare(record.plan, record.results))
    assert any(item.one_search for item in tuned)
    one = next(item for item in tuned if item.one_search)
    again = chosen.qualified(found.model_copy(update={"candidate": one.candidate, "baseline": one.baseline}))
    assert again.spoken == "faster with these settings"
    assert "one search for each contender; another search may choose others" in again.cautions
    assert again.one_search is not None and again.one_search.candidate
    assert chosen.qualified(found) == found


def test_an_untuned_plan_has_no_such_words() -> None:
    assert all(item.one_search is None for item in compare(made_plan(2, 6), []))
