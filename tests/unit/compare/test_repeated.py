"""Trials that are one training repeated: found by weights or evaluations, and what gets no verdict from them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from repro.compare import Comparison, contrast, summarize
from repro.compare.evidence.repeated import chance, trainings
from repro.record.result.results import Point, Result
from tests.made_cells import BASELINE, CANDIDATE, MadeCell, result

NANOGPT = (4.1672, 2.5263, 2.2138, 1.9844, 1.8702)


def curve(*values: float | None) -> tuple[Point, ...]:
    return tuple(Point(samples=at, epochs=0.0, wall_seconds=float(at), train_seconds=float(at), value=value)
                 for at, value in enumerate(values, 1))


def moved(seed: int) -> tuple[float, ...]:
    return tuple(round(value + seed / 997, 4) for value in NANOGPT)


def cell(who: MadeCell, curves: Sequence[Sequence[float]], samples: Sequence[int], **more: Any) -> list[Result]:
    """Trials of a program: no hashes, a curve each."""
    return [result(who, at, 10 + at / 100, samples_to_target=count, curve=curve(*values), hashes={}, **more)
            for at, (values, count) in enumerate(zip(curves, samples, strict=True))]


def judged(seeds: Sequence[int], metric: Any = "samples", **more: Any) -> Comparison:
    """The candidate needs 0.889 x the samples; both cells have the curve of these seeds."""
    curves = [moved(seed) for seed in seeds]
    ours = cell(CANDIDATE, curves, [800 + seed for seed in seeds], **more)
    theirs = cell(BASELINE, curves, [900 + 2 * seed for seed in seeds], **more)
    return contrast(CANDIDATE, BASELINE, ours, theirs, metric, primary=True)


# ---- what is one training


@pytest.mark.parametrize(("values", "found"), [
    (NANOGPT, True), ((1.7031,), True), ((0.9534, 0.9412), True), ((0.31, 0.953, 0.957, 0.959), True),
    ((1.0,), False), ((0.953,), False), ((0.9534,), False), ((35 / 36,), False), ((0.91, 0.97, 0.97, 1.0), False),
    ((2.3026,) * 10, False), ((None, None), False), ((), False),
])
def test_equal_evaluations_are_one_training_only_beyond_chance(values: tuple[float | None, ...], found: bool) -> None:
    six = [result(CANDIDATE, at, 1.0, curve=curve(*values), hashes={}) for at in range(6)]
    assert (len(trainings(six)) == 1) is found


def test_fewer_than_most_of_the_trials_need_more_digits() -> None:
    def groups(*values: float) -> int:
        return len(trainings([result(CANDIDATE, at, 1.0, hashes={}, curve=curve(*(values if at < 2 else moved(at))))
                              for at in range(6)]))
    assert (groups(1.7031), groups(1.7031, 1.6983)) == (6, 5)


def test_an_evaluation_before_the_first_step_says_nothing() -> None:
    before = curve(3.52731)[0].model_copy(update={"samples": 0})
    assert (chance([before]), chance(curve(3.52731))) == (1.0, pytest.approx(1e-4))


def test_a_trial_that_was_ended_earlier_is_the_same_training() -> None:
    six = [result(CANDIDATE, at, 1.0, curve=curve(*NANOGPT[:4 + at % 2]), hashes={}) for at in range(6)]
    assert trainings(six) == [[0, 1, 2, 3, 4, 5]]


def test_weights_decide_if_they_are_known() -> None:
    def groups(*, initial: str, final: str) -> int:
        return len(trainings([result(CANDIDATE, at, 1.0, curve=curve(*NANOGPT), hashes={
            "init_weights": initial.format(at), "final_weights": final.format(at)}) for at in range(6)]))
    assert groups(initial="w", final="f") == 1
    assert groups(initial="w{}", final="f{}") == 6  # equal evaluations of other weights, as a simulation has them
    assert groups(initial="w{}", final="nan") == 6  # diverged: every weight is not a number


def test_a_crashed_trial_is_no_training() -> None:
    six = [result(CANDIDATE, at, None, "crashed", curve=curve(*NANOGPT), hashes={}) for at in range(6)]
    assert trainings(six) == []


# ---- what it does to a verdict


def test_samples_of_one_training_repeated_get_no_verdict() -> None:
    found = judged([0] * 6)
    assert (found.verdict, found.refused, found.ratio, found.p) == ("inconclusive", True, None, None)
    assert found.because == (
        "candidate: one training repeated 6 times, baseline: one training repeated 6 times; says nothing about other "
        "seeds, so there is no verdict on samples to the target")
    assert [(item.kind, item.trials, item.trainings) for item in found.repeated] == [("repeated_training", 6, 1)] * 2
    assert found.settles.startswith("let every trial train with its own seed")
    assert judged(range(6)).verdict == "faster"


def test_half_of_the_repeats_count_as_their_trainings() -> None:
    found = judged([0, 0, 0, 0, 4, 5])
    assert (found.n, found.verdict, found.refused) == (3, "inconclusive", False)
    assert "candidate: 6 trials of only 3 different trainings; says nothing about other seeds" in found.cautions
    assert found.advice is not None and found.advice.kind == "own_seeds"


def test_enough_different_trainings_are_judged_by_these_alone() -> None:
    found = judged([0, 0, 0, 3, 4, 5, 6, 7, 8])
    assert (found.n, found.verdict) == (7, "faster")


def test_one_repeated_side_is_enough() -> None:
    ours = cell(CANDIDATE, [moved(0)] * 6, [800] * 6)
    theirs = cell(BASELINE, [moved(seed) for seed in range(6)], [900 + seed for seed in range(6)])
    for paired in (True, False):
        found = contrast(CANDIDATE, BASELINE, ours, theirs, "samples", primary=True, paired=paired)
        assert found.refused and found.because.startswith("candidate: one training repeated 6 times; ")


def test_times_keep_their_verdict_with_the_statement() -> None:
    ours, theirs = ([result(who, at, scale + at / 100, samples_to_target=900, curve=curve(*NANOGPT), hashes={})
                     for at in range(6)] for who, scale in ((CANDIDATE, 5.0), (BASELINE, 9.0)))
    found = contrast(CANDIDATE, BASELINE, ours, theirs, "tta_wall", primary=True)
    assert (found.verdict, found.n, found.split) == ("faster", 6, None)
    assert "baseline: one training repeated 6 times; says nothing about other seeds" in found.cautions


def test_misses_of_one_training_repeated_get_no_verdict() -> None:
    ours = cell(CANDIDATE, [moved(seed) for seed in range(8)], [800 + seed for seed in range(8)])
    theirs = [result(BASELINE, at, None, "missed", curve=curve(*NANOGPT), hashes={}, run_seconds=60.0, samples=5)
              for at in range(8)]
    found = contrast(CANDIDATE, BASELINE, ours, theirs, "tta_wall", primary=True)
    assert found.refused and found.because.endswith("so there is no verdict on trials that missed the target")


def test_quality_of_one_training_repeated_gets_no_verdict() -> None:
    fixed = {"stop": {"design": "fixed_budget"}}
    cells = MadeCell("c", "candidate", fixed), MadeCell("b", "baseline", fixed)
    found = contrast(*cells, *(cell(who, [NANOGPT] * 6, [900] * 6, final=final)
                               for who, final in zip(cells, (1.9, 1.8), strict=True)), "accuracy", primary=True)
    assert found.refused and "no verdict on final quality" in found.because


def test_a_success_probability_is_that_of_different_trainings() -> None:
    one, six = (summarize(CANDIDATE, cell(CANDIDATE, [moved(seed) for seed in seeds], [900] * 6))
                for seeds in ([0] * 6, range(6)))
    assert (one.n, one.ok, one.trainings, six.trainings) == (6, 6, 1, 6)
    assert one.success is not None and six.success is not None and one.success.low < 0.3 < six.success.low


def test_a_program_without_seed_is_a_caution() -> None:
    class Unseeded(dict[str, Any]):
        takes_seed = False

    who = MadeCell("c", "train.py", Unseeded(stop={"design": "fixed_budget"}))
    found = contrast(who, BASELINE, cell(who, [moved(seed) for seed in range(6)], [900] * 6),
                     cell(BASELINE, [moved(seed) for seed in range(6)], [900] * 6), "samples", primary=True)
    assert any(text.startswith("train.py: its command takes no {seed}") for text in found.cautions)


def test_cells_that_give_their_program_the_same_are_a_caution() -> None:
    class Declared(dict[str, Any]):
        given = "train.py"

    first, second = (MadeCell(name, name, Declared(stop={"design": "fixed_budget"}, batch=batch))
                     for name, batch in (("c", 32), ("b", 64)))
    twin = MadeCell("t", "twin", first.choices)
    made = {each.cell_id: cell(each, [moved(seed) for seed in range(6)], [900] * 6) for each in (first, second)}
    found = [contrast(ours, first, results, made["c"], "throughput", primary=True).cautions
             for ours, results in ((second, made["b"]), (twin, made["c"]))]
    assert [any("all run one command" in text for text in each) for each in found] == [True, False]
