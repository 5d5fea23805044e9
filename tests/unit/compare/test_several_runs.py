"""Several runs of each side: the run is the unit, and runs must have been made in turns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from repro.compare.runs.two_runs import Ran, require_turns, turns, versus, versus_several
from repro.core.errors import UsageError
from repro.core.machine import Machine
from repro.record.folder.execution import Execution
from repro.record.folder.ledger import Attempt
from repro.record.result.results import Bracket, Point, Result
from repro.suite.file import read_suite
from repro.suite.planning.plan import Plan, make_plan
from repro.suite.sequential import Sequential
from tests.in_process import called, succeeded
from tests.records import SUITE, Course, default_course, make_record, sample_environment

ALONE = SUITE.split("matrix:")[0]


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    path = tmp_path_factory.mktemp("suite") / "s.yaml"
    path.write_text(ALONE)
    return make_plan(read_suite(str(path)).suite, Machine("cpu", 0, 8))


def run(plan: Plan, name: str, started_ms: int, scale: float, rng: np.random.Generator, status: str = "ok") -> Ran:
    """A run of six trials with a spread of 1 %, on a machine in one state."""
    found = []
    for item in plan.trials():
        value = scale * float(rng.lognormal(0, 0.01))
        found.append(Result.model_validate({
            "trial_id": item.trial_id, "cell_id": item.cell_id, "repeat": item.repeat, "attempt": 1,
            "status": status if item.repeat == 2 else "ok", "tta_wall": value, "samples_to_target": 5000,
            "step_seconds": value / 100,
            "bracket": Bracket(miss_samples=4990, hit_samples=5000, miss_wall_seconds=0.998 * value,
                               hit_wall_seconds=value)}))
    return Ran(name, plan, found, sample_environment(started_ms))


def sides(plan: Plan, seed: int, ratio: float = 1.0, count: int = 5) -> tuple[list[Ran], list[Ran]]:
    """Runs in the order ABBA ABBA AB, each with its own state of the machine, 2 % apart."""
    rng = np.random.default_rng(seed)
    made = [run(plan, f"r{k}", 1000 * k, 10 * float(rng.lognormal(0, 0.02)) * (ratio if k % 4 in (1, 2) else 1.0), rng)
            for k in range(2 * count)]
    before, after = ([made[k] for k in range(2 * count) if (k % 4 in (0, 3)) is first] for first in (True, False))
    return before, after


def test_a_machine_in_another_state_each_run_is_no_difference(plan: Plan) -> None:
    found = [versus_several(*sides(plan, seed))[0] for seed in range(24)]
    assert sum(item.verdict in ("faster", "slower") for item in found) <= 5
    assert {item.n for item in found} == {5}
    assert all(not item.paired and any("the run is the unit" in text for text in item.cautions) for item in found)


def test_a_difference_larger_than_what_runs_differ_by_is_found(plan: Plan) -> None:
    assert [versus_several(*sides(plan, seed, 1.1))[0].verdict for seed in range(10)].count("slower") >= 9


def test_runs_on_another_machine_say_so(plan: Plan) -> None:
    before, after = sides(plan, 1, 0.8)
    assert not any("differ" in text for text in versus_several(before, after)[0].cautions)
    moved = [replace(item, environment=sample_environment(item.environment.started_ms).model_copy(
        update={"cpu": "another", "cores": 64})) for item in after if item.environment is not None]
    found = versus_several(before, moved)[0]
    assert found.verdict == "faster" and found.cautions.count("the runs differ in cpu, cores") == 1


def test_a_metric_that_was_not_declared_says_so_in_any_comparison_of_runs(plan: Plan) -> None:
    before, after = sides(plan, 1, 0.8)
    for compared in (versus_several(before, after, "step_time"), versus(before[0], after[0], "step_time")):
        assert any("the metric step_time was not declared" in text for text in compared[0].cautions)
    for compared in (versus_several(before, after), versus(before[0], after[0])):
        assert not any("not declared" in text for text in compared[0].cautions)


def test_failed_starts_that_ran_again_are_beside_the_verdict_of_several_runs(plan: Plan) -> None:
    def ledger(item: Ran, failing: bool) -> Ran:
        results = [each.model_copy(update={"attempt": 2}) if failing and each.repeat == 3 else each
                   for each in item.results]
        return replace(item, results=results, execution=Execution([
            Attempt(trial_id=each.trial_id, cell_id=each.cell_id, repeat=each.repeat, attempt=number,
                    started_ms=10.0 * each.repeat + number, seconds=1, status=status)
            for each in results for number, status in ((1, "ok" if each.attempt == 1 else "crashed"), (2, "ok"))
            if number <= each.attempt]))

    before, after = sides(plan, 1, 0.8)
    found = versus_several([ledger(item, False) for item in before], [ledger(item, True) for item in after])[0]
    assert found.spoken == "faster when it succeeds; failed starts 5 of 30 against 0 of 30"
    assert any("failed starts 5 of 30 against 0 of 30 ran again" in text for text in found.cautions)
    none = versus_several([ledger(item, False) for item in before], [ledger(item, False) for item in after])[0]
    assert (none.spoken, none.failed_starts) == ("faster", None)


def test_what_is_known_of_a_time_to_bounds_is_known_of_the_mean_of_a_run_to_no_less(plan: Plan) -> None:
    def made(side: list[Ran], **changes: Any) -> list[Ran]:
        return [replace(item, results=[each.model_copy(update={
            name: value(each.tta_wall) for name, value in changes.items()}) for each in item.results]) for item in side]

    before, after = sides(plan, 1, 0.9)
    assert versus_several(before, after)[0].verdict == "faster"
    late = versus_several(*(made(side, tta_wall_bounds=lambda wall: (0.7 * wall, wall)) for side in (before, after)))[0]
    assert late.verdict == "inconclusive" and "10 times are known to bounds only" in late.because
    numbered = versus_several(*(made(
        side, samples_to_target=lambda wall: None,
        curve=lambda wall: tuple(Point(samples=k, epochs=0, wall_seconds=wall * k / 5, train_seconds=wall * k / 5,
                                       value=k) for k in range(1, 6)),
        bracket=lambda wall: Bracket(miss_samples=4, hit_samples=5, miss_wall_seconds=0.8 * wall,
                                     hit_wall_seconds=wall)) for side in (before, after)))[0]
    assert numbered.verdict == "inconclusive" and "no step of an evaluation is stated" in numbered.because


def seeded(side: list[Ran], seeds: Sequence[int], spread: float = 0.0) -> list[Ran]:
    """The runs with master seeds, each of which trains quickly or slowly by itself."""
    found = []
    for item, seed in zip(side, seeds, strict=True):
        luck = float(np.exp(np.random.default_rng(seed).normal(0, spread)))
        suite = item.plan.suite.model_copy(update={"master_seed": seed})
        found.append(replace(item, plan=item.plan.model_copy(update={"suite": suite}), results=[
            each.model_copy(update={"tta_wall": each.tta_wall * luck, "samples_to_target": 5000 * luck * each.tta_wall})
            for each in item.results if each.tta_wall]))
    return found


def test_runs_that_repeat_the_seeds_of_a_side_count_its_luck_once(plan: Plan) -> None:
    """Equal cells whose trainings spread by 20 %: with one seed on each side every comparison finds a difference."""
    both = sides(plan, 1)
    for first in range(8):
        one, other = (seeded(side, [first + place] * 5, 0.2) for side, place in zip(both, (0, 100), strict=True))
        assert {versus_several(one, other, metric)[0].verdict for metric in ("tta_wall", "samples")} == {"inconclusive"}
    text = "runs of one side have the same master seed"
    same = [versus_several(*(seeded(side, [7] * 5) for side in sides(plan, 1, 0.8)), metric)[0]
            for metric in ("tta_wall", "samples", "step_time")]
    assert [item.verdict for item in same] == ["faster", "inconclusive", "faster"]
    assert [any(text in words for words in (item.because, *item.cautions)) for item in same] == [True, True, False]
    unequal = zip(sides(plan, 1, 0.8, 6), ([1] * 5 + [2], [1] + [2] * 5), strict=True)
    assert versus_several(*(seeded(side, seeds, 0.2) for side, seeds in unequal))[0].verdict == "inconclusive"
    own = versus_several(*(seeded(side, range(k, k + 5)) for k, side in enumerate(sides(plan, 1, 0.8))))[0]
    assert own.verdict == "faster" and not any(text in words for words in own.cautions)


def test_memory_that_a_whole_run_has_more_of_is_no_verdict(plan: Plan) -> None:
    """Resident memory of equal cells: each run has its own level, 0.3 % apart, and its trials spread by 0.1 %."""
    def full(item: Ran, level: float) -> Ran:
        return replace(item, results=[each.model_copy(update={
            "training_peak_mib": level * (1 + 0.001 * (each.tta_wall or 0) / 10),
            "hashes": {"init_weights": f"w{each.repeat}", "data_order": "o", "data": "d"}}) for each in item.results])

    before, after = sides(plan, 1)
    found = versus(full(before[0], 345.0), full(after[0], 346.0), "peak_memory")[0]
    assert (found.verdict, found.paired, found.p) == ("inconclusive", False, None)
    assert found.ratio is not None and "slower, or fuller, in one of them looks like a difference" in found.because
    with pytest.raises(UsageError, match="not made in turns"):
        versus_several(*unordered(plan), "peak_memory")


def test_four_runs_of_each_are_no_result(plan: Plan) -> None:
    assert versus_several(*sides(plan, 1, 2.0, 4))[0].verdict == "inconclusive"


def test_every_metric_of_a_run_is_the_mean_of_its_trials(plan: Plan) -> None:
    before, after = sides(plan, 3)
    found = versus_several(before, after, "step_time")[0]
    logs = [[np.log(item.step_seconds or 0) for made in side for item in made.results
             if item.cell_id == found.candidate] for side in (after, before)]
    mine, theirs = map(np.mean, logs)
    assert found.ratio == pytest.approx(float(np.exp(mine - theirs)), rel=1e-9)


def in_order(plan: Plan, order: str) -> tuple[list[Ran], list[Ran]]:
    made = [(side, Ran(f"{side}{place}", plan, (), sample_environment(1000 + place)))
            for place, side in enumerate(order)]
    before, after = ([run for side, run in made if side == wanted] for wanted in "AB")
    return before, after


def test_runs_that_were_not_made_in_turns_are_refused(plan: Plan) -> None:
    before, after = in_order(plan, "AAAAABBBBB")
    with pytest.raises(UsageError, match="were not made in turns"):
        versus_several(before, after)
    with pytest.raises(UsageError, match="were not made in turns"):
        require_turns([Ran("a", plan, ())], after[:1])
    assert versus_several(*unordered(plan), "samples")[0].verdict  # without a clock the order does not matter


def unordered(plan: Plan) -> tuple[list[Ran], list[Ran]]:
    before, after = sides(plan, 1)
    return [*before[:4], after[0]], [before[4], *after[1:]]


@pytest.mark.parametrize(("order", "fair"), [
    ("ABBAABBA", True), ("ABBABAAB", True), ("BAABABBABA", True), ("ABABBABA", True), ("ABBAABBAAB", True),
    ("AB", True), ("BA", True),
    ("ABABABABAB", False), ("BABABABABA", False), ("ABABABBA", False), ("ABABABABBA", False),
    ("AAAABABBBB", False), ("AABBAABBAB", False), ("BAAAAABBBB", False), ("AAABBBBBBA", False), ("ABBABBABB", False),
])
def test_each_side_must_come_first_equally_often(plan: Plan, order: str, fair: bool) -> None:
    before, after = in_order(plan, order)
    assert turns(before, after) == order
    for one, other in ((before, after), (after, before)):
        if fair:
            require_turns(one, other)
            continue
        with pytest.raises(UsageError, match="ABBA") as refused:
            require_turns(one, other)
        assert "\n" not in str(refused.value)


def test_runs_that_alternate_are_refused_before_any_figure(plan: Plan) -> None:
    with pytest.raises(UsageError) as refused:
        versus_several(*in_order(plan, "ABABABABAB"))
    assert str(refused.value) == ("the runs alternate ABABABABAB: whatever makes the second run of two slower looks "
                                  "like a difference; make them ABBA")


def test_a_second_run_that_is_always_slower_is_no_difference(plan: Plan) -> None:
    """2 % slower, six runs a side, each 0.4 % apart."""
    wrong = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        made = [run(plan, f"r{k}", k, 10 * (1.02 if k % 2 else 1.0) * float(rng.lognormal(0, 0.004)), rng)
                for k in range(12)]
        before, after = ([made[k] for k in range(12) if (k % 4 in (0, 3)) is first] for first in (True, False))
        wrong += versus_several(before, after)[0].verdict in ("faster", "slower")
    assert wrong <= 4


def test_a_machine_that_drifts_over_runs_that_only_overlap_is_no_difference(plan: Plan) -> None:
    """1 % slower each run: nearly all of one side came first."""
    rng = np.random.default_rng(3)
    made = [run(plan, f"r{place}", 1000 * place, 10 * 1.01 ** place, rng) for place in range(10)]
    before, after = [made[place] for place in (0, 1, 2, 3, 5)], [made[place] for place in (4, 6, 7, 8, 9)]
    with pytest.raises(UsageError):
        versus_several(before, after)
    before, after = ([made[k] for k in range(8) if (k % 4 in (0, 3)) is first] for first in (True, False))
    assert versus_several(before, after)[0].verdict == "inconclusive"


def test_a_run_with_a_miss_has_no_mean(plan: Plan) -> None:
    before, after = sides(plan, 1)
    after[2] = run(plan, "r5", 5000, 10.0, np.random.default_rng(1), "missed")
    found = versus_several(before, after)[0]
    assert (found.verdict, found.refused) == ("inconclusive", True)
    assert "r5 missed the target in 1 of 6 trials, so that run has no mean" in found.because
    after[2] = Ran("r5", plan, after[2].results[:3], after[2].environment)
    assert "3 of 6 planned trials of r5 have run" in versus_several(before, after)[0].because


def test_the_command_takes_the_runs_of_the_baseline(tmp_path: Path) -> None:
    roots = []
    for number in range(2):
        def course(trial: object, number: int = number) -> Course:
            return Course(default_course(trial).step_seconds * (1 + 0.003 * number))  # type: ignore[arg-type]

        roots.append(make_record(tmp_path / f"r{number}", ALONE, course, started_ms=1000 * number).folder.root)
    ended = succeeded("compare", roots[1], "--against", roots[0])
    assert "1 and 1 trials; an interval needs two of each" in ended.output
    for arguments in (["--baseline", "engine=ddp", "--against", str(roots[0])], ["--against", str(roots[1])]):
        assert isinstance(called("compare", roots[1], *arguments).exception, UsageError)


def test_a_sequential_run_counts_with_the_pairs_up_to_its_first_look(plan: Plan) -> None:
    suite = plan.suite.model_copy(update={"seeds": 20, "sequential": Sequential.model_construct(looks=(6, 10, 14, 20))})
    assert plan.model_copy(update={"suite": suite}).design.common == 6
    before, after = sides(plan, 1, 1.1)
    short, long = (versus_several(before, [Ran(item.name, item.plan.model_copy(update={"suite": suite}),
                                               [*item.results, *further], item.environment) for item in after])
                   for further in ([], [plan_result(after[0], repeat) for repeat in range(6, 10)]))
    assert short[0].verdict == "slower" and short[0].ratio == long[0].ratio


def test_two_sequential_runs_with_the_same_seeds_are_paired_wherever_they_stopped(plan: Plan) -> None:
    suite = plan.suite.model_copy(update={"seeds": 20, "sequential": Sequential.model_construct(looks=(6, 10, 14, 20))})
    (one, *_), (other, *_) = ([replace(item, plan=plan.model_copy(update={"suite": suite}), results=[
        each.model_copy(update={"hashes": {"init_weights": f"w{each.repeat}", "data_order": "o", "data": "d"}})
        for each in item.results]) for item in side] for side in sides(plan, 1))
    later = replace(other, results=[*other.results, *(plan_result(other, repeat) for repeat in range(6, 10))])
    found = versus(one, later, "samples")[0]
    assert (found.paired, found.n, found.pairs) == (True, 6, versus(one, other, "samples")[0].pairs)


def plan_result(of: Ran, repeat: int) -> Result:
    return of.results[0].model_copy(update={"repeat": repeat, "trial_id": f"t{repeat}", "tta_wall": 100.0})
