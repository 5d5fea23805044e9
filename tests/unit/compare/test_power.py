"""Power from a pilot: what a plan can show, against figures worked by hand and simulation."""

from __future__ import annotations

import json
import math
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from repro import stats
from repro.compare.design.power import power, spread_interval
from repro.core.errors import UsageError
from repro.record.folder.store import Record
from repro.suite.model import Trial
from tests import plans
from tests.in_process import called, succeeded
from tests.records import SUITE, Course, make_record

SHIFTS = (0.00, 0.03, 0.01, 0.05, 0.02, 0.04)


def course(trial: Trial) -> Course:
    """DeepSpeed on two processes is slower by another share in every seed, so that pairs have a spread."""
    slow = 1.2 * (1 + SHIFTS[trial.repeat % 6]) if trial.choices.engine.kind == "deepspeed" else 1.0
    return Course(step_seconds=0.01 * slow)


@pytest.fixture(scope="module")
def pilot(tmp_path_factory: pytest.TempPathFactory) -> Record:
    return make_record(tmp_path_factory.mktemp("pilot") / "run", course=course)


def planned(folder: Path, seeds: int, text: str = SUITE):
    return plans.planned(folder, text.replace("seeds: 6", f"seeds: {seeds}"))


def test_the_spread_is_that_of_the_pilots_log_ratios(tmp_path: Path, pilot: Record):
    found = power(planned(tmp_path, 10), pilot).contrasts[0]
    # time to the 4th evaluation: 4 x (23 steps x step seconds + 0.02), the same for both but for the step
    logs = [math.log((23 * 0.012 * (1 + shift) + 0.02) / (23 * 0.01 + 0.02)) for shift in SHIFTS]
    assert found.primary
    assert found.pilot_pairs == 6
    assert found.sd_log == pytest.approx(np.std(logs, ddof=1), rel=1e-6)
    assert found.detectable == pytest.approx(stats.detectable_ratio(found.sd_log, 10, pilot=6), rel=1e-9)
    assert found.needed_pairs == stats.pairs_needed(found.sd_log, 1.05, pilot=6)
    assert found.power_difference == stats.paired_power(found.sd_log, 1.05, 10, pilot=6)
    assert found.power_same == stats.equivalence_power(found.sd_log, 1.0, 10, 0.05, pilot=6)


def test_in_a_sequential_design_other_contrasts_have_the_power_of_the_pairs_of_its_first_look(
    tmp_path: Path, pilot: Record,
):
    looks = SUITE.replace("seeds: 6", "sequential: {looks: [8, 20, 40], power: 1.0}")
    found, first = power(plans.planned(tmp_path, looks), pilot), power(planned(tmp_path, 8), pilot)
    assert [item.pairs for item in found.contrasts] == [40, 8, 8, 8]
    assert found.contrasts[1:] == first.contrasts[1:] and "; these 8 pairs find a difference" in found.text()
    assert found.seconds == pytest.approx((2 * 40 + 2 * 8) / (4 * 8) * (first.seconds or 0), rel=0.5)


def test_the_cost_is_the_ledgers(tmp_path: Path, pilot: Record):
    found = power(planned(tmp_path, 10), pilot)
    took = {cell.cell_id: [item.seconds for item in pilot.attempts if item.cell_id == cell.cell_id]
            for cell in pilot.plan.cells}
    means = {name: sum(seconds) / len(seconds) for name, seconds in took.items()}
    assert found.seconds == pytest.approx(10 * sum(means.values()))  # 4 cells x 10 repeats
    assert found.contrasts[0].seconds_per_pair in [
        pytest.approx(one + other) for one in means.values() for other in means.values() if one is not other]


def test_five_pairs_cannot_be_significant_and_the_plan_reports_it(tmp_path: Path, pilot: Record):
    found = power(planned(tmp_path, 5), pilot)
    assert found.contrasts[0].detectable is None
    assert "5 pairs cannot be significant, however large the difference" in found.text()


def test_the_family_needs_more_than_the_primary(tmp_path: Path, pilot: Record):
    found = power(planned(tmp_path, 12), pilot)
    first, *others = found.contrasts
    assert first.contrasts == 1
    assert {item.contrasts for item in others} == {len(others)}
    same = next(item for item in others if item.sd_log is not None)
    assert same.needed_pairs is not None and first.needed_pairs is not None
    assert same.needed_pairs >= first.needed_pairs


