"""Blocks as they ran: pairs that did not keep theirs are left out of every figure that a clock is in."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from repro.compare import Comparison, compare
from repro.compare.design.factorial import main_effects
from repro.compare.evidence.blocks import blocks_of
from repro.compare.verdict.condition import parse
from repro.core.machine import Machine
from repro.record.folder.execution import Execution, execution_of
from repro.record.folder.ledger import Attempt
from repro.record.result.results import Result
from repro.suite.planning.plan import Plan
from tests.plans import planned
from tests.records import SUITE

SEEDS = 20
TWO = SUITE.replace("  processes: [1, 2]\n", "").replace(", processes: 2", "").replace("seeds: 6", f"seeds: {SEEDS}")


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    return planned(tmp_path, TWO, machine=Machine("cpu", 0, 8))


def cells_of(plan: Plan) -> tuple[str, str]:
    """The candidate and the baseline of the primary contrast."""
    ours = next(cell.cell_id for cell in plan.cells if cell.choices.engine.kind == "deepspeed")
    return ours, next(cell.cell_id for cell in plan.cells if cell.cell_id != ours)


def started(item: Result, at: float, attempt: int = 1, status: str = "ok") -> Attempt:
    return Attempt(trial_id=item.trial_id, cell_id=item.cell_id, repeat=item.repeat, attempt=attempt,
                   started_ms=at, seconds=1, status=status)


def ran(plan: Plan, late: Collection[tuple[str, int]], slower: float, seed: int, ratio: float = 1.0
        ) -> tuple[list[Result], Execution]:
    """Results with a spread of 1 %; the late trials crashed and ran again a day later, on a slower machine."""
    draw, ours = np.random.default_rng(seed), cells_of(plan)[0]
    results, starts = list[Result](), list[Attempt]()
    for place, trial in enumerate(plan.trials()):
        again = (trial.cell_id, trial.repeat) in late
        seconds = 10 * float(draw.lognormal(0, 0.01)) * (1 + slower if again else 1.0) * (
            ratio if trial.cell_id == ours else 1.0)
        item = Result(trial_id=trial.trial_id, cell_id=trial.cell_id, repeat=trial.repeat, attempt=2 if again else 1,
                      status="ok", tta_wall=seconds, samples_per_second=1 / seconds, samples_to_target=1000 + place,
                      hashes={"init_weights": f"w{trial.repeat}", "data_order": f"o{trial.repeat}", "data": "d"})
        results.append(item)
        starts.append(started(item, place, status="crashed" if again else "ok"))
        if again:
            starts.append(started(item, 10_000 + place, 2))
    return results, Execution(starts, (9_999,) if late else ())


def primary(plan: Plan, results: Sequence[Result], execution: Execution) -> Comparison:
    return next(item for item in compare(plan, results, execution=execution) if item.primary)


def test_trials_that_ran_again_next_day_on_a_slower_machine_are_no_difference(plan: Plan) -> None:
    """4 of 20 candidates, 5 % slower: 28 % wrong while such pairs counted."""
    late = {(cells_of(plan)[0], repeat) for repeat in (3, 7, 11, 15)}
    found = [primary(plan, *ran(plan, late, 0.05, seed)) for seed in range(40)]
    assert sum(item.verdict in ("faster", "slower") for item in found) <= 5
    assert {(item.n, item.left_out) for item in found} == {(16, (3, 7, 11, 15))}
    assert all(any("4 of 20 pairs left out (repeat 3, 7, 11, 15)" in text for text in item.cautions) for item in found)
    assert primary(plan, *ran(plan, late, 0.05, 1, ratio=1.05)).verdict == "slower"


def test_metrics_without_a_clock_keep_all_pairs(plan: Plan) -> None:
    results, execution = ran(plan, {(cells_of(plan)[0], repeat) for repeat in range(10)}, 0.05, 1)
    found = compare(plan, results, "samples", execution=execution)[0]
    assert (found.n, found.left_out, found.refused) == (20, (), False)


def test_a_trial_that_is_run_again_at_once_stays_in_its_block(plan: Plan) -> None:
    results, execution = ran(plan, (), 0.0, 1)
    first = results[6]
    again = [started(first, 6, status="crashed"), started(first, 6.5, 2)]
    starts = [item for item in execution.attempts if item.trial_id != first.trial_id]
    results[6] = first.model_copy(update={"attempt": 2})
    found = primary(plan, results, Execution([*starts, *again]))
    assert (found.n, found.left_out) == (20, ())


@pytest.mark.parametrize(("moment", "left_out"), [(5.5, ()), (6.5, (3,)), (7.5, ())])
def test_a_pair_with_a_pause_of_the_run_between_its_trials_is_left_out(
    plan: Plan, moment: float, left_out: tuple[int, ...]
) -> None:
    results, execution = ran(plan, (), 0.0, 1)
    assert primary(plan, results, replace(execution, resumed_ms=(moment,))).left_out == left_out


def clock_set_back(execution: Execution, place: int, by: float, resumed: Sequence[float] = ()) -> Execution:
    """The same starts as a ledger has them if the clock was set back before one of them."""
    starts = [item.model_copy(update={"started_ms": 10_000 + item.started_ms - (by if number >= place else 0)})
              for number, item in enumerate(execution.attempts)]
    return execution_of(starts, resumed)


@pytest.mark.parametrize("place", [19, 20])
def test_a_clock_that_was_set_back_mixes_no_blocks(plan: Plan, place: int) -> None:
    """By the clock alone, pairs of the second half would run between the trials of pairs of the first."""
    results, execution = ran(plan, (), 0.0, 1)
    before = blocks_of(plan, results, execution)
    after = blocks_of(plan, results, clock_set_back(execution, place, 18.5))
    assert (after.lanes, after.numbers, after.before) == (before.lanes, before.numbers, before.before)


def test_a_pause_at_which_the_clock_was_set_back_is_one(plan: Plan) -> None:
    results, execution = ran(plan, (), 0.0, 1)
    shifted = clock_set_back(execution, 19, 18.5, resumed=[9_999.0])
    assert blocks_of(plan, results, shifted).broken == {results[19].repeat}, "its clock had been set back before it"
    later = clock_set_back(execution, 19, 18.5, resumed=[10_000 + 26.5 - 18.5])
    assert blocks_of(plan, results, later).broken == {results[26].repeat}, "between blocks of the first stretch"


def test_a_lost_start_without_a_moment_keeps_its_place() -> None:
    item = Result(trial_id="t", cell_id="c", repeat=0, attempt=1, status="ok")
    moved = execution_of([started(item, 5.0), started(item, 0.0, 2), started(item, 6.0, 3)], ())
    assert [start.started_ms for start in moved.attempts] == [5.0, 5.0, 6.0]


def test_only_the_pairs_of_the_trial_that_ran_again_are_left_out(tmp_path: Path) -> None:
    plan = planned(tmp_path, SUITE, machine=Machine("cpu", 0, 8))
    late = plan.cells[0].cell_id
    results, execution = ran(plan, {(late, 2)}, 0.05, 1)
    blocks = blocks_of(plan, results, execution)
    assert blocks.broken == {2}
    others = [cell.cell_id for cell in plan.cells[1:]]
    assert all(blocks.apart(late, other) == {2} for other in others) and blocks.apart(others[0], others[1]) == set()


def test_a_main_effect_leaves_out_the_same_repeats(tmp_path: Path) -> None:
    plan = planned(tmp_path, f"{SUITE}contrasts: [engine]\n", machine=Machine("cpu", 0, 8))
    results, execution = ran(plan, {(plan.cells[0].cell_id, 2)}, 0.05, 1)
    found = main_effects(plan, results, execution=execution)[0].pooled
    assert (found.n, found.left_out) == (5, (2,))


def test_too_few_pairs_in_their_blocks_are_no_verdict(plan: Plan) -> None:
    ours, theirs = cells_of(plan)
    late = {(ours if repeat % 2 else theirs, repeat) for repeat in range(1, 20)}
    found = primary(plan, *ran(plan, late, 0.05, 1, ratio=2.0))
    assert (found.verdict, found.n) == ("inconclusive", 1)
    assert found.because.startswith("1 pair in one block")
    assert found.advice is not None and found.advice.kind == "parted_pairs"


@pytest.mark.parametrize(("seeds", "kind"), [(7, "parted_pairs"), (6, "declare_pairs")])
def test_declared_pairs_that_a_pause_parted_are_not_asked_for_again(tmp_path: Path, seeds: int, kind: str) -> None:
    """With one of seven pairs left out, six are too few for three contrasts; it does not say to declare seven."""
    four = planned(tmp_path, SUITE.replace("seeds: 6", f"seeds: {seeds}"), machine=Machine("cpu", 0, 8))
    late = {(cell.cell_id, 3) for cell in four.cells[:1]} if seeds == 7 else set()
    results, execution = ran(four, late, 0.0, 1)
    found = [item for item in compare(four, results, execution=execution)
             if not item.primary and four.cells[0].cell_id in (item.candidate, item.baseline)]
    assert found and all(item.advice and (item.advice.kind, item.advice.n) == (kind, 7) for item in found)
    assert all(("(and 1 left out)" in item.because) == (seeds == 7) for item in found)


def test_a_failed_trial_still_forbids_the_ratio(plan: Plan) -> None:
    results, execution = ran(plan, {(cells_of(plan)[0], 3)}, 0.0, 1)
    crashed = [item.model_copy(update={"status": "crashed", "tta_wall": None}) if item.attempt == 2 else item
               for item in results]
    found = primary(plan, crashed, execution)
    assert found.refused and "crashed in 1 of 20 trials" in found.because


@pytest.mark.parametrize(("count", "withheld"), [(4, False), (5, True)])
def test_one_cell_that_failed_more_often_gets_no_verdict_on_times(plan: Plan, count: int, withheld: bool) -> None:
    """Fisher's exact p of 4 of 20 against none is 0.106, of 5 of 20 0.0471."""
    ours = cells_of(plan)[0]
    results, execution = ran(plan, {(ours, repeat) for repeat in range(count)}, 0.0, 1, ratio=1.5)
    found = primary(plan, results, execution)
    assert (found.verdict, found.refused) == (("inconclusive", True) if withheld else ("slower", False))
    said = f"{count} of 20 trials of the candidate failed and 0 of 20 of the baseline (Fisher's exact p = 0.047)"
    assert (said in found.because) is withheld
    assert not compare(plan, results, "samples", execution=execution)[0].refused


