"""Reproduced, not reproduced, inconclusive: on records whose true answer is known."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from repro.bundle import judge as judge_module
from repro.bundle.difference import between_executions, diff_records, differences
from repro.bundle.judge import Reproduction, judge
from repro.cli.workflows.reproduce import choose_trials, reduce_plan
from repro.compare.evidence.evidence import ComparisonRequest
from repro.core.errors import UsageError
from repro.core.files import read_model, write_model
from repro.core.machine import Machine
from repro.record.folder.store import Record, RunFolder, read_record
from repro.record.result.remarks import Resumed
from repro.record.result.results import Result
from repro.suite.planning.plan import planned_order
from tests.plans import suite
from tests.records import Course, make_record, sample_environment

ONE = suite("one", seeds=10, processes=2, determinism="LEVEL")


def spread(root: Path, ratio: float = 1.0, noise: float = 0.01, seed: int = 0, level: str = "seeded",
           only: int | None = None) -> Record:
    """Ten seeds of one cell, `ratio` times as long, with a little independent noise."""
    generator = np.random.default_rng(seed)
    factors = np.exp(noise * generator.standard_normal(100)) * ratio
    return make_record(root, ONE.replace("LEVEL", level), only=only,
                       course=lambda trial: Course(step_seconds=0.01 * float(factors[trial.repeat])))


def answer(first: Record, second: Record, trials: str | None = None) -> Reproduction:
    return judge(first, second, choose_trials(first, trials))


@pytest.mark.parametrize(("ratio", "expected"), [
    (1.0, "reproduced"), (1.02, "reproduced"), (1.0545, "inconclusive"), (1.2, "not reproduced"),
    (1 / 1.02, "reproduced"), (1 / 1.2, "not reproduced"),
])
def test_times_within_the_margin_are_reproduced_and_times_far_outside_are_not(
    tmp_path: Path, ratio: float, expected: str
) -> None:
    found = answer(spread(tmp_path / "a", seed=1), spread(tmp_path / "b", ratio, seed=2))
    assert found.answer == expected, found.text()
    assert found.cells[0].how == "equivalence"


def test_noise_makes_it_inconclusive_never_not_reproduced(tmp_path: Path) -> None:
    found = answer(spread(tmp_path / "a", noise=0.3, seed=1), spread(tmp_path / "b", noise=0.3, seed=2))
    assert found.answer == "inconclusive"


def test_too_few_trials_are_inconclusive_however_alike(tmp_path: Path) -> None:
    found = answer(spread(tmp_path / "a", noise=1e-4, seed=1), spread(tmp_path / "b", noise=1e-4, seed=2), "3")
    assert found.answer == "inconclusive"
    assert "too few" in found.cells[0].because


def test_figures_equal_to_the_last_digit_are_reproduced_from_five_pairs_on(tmp_path: Path) -> None:
    first, second = spread(tmp_path / "a", noise=0), spread(tmp_path / "b", noise=0)
    assert answer(first, second).answer == "reproduced"
    assert answer(first, second, "4").answer == "inconclusive"
    assert answer(first, spread(tmp_path / "c", 1.5, noise=0)).answer == "not reproduced"


def other_weights(record: Record, **changes: Any) -> Record:
    """The record with other weights at the end, so that its trials are not those of the record step by step."""
    return replace(record, results=tuple(
        item.model_copy(update={"hashes": {**item.hashes, "final_weights": "other"}, **changes})
        for item in record.results))


def test_a_coarse_evaluation_grid_withholds_reproduced(tmp_path: Path) -> None:
    """Evaluations are a quarter of the time apart: times within 1 % hide crossings that may differ by 30 %."""
    first = spread(tmp_path / "a", noise=1e-4, seed=1)
    for noise in (1e-4, 0.0):
        found = answer(spread(tmp_path / f"{noise}", noise=noise, seed=1), other_weights(
            spread(tmp_path / f"{noise}-again", noise=noise, seed=2)))
        assert found.answer == "inconclusive", found.text()
        assert "apart at the target, too far to resolve a margin of 5 %" in found.cells[0].because
    assert answer(first, spread(tmp_path / "b", noise=1e-4, seed=2)).answer == "reproduced"  # the same training


def test_unlike_evaluation_grids_withhold_not_reproduced(tmp_path: Path) -> None:
    """A crossing after 3 to 4 epochs seen at 4, and one after 4 to 6 seen at 6: both may be at 4."""
    first = spread(tmp_path / "a", seed=1)
    coarse = make_record(
        tmp_path / "b", ONE.replace("LEVEL", "seeded").replace("1437", "2874"),
        course=lambda trial: Course(step_seconds=0.01 * (1 + 0.002 * (trial.repeat % 3)), hits_at=3))
    again = other_weights(coarse, cell_id=first.plan.cells[0].cell_id)
    assert (again.results[0].tta_wall or 0) > 1.4 * (first.results[0].tta_wall or 0)
    found = answer(first, replace(again, plan=first.plan))
    assert found.answer == "inconclusive", found.text()
    assert "the evaluation grids differ" in found.cells[0].because


def test_trials_that_did_not_run_again_leave_it_open(tmp_path: Path) -> None:
    found = answer(spread(tmp_path / "a", seed=1), spread(tmp_path / "b", seed=2, only=7))
    assert found.answer == "inconclusive"
    assert "7 of 10 chosen trials of the second execution have a result" in found.cells[0].because


def test_a_crash_decides_nothing_and_ten_misses_are_not_reproduced(tmp_path: Path) -> None:
    first = spread(tmp_path / "a", seed=1)
    crashed = make_record(tmp_path / "b", ONE.replace("LEVEL", "seeded"), lambda trial: Course(crash=trial.repeat == 2))
    assert answer(first, crashed).answer == "inconclusive"
    missed = make_record(tmp_path / "c", ONE.replace("LEVEL", "seeded"), lambda trial: Course(hits_at=None))
    assert answer(first, missed).answer == "not reproduced"


def rewrite(record: Record, repeat: int, **hashes: str) -> Record:
    item = next(item for item in record.results if item.repeat == repeat)
    path = record.folder.result(item.trial_id)
    write_model(path, item.model_copy(update={"hashes": {**item.hashes, **hashes}}))
    assert read_model(path, Result).hashes["final_weights"]
    return read_record(record.folder.root)


def test_bitwise_is_judged_by_weights_whatever_the_times(tmp_path: Path) -> None:
    first, second = spread(tmp_path / "a", level="bitwise"), spread(tmp_path / "b", 3.0, level="bitwise")
    found = answer(first, second)
    assert (found.answer, found.cells[0].how, found.cells[0].equal_weights) == ("reproduced", "bitwise", 10)
    assert "also measured, not judged: tta_wall is 2.8" in found.text()


@pytest.mark.parametrize(("name", "told"), [("final_weights", "final weights differ"), ("init_weights", "init weights"),
                                            ("data_order", "data order differ")])
def test_one_trial_with_other_bits_is_enough(tmp_path: Path, name: str, told: str) -> None:
    first = spread(tmp_path / "a", level="bitwise")
    second = rewrite(spread(tmp_path / "b", level="bitwise"), 7, **{name: "other"})
    found = answer(first, second)
    assert found.answer == "not reproduced"
    assert found.cells[0].because.startswith("seed 7: ") and told in found.cells[0].because


def test_the_earliest_parting_is_named(tmp_path: Path) -> None:
    first = rewrite(spread(tmp_path / "a", level="bitwise"), 3, weights_step_1="s", weights_step_10="t")
    second = rewrite(spread(tmp_path / "b", level="bitwise"), 3, weights_step_1="s", weights_step_10="u",
                     final_weights="v")
    assert "weights step 10 differ" in answer(first, second).cells[0].because


def test_without_weights_at_the_end_bitwise_is_inconclusive(tmp_path: Path) -> None:
    first = spread(tmp_path / "a", level="bitwise")
    second = make_record(tmp_path / "b", ONE.replace("LEVEL", "bitwise"), lambda trial: Course(crash=trial.repeat == 2))
    found = answer(first, second)
    assert found.answer == "inconclusive" and "seed 2 ended as ok in the record and as crashed" in found.text()


def test_no_words_decide_what_is_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Resumed trials are a caution, and missing trials a refusal, in any words."""
    first, second = spread(tmp_path / "a", seed=1), spread(tmp_path / "b", seed=2)
    lost = Resumed(attempt=1, step=60, samples=3840, lost_seconds=8.8, clock="monotonic")
    resumed = replace(second, results=tuple(item.model_copy(update={"warnings": (lost,)}) for item in second.results))
    assert "caution:" not in answer(first, second).text()
    assert "caution: " in answer(first, resumed).text()
    asked = judge_module._request

    def reworded(*given: Any) -> ComparisonRequest:
        request = asked(*given)
        return replace(request, refusals=tuple("autre chose" for _ in request.refusals))

    monkeypatch.setattr(judge_module, "_request", reworded)
    monkeypatch.setattr(judge_module, "describe_resumed_trials", lambda _: ["tout autre"])
    assert "  caution: tout autre\n" in answer(first, resumed).text()
    found = answer(first, replace(second, results=second.results[:9]))
    assert (found.answer, found.cells[0].because) == ("inconclusive", "autre chose")


