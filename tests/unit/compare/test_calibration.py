"""A/A calibration: nulls from twins, their rate and their bias, what they can find, and where they are kept."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import numpy as np
import pytest
from click.testing import Result as Outcome
from scipy.stats import binom

from repro import stats
from repro.cli.workflows import calibrate
from repro.compare import Pair
from repro.compare.design import calibration, twins
from repro.compare.design.calibration import (
    Calibration,
    Null,
    add,
    calibration_of,
    machine_of,
    nulls_of,
    place_for,
    twin_plan,
)
from repro.core.errors import UsageError
from repro.core.machine import Machine
from repro.record.folder.store import Record
from repro.record.result.results import Result
from repro.suite.model import METHOD, Trial
from repro.suite.planning.plan import Plan
from tests.in_process import called
from tests.plans import planned
from tests.records import SUITE, Course, make_record, sample_environment, write_record

MACHINE = Machine("cpu", 0, 2)


@pytest.fixture(autouse=True)
def data_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    return tmp_path / "data"


def noisy(seed: int, size: float = 0.03):
    generator = np.random.default_rng(seed)
    return lambda trial: Course(step_seconds=0.01 * float(np.exp(generator.normal(0, size))))


def plan_of(folder: Path, seeds: int = 6) -> Plan:
    return planned(folder, SUITE.replace("seeds: 6", f"seeds: {seeds}"))


def record_of(folder: Path, seeds: int, seed: int = 1) -> Record:
    return make_record(folder / f"run{seeds}", SUITE.replace("seeds: 6", f"seeds: {seeds}"), noisy(seed))


def null(number: int, verdict: str = "inconclusive", source: str = "") -> Null:
    return Null.model_validate({
        "source": source or f"run@{number}", "cell_id": "c", "label": "cell", "metric": "tta_wall", "how": "twins",
        "n": 6,
        "ratio": 1.0, "p": 0.5, "verdict": verdict})


def made(verdicts: list[str], digest: str = "d" * 64, machine: str = "m") -> Calibration:
    nulls = [null(number, verdict) for number, verdict in enumerate(verdicts)]
    return calibration.calibration("sample", digest, METHOD, machine, nulls)


def test_the_rate_is_the_share_of_differences_with_wilsons_interval():
    found = made(["inconclusive"] * 18 + ["faster", "slower"] + ["same"] * 4)
    assert (found.false_positives, found.n) == (2, 24)
    wilson = stats.wilson(2, 24)
    assert (found.rate.low, found.rate.high) == (wilson.low, wilson.high)
    assert found.rate.low == pytest.approx(0.0232, abs=1e-4)  # by Wilson's formula
    assert found.rate.high == pytest.approx(0.2585, abs=1e-4)
    assert found.sentence() == ("2 of 24 comparisons of a cell with itself gave a difference: 8.3 % "
                                "(95 % interval 2.3 % to 25.8 %)")
    with pytest.raises(UsageError, match="so there is no rate"):
        made([])


def test_twins_are_the_same_cell_with_the_same_seeds_interleaved(tmp_path: Path):
    plan = plan_of(tmp_path)
    twins = twin_plan(plan, [plan.cells[1]], 6, 2)
    one, other = twins.cells
    assert one.cell_id == plan.cells[1].cell_id != other.cell_id
    assert one.choices == other.choices == plan.cells[1].choices
    assert (one.side, other.side, other.twin_of) == ("A", "B", one.cell_id)
    assert (twins.kind, twins.digest) == ("calibration", plan.digest)
    trials = list(twins.trials())
    assert len(trials) == 24
    assert {trial.master_seed for trial in trials} == {plan.suite.master_seed}
    assert [trial.repeat for trial in trials] == [repeat for repeat in range(12) for _ in range(2)]
    firsts = {trial.cell_id for trial in trials[::2]}
    assert len(firsts) == 2  # neither side always goes first


@pytest.mark.parametrize(("pairs", "nulls", "problem"), [(5, 1, "can never be significant"), (200, 6, "1000 at most")])
def test_unsuitable_calibrations_are_refused(tmp_path: Path, pairs: int, nulls: int, problem: str):
    plan = plan_of(tmp_path)
    with pytest.raises(UsageError, match=problem):
        twin_plan(plan, [plan.cells[0]], pairs, nulls)


def twin_record(folder: Path, pairs: int, nulls: int, seed: int) -> Record:
    """A twin run by formula."""
    base = record_of(folder, 6)
    plan = twin_plan(base.plan, [base.plan.cells[0]], pairs, nulls)
    generator = np.random.default_rng(seed)
    results = [Result(
        trial_id=trial.trial_id, cell_id=trial.cell_id, repeat=trial.repeat, attempt=1, status="ok",
        tta_wall=10 * float(np.exp(generator.normal(0, 0.02))),
        hashes={"init_weights": f"w{trial.repeat}", "data_order": f"o{trial.repeat}", "data": "d"},
    ) for trial in plan.trials()]
    return Record(base.folder, plan, base.environment, (), tuple(results), None, None)


def test_twins_are_compared_in_groups_of_seeds(tmp_path: Path):
    record = twin_record(tmp_path, 6, 3, 4)
    nulls, problems = nulls_of(record, record.plan.cells, "tta_wall", 6)
    assert problems == []
    assert [item.source.partition("#")[2] for item in nulls] == ["0-5", "6-11", "12-17"]
    assert {(item.n, item.cell_id) for item in nulls} == {(6, record.plan.cells[0].cell_id)}
    assert not nulls[0].label.endswith("]")


def test_the_false_positive_rate_of_twins_is_at_most_five_per_cent(tmp_path: Path):
    """Through the complete path: 300 nulls of 10 pairs, 5 % + 3 standard errors is 26."""
    base = record_of(tmp_path, 6)
    plan = twin_plan(base.plan, [base.plan.cells[0]], 10, 30)
    generator = np.random.default_rng(20151102)
    wrong = count = 0
    for _ in range(10):
        results = tuple(Result(
            trial_id=f"{plan.cells[index].cell_id}-{repeat}", cell_id=plan.cells[index].cell_id, repeat=repeat,
            attempt=1, status="ok", tta_wall=float(generator.gamma(20, 0.5))) for index, repeat in plan.order)
        record = Record(base.folder, plan, base.environment, (), results, None, None)
        nulls, _ = nulls_of(record, plan.cells, "tta_wall", 10)
        wrong, count = wrong + sum(item.false_positive for item in nulls), count + len(nulls)
    print(f"false positives of nulls: {wrong} of {count}")
    assert count == 300
    assert 1 <= wrong <= 26


@pytest.mark.parametrize(("metric", "noun"), [("tta_wall", "time to the target"), ("samples", "samples to the target")])
def test_twins_without_any_chance_are_no_nulls(tmp_path: Path, metric: str, noun: str):
    """A deterministic engine, or a count of samples: every ratio is 1, so no difference could have been found."""
    record = twin_record(tmp_path, 6, 2, 4)
    still = tuple(item.model_copy(update={"tta_wall": 10.0 + item.repeat, "samples_to_target": 4000 + item.repeat})
                  for item in record.results)
    record = dataclasses.replace(record, results=still)
    nulls, problems = nulls_of(record, record.plan.cells, metric, 6)
    assert nulls == []
    assert len(problems) == 2
    assert f"both sides have exactly the same {noun} in all 6 pairs: figures without chance" in problems[0]


def test_one_chance_pair_makes_a_null_again(tmp_path: Path):
    record = twin_record(tmp_path, 6, 1, 4)
    still = tuple(item.model_copy(update={"tta_wall": 10.0}) if item.repeat else item for item in record.results)
    nulls, problems = nulls_of(dataclasses.replace(record, results=still), record.plan.cells, "tta_wall", 6)
    assert (len(nulls), problems) == (1, [])


def test_nulls_add_up_and_the_same_source_counts_once(tmp_path: Path):
    path = tmp_path / "c.json"
    assert add(path, made(["inconclusive", "faster"])).n == 2
    found = add(path, made(["inconclusive", "inconclusive", "slower"]))
    assert (found.n, found.false_positives) == (3, 1)
    assert Calibration.model_validate_json(path.read_bytes()) == found


def test_pairs_that_are_grouped_again_count_once(tmp_path: Path):
    record = twin_record(tmp_path / "run", 6, 2, seed=1)

    def kept(pairs: int) -> Calibration:
        nulls, _ = nulls_of(record, record.plan.cells, "tta_wall", pairs)
        return add(tmp_path / "c.json", calibration.calibration("sample", "d" * 64, METHOD, "m", nulls))

    assert [(item.n, sum(len(null.pairs) for null in item.nulls)) for item in map(kept, (6, 12, 6))] == [
        (2, 12), (1, 12), (2, 12)]


@pytest.mark.parametrize(("changed", "word"), [({"digest": "e" * 64}, "suite digest"),
                                               ({"machine": "other"}, "machine")])
def test_nulls_of_another_suite_or_machine_are_not_mixed(tmp_path: Path, changed: dict[str, str], word: str):
    path = tmp_path / "c.json"
    add(path, made(["same"]))
    with pytest.raises(UsageError, match=f"another {word}.*--to names another file"):
        add(path, made(["same"], **changed))


def test_a_record_finds_its_own_calibration_first_then_the_users(tmp_path: Path, data_home: Path):
    record = record_of(tmp_path, 6)
    machine = machine_of(record.environment)
    assert calibration_of(record) is None
    theirs = add(place_for(record.plan.digest), made(["same"] * 3, record.plan.digest, machine))
    assert place_for(record.plan.digest).is_relative_to(data_home)
    assert calibration_of(record) == theirs
    ours = add(record.folder.root / "calibration.json", made(["same"] * 2, record.plan.digest, machine))
    assert calibration_of(record) == ours


def test_a_calibration_of_another_machine_does_not_apply(tmp_path: Path):
    record = record_of(tmp_path, 6)
    add(place_for(record.plan.digest), made(["same"], record.plan.digest, "another machine"))
    assert calibration_of(record) is None
    assert machine_of(sample_environment()) == "Sample CPU, 2 cores, cpu"


def session(root: Path, favoured: float = 1.0, nulls: int = 3, crash: bool = False) -> Record:
    """A calibration on disk; the harness makes the second twin take `favoured` as long."""
    plan = plan_of(root.parent)
    twins = twin_plan(plan, [plan.cells[0]], 6, nulls)
    course = noisy(20151102, 0.01)

    def planted(trial: Trial) -> Course:
        found = course(trial)
        second = trial.cell_id == twins.cells[1].cell_id
        return dataclasses.replace(found, step_seconds=found.step_seconds * (favoured if second else 1), crash=crash)

    root.mkdir()
    return write_record(root, twins, SUITE, planted)


def calibrated(root: Path, *arguments: str) -> Outcome:
    suite = root.parent / "suite.yaml"
    suite.write_text(SUITE)
    return called("calibrate", suite, "--from", root, "--pairs", "6", *arguments)


def test_twins_of_a_stored_session_from_the_command_line(tmp_path: Path):
    root = session(tmp_path / "run").folder.root
    found = calibrated(root, "--json")
    assert found.exit_code == 0, found.output
    data = json.loads(found.output)
    assert (data["added"], data["calibration"]["n"], data["failures"]) == (3, 3, [])
    again = calibrated(root)
    assert "of 3 comparisons of a cell with itself" in again.output  # the same source is not counted again
    assert "this could not have found" in again.output
    compared = called("compare", root)
    assert "not calibrated" not in compared.output
    assert "of 3 comparisons of a cell with itself" in compared.output


@pytest.mark.parametrize("favoured", [0.97, 1.03])
def test_a_harness_that_favours_one_twin_fails(tmp_path: Path, favoured: float):
    root = session(tmp_path / "run", favoured).folder.root
    found = calibrated(root)
    assert found.exit_code == 3
    assert "calibration failed: " in called("compare", root).output
    assert "calibration failed: " in found.output and "one of two equal cells is favoured" in found.output
    ratio = float(re.search(r"second twin / first: ([0-9.]+)", found.output)[1])  # type: ignore[index]
    assert ratio == pytest.approx(favoured, abs=0.01)


def test_repeats_of_cells_without_twins_are_no_nulls(tmp_path: Path):
    """Dealt to two sides at random they would hold their level on any machine, whatever its bias."""
    record = record_of(tmp_path, 12)
    nulls, problems = nulls_of(record, record.plan.cells, "tta_wall", 6)
    assert (nulls, len(problems)) == ([], 4)
    found = called("calibrate", tmp_path / "run12-suite.yaml", "--from", record.folder.root)
    assert isinstance(found.exception, UsageError) and "it was run without a twin" in str(found.exception)


def test_twins_that_crashed_give_no_null_and_say_why(tmp_path: Path):
    record = session(tmp_path / "run", nulls=1, crash=True)
    nulls, problems = nulls_of(record, record.plan.cells, "tta_wall", 6)
    assert nulls == [] and "no verdict was possible" in problems[0] and "crashed" in problems[0]


@pytest.mark.parametrize("nulls", [2, 5, 20, 100])
def test_the_rate_that_is_found_is_the_exact_binomials(nulls: int):
    fewest, rate = twins.fewest_wrong(nulls), twins.detectable_rate(nulls)
    assert fewest is not None and rate is not None
    assert binom.sf(fewest - 1, nulls, 0.05) <= 0.01 < binom.sf(fewest - 2, nulls, 0.05)
    assert binom.sf(fewest - 1, nulls, rate) == pytest.approx(0.8, abs=1e-9)


def test_too_few_comparisons_are_said_to_find_nothing():
    assert twins.detectable_rate(1) is None
    assert twins.smallest_found(1, 0, 0.01) == "no rate of wrong verdicts, no bias between twins"


@pytest.mark.slow
def test_the_stated_bias_is_found_in_eighty_per_cent_and_none_in_at_most_four():
    """2,000 calibrations of 24 pairs each."""
    generator = np.random.default_rng(20151102)
    ratio = float(re.search(r"from ([0-9.]+) %$", twins.smallest_found(4, 24, 0.02))[1])  # type: ignore[index]
    found = {}
    for truth in (1.0, 1 + ratio / 100):
        logs = generator.normal(np.log(truth), 0.02, (2000, 24))
        verdicts = [twins.bias([Pair(repeat=at, candidate=float(np.exp(x)), baseline=1.0)
                                for at, x in enumerate(row)]) for row in logs]
        found[truth] = np.mean([item is not None and item.p <= twins.BIAS_LEVEL for item in verdicts])
    print(found)
    equal, biased = found.values()
    assert 0.025 < equal < 0.055 and biased == pytest.approx(0.8, abs=0.035)


def test_what_can_be_found_is_said_before_anything_runs(tmp_path: Path):
    plan = plan_of(tmp_path)
    assert calibrate.reach(plan, None, 6, 5) == (
        "5 comparisons of twins, 30 pairs, find with 80 % probability a rate of wrong verdicts from 67 %, a bias "
        "between twins from 0.55 % (ratios of pairs that vary by 1 %; in proportion for others); --nulls makes it "
        "finer")


def test_a_run_of_another_suite_is_refused(tmp_path: Path):
    record = record_of(tmp_path, 12)
    (tmp_path / "o.yaml").write_text(SUITE.replace("lr: 0.1", "lr: 0.2"))
    found = called("calibrate", tmp_path / "o.yaml", "--from", record.folder.root)
    assert isinstance(found.exception, UsageError)
    assert "a calibration requires a run of the same suite" in str(found.exception)


def test_cells_are_chosen_by_pattern(tmp_path: Path):
    plan = plan_of(tmp_path)
    assert [cell.label for cell in calibrate.choose_cells(plan, None)] == ["ddp, 2 processes"]
    found = calibrate.choose_cells(plan, {"engine": "deepspeed"})
    assert len(found) == 2
    with pytest.raises(UsageError, match="matches no cell; cells: ddp, 1 process"):
        calibrate.choose_cells(plan, {"engine": "none"})