def test_failed_starts_that_ran_again_are_beside_the_verdict(plan: Plan) -> None:
    """What made the others fail may have chosen the times: slow trials that crash leave quick ones."""
    ours, theirs = cells_of(plan)
    found = primary(plan, *ran(plan, {(ours, 1), (ours, 5), (theirs, 3)}, 0.0, 1, ratio=0.6))
    assert found.spoken == "faster when it succeeds; failed starts 2 of 20 against 1 of 20"
    assert any("failed starts 2 of 20 against 1 of 20 ran again" in text for text in found.cautions)
    slower = primary(plan, *ran(plan, {(ours, 1), (ours, 5)}, 0.0, 1, ratio=1.5))
    assert slower.spoken == "slower" and slower.failed_starts is not None
    results, execution = ran(plan, {(ours, 1), (ours, 5), (theirs, 3)}, 0.0, 1, ratio=0.6)
    other = compare(plan, results, "samples", execution=execution)[0]
    assert other.failed_starts is None and not any("ran again" in text for text in other.cautions), "it has no times"
    killed = replace(execution, attempts=[item.model_copy(update={"status": "started"}) if item.status == "crashed"
                                          else item for item in execution.attempts])
    assert primary(plan, results, killed).spoken == "faster", "the run was killed, and not the trial's own doing"
    assert primary(plan, *ran(plan, set(), 0.0, 1, ratio=1.5)).failed_starts is None


