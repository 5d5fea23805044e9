"""Main effects: known effects are found, seeds are the replicates, only matched cells count, errors stay at 5 %."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats as scipy_stats

from repro.compare.design.effect import MainEffect
from repro.compare.design.factorial import main_effects
from repro.core.machine import Machine
from repro.record.result.results import Result
from repro.suite.planning.cell import Cell
from repro.suite.planning.plan import Plan
from tests import plans
from tests.made_cells import MadeCell, result
from tests.plans import suite

SUITE = suite("factorial", """\
matrix:
  comm: [backend, ring, butterfly]
  processes: [1, 2]
  batch.global: [64, 128]
contrasts: [comm, processes]
""", seeds=8, workload="digits-mlp")
COMM = {"backend": 1.0, "ring": 0.8, "butterfly": 1.25}
Time = Callable[[Cell, int], float | None]


def planned(tmp_path: Path, text: str = SUITE) -> Plan:
    return plans.planned(tmp_path, text, machine=Machine("cpu", 0, 4))


def trials(plan: Plan, time: Time, **changes: Any) -> list[Result]:
    return [result(MadeCell(cell.cell_id), repeat, value, **{"status": "ok" if value else "missed", **changes})
            for cell in plan.cells for repeat in range(plan.suite.seeds) for value in [time(cell, repeat)]]


def known(cell: Cell, repeat: int) -> float:
    """Ring 0.8 x, butterfly 1.25 x, two processes 0.6 x; cells of one seed share its noise, and each has its own."""
    own = np.random.default_rng([repeat, sum(map(ord, cell.label))]).normal(0, 0.03)
    shared = np.random.default_rng(repeat).normal(0, 0.3)
    factor = COMM[cell.choices.comm.kind] * (0.6 if cell.choices.processes == 2 else 1.0)
    return float(10 * factor * math.exp(own + shared))


def by_level(found: list[MainEffect]) -> Mapping[str, MainEffect]:
    return {item.level: item for item in found}


def test_known_effects_are_found_with_seeds_as_replicates(tmp_path: Path) -> None:
    plan = planned(tmp_path)
    found = by_level(main_effects(plan, trials(plan, known)))
    assert list(found) == ["ring", "butterfly", "2 processes"]
    assert [item.reference for item in found.values()] == ["backend", "backend", "1 process"]
    assert [item.combinations for item in found.values()] == [4, 4, 6]
    for level, truth, word in (("ring", 0.8, "faster"), ("butterfly", 1.25, "slower"), ("2 processes", 0.6, "faster")):
        pooled = found[level].pooled
        assert pooled.verdict == word
        assert pooled.n == 8 and pooled.family == 3 and not pooled.primary
        assert pooled.interval and pooled.interval.low < truth < pooled.interval.high
        assert pooled.ratio == pytest.approx(truth, rel=0.03)
        assert found[level].flagged == ()


def test_an_effect_is_the_t_interval_of_the_means_of_each_seed(tmp_path: Path) -> None:
    plan = planned(tmp_path)
    logs = []
    for repeat in range(8):
        time = {(cell.choices.comm.kind, cell.choices.processes, cell.choices.batch.global_): known(cell, repeat)
                for cell in plan.cells}
        logs.append(np.mean([math.log(time[("ring", *rest)] / time[("backend", *rest)])
                             for rest in ((1, 64), (1, 128), (2, 64), (2, 128))]))
    test = scipy_stats.ttest_1samp(logs, 0).confidence_interval()
    pooled = by_level(main_effects(plan, trials(plan, known)))["ring"].pooled
    assert pooled.ratio == pytest.approx(math.exp(np.mean(logs)))
    assert pooled.interval is not None
    assert (pooled.interval.low, pooled.interval.high) == pytest.approx((math.exp(test.low), math.exp(test.high)))
    assert pooled.p == 2 / 2**8


def test_an_effect_that_depends_on_another_factor_is_flagged_with_factor_and_size(tmp_path: Path) -> None:
    plan = planned(tmp_path)

    def depends(cell: Cell, repeat: int) -> float:
        return known(cell, repeat) * (1.5 if (cell.choices.comm.kind, cell.choices.processes) == ("ring", 2) else 1.0)

    found = by_level(main_effects(plan, trials(plan, depends)))
    assert [item.factor for item in found["ring"].flagged] == ["processes"]
    flagged = found["ring"].flagged[0]
    assert flagged.ratio_here == pytest.approx(1.2, rel=0.05) and flagged.ratio_there == pytest.approx(0.8, rel=0.05)
    assert flagged.ratio == pytest.approx(1.5, rel=0.06) and flagged.reverses
    assert flagged.interval and flagged.interval.low < 1.5 < flagged.interval.high
    assert [item.factor for item in found["2 processes"].flagged] == ["comm"]
    assert found["butterfly"].flagged == ()


def test_a_metric_or_a_baseline_that_was_not_declared_says_so(tmp_path: Path) -> None:
    plan = planned(tmp_path)
    results = [item.model_copy(update={"step_seconds": item.tta_wall}) for item in trials(plan, known)]
    for asked, text in (({"metric": "step_time"}, "the metric step_time"), ({"baseline": {"comm": "ring"}}, "this ba")):
        for item in main_effects(plan, results, **asked):
            assert any(caution.startswith(text) for caution in item.pooled.cautions)
    assert not any("not declared" in text for item in main_effects(plan, results) for text in item.pooled.cautions)


def test_only_combinations_with_both_levels_count(tmp_path: Path) -> None:
    text = SUITE + "exclude: [{comm: ring, processes: 1}]\n"
    plan = planned(tmp_path, text)
    # One process is ten times slower: unmatched means would make the ring look far faster than it is.
    found = by_level(main_effects(plan, trials(
        plan, lambda cell, repeat: known(cell, repeat) * (10 if cell.choices.processes == 1 else 1))))
    assert (found["ring"].combinations, found["ring"].incomplete) == (2, 2)
    assert found["ring"].scope == ("averaged over 2 of 4 combinations of the other factors "
                                   "(2 without one of the two levels)")
    assert found["ring"].pooled.ratio == pytest.approx(0.8, rel=0.03)
    assert found["butterfly"].scope == "averaged over all 4 combinations of the other factors"
    assert (found["2 processes"].combinations, found["2 processes"].incomplete) == (4, 2)


def test_missed_targets_withhold_the_effect_and_failed_trials_leave_out_their_combination(tmp_path: Path) -> None:
    plan = planned(tmp_path)

    def gone(cell: Cell, repeat: int) -> float | None:
        choices = cell.choices
        return None if (choices.comm.kind, choices.processes, repeat) == ("ring", 2, 3) else known(cell, repeat)

    missed = by_level(main_effects(plan, trials(plan, gone)))
    assert missed["ring"].pooled.refused and missed["ring"].pooled.ratio is None
    assert "2 of 64 trials have no figure" in missed["ring"].pooled.because
    assert not missed["butterfly"].pooled.refused
    crashed = [item if item.tta_wall else item.model_copy(update={"status": "crashed"}) for item in trials(plan, gone)]
    failed = by_level(main_effects(plan, crashed))
    assert (failed["ring"].combinations, failed["ring"].failed) == (2, 2)
    assert failed["ring"].pooled.verdict == "faster" and "2 with a failed trial" in failed["ring"].scope


def test_there_is_no_verdict_before_all_seeds_have_run(tmp_path: Path) -> None:
    plan = planned(tmp_path)
    early = [item for item in trials(plan, known) if item.repeat < 7]
    assert {item.pooled.because for item in main_effects(plan, early)} == {
        "7 of 8 planned pairs have run; no verdict before all have"}


def test_the_baseline_names_the_level_that_others_are_compared_with(tmp_path: Path) -> None:
    plan = planned(tmp_path, SUITE + "baseline: {comm: butterfly}\n")
    found = main_effects(plan, trials(plan, known))
    assert [(item.level, item.reference) for item in found[:2]] == [("backend", "butterfly"), ("ring", "butterfly")]
    again = main_effects(plan, trials(plan, known), baseline={"comm": "ring", "processes": 2})
    assert [(item.level, item.reference) for item in again] == [
        ("backend", "ring"), ("butterfly", "ring"), ("1 process", "2 processes")]


def test_a_factor_below_another_is_paired_apart_from_it(tmp_path: Path) -> None:
    text = SUITE
    for old, new in (("comm: [backend, ring, butterfly]", "engine: [ddp, {kind: deepspeed, stage: 1}]"),
                     ("batch.global: [64, 128]", "engine.bucket_mib: [1, 25]"),
                     ("[comm, processes]", "[engine, engine.bucket_mib]")):
        text = text.replace(old, new)
    plan = planned(tmp_path, text)
    found = main_effects(plan, trials(
        plan, lambda cell, repeat: 10.0 * (1.2 if cell.choices.engine.kind == "deepspeed" else 1) + repeat / 100))
    assert [(item.level, item.reference, item.combinations) for item in found] == [
        ("deepspeed (stage=1)", "ddp", 4), ("bucket mib 25.0", "bucket mib 1.0", 4)]


@pytest.mark.parametrize("count", [60, pytest.param(1000, marks=pytest.mark.slow)])
def test_identical_cells_get_a_verdict_in_at_most_five_per_cent(tmp_path: Path, count: int) -> None:
    """Levels are alike, but a seed may suit one of them in all its cells: cells are no replicates."""
    plan = planned(tmp_path)
    generator = np.random.default_rng(20261122)
    wrong = flagged = 0
    for _ in range(count):
        by_seed = {(level, repeat): generator.normal(0, 0.1) for level in (*COMM, 1, 2) for repeat in range(8)}
        times = {(cell.cell_id, repeat): math.exp(
            by_seed[cell.choices.comm.kind, repeat] + by_seed[cell.choices.processes, repeat]
            + generator.normal(0, 0.1)) for cell in plan.cells for repeat in range(8)}
        found = main_effects(plan, trials(plan, lambda cell, repeat, of=times: of[cell.cell_id, repeat]))
        wrong += any(item.pooled.verdict in ("faster", "slower") for item in found)
        flagged += any(item.flagged for item in found)
    most = 0.05 * count + 3.3 * math.sqrt(0.05 * 0.95 * count)
    print(f"{wrong} verdicts and {flagged} flags in {count} experiments")
    assert wrong <= most and flagged <= most
