"""Two cells by formula: verdicts, their sentences, and forbidden statements."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from repro.compare import Comparison, contrast
from repro.compare.evidence.evidence import ComparisonRequest, Evidence, examine
from repro.compare.evidence.stage import Stage
from repro.compare.verdict.condition import parse
from repro.compare.verdict.verdict import judged
from repro.record.result.results import Bracket, Point, Result
from repro.record.result.status import Status
from tests.made_cells import BASELINE, CANDIDATE, MadeCell, result, trials

WAVE = (0.97, 1.0, 1.03, 1.01, 0.99)


def against(candidate: list[Result], baseline: list[Result], metric: Any = "tta_wall", **changes: Any) -> Comparison:
    return contrast(CANDIDATE, BASELINE, candidate, baseline, metric, primary=True, **changes)


def steady(n: int, scale: float = 1.0) -> list[float]:
    """Times around `scale`, 2 % apart from seed to seed."""
    return [scale * WAVE[k % 5] for k in range(n)]


def of(ratio: float, n: int, **changes: Any) -> Comparison:
    """Baseline 10 s, candidate `ratio` times that with a little independent spread."""
    return against(trials(CANDIDATE, steady(n, 10 * ratio)), trials(BASELINE, [10.0] * n), **changes)


# ---- same, faster, slower, inconclusive


def test_same_only_if_the_interval_is_inside_the_margin() -> None:
    found = of(1.0, 10)
    assert found.verdict == "same"
    assert found.equivalence is not None
    assert found.equivalence.equivalent
    assert 1 / 1.05 < found.equivalence.interval.low < found.equivalence.interval.high < 1.05
    assert "is inside the margin of 5 % declared beforehand" in found.because
    assert of(1.0, 10, margin=0.001).verdict == "inconclusive"


@pytest.mark.parametrize(("rest", "why"), [
    (95.0, "the 95 % confidence sequence is below 1, but the geometric mean of the ratios is 1.010: a few pairs"),
    (100.0, "the 95 % confidence sequence contains 1")])
def test_an_open_ended_design_finds_nothing_that_its_ratio_denies(rest: float, why: str) -> None:
    """The first trial took 20 times as long, all others are quicker or alike: the sequence is about those."""
    sides = (CANDIDATE, [2000.0, *(rest + 0.1 * (repeat % 3) for repeat in range(50))]), (BASELINE, [100.0] * 51)
    ours, theirs = ([result(cell, repeat, value, run_seconds=value) for repeat, value in enumerate(values)]
                    for cell, values in sides)
    asked = ComparisonRequest(metric="run_time", primary=True, stage=Stage(46, 194, 51, anytime=True))
    found = judged([examine(CANDIDATE, BASELINE, ours, theirs, asked)])[0]
    assert found.p is not None and found.equivalence is not None
    assert found.p <= 0.05 or found.equivalence.equivalent
    assert found.verdict == "inconclusive" and found.because.startswith(why)


def test_no_difference_found_is_not_the_same() -> None:
    wide = [10.0, 14.0, 8.0, 11.0, 7.0, 13.0, 10.0, 9.0]
    found = against(trials(CANDIDATE, wide), trials(BASELINE, [10.0] * 8))
    assert found.verdict == "inconclusive"
    assert found.because.startswith("the 95 % interval contains 1, exact sign-flip p = 0.969; ")
    assert found.settles.startswith("report it as undecided")
    assert found.advice is not None and (found.advice.kind, found.advice.command) == ("tested", "")
    assert "repro run" not in found.settles, "a command for the contrast that was just tested would inflate its errors"
    # nothing invites a second test of the same contrast
    assert not {"--seeds", "start", "declares"} & set(found.settles.split())


def test_four_equal_pairs_are_no_result_however_equal() -> None:
    assert of(1.0, 4).verdict == "inconclusive"
    assert any("smoke test" in text for text in of(1.0, 4).cautions)
    assert of(1.0, 5).verdict == "same"  # a one-sided exact test reaches 1/32


def test_trials_that_are_not_paired_can_be_the_same() -> None:
    def unpaired(ratio: float, n: int) -> Comparison:
        ours, theirs = ([result(cell, k, scale * (1 + 0.002 * ((k * step) % 5))) for k in range(n)]
                        for cell, scale, step in ((CANDIDATE, ratio, 2), (BASELINE, 1.0, 3)))
        return contrast(CANDIDATE, BASELINE, ours, theirs, "tta_wall", primary=True, paired=False)

    found = unpaired(1.0, 10)
    assert found.verdict == "same" and found.because.startswith("the 90 % interval ")
    assert parse("same").failure(found) and not parse("not-same").failure(found)
    assert unpaired(1.06, 10).verdict == "slower"
    assert unpaired(1.0, 4).verdict == "inconclusive"


def test_a_difference_inside_the_margin_says_so() -> None:
    found = of(1.02 / (math.prod(WAVE) ** 0.2), 20)
    assert found.verdict == "slower"
    assert found.because.endswith(
        "; the 90 % interval is inside the margin of 5 %, which the suite calls too small to matter"
        "; trials slower than the rest could go unseen if rarer than 14 %")


# ---- metrics and their words


@pytest.mark.parametrize(("metric", "field", "word", "speedup"), [
    ("tta_wall", "tta_wall", "faster", 1.25), ("samples", "samples_to_target", "faster", 1.25),
    ("throughput", "samples_per_second", "slower", 0.8), ("accuracy", "final", "lower", None),
])
def test_every_metric_has_its_own_words(metric: Any, field: str, word: str, speedup: float | None) -> None:
    fixed = {"stop": {"design": "fixed_budget"}}
    cells = MadeCell("c", "c", fixed), MadeCell("b", "b", fixed)
    values = [[8000, 8100, 7900, 8050, 7950, 8000, 8020, 7980], [10000] * 8]
    found = contrast(*cells, *([result(cell, n, 1.0, **{field: value}) for n, value in enumerate(column)]
                               for cell, column in zip(cells, values, strict=True)), metric, primary=True)
    assert found.verdict == word
    assert found.ratio == pytest.approx(0.8, rel=0.01)
    assert found.speedup == (None if speedup is None else pytest.approx(speedup, rel=0.01))
    assert f"8 of 8 pairs were {word}" in found.because


def test_final_quality_of_runs_that_stop_at_their_target_has_no_verdict() -> None:
    cell = {"stop": {"design": "stop_at_target"}}
    found = contrast(MadeCell("c", "", cell), MadeCell("b", "", cell),
                     [result(CANDIDATE, n, 1.0, final=0.9 + n / 1e3) for n in range(8)],
                     [result(BASELINE, n, 1.0, final=0.95) for n in range(8)], "accuracy", primary=True)
    assert found.verdict == "inconclusive"
    assert "fixed_budget" in found.because


@pytest.mark.parametrize(("metric", "field"), [
    ("accuracy", "final"), ("run_time", "run_seconds"), ("worker_bytes", "bytes_sent")])
@pytest.mark.parametrize(("status", "words"), [("diverged", "diverged"), ("timed_out", "ran into the time limit")])
def test_a_trial_that_was_cut_short_has_no_figure_of_its_end(
    metric: str, field: str, status: Status, words: str,
) -> None:
    fixed = {"stop": {"design": "fixed_budget"}}
    ours, theirs = ([result(cell, n, 1.0, **{field: 1000 + n * n}) for n in range(8)] for cell in (CANDIDATE, BASELINE))
    cells = MadeCell("c", "c", fixed), MadeCell("b", "b", fixed)
    assert contrast(*cells, ours, theirs, metric, primary=True).ratio == pytest.approx(1.0)
    ours[:4] = [result(CANDIDATE, n, None, status, **{field: 200 + n}) for n in range(4)]
    found = contrast(*cells, ours, theirs, metric, primary=True)
    assert (found.verdict, found.ratio) == ("inconclusive", None)
    assert found.because == f"the candidate {words} in 4 of 8 trials; a ratio over the other trials would hide them"
    ours[:4] = [result(CANDIDATE, n, None, "missed", **{field: 1000 + n * n}) for n in range(4)]
    assert contrast(*cells, ours, theirs, metric, primary=True).ratio == pytest.approx(1.0), "it used its budget"


def test_throughput_needs_no_target_but_a_figure() -> None:
    ours = [result(CANDIDATE, n, None, "missed", samples_per_second=200.0 + n) for n in range(6)]
    theirs = [result(BASELINE, n, 1.0, samples_per_second=100.0) for n in range(6)]
    assert against(ours, theirs, "throughput").verdict == "faster"
    ours[2] = result(CANDIDATE, 2, None, "out_of_memory")
    found = against(ours, theirs, "throughput")
    assert (found.verdict, found.ratio) == ("inconclusive", None)
    assert found.because == (
        "the candidate ran out of memory in 1 of 6 trials; a ratio over the other trials would hide them")


def test_a_ratio_of_times_is_samples_over_throughput() -> None:
    ours = [result(CANDIDATE, n, 10.0 + n / 10, samples_to_target=3000) for n in range(6)]
    theirs = [result(BASELINE, n, 8.0 - n / 10, samples_to_target=4000 if n else 5000) for n in range(6)]
    found = against(ours, theirs)
    assert found.split is not None and found.ratio is not None
    samples, throughput = found.split.samples, found.split.throughput
    assert samples.value == pytest.approx((3000 / 4000) ** (5 / 6) * (3000 / 5000) ** (1 / 6))
    assert samples.value / throughput.value == pytest.approx(found.ratio, rel=1e-12)
    assert samples.interval is not None and throughput.interval is not None


def test_equal_counts_on_a_coarse_grid_are_not_the_same() -> None:
    bracket = Bracket(miss_samples=3000, hit_samples=4000, miss_wall_seconds=1, hit_wall_seconds=2)
    found = against([result(CANDIDATE, n, 1.0, samples_to_target=4000, bracket=bracket) for n in range(10)],
                    [result(BASELINE, n, 1.0, samples_to_target=4000, bracket=bracket) for n in range(10)], "samples")
    assert (found.verdict, found.interval) == ("inconclusive", None)
    assert "exactly the same figure in all 10 pairs" in found.because
    assert "evaluations are 33 % apart" in found.because


@pytest.mark.parametrize(("step", "verdict"), [(20, "same"), (1000, "inconclusive")])
def test_counts_are_the_same_only_if_the_grid_is_fine_enough(step: int, verdict: str) -> None:
    def cell(of: MadeCell, shift: int) -> list[Result]:
        hits = [10_000 + step * ((k + shift) % 3 - 1) for k in range(10)]
        return [result(of, k, 1.0, samples_to_target=hit, bracket=Bracket(
            miss_samples=hit - step, hit_samples=hit, miss_wall_seconds=1, hit_wall_seconds=2))
            for k, hit in enumerate(hits)]

    found = against(cell(CANDIDATE, 0), cell(BASELINE, 1), "samples", margin=0.05 if step == 20 else 0.15)
    assert found.equivalence is not None and found.equivalence.equivalent
    assert found.verdict == verdict
    if verdict == "inconclusive":
        assert "too far to resolve a margin of 15 %" in found.because


@pytest.mark.parametrize(("late", "verdict"), [(0.5, "faster"), (6.0, "inconclusive")])
@pytest.mark.parametrize("metric", ["tta_wall", "tta_cold"])
def test_a_time_that_was_read_late_is_faster_only_if_every_time_within_its_bounds_is(
    late: float, verdict: str, metric: str,
) -> None:
    ours = [result(CANDIDATE, k, value, tta_cold=value + 1, tta_wall_bounds=(value - late / 10, value + 0.01))
            for k, value in enumerate(steady(8, 7.0))]
    theirs = [result(BASELINE, k, 10.0, tta_cold=11.0, tta_wall_bounds=(10.0 - late, 10.0)) for k in range(8)]
    found = against(ours, theirs, metric)
    assert found.verdict == verdict
    assert found.corrected is not None and (found.corrected.high < 1) == (verdict == "faster")  # what a gate tests
    assert any("16 times are known to bounds only" in text for text in found.cautions)
    if verdict == "inconclusive":
        assert "what this leaves open could produce this ratio alone" in found.because
        assert found.advice is not None and found.advice.kind == "timely"
    assert against(ours, theirs, "samples").cautions == against(trials(CANDIDATE, steady(8, 7.0)), trials(
        BASELINE, [10.0] * 8), "samples").cautions


def test_a_time_of_nothing_because_all_arrived_at_once_says_what_helps() -> None:
    found = against([result(CANDIDATE, k, 0.0, tta_wall_bounds=(0.0, 1.05)) for k in range(6)],
                    trials(BASELINE, [10.0] * 6))
    assert "anywhere from 0 to 1.05 s" in found.because and "engine.terminal: true" in found.because


def test_equal_times_that_were_read_late_are_not_the_same() -> None:
    late = {"tta_wall_bounds": (9.0, 10.2)}
    assert of(1.0, 10).verdict == "same"
    assert against([result(CANDIDATE, k, value, **late) for k, value in enumerate(steady(10, 10.0))],
                   trials(BASELINE, [10.0] * 10)).verdict == "inconclusive"


@pytest.mark.parametrize(("startup", "warned"), [(0.5, False), (4.0, True), (None, False)])
def test_start_up_on_the_clock_of_more_than_a_tenth_is_beside_the_verdict(startup: float | None, warned: bool) -> None:
    sides = [[result(cell, k, 10.0 + k / 10, startup_seconds=startup) for k in range(6)]
             for cell in (CANDIDATE, BASELINE)]
    assert any("4 s, 39 % of it" in text for text in against(*sides).cautions) is warned
    assert not any("start-up" in text for text in against(*sides, "tta_train").cautions)


@pytest.mark.parametrize("clock", ["tta", "end"])
def test_the_caution_on_start_up_advises_the_training_clock_of_the_metric_if_there_is_one(clock: str) -> None:
    for train, advised in ((None, False), (5.0, True)):
        sides = [[result(cell, k, 10.0 + k / 10, startup_seconds=4.0, tta_train=train) for k in range(6)]
                 for cell in (CANDIDATE, BASELINE)]
        caution, = (text for text in against(*sides, f"{clock}_wall").cautions if "start-up" in text)
        assert caution.endswith(f"begins, or compare by {clock}_train") is advised
        assert advised or caution.endswith("name the line with which training begins")


def test_start_up_is_beside_a_verdict_without_a_ratio_too() -> None:
    ours = [result(CANDIDATE, k, 10.0 + k / 10, startup_seconds=4.0) for k in range(6)]
    missed = trials(BASELINE, [None] * 6, run_seconds=30.0)
    found = against(ours, missed)
    assert found.ratio is None
    assert any("start-up is on the clock" in text for text in found.cautions)


@pytest.mark.parametrize(("counted", "warned"), [(1.0, False), (0.95, False), (0.6, True)])
def test_a_program_whose_own_clock_counts_less_than_the_others_does_not_pass_without_a_word(
    counted: float, warned: bool,
) -> None:
    def made(cell: MadeCell, share: float) -> list[Result]:
        curve = [Point(samples=n, epochs=n, wall_seconds=n, train_seconds=share * n, value=0.1 * n)
                 for n in range(1, 11)]
        return [result(cell, k, 10.0, tta_train=share * value, curve=curve) for k, value in enumerate(steady(6, 10.0))]

    program = SimpleNamespace(unverified="self-reported", stop=SimpleNamespace(design="fixed_budget", judges="trial"))
    ours, theirs = (replace(cell, choices=program)  # type: ignore[arg-type]
                    for cell in (CANDIDATE, BASELINE))
    sides = made(ours, counted), made(theirs, 1.0)
    found = contrast(ours, theirs, *sides, "tta_train", primary=True)
    assert any("(candidate 60 %; baseline 100 %)" in text for text in found.cautions) is warned
    assert any(text.endswith("compare by end_wall, too") for text in contrast(
        ours, theirs, *sides, "end_train", primary=True).cautions) is warned
    assert not any("own clocks" in text for text in contrast(ours, theirs, *sides, "tta_wall", primary=True).cautions)
    assert not any("own clocks" in text for text in against(*sides, "tta_train").cautions), "our engines' clock is ours"


@pytest.mark.parametrize(("quick", "slow", "warned"), [
    (2.0, 2.0, False), (2.5, 2.0, False), (9.0, 2.0, True), (2.0, 9.0, False)])
def test_a_quicker_program_that_begins_to_train_later_does_not_pass_without_a_word(
    quick: float, slow: float, warned: bool,
) -> None:
    """It may train before it says so; whether it does, only its time from the start of its process tells."""
    program = SimpleNamespace(unverified="self-reported", stop=SimpleNamespace(design="fixed_budget", judges="trial"))
    ours, theirs = (replace(cell, choices=program)  # type: ignore[arg-type]
                    for cell in (CANDIDATE, BASELINE))
    sides = ([result(ours, k, value, init_seconds=quick) for k, value in enumerate(steady(6, 7.0))],
             [result(theirs, k, value, init_seconds=slow) for k, value in enumerate(steady(6, 10.0))])
    found = contrast(ours, theirs, *sides, "tta_wall", primary=True)
    assert any("(candidate 9 s; baseline 2 s)" in text for text in found.cautions) is warned
    ended = contrast(ours, theirs, *([item.model_copy(update={"run_seconds": item.tta_wall}) for item in side]
                                     for side in sides), "end_wall", primary=True)
    assert any("compare by end_cold, too" in text for text in ended.cautions) is warned
    assert not any("before it says" in text for text in against(*sides).cautions), "ours draws and warms up there"


# ---- bad input: its own sentence each, and no number


@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0, 0.0])
def test_figures_that_no_clock_gives_are_refused(value: float) -> None:
    ours = [*trials(CANDIDATE, [10.0] * 7), result(CANDIDATE, 7, value)]
    found = against(ours, trials(BASELINE, [10.0] * 8))
    assert (found.verdict, found.ratio, found.interval, found.pairs) == ("inconclusive", None, None, ())
    assert found.because.startswith("seed 7 of the candidate has a time to the target of ")


def test_a_spread_of_zero_gives_no_interval() -> None:
    found = against(trials(CANDIDATE, [9.0] * 8), trials(BASELINE, [10.0] * 8))
    assert found.interval is None
    assert found.verdict == "faster"
    assert found.because.startswith("every pair has the same ratio, so there is no spread and no interval")
    equal = against(trials(CANDIDATE, [10.0] * 8), trials(BASELINE, [10.0] * 8))
    assert (equal.verdict, equal.interval) == ("inconclusive", None)
    assert equal.because == "both have exactly the same figure in all 8 pairs: there is no spread to judge by"


def test_the_same_seed_twice_in_one_cell_is_refused() -> None:
    ours = [*trials(CANDIDATE, [10.0] * 6), result(CANDIDATE, 3, 4.0)]
    found = against(ours, trials(BASELINE, [11.0] * 6))
    assert found.because == "seed 3 appears twice among the trials of the candidate"
    assert found.ratio is None


def test_a_crash_is_named_and_is_no_missed_target() -> None:
    ours = [*trials(CANDIDATE, [9.0] * 5), result(CANDIDATE, 5, None, "crashed")]
    theirs = [*trials(BASELINE, [10.0] * 4), result(BASELINE, 4, None, "invalid"),
              result(BASELINE, 5, None, "missed", run_seconds=40.0)]
    found = against(ours, theirs)
    assert (found.verdict, found.ratio) == ("inconclusive", None)
    assert found.because == (
        "the candidate crashed in 1 of 6 trials and the baseline was invalid in 1 of 6 trials and missed the "
        "target in 1; a failed trial says nothing about the time to the target, so there is no ratio")
    assert found.settles == (  # the invalid one
        "report it as undecided. Trials that ended so do not run again; mend what their reasons name and start another "
        "run")
    crashed = against(ours, trials(BASELINE, [10.0] * 6))
    assert crashed.settles == ("mend the cause and start another run, or, if it lay outside of the suite, run them "
                               "again: repro run --resume RUN --rerun-failed")


def test_beyond_twenty_pairs_the_t_test_replaces_the_exact_one() -> None:
    found = of(0.8, 25)
    assert found.verdict == "faster"
    assert "paired t p = " in found.because
    assert found.p is not None and found.p < 1e-9


def test_unpaired_trials_without_any_spread() -> None:
    found = against(trials(CANDIDATE, [9.0] * 6), trials(BASELINE, [10.0] * 6), paired=False)
    assert (found.verdict, found.ratio, found.interval) == ("inconclusive", None, None)
    assert found.because == "all trials of each have the same figure: without a spread there is no interval"


def test_unpaired_missed_runs_get_no_verdict() -> None:
    ours = [result(CANDIDATE, k, None if k == 2 else 9.0 + k / 10, "missed" if k == 2 else "ok", run_seconds=30.0)
            for k in range(8)]
    found = against(ours, trials(BASELINE, steady(8, 20.0)), paired=False)
    assert (found.verdict, found.ratio) == ("inconclusive", None)
    assert found.because == (
        "the candidate missed the target in 1 of 8 trials; without pairs of one seed there is no verdict")
    assert found.restricted is not None and found.log_rank_p is not None


def test_drift_that_pairs_do_not_share_refuses_the_verdict() -> None:
    asked = ComparisonRequest(
        "tta_wall", primary=True, refusals=("cell c: ran apart",), cautions=("the machine drifted",))
    found, = judged([examine(CANDIDATE, BASELINE, trials(CANDIDATE, steady(8, 5.0)), trials(BASELINE, steady(8, 9.0)),
                             asked)])
    assert (found.verdict, found.because) == ("inconclusive", "cell c: ran apart")
    assert found.refused and len(found.pairs) == 8
    assert (found.ratio, found.interval, found.p, found.welch, found.split) == (None,) * 5
    assert (found.probability_less, found.equivalence, found.restricted) == (None,) * 3
    assert found.cautions[0] == "the machine drifted"


def test_a_refused_contrast_does_not_make_the_others_easier() -> None:
    def family(*refusals: str) -> list[Evidence]:
        clear, close = trials(CANDIDATE, steady(12, 5.0)), trials(CANDIDATE, [8.0 + k % 5 / 2 for k in range(12)])
        return [examine(CANDIDATE, BASELINE, ours, trials(BASELINE, steady(12, 9.0)), asked)
                for ours, asked in ((clear, ComparisonRequest("tta_wall", refusals=refusals)),
                                    (close, ComparisonRequest("tta_wall")))]

    alone = judged(family())[1]
    beside = judged(family("cell c: ran apart"))
    assert beside[0].p_adjusted is None
    assert alone.p is not None and alone.p_adjusted is not None and beside[1].p_adjusted is not None
    assert alone.p_adjusted == pytest.approx(alone.p)
    assert beside[1].p_adjusted == pytest.approx(min(1.0, 2 * alone.p))


def test_nothing_ran() -> None:
    found = against([], [])
    assert (found.verdict, found.n, found.ratio) == ("inconclusive", 0, None)
    assert found.because.startswith("0 pairs with one seed")
