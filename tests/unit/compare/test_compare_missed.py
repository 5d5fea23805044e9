"""Runs that missed their target, diverged, ran out of memory or of time: kept in, each as what it was."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from repro.compare import Comparison, contrast, summarize
from repro.compare.evidence.evidence import ComparisonRequest, examine
from repro.compare.evidence.pairing import observe
from repro.compare.evidence.stage import Stage
from repro.compare.verdict.verdict import judged
from repro.record.result.results import Point, Result, Status
from repro.suite.metrics import METRICS
from tests.made_cells import BASELINE, CANDIDATE, result, trials


def against(candidate: list[Result], baseline: list[Result], **changes: Any) -> Comparison:
    return contrast(CANDIDATE, BASELINE, candidate, baseline, "tta_wall", primary=True, **changes)


def some_missed(n: int, misses: int, seconds: float, end: float, status: Status = "missed") -> list[Result]:
    """The first `misses` of n baseline trials were watched up to `end`, the others took about `seconds`."""
    return [result(BASELINE, k, None, status, run_seconds=end) if k < misses else result(BASELINE, k, seconds + k / 10)
            for k in range(n)]


def test_a_clear_difference_is_seen_through_missed_runs() -> None:
    found = against(trials(CANDIDATE, [10.0 + k / 10 for k in range(10)]), some_missed(10, 3, 30.0, 40.0))
    assert (found.verdict, found.ratio, found.interval) == ("faster", None, None)
    assert found.restricted is not None
    assert (found.restricted.horizon, found.restricted.declared) == (40.0, False)
    assert found.restricted.candidate_mean == pytest.approx(10.45)
    assert found.restricted.baseline_mean == pytest.approx((3 * 40 + sum(30 + k / 10 for k in range(3, 10))) / 10)
    assert found.p == pytest.approx(2 / 2**10)
    assert found.log_rank_p is not None and found.log_rank_p < 0.001
    assert found.because.startswith("the baseline missed the target in 3 of 10 trials, so there is no ratio of times; ")
    assert "the candidate was first in 10 of 10 pairs and the baseline in 0" in found.because
    assert any("declares no horizon" in text for text in found.cautions)


def test_the_p_of_an_open_ended_design_is_named_as_what_it_is() -> None:
    ours = trials(CANDIDATE, [10.0 + k / 10 for k in range(30)])
    found = judged([examine(CANDIDATE, BASELINE, ours, some_missed(30, 3, 30.0, 60.0), ComparisonRequest(
        metric="tta_wall", primary=True, stage=Stage(30, 194, 30, anytime=True)))])[0]
    assert found.verdict == "faster" and found.p is not None and found.p > 2 / 2**30
    assert f"and the baseline in 0 (e-process p = {found.p:.3g}); the candidate alone" in found.because


def test_an_e_process_on_the_other_side_than_most_pairs_is_no_verdict() -> None:
    candidate = trials(CANDIDATE, [*(50.0 + 0.1 * repeat for repeat in range(14)), *[100.05] * 20, None], "diverged")
    baseline = trials(BASELINE, [*[100.0] * 34, None], "diverged")
    found = judged([examine(CANDIDATE, BASELINE, candidate, baseline, ComparisonRequest(
        metric="tta_wall", primary=True, stage=Stage(30, 194, 35, anytime=True)))])[0]
    assert found.p is not None and found.p < 0.001
    assert found.verdict == "inconclusive" and "on the other side than most pairs" in found.because


def test_the_declared_horizon_is_kept_and_never_stretched() -> None:
    ours = trials(CANDIDATE, [10.0 + k / 10 for k in range(10)])
    near = against(ours, some_missed(10, 3, 30.0, 40.0), horizon=30.45)
    assert near.restricted is not None
    assert (near.restricted.horizon, near.restricted.declared) == (30.45, True)
    assert near.restricted.baseline_mean == pytest.approx((30.3 + 30.4 + 8 * 30.45) / 10)
    nobody = against(ours, some_missed(10, 3, 30.0, 40.0), horizon=20.0)
    assert (nobody.verdict, nobody.restricted) == ("faster", None)  # the order of the pairs needs no horizon
    assert "0 run(s) reached the target by the horizon" in nobody.because
    beyond = against(ours, some_missed(10, 3, 30.0, 40.0), horizon=41.0)
    assert (beyond.verdict, beyond.restricted) == ("faster", None)
    assert "the declared horizon of 41 is beyond 40, the limit up to which all runs were observed" in beyond.because


def drawn(ratio: float, rng: np.random.Generator, n: int = 20) -> Comparison:
    """Times with a CV of 10 %; every tenth run misses, watched three times as long as a run takes."""
    sides = []
    for cell, scale in ((CANDIDATE, ratio), (BASELINE, 1.0)):
        times, misses = scale * rng.lognormal(0, 0.0998, n), rng.random(n) < 0.1
        sides.append([result(cell, k, None if missed else float(value), "missed" if missed else "ok", run_seconds=3.0)
                      for k, (value, missed) in enumerate(zip(times, misses, strict=True))])
    return against(*sides)


@pytest.mark.parametrize(("ratio", "least", "most"), [
    (1.3, 40, 60), pytest.param(1.1, 16, 40, marks=pytest.mark.slow), (1.0, 0, 8)])
def test_a_tenth_of_runs_missed_hides_no_difference(ratio: float, least: int, most: int) -> None:
    """Of 60; an unpaired interval of mean times, which let 2 of 60 pass at 1.1, decides only where the quicker cell
    happened to fail more often: without this condition all 60 are found at 1.3."""
    rng = np.random.default_rng(51)
    found = [drawn(ratio, rng).verdict for _ in range(60)]
    assert least <= sum(verdict in ("slower", "faster") for verdict in found) <= most
    assert ratio == 1.0 or "faster" not in found


def test_a_mean_time_clearly_on_the_other_side_leaves_it_open() -> None:
    """First in 20 of 24 pairs, but four misses cost far more than was gained."""
    ours = [result(CANDIDATE, k, None if k < 4 else 9.9 + k / 1000, "missed" if k < 4 else "ok", run_seconds=4000.0)
            for k in range(24)]
    found = against(ours, trials(BASELINE, [10.0 + k / 1000 for k in range(24)]))
    assert found.p is not None and found.p < 0.01
    assert found.verdict == "inconclusive"
    assert found.failures is not None and found.failures.words == "failures 4 of 24 against 0 of 24"
    assert "the candidate is first more often, but fails more often (failures 4 of 24" in found.because


@pytest.mark.parametrize(("last_miss", "verdict"), [(29.0, "faster"), (9.0, "inconclusive")])
def test_on_unlike_grids_a_pair_has_an_order_only_if_its_brackets_have(last_miss: float, verdict: str) -> None:
    def curve(step: int) -> tuple[Point, ...]:
        return tuple(Point(samples=step * k, epochs=k, wall_seconds=k, train_seconds=k, value=0.1) for k in (1, 2))

    ours = [result(CANDIDATE, k, 10.0 + k / 10, curve=curve(100)) for k in range(10)]
    found = against(ours, [
        item.model_copy(update={"curve": curve(250), "bracket": item.bracket and item.bracket.model_copy(
            update={"miss_wall_seconds": last_miss + item.repeat / 100})})
        for item in some_missed(10, 3, 30.0, 40.0)])
    assert found.verdict == verdict
    assert any("the evaluation grids differ" in text for text in found.cautions)
    assert verdict == "faster" or (found.advice is not None and found.advice.kind == "equal_grids")


def test_a_budget_that_ended_early_proves_nothing() -> None:
    # The baseline's misses were watched for 5 s only: which would have been first is unknown.
    found = against(trials(CANDIDATE, [10.0 + k / 10 for k in range(8)]), some_missed(8, 8, 0.0, 5.0))
    assert found.verdict == "inconclusive"
    assert "the candidate was first in 0 of 8 pairs and the baseline in 0" in found.because
    assert ("the candidate alone reached the target in 8 of 8 pairs and the baseline alone in 0 (exploratory: exact "
            "sign test p = 0.00781)") in found.because


def test_a_diverged_run_never_arrives_and_an_exhausted_one_might_have() -> None:
    ours = trials(CANDIDATE, [10.0 + k / 10 for k in range(8)])
    for status in ("diverged", "out_of_memory"):
        found = against(ours, some_missed(8, 8, 0.0, 5.0, status))  # type: ignore[arg-type]
        assert found.verdict == "faster"
        assert "no trial of the baseline reached the target, so it is unknown how many times faster" in found.because
        word = {"diverged": "diverged", "out_of_memory": "ran out of memory"}[status]
        assert found.because.startswith(f"the baseline {word} in 8 of 8 trials")
        assert found.ratio is None and found.restricted is None


@pytest.mark.parametrize(("own", "verdict"), [(5.0, "inconclusive"), (15.0, "faster")])
def test_a_program_that_missed_was_watched_on_its_own_clock_up_to_its_last_evaluation(own: float, verdict: str) -> None:
    """The training clock is the program's; that its process ran for 40 s says nothing about it."""
    last = Point(samples=1, epochs=1, wall_seconds=39.0, train_seconds=own, value=0.5)
    theirs = [result(BASELINE, k, None, "missed", run_seconds=40.0, curve=(last,)) for k in range(8)]
    ours = [result(CANDIDATE, k, 12.0, tta_train=10.0 + k / 10) for k in range(8)]
    assert contrast(CANDIDATE, BASELINE, ours, theirs, "tta_train", primary=True).verdict == verdict