def test_failed_starts_after_the_first_look_are_beside_the_verdict_of_a_later_one(tmp_path: Path) -> None:
    text = TWO.replace(f"seeds: {SEEDS}", "sequential: {looks: [8, 20], power: 1.0}")
    plan = planned(tmp_path, text, machine=Machine("cpu", 0, 8))
    ours = cells_of(plan)[0]
    results, execution = ran(plan, {(ours, 12), (ours, 15)}, 0.0, 1, ratio=0.99)
    found = primary(plan, results, execution)
    assert found.look is not None and found.look.n == 20
    assert found.spoken == "faster when it succeeds; failed starts 2 of 20 against 0 of 20"
    assert any("failed starts 2 of 20 against 0 of 20 ran again" in text for text in found.cautions)
    early = primary(plan, [item for item in results if item.repeat < 8], execution)
    assert early.failed_starts is None


def test_failed_starts_are_beside_a_main_effect(tmp_path: Path) -> None:
    plan = planned(tmp_path, SUITE + "contrasts: [engine]\n", machine=Machine("cpu", 0, 8))
    ours = next(cell for cell in plan.cells if cell.training.engine.kind == "deepspeed")
    results, execution = ran(plan, {(ours.cell_id, 1)}, 0.0, 1)
    deepspeed = {cell.cell_id for cell in plan.cells if cell.training.engine.kind == "deepspeed"}
    results = [item.model_copy(update={"tta_wall": 0.6 * (item.tta_wall or 0.0), "attempt": 1 + again}) if
               item.cell_id in deepspeed else item for item in results
               for again in [(item.cell_id, item.repeat) == (ours.cell_id, 1)]]
    at_once = Execution([item.model_copy(update={"started_ms": item.started_ms % 10_000 + 0.5}) if item.attempt == 2
                         else item for item in execution.attempts])
    effect, = main_effects(plan, results, execution=at_once)
    assert effect.pooled.spoken == "faster when it succeeds; failed starts 1 of 12 against 0 of 12"
    assert any("failed starts 1 of 12 against 0 of 12 ran again" in text for text in effect.pooled.cautions)


