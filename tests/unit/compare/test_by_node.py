"""Verdicts of a pool: on the nodes that ran, or on all nodes of their class; the ratio by node; losses in one cell."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from pydantic import ValidationError
from scipy.stats import f_oneway, ttest_1samp

from benchmarks.verdicts.experiment import Experiment
from benchmarks.verdicts.lanes import Lanes, in_lanes, under_load
from repro.compare import Comparison, compare
from repro.core.machine import Machine
from repro.record.folder.execution import Execution
from repro.record.result.results import Result
from repro.stats.random_effects import one_way
from repro.suite.model import Suite, Unit
from repro.suite.planning.plan import Plan, make_plan, solo_seeds
from repro.tables.verdicts import comparison_sentence

CALM = Experiment(24, spread=0.01, within="speed")


def ran(
    lanes: Lanes, unit: Unit = "block", design: Experiment = CALM, seed: int = 1
) -> tuple[Plan, list[Result], Execution]:
    run, plan, execution, _ = in_lanes(design, lanes, np.random.default_rng(seed), unit)
    return plan, run.results, execution


def primary(plan: Plan, results: list[Result], execution: Execution, metric: str | None = None) -> Comparison:
    return compare(plan, results, metric, execution=execution)[0]


def logs_by_node(plan: Plan, found: Comparison, execution: Execution) -> list[list[float]]:
    where = {item.repeat: item.nodes[0] for item in execution.attempts}
    return [[math.log(pair.candidate / pair.baseline) for pair in found.pairs if where[pair.repeat] == name]
            for name in sorted(set(where.values()))]


def test_one_way_is_the_usual_f_test() -> None:
    draw = np.random.default_rng(5)
    groups = [(draw.normal(place, 1, size)).tolist() for place, size in enumerate((3, 5, 4))]
    expected = f_oneway(*groups)
    found = one_way(groups)
    assert (found.statistic, found.p) == pytest.approx((expected.statistic, expected.pvalue), rel=1e-12)
    inner = sum(np.var(group, ddof=1) * (len(group) - 1) for group in groups) / 9
    assert found.between == pytest.approx(math.sqrt((found.statistic - 1) * inner / ((12 - 50 / 12) / 2)))
    with pytest.raises(ValueError, match="two groups or more"):
        one_way([[1.0], [2.0]])


def test_a_verdict_on_nodes_of_a_class_counts_one_mean_for_each() -> None:
    plan, results, execution = ran(Lanes(8, 0.3), "node", replace(CALM, ratio=1.03))
    found = primary(plan, results, execution)
    means = [float(np.mean(logs)) for logs in logs_by_node(plan, found, execution)]
    interval = ttest_1samp(means, 0).confidence_interval()
    assert found.by_node is not None and found.ratio is not None and found.interval is not None
    assert math.log(found.ratio) == pytest.approx(np.mean(means))
    assert [math.log(found.interval.low), math.log(found.interval.high)] == pytest.approx(list(interval))
    assert (found.verdict, found.n, found.units, found.p) == ("slower", 24, 8, 2 / 2**8)
    assert found.spoken == "slower on nodes of this class (8 of them)"
    assert "the least of 8 nodes" in found.because and "8 of 8 nodes were slower" in found.because
    assert found.judged_ratios == pytest.approx(np.exp(means))
    assert found.welch is None and found.grid is not None and found.grid.interval is not None
    ahead = found.by_node.prediction
    assert ahead.low < found.interval.low and ahead.high > found.interval.high
    assert ": slower on nodes of this class (8 of them), 1.0" in comparison_sentence(found)


def test_the_same_pairs_on_these_nodes_count_each() -> None:
    plan, results, execution = ran(Lanes(4, 0.3), design=replace(CALM, ratio=1.03))
    found = primary(plan, results, execution)
    assert (found.verdict, found.units, found.spoken) == ("slower", 24, "slower on these 4 nodes")
    assert found.by_node is not None and [item.pairs for item in found.by_node.nodes] == [
        len(logs) for logs in logs_by_node(plan, found, execution)]
    expected = f_oneway(*logs_by_node(plan, found, execution))
    assert found.by_node.p == pytest.approx(expected.pvalue)
    assert not any("between them" in text for text in found.cautions)


def test_an_interaction_is_said_beside_a_verdict_on_these_nodes() -> None:
    plan, results, execution = ran(Lanes(4, 0.3, interaction=4.0))
    found = primary(plan, results, execution)
    said = [text for text in found.cautions if "the ratio differs between them" in text]
    assert len(said) == 1 and "F test of nodes x candidate" in said[0] and "on another node " in said[0]
    assert "the verdict is on these nodes and no others" in said[0]


def test_fewer_than_six_nodes_say_nothing_about_their_class() -> None:
    plan, results, execution = ran(Lanes(5, 0.3), "node", replace(CALM, ratio=1.1))
    found = primary(plan, results, execution)
    assert (found.verdict, found.refused, found.ratio) == ("inconclusive", True, None)
    assert found.because == ("its pairs ran on 5 nodes; a verdict on nodes of this class (unit: node) needs at least 6")
    assert "on no node of a pool" in compare(plan, results)[0].because


def test_two_lanes_of_one_computer_are_one_node() -> None:
    plan, results, execution = ran(Lanes(8), "node")
    halves = Execution([item.model_copy(update={
        "nodes": (f"host{int(item.nodes[0][4:]) // 2}, cores {int(item.nodes[0][4:]) % 2}",)})
        for item in execution.attempts])
    assert "its pairs ran on 4 nodes" in primary(plan, results, halves).because
    block = plan.model_copy(update={"suite": plan.suite.model_copy(update={"unit": "block"})})
    assert primary(block, results, halves).by_node.scope == " on these 8 lanes"  # type: ignore[union-attr]


def test_figures_without_a_clock_count_pairs_and_know_no_nodes() -> None:
    found = primary(*ran(Lanes(8, 0.3), "node"), "samples")
    assert found.by_node is None and found.units == found.n == 24


def test_missed_targets_are_no_ratio_of_every_pair() -> None:
    design = replace(CALM, missed=0.2)
    assert "unit: node) needs the ratio of every pair" in primary(*ran(Lanes(8), "node", design)).because


def test_one_lane_is_no_pool_of_nodes() -> None:
    assert primary(*ran(Lanes(1))).by_node is None


def lost(execution: Execution, cells: dict[str, int]) -> Execution:
    """Add lost lanes, each with a start of the cell that it was in."""
    of_cell = {item.cell_id: item for item in execution.attempts}
    return Execution([*execution.attempts, *(of_cell[cell].model_copy(update={
        "attempt": 99 + number, "status": "started", "shard": f"{500 + place * 50 + number}/1"})
        for place, (cell, count) in enumerate(cells.items()) for number in range(count))])


@pytest.mark.parametrize(("ours", "theirs", "said"), [(7, 0, True), (5, 0, False), (5, 4, False)])
def test_losses_that_cluster_in_one_cell_are_said(ours: int, theirs: int, said: bool) -> None:
    plan, results, execution = ran(Lanes(4))
    found = primary(plan, results, execution)
    after = primary(plan, results, lost(execution, {found.candidate: ours, found.baseline: theirs}))
    texts = [text for text in after.cautions if "lanes were lost while it ran" in text]
    assert bool(texts) == said and all(text.startswith(found.candidate_label) for text in texts), after.cautions
    if said:
        assert "7 of 7 lanes were lost while it ran, in 50 % of the time (binomial p = 0.0" in texts[0]


def test_the_unit_is_part_of_the_digest_only_if_it_is_declared() -> None:
    plan = ran(Lanes(8))[0]
    data = plan.suite.model_dump(mode="json", by_alias=True)
    made = [make_plan(Suite.model_validate(data | {"unit": unit}), Machine("cpu", 0, 2)).digest
            for unit in ("block", "node")]
    assert made[0] == make_plan(plan.suite, Machine("cpu", 0, 2)).digest != made[1]
    without = {key: value for key, value in data.items() if key != "unit"}
    assert make_plan(Suite.model_validate(without), Machine("cpu", 0, 2)).digest == made[0]
    looks = {"sequential": {"looks": [12, 24], "power": 1}}
    for change, words in (({"seeds": 5}, "needs at least 6"), (looks, "looks count pairs")):
        with pytest.raises(ValidationError, match=words):
            Suite.model_validate(data | {"unit": "node"} | change)


def test_blocks_that_ran_alone_are_compared_with_the_same_seeds_in_the_pool() -> None:
    for effect, differs in ((0.0, False), (0.05, True)):
        run, plan, execution = under_load(CALM, Lanes(4, 0.3), 6, effect, np.random.default_rng(3))
        found, without = (primary(plan, run.results, item) for item in (execution, replace(execution, alone=())))
        load = found.by_load
        assert load is not None and load.interval is not None and without.by_load is None
        alone = {cell: {item.repeat: item.tta_wall for item in execution.alone if item.cell_id == cell}
                 for cell in (found.candidate, found.baseline)}
        ours, theirs = alone[found.candidate], alone[found.baseline]
        both = [(pair.candidate / pair.baseline, ours[pair.repeat] / theirs[pair.repeat])  # type: ignore[operator]
                for pair in found.pairs if pair.repeat in solo_seeds(plan, 6)]
        test = ttest_1samp(np.log([one / other for one, other in both]), 0)
        assert load.p == pytest.approx(test.pvalue)
        expected = list(test.confidence_interval())
        assert [math.log(load.interval.low), math.log(load.interval.high)] == pytest.approx(expected)
        assert load.ratio == pytest.approx(load.pooled.ratio / load.alone.ratio)
        assert load.alone.ratio == pytest.approx(np.exp(np.mean(np.log([other for _, other in both]))))
        said = [text for text in found.cautions if "blocks also ran alone" in text]
        assert load.differs == differs == bool(said), load
        assert not said or said[0].endswith("the verdict is on ratios under the load of all lanes")
        assert (found.verdict, found.ratio, found.p, found.n) == (without.verdict, without.ratio, without.p, without.n)


def test_a_sequential_verdict_says_what_the_load_changes_too() -> None:
    looks = replace(CALM, pairs=18, sequential='{"looks": [8, 18], "spending": "power", "power": 1.0}')
    run, plan, execution = under_load(looks, Lanes(4, 0.3), 6, 0.05, np.random.default_rng(3))
    found = primary(plan, run.results, execution)
    assert found.look is not None and found.by_load is not None and found.by_load.differs
    assert any("blocks also ran alone" in text for text in found.cautions)


def test_fewer_than_five_seeds_that_ran_both_ways_have_no_interval() -> None:
    run, plan, execution = under_load(CALM, Lanes(4, 0.3), 6, 0.5, np.random.default_rng(3))
    few = replace(execution, alone=[item for item in execution.alone if item.repeat in solo_seeds(plan, 6)[:4]])
    load = primary(plan, run.results, few).by_load
    assert load is not None and (load.alone.pairs, load.interval, load.p, load.differs) == (4, None, None, False)
    assert "too few seeds" in load.words
    assert primary(plan, run.results, execution, "samples").by_load is None
