"""Two runs: conditions of a comparison, pairs of their trials, and cautions."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from repro.compare.runs.two_runs import Ran, versus
from repro.core.errors import UsageError
from repro.core.machine import Machine
from repro.record.result.results import Bracket, Result
from repro.suite.planning.plan import Plan
from tests.plans import planned
from tests.records import SUITE, sample_environment

FACTORS = (0.98, 1.0, 1.02, 1.01, 0.99)


def plan_of(folder: Path, seeds: int = 10, text: str = SUITE) -> Plan:
    return planned(folder, text.replace("seeds: 6", f"seeds: {seeds}"), machine=Machine("cpu", 0, 8))


def ran(name: str, plan: Plan, scale: float, shift: int = 0, order: str = "o", hashes: bool = True) -> Ran:
    found = [
        Result(trial_id=item.trial_id, cell_id=item.cell_id, repeat=item.repeat, attempt=1, status="ok",
               tta_wall=(value := scale * FACTORS[(item.repeat * 2 + shift + item.choices.processes) % 5]),
               samples_to_target=round(1000 * value), bracket=Bracket(
                   miss_samples=round(1000 * value) - 1, hit_samples=round(1000 * value),
                   miss_wall_seconds=0.999 * value, hit_wall_seconds=value),
               hashes={"init_weights": f"w{item.repeat}", "data_order": f"{order}{item.repeat}", "data": "d"}
               if hashes else {})
        for item in plan.trials()]
    return Ran(name, plan, found, sample_environment())


def test_the_second_run_is_the_candidate_paired_by_seed(tmp_path: Path) -> None:
    plan = plan_of(tmp_path)
    found = versus(ran("old", plan, 10.0), ran("new", plan, 12.0, 1), "samples")
    assert len(found) == len(plan.cells)
    assert {item.verdict for item in found} == {"slower"}
    assert all(item.paired and item.n == 10 and item.family == 4 and not item.primary for item in found)
    assert found[0].ratio == pytest.approx(1.2)
    assert (found[0].candidate_label, found[0].baseline_label) == ("ddp, 1 process [new]", "ddp, 1 process [old]")
    assert any("not interleaved" in text for text in found[0].cautions)


def test_the_same_run_again_is_the_same(tmp_path: Path) -> None:
    plan = plan_of(tmp_path)
    found = versus(ran("old", plan, 10.0), ran("new", plan, 10.0, 1), "samples")
    assert {item.verdict for item in found} == {"same"}


def test_times_of_two_separate_runs_get_no_verdict(tmp_path: Path) -> None:
    """Pairs share their seed, not the state of the machine: a shift of 2 % between two runs was called slower."""
    plan = plan_of(tmp_path)
    for scale in (10.0, 10.2, 20.0):
        for item in versus(ran("old", plan, 10.0), ran("new", plan, scale)):
            assert (item.verdict, item.refused, item.paired, item.p) == ("inconclusive", True, False, None)
            assert item.ratio == pytest.approx(scale / 10) and item.interval is not None
            assert item.because.startswith("two separate runs are not pairs: ")
            assert "put both cells into one suite, whose trials take turns" in item.because
            assert any("not paired: each run has its own state of the machine" in text for text in item.cautions)


@pytest.mark.parametrize(("order", "hashes", "why"), [
    ("other", True, "seed 0: data order differ between the two"),
    ("o", False, "not all trials have their hashes"),
])
def test_without_equal_hashes_trials_are_not_paired(tmp_path: Path, order: str, hashes: bool, why: str) -> None:
    plan = plan_of(tmp_path)
    found = versus(ran("old", plan, 10.0), ran("new", plan, 12.0, 1, order, hashes), "samples")[0]
    assert not found.paired
    assert found.pairs == ()
    assert found.verdict == "slower"
    assert found.because.startswith("the 95 % interval of the unpaired ratio excludes 1, Welch p = ")
    assert f"not paired: {why}; Welch on logs instead" in found.cautions


def test_other_numbers_of_seeds_are_not_paired_either(tmp_path: Path) -> None:
    found = versus(ran("old", plan_of(tmp_path, 6), 10.0), ran("new", plan_of(tmp_path, 10), 12.0), "samples")[0]
    assert not found.paired
    assert found.n == 6
    assert any("10 seeds in one run and 6 in the other" in text for text in found.cautions)


def test_four_unpaired_trials_are_no_result(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, 4)
    found = versus(ran("old", plan, 10.0), ran("new", plan, 20.0, 1, "other"))
    assert {item.verdict for item in found} == {"inconclusive"}
    assert found[0].ratio == pytest.approx(2, rel=0.05)


def test_a_run_that_is_not_over_gets_no_verdict(tmp_path: Path) -> None:
    plan = plan_of(tmp_path)
    whole = ran("new", plan, 20.0)
    found = versus(ran("old", plan, 10.0), replace(whole, results=whole.results[:-8]))
    assert {item.verdict for item in found} == {"inconclusive"}
    assert found[0].because.endswith("planned trials of new have run; no verdict before all have")


def test_nothing_in_common_is_refused(tmp_path: Path) -> None:
    one, other = plan_of(tmp_path), plan_of(tmp_path, 10, SUITE.replace("global: 64", "global: 32"))
    with pytest.raises(UsageError, match="have no cell in common"):
        versus(ran("old", one, 10.0), ran("new", other, 10.0), force=True)


def test_differences_between_the_machines_are_reported(tmp_path: Path) -> None:
    plan = plan_of(tmp_path)
    there = replace(ran("new", plan, 10.0, 1), environment=sample_environment().model_copy(
        update={"cpu": "Other CPU", "libraries": {"torch": "2.14.0"}}))
    assert "the runs differ in cpu, torch" in versus(ran("old", plan, 10.0), there)[0].cautions