def test_error_rates_over_simulated_reproductions(tmp_path: Path) -> None:
    """True ratio 1.05, the edge of the margin: "reproduced" in 5 % at most; true ratio 1: never "not"."""
    from repro.bundle.judge import _cell, _request
    from repro.compare.evidence.evidence import examine
    from repro.compare.verdict.verdict import judged

    record = spread(tmp_path / "a")
    cell, base = record.plan.cells[0], list(record.results)
    generator = np.random.default_rng(3)
    wrong = {1.05: 0, 1.0: 0}
    for ratio in wrong:
        for _ in range(300):
            sides = [[item.model_copy(update={"tta_wall": math.exp(0.05 * float(generator.standard_normal())) * scale})
                      for item in base] for scale in (1.0, ratio)]
            evidence = examine(cell, cell, sides[1], sides[0],
                               _request(record.plan.suite, "tta_wall", sides[0], sides[1], 10))
            compared, = judged([evidence])
            said = _cell(cell, evidence, compared, 10).answer
            wrong[ratio] += said == ("reproduced" if ratio == 1.05 else "not reproduced")
    assert wrong[1.05] / 300 <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 300)
    assert wrong[1.0] == 0


# ---- what differs


def test_two_runs_alike_differ_in_nothing(tmp_path: Path) -> None:
    first, second = make_record(tmp_path / "a", only=4), make_record(tmp_path / "b", only=4)
    assert differences(first, second) == []