def test_contrasts_without_a_spread_say_why(tmp_path: Path, pilot: Record):
    flat = [item for item in power(planned(tmp_path, 10), pilot).contrasts if item.problem]
    assert flat
    assert all("no spread to plan by" in item.problem and item.sd_log is None for item in flat)


def test_a_pilot_that_missed_its_target_gives_no_power(tmp_path: Path):
    record = make_record(tmp_path / "run", course=lambda trial: Course(hits_at=None))
    found = power(planned(tmp_path, 10), record).contrasts[0]
    assert found.problem == "the pilot gives 0 pairs with a figure; power needs at least 3"
    assert found.detectable is None


def test_a_pilot_of_other_cells_is_refused(tmp_path: Path, pilot: Record):
    plan = planned(tmp_path, 10, SUITE.replace("lr: 0.1", "lr: 0.2"))
    with pytest.raises(UsageError, match="has no cell of suite 'sample'"):
        power(plan, pilot)


def test_the_chi_square_interval_of_a_spread_by_hand():
    # n = 5, s = 1: chi2(4) quantiles 11.143 and 0.4844 (tables): sqrt(4/11.143) and sqrt(4/0.4844)
    logs = [-1.2649110640673518, -0.6324555320336759, 0.0, 0.6324555320336759, 1.2649110640673518]
    spread, interval = spread_interval(logs)
    assert spread == pytest.approx(1.0)
    assert (interval.low, interval.high) == pytest.approx((0.59913, 2.87358), rel=1e-4)
    with pytest.raises(ValueError, match="at least two"):
        spread_interval([0.1])


def test_the_interval_of_the_spread_covers_as_stated():
    generator = np.random.default_rng(20151102)
    inside = 0
    for _ in range(2000):
        _, interval = spread_interval(list(generator.normal(0, 0.03, 6)))
        inside += interval.low <= 0.03 <= interval.high
    assert 0.935 <= inside / 2000 <= 0.965


def test_the_detectable_ratio_is_found_as_often_as_stated(tmp_path: Path, pilot: Record):
    """80 % power, through the test of a verdict (t interval and exact sign flip), 10 pairs, normal logs.

    The true spread varies around the pilot's as six pairs allow.
    """
    item = power(planned(tmp_path, 10), pilot).contrasts[0]
    assert item.sd_log is not None and item.detectable is not None
    generator = np.random.default_rng(7)
    found = 0
    for _ in range(1000):
        spread = item.sd_log * math.sqrt(5 / generator.chisquare(5))
        logs = generator.normal(math.log(item.detectable), spread, 10)
        _, interval = stats.paired_ratio(list(np.exp(logs)), [1.0] * 10)
        found += not interval.low <= 1 <= interval.high and stats.sign_flip(list(logs)) <= 0.05
    print(f"power at the detectable ratio: {found / 1000:.3f}")
    assert 0.74 <= found / 1000 <= 0.86


def test_the_command_prints_and_gives_json(tmp_path: Path, pilot: Record):
    (tmp_path / "s.yaml").write_text(SUITE)
    arguments = ["plan", str(tmp_path / "s.yaml"), "--seeds", "10", "--pilot", str(pilot.folder.root)]
    shown = succeeded(*arguments)
    assert "smallest detectable difference" in shown.output
    assert "5 % needs" in shown.output
    (duration,) = (line for line in shown.output.splitlines() if line.startswith("about "))
    assert duration.endswith(" (as long as the trials of the pilot)") and "whole budget" not in duration
    assert "these 10 pairs find a difference of 5 % with" in shown.output
    data = json.loads(called(*arguments, "--json").output)
    assert data["power"]["contrasts"][0]["primary"] is True
    assert "power" not in json.loads(called(*arguments[:4], "--json").output)


@pytest.mark.parametrize("pairs", [6, 10, 17, 22, 34, 300])
@pytest.mark.parametrize("alpha", [0.05, 0.005, 0.0001])
def test_power_is_a_number_and_never_falls_with_the_effect(pairs: int, alpha: float):
    effects = np.concatenate([np.linspace(0.01, 3, 60), np.linspace(3.5, 50, 10)])
    found = [stats.paired_power(0.03, math.exp(0.03 * effect), pairs, alpha) for effect in effects]
    assert all(0 <= value <= 1 + 1e-12 for value in found)
    assert all(later >= earlier - 4e-5 for earlier, later in pairwise(found))