def test_a_timed_out_run_is_watched_up_to_its_last_evaluation() -> None:
    late = Point(samples=1, epochs=1, wall_seconds=50.0, train_seconds=49.0, value=0.5)
    theirs = [result(BASELINE, k, None, "timed_out", curve=(late,)) for k in range(8)]
    found = against(trials(CANDIDATE, [10.0 + k / 10 for k in range(8)]), theirs)
    assert found.verdict == "faster"
    assert "the baseline ran into the time limit in 8 of 8 trials" in found.because


def test_all_missed_on_both_sides() -> None:
    found = against([result(CANDIDATE, k, None, "missed", run_seconds=9.0) for k in range(6)],
                    some_missed(6, 6, 0.0, 9.0, "diverged"))
    assert (found.verdict, found.ratio, found.restricted, found.p) == ("inconclusive", None, None, None)
    assert found.because == ("no trial of either cell reached the target: the candidate missed the target in 6 of 6 "
                             "trials; the baseline diverged in 6 of 6 trials")


def test_misses_of_unknown_length_give_nothing() -> None:
    found = against(trials(CANDIDATE, [10.0] * 6), trials(BASELINE, [None, *[9.0] * 5]))
    assert found.verdict == "inconclusive"
    assert found.because == "the record does not say how long 1 trials that missed the target were observed"