def test_order_seeds_are_information_and_no_difference(tmp_path: Path) -> None:
    roots = [make_record(tmp_path / name, only=4).folder for name in "ab"]
    assert diff_records(roots[0].root, roots[1].root).as_json()["order_seeds"] is None
    plan = read_record(roots[1].root).plan.model_copy(update={"order_seed": 7})
    write_model(roots[1].plan, plan.model_copy(update={"order": tuple(planned_order(plan))}))
    found = diff_records(roots[0].root, roots[1].root)
    assert found.found == () and found.as_json()["order_seeds"] == {"first": "20151102", "second": "7"}
    last = found.text().splitlines()[-1]
    assert last == "for information: order seed: 20151102 -> 7 (every run draws its own)"


def test_a_place_that_a_bundle_does_not_name_is_no_difference(tmp_path: Path) -> None:
    found = []
    for name, place in (("a", "<temporary>/cache_of_it"), ("b", "/tmp/cache_of_it"), ("c", "/tmp/another")):
        root = make_record(tmp_path / name, only=4).folder
        settings = {"NCCL_TOPO_FILE": place}
        write_model(root.environment, sample_environment().model_copy(update={"settings": settings}))
        found.append(read_record(root.root))
    assert differences(found[0], found[1]) == differences(found[1], found[0]) == []
    assert len(differences(found[0], found[2])) == len(differences(found[1], found[2])) == 1


