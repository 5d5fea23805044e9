"""What a plan says of its cells and its order follows from their choices and its seed: anything else is seen."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import repro
from repro.bundle import verify_plan
from repro.bundle.verify import verify
from repro.bundle.verify_files import Verification
from repro.bundle.verify_plan import check_plan, check_suite_file, made_by, this_code
from repro.cli.workflows.reproduce import reduce_plan
from repro.compare.design.calibration import twin_plan
from repro.compare.runs.runs import compare_runs
from repro.core.errors import OutputError
from repro.core.files import write_model
from repro.core.machine import Machine
from repro.record.environment.environment import commit, edits_sha256
from repro.record.folder import index
from repro.record.folder.store import RunFolder, read_plan, read_record
from repro.suite.file import bundled, read_suite
from repro.suite.planning.plan import Drawn, Plan, make_plan, planned_order
from repro.suite.planning.terms import Terms
from repro.suite.recorded import is_label, is_text_of
from tests.records import SUITE, make_record

Change = Callable[[Any], Any]


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    record = make_record(tmp_path_factory.mktemp("words") / "run")
    environment = record.environment.model_copy(update={
        "repro_version": repro.__version__, "commit": commit(), "diff_sha256": edits_sha256()})
    write_model(record.folder.environment, environment)
    index.seal(record.folder)
    return record.folder.root


def change(run: Path, edit: Change, name: str = "plan.json") -> None:
    """Change a file as somebody does who also writes the index again."""
    data = json.loads((run / name).read_text())
    edit(data)
    (run / name).write_text(json.dumps(data))
    index.seal(RunFolder(run))


def swap(data: Any, *fields: str) -> None:
    """Swap fields of each DDP cell with those of the DeepSpeed cell of as many processes."""
    cells = sorted(data["cells"], key=lambda cell: (cell["choices"]["processes"], cell["choices"]["engine"]["kind"]))
    for one, other in zip(cells[::2], cells[1::2], strict=True):
        for field in fields:
            one[field], other[field] = other[field], one[field]


def test_swapped_labels_are_seen_and_turn_no_verdict(run: Path) -> None:
    before = [(item.candidate, item.baseline, item.ratio, item.verdict) for item in compare_runs([run]).comparisons]
    change(run, lambda data: swap(data, "label", "factors"))
    # As a record of other code, whose wording may differ.
    change(run, lambda data: data.update(repro_version="0.1.1", commit=None), "environment.json")
    places = [item.what.partition(" is labelled")[0] for item in verify(run).problems]
    assert len(places) == len(read_record(run).plan.cells)
    after = compare_runs([run]).comparisons
    assert [(item.candidate, item.baseline, item.ratio, item.verdict) for item in after] == before
    labels = {cell.choices.engine.kind: cell.label.split(",")[0] for cell in read_plan(run / "plan.json").cells}
    assert labels == {"ddp": "ddp", "deepspeed": "deepspeed (stage=1)"}


def cell(**fields: Any) -> Change:
    return lambda data: data["cells"][0].update(fields)


@pytest.mark.parametrize(("edit", "said"), [
    (lambda data: swap(data, "label"), "is labelled"),
    (lambda data: swap(data, "factors"), "is labelled"),
    (cell(label="deepspeed", factors={}), "is labelled"),
    (cell(label="ddp", factors={"engine": "ddp"}), "has the factors 'engine'"),
    (cell(label="ddp, 1 process", factors={"processes": "1", "engine": "ddp"}), "has the factors"),
    (cell(twin_of="another"), "is the twin of"),
    (lambda data: [item.update(side="A", label=f"{item['label']} [A]", factors=item["factors"] | {"A/A": "A"})
                   for item in data["cells"]], "sides of a calibration"),
    (lambda data: data.update(smoke_note="x", notes=["x"]), "smoke_note"),
    (lambda data: data["suite"].update(title="Another"), "suite.title"),
    (lambda data: data["suite"].update(description="Another"), "suite.description"),
    (lambda data: data.update(skipped=[{"label": "x", "factors": {}, "reason": "slow"}]), "skipped: 'x'"),
    (lambda data: data.update(cores=99), "cores is 99"),
    (lambda data: data.update(device="tpu"), "device is 'tpu'"),
], ids=lambda value: value.replace(" ", "-") if isinstance(value, str) else "")
def test_a_plan_that_says_what_does_not_follow_is_modified(run: Path, edit: Change, said: str) -> None:
    change(run, edit)
    assert any(said in item.what for item in verify(run).problems), verify(run).text()


def test_a_missing_note_is_seen(tmp_path: Path) -> None:
    record = make_record(tmp_path / "run", SUITE.replace("seeds: 6", "seeds: 3"), only=1)
    index.seal(record.folder)
    assert record.plan.smoke_note and verify(tmp_path / "run").unmodified
    change(tmp_path / "run", lambda data: data.update(smoke_note="", notes=[]))
    assert any("smoke_note" in item.what for item in verify(tmp_path / "run").problems)


def test_a_twin_of_another_cell_is_seen(run: Path) -> None:
    record = read_record(run)
    twins = twin_plan(record.plan, record.plan.cells[:2], 6, 1)
    assert all(item.well_paired and item.well_labelled for item in twins.cells)
    ids = [item.cell_id for item in twins.cells]
    wrong = twins.cells[1].model_copy(update={"twin_of": ids[2]})
    write_model(record.folder.plan, twins.model_copy(update={"cells": (twins.cells[0], wrong, *twins.cells[2:])}))
    assert any("is the twin of" in item.what for item in verify(run).problems)


def test_a_description_of_a_plugin_states_its_options(run: Path) -> None:
    change(run, lambda data: data["plugins"].append(
        {"seam": "optimizer", "kind": "leo", "shown": "leo (lr=0.2)", "options": {"lr": 0.1}, "facts": {}}))
    with pytest.raises(OutputError, match="shown: states other options"):
        read_record(run)


@pytest.mark.parametrize(("text", "holds"), [
    ("leo", True), ("leo (lr=0.1)", True), ("leo (level=1, lr=0.1)", True), ("leo (level=1.0)", True),
    ("leo (betas=[0.9,1.0], name=a, b)", True), ("leo (more={\"x\":1})", True), ("leo (on=True)", True),
    ("leo (lr=0.2)", False), ("leo (lr=0.1, level=1)", False), ("leo (on=1)", False), ("leo ()", False),
    ("adam (lr=0.1)", False), ("leo (lr=0.1) x", False), ("leo (other=1)", False), ("leo (lr=0.12)", False),
])
def test_a_label_may_leave_out_options_but_states_none_wrongly(text: str, holds: bool) -> None:
    options = {"lr": 0.1, "level": 1.0, "betas": [0.9, 1], "name": "a, b", "more": {"x": 1, "y": 2}, "on": True}
    assert is_label(text, "leo", options) is holds


def test_a_number_is_the_same_as_integer_and_as_float() -> None:
    assert is_text_of("1", 1.0) and is_text_of("1.0", 1) and not is_text_of("1", True) and not is_text_of("1", "01")


def test_a_label_that_leaves_out_what_tells_cells_apart_is_not_read(run: Path) -> None:
    def shorten(data: Any) -> None:
        for item in data["cells"]:
            if item["choices"]["engine"]["kind"] == "deepspeed":
                item["label"] = item["label"].replace("deepspeed (stage=1)", "deepspeed")
                item["factors"]["engine"] = "deepspeed"

    change(run, shorten)
    change(run, lambda data: data.update(repro_version="0.1.1", commit=None), "environment.json")
    assert verify(run).sound  # words of other code
    assert {cell.label.split(",")[0] for cell in read_plan(run / "plan.json").cells} == {"ddp", "deepspeed (stage=1)"}


def test_a_suite_that_is_not_that_of_the_cells_is_seen_by_the_code_that_made_them(run: Path) -> None:
    """The digest still is that of the cells, which only another version may expand from this suite."""
    change(run, lambda data: data["suite"]["trial"]["stop"].update(target=0.5))
    assert any("digest is " in item.what for item in verify(run).problems)
    change(run, lambda data: data.update(repro_version="0.1.1", commit=None), "environment.json")
    assert any("expands the suite differently" in note for note in verify(run).notes)


@pytest.mark.parametrize("devices", [2, 8])
def test_a_reproduction_keeps_what_its_record_skipped_on_another_machine(devices: int) -> None:
    source = read_suite("quickstart", ("processes=1,2,4",))
    plan = make_plan(source.suite, Machine("cuda", 2, 16), source.problem, True, Drawn(3, 4))
    assert plan.skipped
    again = reduce_plan(plan, [(plan.cells[0].cell_id, 0)], Machine("cuda", devices, 16), 77,
                        Terms(pairs=1, margin=0.05))
    found = Verification("run")
    check_plan(again, this_code(), found)
    assert found.sound, found.text()


def test_a_checkout_that_was_edited_since_is_other_code(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = read_record(run).environment.model_copy(update={"diff_sha256": None})
    again = made.model_copy(update={"diff_sha256": "a" * 64})
    this_code.cache_clear()
    monkeypatch.setattr(verify_plan, "edits_sha256", lambda: "a" * 64)
    try:
        assert this_code() == made_by(again) == f"{made_by(made)} with edits {'a' * 12}"
    finally:
        this_code.cache_clear()


def test_a_suite_file_that_is_missing_is_said(run: Path) -> None:
    (run / "suite.yaml").unlink()
    index.seal(RunFolder(run))
    assert any("suite.yaml is missing" in note for note in verify(run).notes)


def test_a_suite_file_that_is_not_what_ran_is_a_note(tmp_path: Path) -> None:
    folder = make_record(tmp_path, only=4).folder
    assert not any("not what ran" in note for note in verify(folder.root).notes)
    text = folder.suite.read_text().replace("target: 0.9", "target: 0.99").replace("stage: 1", "stage: 3")
    folder.suite.write_text(f"{text}margin: 0.5\n")
    (note,) = (note for note in verify(folder.root).notes if "not what ran" in note)
    assert "trial.stop.target: 0.99, ran 0.9; " in note and "margin: 0.5, ran 0.05; " in note
    assert "matrix.engine: " in note


@pytest.mark.parametrize("name", bundled())
def test_a_suite_that_ran_as_written_has_no_such_note(name: str, tmp_path: Path) -> None:
    source = read_suite(name)
    if source.suite.tune is not None:
        pytest.skip("its plan follows from a tuning")
    (tmp_path / "suite.yaml").write_text(source.text)
    found = Verification("run")
    check_suite_file(make_plan(source.suite, Machine("cpu", 0, 2), source.problem), tmp_path / "suite.yaml", found)
    assert found.sound and not found.notes, found.text()


# ---- the order follows from its seed


MACHINE = Machine("cpu", 0, 2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return make_record(tmp_path_factory.mktemp("order") / "run", only=1).folder


@pytest.fixture(scope="module")
def plan(folder: RunFolder) -> Plan:
    return Plan.model_validate_json(folder.plan.read_bytes())


def problems(plan: Plan) -> list[str]:
    found = Verification(source="")
    check_plan(plan, "this", found)
    return [item.what for item in found.problems]


def turned(plan: Plan) -> Plan:
    return plan.model_copy(update={"order": plan.order[::-1]})


def some(plan: Plan) -> Plan:
    chosen = [(plan.cells[cell].cell_id, repeat) for cell, repeat in ((0, 1), (2, 1), (2, 4))]
    return reduce_plan(plan, chosen, MACHINE, 3, Terms(pairs=1, margin=0.05))


@pytest.mark.parametrize("made", [
    lambda plan: plan, lambda plan: twin_plan(plan, plan.cells[:2], 6, 1), some,
    lambda plan: some(twin_plan(plan, plan.cells[:2], 6, 1))], ids=["suite", "calibration", "reproduction", "of twins"])
def test_another_order_than_that_of_its_seed_is_seen(plan: Plan, made: Callable[[Plan], Plan]) -> None:
    found = made(plan)
    assert problems(found) == []
    assert [text.partition(":")[0] for text in problems(turned(found))] == [
        f"order is not the one that its order_seed {found.order_seed} gives"]


def test_cells_that_changed_places_are_seen(plan: Plan) -> None:
    """Otherwise another list of cells gives any order that somebody wants."""
    (said,) = problems(plan.model_copy(update={"cells": plan.cells[::-1]}))
    assert said.startswith("order is not the one that its order_seed 20151102 gives: it differs from trial 1 on")


def test_a_record_says_so_with_an_index_that_fits(folder: RunFolder, plan: Plan, tmp_path: Path) -> None:
    write_model(folder.plan, turned(plan))
    index.seal(folder)
    assert any(item.what.startswith("order is not") for item in verify(folder.root).problems)
    write_model(folder.plan, plan)


def test_a_reproduction_has_an_order_of_its_own(plan: Plan) -> None:
    everything = [(cell.cell_id, repeat) for cell in plan.cells for repeat in range(plan.suite.seeds)]
    again = reduce_plan(plan, everything, MACHINE, 3, Terms(pairs=1, margin=0.05))
    assert again.order != plan.order and set(again.order) == set(plan.order)
    assert again.order == tuple(planned_order(again))