def test_a_tie_of_missed_runs_finds_nothing() -> None:
    found = against([result(CANDIDATE, k, 10.0 + k if k else None, "ok" if k else "missed", run_seconds=40.0)
                     for k in range(10)],
                    [result(BASELINE, k, 10.5 + (-1) ** k * 0.7 + k if k else None, "ok" if k else "missed",
                            run_seconds=40.0) for k in range(10)])
    assert found.verdict == "inconclusive"
    assert found.restricted is not None and found.restricted.interval is not None
    assert found.restricted.interval.low < 1 < found.restricted.interval.high


# ---- one cell


def test_a_cell_with_missed_runs_in_figures() -> None:
    found = summarize(BASELINE, [*some_missed(6, 1, 30.0, 40.0), result(BASELINE, 6, None, "diverged", run_seconds=3.0),
                                 result(BASELINE, 7, None, "crashed")])
    assert found.statuses == {"missed": 1, "ok": 5, "diverged": 1, "crashed": 1}
    assert (found.n, found.ok) == (8, 5)
    assert found.success is not None
    assert found.success.low == pytest.approx(0.3589, abs=1e-4)  # Wilson of 5 of 7: the crash does not count
    assert found.reached_by[-1][1] == pytest.approx(5 / 7)
    assert found.horizon == 40.0
    assert found.restricted is not None
    assert found.restricted.value == pytest.approx((30.1 + 30.2 + 30.3 + 30.4 + 30.5 + 2 * 40) / 7)
    assert found.diverged_share == pytest.approx(1 / 7)
    assert found.coefficient_of_variation is None
    assert found.median == pytest.approx(30.4)


def test_a_complete_cell_has_its_spread_and_marks_outliers_without_losing_them() -> None:
    found = summarize(BASELINE, trials(BASELINE, [10.0, 10.1, 9.9, 10.05, 9.95, 10.02, 30.0]))
    assert found.outliers == (False,) * 6 + (True,)
    assert found.values[-1] == 30.0
    assert found.coefficient_of_variation == pytest.approx(0.58774, abs=1e-5)
    assert found.reached_by == () and found.restricted is None


def test_by_its_own_clock_a_program_was_observed_up_to_its_last_evaluation() -> None:
    curve = [Point(samples=1, epochs=1, wall_seconds=6.0, train_seconds=0.25, value=0.5)]
    missed = result(CANDIDATE, 0, None, "missed", run_seconds=10.0, curve=curve)
    assert observe(missed, METRICS["tta_train"]).at == 0.25, "our clock has the imports"
    assert observe(missed, METRICS["tta_wall"]).at == 10.0
    ours = missed.model_copy(update={"phases": {"train": 7.0, "eval": 3.0}})
    assert observe(ours, METRICS["tta_train"]).at == 7.0


def test_a_target_that_is_reached_before_the_first_step_is_not_taken_for_a_late_one() -> None:
    counts = [0, 0, 100, 200, 300]
    found = summarize(BASELINE, [result(BASELINE, k, 1.0 + k, samples_to_target=count)
                                 for k, count in enumerate(counts)], "samples")
    assert (found.ok, found.values, found.median) == (5, (100.0, 200.0, 300.0), 100.0)


def test_the_median_of_the_final_quality_is_of_trials_that_were_not_cut_short() -> None:
    ended = [result(BASELINE, k, 1.0, final=0.9) for k in range(2)]
    cut = [result(BASELINE, k, None, "timed_out", final=0.1) for k in range(2, 5)]
    assert summarize(BASELINE, [*ended, *cut], "tta_wall").median_final == 0.9
