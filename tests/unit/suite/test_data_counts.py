"""Counts of prepared data are part of a plan, so that its record is read, verified and compared without the data."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from repro.bundle.verify import verify
from repro.compare.runs.merge import unlike
from repro.compare.runs.two_runs import Ran, forced
from repro.core.errors import UsageError
from repro.core.machine import Machine
from repro.record.environment.environment import DataSet
from repro.record.folder.store import Record
from repro.runner.preflight import absent_data, data_sets
from repro.seams.training import Workload
from repro.suite.planning.plan import Plan, expand_again
from repro.workloads.cifar10_form import Cifar10Form
from tests.in_process import called
from tests.made_data import cifar10_folder, prepared
from tests.plans import planned
from tests.records import SUITE, make_record, sample_environment

HERE = Machine("cpu", 0, 8)
TEXT = SUITE.split("matrix:")[0].replace("workload: digits", "workload: cifar10")


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("REPRO_DATA", str(tmp_path / "store"))
    return tmp_path / "store"


def _plan(folder: Path) -> Plan:
    return planned(folder, TEXT, machine=HERE)


def _workload(plan: Plan) -> Workload:
    return plan.cells[0].choices.workload.get(Workload)


def test_a_plan_takes_the_counts_of_the_prepared_data(tmp_path: Path) -> None:
    assert _workload(_plan(tmp_path)).train_samples == 50_000
    prepared(Cifar10Form(), cifar10_folder(tmp_path / "one"))
    plan = _plan(tmp_path)
    assert (_workload(plan).train_samples, _workload(plan).eval_samples) == (256, 64)
    assert plan.cells[0].choices.model_dump(mode="json")["workload"]["data"] == {
        "train_samples": 256, "eval_samples": 64}


def test_the_same_data_in_another_folder_are_the_same_cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepared(Cifar10Form(), cifar10_folder(tmp_path / "one"))
    first = _plan(tmp_path)
    monkeypatch.setenv("REPRO_DATA", str(tmp_path / "elsewhere"))
    prepared(Cifar10Form(), cifar10_folder(tmp_path / "two"))
    second = _plan(tmp_path)
    assert first.digest == second.digest
    assert [cell.cell_id for cell in first.cells] == [cell.cell_id for cell in second.cells]
    assert [item.sha256 for item in data_sets(first)] == [item.sha256 for item in data_sets(second)]
    assert str(tmp_path) not in second.model_dump_json()


def test_a_record_is_read_and_expanded_again_without_the_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared(Cifar10Form(), cifar10_folder(tmp_path / "one"))
    text = _plan(tmp_path).model_dump_json(by_alias=True)
    for place in ("nowhere", "other"):
        monkeypatch.setenv("REPRO_DATA", str(tmp_path / place))
        if place == "other":
            prepared(Cifar10Form(), cifar10_folder(tmp_path / "more", train=512))
        plan = Plan.model_validate_json(text)
        again = expand_again(plan, HERE)
        assert again.digest == plan.digest and again.cells == plan.cells
        assert _workload(plan).train_samples == 256
        assert plan.absent_plugins() == []
    assert absent_data(plan) == ["cifar10: the plan is for data with train_samples 256, those prepared here have 512; "
                                 "a new plan takes the numbers of the prepared data"]


def test_a_record_cannot_change_what_a_workload_of_this_package_is(tmp_path: Path) -> None:
    prepared(Cifar10Form(), cifar10_folder(tmp_path / "one"))
    raw = json.loads(_plan(tmp_path).model_dump_json(by_alias=True))
    raw["plugins"][0]["facts"]["metrics"] = {"top1": "lower"}
    raw["plugins"][0]["facts"]["train_samples"] = 7
    plan = Plan.model_validate_json(json.dumps(raw))
    assert _workload(plan).metrics == {"top1": "higher"}
    assert _workload(plan).train_samples == 256


def test_a_run_made_on_prepared_data_is_sound_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepared(Cifar10Form(), cifar10_folder(tmp_path / "one", train=1437, held_out=360))
    record = make_record(tmp_path / "run", TEXT)
    monkeypatch.setenv("REPRO_DATA", str(tmp_path / "nowhere"))
    found = verify(record.folder.root)
    assert [item for item in found.problems if item.kind != "missing"] == []  # the record has no index
    assert found.checked["plans expanded again"] == 1


def test_too_few_samples_for_the_processes_are_skipped_with_the_reason(tmp_path: Path) -> None:
    prepared(Cifar10Form(), cifar10_folder(tmp_path / "one", held_out=2))
    plan = planned(tmp_path, TEXT + "matrix:\n  processes: [1, 4]\n", machine=HERE)
    assert [item.reason for item in plan.skipped] == [
        "workload cifar10: too few samples: the data have 256 for training and 2 for evaluation, fewer than the 4 "
        "processes"]


def test_runs_on_other_data_are_neither_merged_nor_compared(tmp_path: Path) -> None:
    record = make_record(tmp_path / "run", SUITE)

    def on(sha256: str) -> Record:
        data = DataSet(workload="digits", name="d", version="1", sha256=sha256 * 64, train_samples=1, eval_samples=1,
                       licence="", source="", synthetic=False)
        return replace(record, environment=sample_environment().model_copy(update={"data": (data,)}))

    assert unlike(on("a"), on("a")) == ""
    assert "other data of digits (aaaaaaaaaaaa against bbbbbbbbbbbb)" in unlike(on("a"), on("b"))
    first, second = (Ran(name, record.plan, record.results, on(name).environment) for name in "ab")
    with pytest.raises(UsageError, match=r"data of digits .* the same data can"):
        forced(first, second, force=False)
    assert forced(first, first, force=False) == ()


# ---- commands

def _invoke(*arguments: str) -> tuple[int, str]:
    ended = called(*arguments)
    return ended.exit_code, ended.output + (str(ended.exception) if ended.exception else "")


def test_a_plan_without_data_says_what_to_do(tmp_path: Path, store: Path) -> None:
    for suite in ("cifar10", "imagenet"):
        code, text = _invoke("plan", suite)
        assert code == 0
        line = next(line for line in text.splitlines() if "cannot be run here" in line)
        for part in (f"{store}/{suite}/manifest.json", f"repro data prepare {suite} --from FOLDER",
                     f"-o workload={suite}-synthetic"):
            assert part in line
        code, text = _invoke("plan", suite, "-o", f"workload={suite}-synthetic")
        assert code == 0 and "cannot be run here" not in text
    code, text = _invoke("plan", "cifar10", "--json")
    assert len(json.loads(text[text.index("{"):])["absent_data"]) == 1


def test_the_commands_prepare_list_and_check(tmp_path: Path, store: Path) -> None:
    folder = cifar10_folder(tmp_path / "one")
    code, text = _invoke("data", "list")
    assert code == 0 and f"not prepared: no {store}/cifar10/manifest.json" in text and "0.94 top-1" in text
    code, text = _invoke("data", "prepare", "cifar10", "--from", str(folder))
    assert code == 0 and "cifar10 is prepared: 3 files" in text and "not the official files" in text
    code, text = _invoke("data", "list", "--json")
    row = next(row for row in json.loads(text)["rows"] if row["name"] == "cifar10")
    assert row["prepared"] and row["folder"] == str(folder) and row["bytes"] == 320 * 3073
    assert _invoke("data", "check", "cifar10")[0] == 0
    (folder / "test_batch.bin").write_bytes(bytes(64 * 3073))
    code, text = _invoke("data", "check", "cifar10")
    assert code != 0 and "test_batch.bin" in text and "has changed since the manifest was made" in text
    code, text = _invoke("data", "prepare", "cifar", "--from", str(folder))
    assert code != 0 and "no data set named 'cifar'; did you mean 'cifar10'?" in text