def test_every_area_is_named(tmp_path: Path) -> None:
    first, second = make_record(tmp_path / "a", only=4), make_record(
        tmp_path / "b", make_suite().replace("lr: 0.1", "lr: 0.2"), only=4)
    changed = sample_environment().model_copy(update={
        "packages": ("torch==2.14.0", "gloo==1"), "libraries": {"torch": "2.14.0"}, "cpu": "Other",
        "governor": "powersave",
        "settings": {"OMP_NUM_THREADS": "4"}, "limits": {"cpu.max": "100000 100000"}, "repro_version": "1",
    })
    write_model(RunFolder(tmp_path / "b").environment, changed)
    found = {f"{item.area}: {item.name}: {item.first} -> {item.second}"
             for item in differences(first, read_record(second.folder.root))}
    for expected in ("libraries: torch: 2.13.0 -> 2.14.0", "libraries: gloo: absent -> 1",
                     "code: repro_version: 0 -> 1",
                     "hardware: cpu: Sample CPU -> Other", "hardware: governor: unknown -> powersave",
                     "settings: OMP_NUM_THREADS: 1 -> 4", "hardware: limit cpu.max: absent -> 100000 100000"):
        assert expected in found
    assert any(item.startswith("hyper-parameters: optimizer.lr") and item.endswith("0.1 -> 0.2") for item in found)
    assert any(item.startswith("experiment: digest") for item in found)
    between = between_executions(first, read_record(second.folder.root))
    assert {item.area for item in between} == {"code", "libraries", "hardware", "settings"}


def make_suite() -> str:
    from tests.records import SUITE

    return SUITE


# ---- what is chosen


def test_chosen_by_number_by_id_and_never_by_result(tmp_path: Path) -> None:
    record = make_record(tmp_path / "a")
    assert len(choose_trials(record, None)) == 24
    assert {repeat for _, repeat in choose_trials(record, "2")} == {0, 1} and len(choose_trials(record, "2")) == 8
    one = record.results[5]
    assert choose_trials(record, f" {one.trial_id}, {one.trial_id}") == [(one.cell_id, one.repeat)]
    for text, told in (("0", "--trials 0: must be at least 1"), ("nonsense", "no trial with a result named")):
        with pytest.raises(UsageError, match=told):
            choose_trials(record, text)
    with pytest.raises(UsageError, match="holds no result"):
        choose_trials(make_record(tmp_path / "b", only=0), None)


def test_the_plan_keeps_names_and_order_and_drops_the_rest(tmp_path: Path) -> None:
    plan = make_record(tmp_path / "a", only=1).plan
    chosen = [(plan.cells[2].cell_id, 3), (plan.cells[0].cell_id, 1)]
    small = reduce_plan(plan, chosen, Machine("cpu", 0, 2), 0)
    assert {trial.trial_id for trial in small.trials()} == {
        trial.trial_id for trial in plan.trials() if (trial.cell_id, trial.repeat) in chosen}
    assert small.digest == plan.digest


def test_trials_that_cannot_run_here_are_reported_before_anything_runs(tmp_path: Path) -> None:
    plan = make_record(tmp_path / "a", only=1).plan
    cell = plan.cells[0]
    choices = cell.choices.model_copy(update={"device": "cuda"})
    plan = plan.model_copy(update={"cells": (cell.model_copy(update={"choices": choices}), *plan.cells[1:])})
    with pytest.raises(UsageError, match="device cuda is requested, and this machine has no usable GPU"):
        reduce_plan(plan, [(cell.cell_id, 0)], Machine("cpu", 0, 2), 0)


def test_a_place_that_a_bundle_has_taken_out_is_no_difference(tmp_path: Path) -> None:
    records = []
    for name, place in (("one", f"{Path.home()}/topology.xml"), ("two", "<home>/topology.xml"), ("three", "other.xml")):
        record = make_record(tmp_path / name, only=0)
        settings = {"NCCL_TOPO_FILE": place, "TORCHINDUCTOR_CACHE_DIR": f"/somewhere/{name}"}
        write_model(record.folder.environment, record.environment.model_copy(update={"settings": settings}))
        records.append(read_record(record.folder.root))
    assert differences(records[0], records[1]) == []
    found, = differences(records[0], records[2])
    assert (found.name, found.second) == ("NCCL_TOPO_FILE", "other.xml")