def test_faster_only_where_starts_succeed_is_not_simply_faster(plan: Plan) -> None:
    ours = cells_of(plan)[0]
    found = primary(plan, *ran(plan, {(ours, 1), (ours, 5)}, 0.0, 1, ratio=0.6))
    assert "faster when it succeeds" in parse("not-faster").failure(found)
    slower = primary(plan, *ran(plan, {(ours, 1), (ours, 5)}, 0.0, 1, ratio=1.5))
    assert not parse("not-slower").failure(slower)


def test_unmeasured_starts_are_no_failed_ones(plan: Plan) -> None:
    """Lines that were added to a ledger: only `verify` tells that they are wrong, and no verdict changes by them."""
    results, execution = ran(plan, {(cells_of(plan)[0], 0)}, 0.0, 1, ratio=1.5)
    added = [started(item, start.started_ms, 0, "crashed") for item in results for start in execution.attempts
             if (start.trial_id, start.attempt) == (item.trial_id, 1) and item.cell_id == cells_of(plan)[0]]
    crashed = replace(execution, attempts=[*execution.attempts, *added])
    assert blocks_of(plan, results, crashed).failed == blocks_of(plan, results, execution).failed


def test_failures_in_both_cells_alike_keep_the_verdict(plan: Plan) -> None:
    late = {(name, repeat) for name in cells_of(plan) for repeat in range(6)}
    found = primary(plan, *ran(plan, late, 0.0, 1, ratio=1.5))
    assert found.verdict == "slower"


def placed(plan: Plan, nodes: Callable[[int, int], tuple[str, ...]]) -> tuple[list[Result], Execution]:
    """An undisturbed run whose starts name the places that `nodes` gives for (place in the order, repeat)."""
    results, execution = ran(plan, (), 0.0, 1)
    return results, Execution([item.model_copy(update={"nodes": nodes(place, item.repeat)})
                               for place, item in enumerate(execution.attempts)])


def test_a_pair_divided_between_two_nodes_counts_for_no_clock(plan: Plan) -> None:
    found = primary(plan, *placed(plan, lambda place, _: ("alpha",) if place < 21 else ("beta",)))
    assert (found.n, found.left_out) == (19, (10,))
    assert any("trials ran on 2 places: seeds 0 to 10 on alpha; seeds 10 to 19 on beta" in text
               for text in found.cautions)


def test_pairs_on_several_nodes_are_named_as_such(plan: Plan) -> None:
    found = primary(plan, *placed(plan, lambda _, repeat: (f"node{repeat % 5}",)))
    assert (found.n, found.left_out) == (20, ())
    (caution,) = (text for text in found.cautions if "places" in text)
    assert "trials ran on 5 places: seeds 0, 5, 10, 15 on node0; " in caution and "(and 2 more places)" in caution


def test_fewer_of_the_same_nodes_are_the_same_place(plan: Plan) -> None:
    found = primary(plan, *placed(plan, lambda place, _: ("alpha", "beta")[: 1 + place % 2]))
    assert (found.n, found.left_out) == (20, ()) and not any("places" in text for text in found.cautions)
    found = primary(plan, *placed(plan, lambda place, _: ("alpha", "beta" if place < 30 else "gamma")))
    assert any("on alpha + beta; seeds 15 to 19 on alpha + gamma" in text for text in found.cautions)


def test_a_smaller_trial_between_hides_no_replaced_node(plan: Plan) -> None:
    """Pair 10 ran on alpha + beta and on alpha + gamma; between the two a trial that needs one node."""
    results, execution = placed(plan, lambda place, _: ("alpha", "beta") if place < 21 else ("alpha", "gamma"))
    between = execution.attempts[20].model_copy(update={
        "trial_id": "other", "nodes": ("alpha",), "started_ms": 20.5, "attempt": 3, "status": "crashed"})
    found = primary(plan, results, Execution([*execution.attempts, between]))
    assert (found.n, found.left_out) == (19, (10,))
