"""Sentences and names decide nothing: other words in notes, titles, ledgers and of plug-ins change nothing."""

from __future__ import annotations

import importlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from repro.bundle.verify import verify
from repro.cli.workflows.reproduce import reduce_plan
from repro.compare.design.calibration import nulls_of, twin_plan
from repro.compare.findings import findings
from repro.compare.runs.merge import sections
from repro.core import registry
from repro.core.errors import SuiteError
from repro.core.files import read_model, write_model
from repro.core.frozen import canonical
from repro.core.machine import Machine
from repro.engines.deepspeed_zero import DeepSpeedZero
from repro.engines.torch_engines import Ddp, Single
from repro.record.derive.effective import mismatches
from repro.record.folder.index import seal
from repro.record.folder.store import Record, read_record
from repro.suite.choice import parse_choice
from repro.suite.file import read_suite
from repro.suite.kinds.kinds import KINDS
from repro.suite.kinds.training import TrainingConfig
from repro.suite.model import Trial
from repro.suite.planning.plan import Plan
from repro.suite.planning.terms import Terms
from tests.plans import planned, setting
from tests.records import SUITE, Course, make_record

MACHINE = Machine("cpu", 0, 2)
OTHER_WORDS = "Quite another sentence."


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    return planned(tmp_path, SUITE)


def reworded(plan: Plan) -> Plan:
    """The plan as it is read from a file in which every sentence says something else."""
    data = plan.model_dump(mode="json", by_alias=True)
    data["notes"] = [OTHER_WORDS for _ in data["notes"]]
    data["suite"]["title"] = OTHER_WORDS
    return Plan.model_validate_json(json.dumps(data))


# ---- plans


def test_the_kind_of_a_plan_decides(plan: Plan) -> None:
    part = reduce_plan(plan, [(cell.cell_id, 0) for cell in plan.cells], MACHINE, 0,
                       Terms(pairs=1, margin=0.05))
    twins = twin_plan(plan, plan.cells[:2], 6, 1)
    assert [item.kind for item in (plan, part, twins)] == ["suite", "reproduction", "calibration"]
    assert [reworded(item).kind for item in (plan, part, twins)] == ["suite", "reproduction", "calibration"]
    assert [reworded(item).has_twins for item in (plan, part, twins)] == [False, False, True]


@pytest.mark.parametrize("words", [
    "a reproduction: of nothing", "A/A: cells of nothing", "2 repeats make a smoke test, not a result"])
def test_no_words_make_a_suite_another_kind_of_plan(plan: Plan, words: str) -> None:
    data = plan.model_dump(mode="json", by_alias=True)
    data["notes"], data["suite"]["title"] = [words], words
    found = Plan.model_validate(data)
    assert (found.kind, found.has_twins, found.smoke, found.smoke_note) == ("suite", False, False, "")


def test_a_trial_states_its_side_only_if_its_choices_do_not_name_it(plan: Plan) -> None:
    twins = twin_plan(plan, plan.cells[:1], 6, 1)
    first, second = (twins.trial(cell, 0) for cell in twins.cells)
    assert first.choices == second.choices
    assert (first.side, second.side) == ("", "B")
    assert first.trial_id == plan.trial(plan.cells[0], 0).trial_id != second.trial_id
    assert [trial.cell_id for trial in (first, second)] == [cell.cell_id for cell in twins.cells]
    assert Trial.model_validate_json(second.model_dump_json(by_alias=True)).trial_id == second.trial_id


def test_nulls_come_from_twins_whatever_they_are_called(tmp_path: Path) -> None:
    record = make_record(tmp_path / "run", SUITE)
    twins = reworded(twin_plan(record.plan, record.plan.cells[:1], 6, 1))
    cells = [cell.model_copy(update={"label": OTHER_WORDS, "factors": {}}) for cell in twins.cells]
    results = tuple(
        record.results[0].model_copy(update={
            "trial_id": trial.trial_id, "cell_id": trial.cell_id, "repeat": trial.repeat,
            "tta_wall": 1 + trial.repeat * 0.1 + (0.01 * trial.repeat if trial.side else 0.0)})
        for trial in twins.trials())
    twins = twins.model_copy(update={"cells": tuple(cells)})
    found, problems = nulls_of(replace(record, plan=twins, results=results), twins.cells, "tta_wall", 6)
    assert ([item.how for item in found], problems) == (["twins"], [])


# ---- merged runs


def merged(tmp_path: Path) -> Record:
    early = make_record(tmp_path / "early", SUITE, lambda trial: Course())
    late = make_record(tmp_path / "late", SUITE, lambda trial: Course(step_seconds=0.02))
    return sections([early.folder.root, late.folder.root], tmp_path / "out")[0].record


def test_verify_reads_the_source_and_not_the_reason(tmp_path: Path) -> None:
    root = merged(tmp_path).folder.root
    lines = [json.loads(line) for line in (root / "ledger.jsonl").read_text().splitlines()]
    for line in lines:
        line["reasons"] = [{"kind": "stated", "text": OTHER_WORDS}] if line["source"] else line["reasons"]
    (root / "ledger.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    seal(read_record(root).folder)
    found = verify(root)
    assert found.sound and not any("yet to run" in text for text in found.notes), found


# ---- what ran


@pytest.mark.parametrize(("ran", "sound"), [
    ({"comm_algorithm": "ring", "comm_collectives": "all_reduce"}, True), ({"comm_algorithm": "ring"}, False),
    ({"comm_algorithm": "tree", "comm_collectives": "all_reduce"}, False), ({"comm_algorithm": "backend"}, False),
])
def test_the_algorithm_that_ran_is_read_from_fields(plan: Plan, ran: dict[str, str], sound: bool) -> None:
    choices = TrainingConfig.model_validate({**plan.cells[1].choices.model_dump(mode="json", by_alias=True),
                                             "comm": "ring"})
    assert choices.processes == 2
    for words in (OTHER_WORDS, "ring: all_reduce; over gloo", "gloo"):
        assert (mismatches(choices, {"comm": words, **ran}, {}) == []) is sound


# ---- kinds of trial


@pytest.mark.parametrize(("kind", "problem"), [
    ("measurment", r"trial\.kind: no kind of trial named 'measurment'; did you mean .*measurement"),
    ("trainng", r"trial\.kind: no kind of trial named 'trainng'; did you mean .*training"),
])
def test_an_unknown_kind_is_one_clear_error(tmp_path: Path, kind: str, problem: str) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(SUITE.replace("trial:\n", f"trial:\n  kind: {kind}\n"))
    with pytest.raises(SuiteError, match=rf"s\.yaml:\d+: {problem}") as error:
        read_suite(str(path))
    assert len(str(error.value).splitlines()) == 1
    path.write_text(f"suite: s\ntrial: {{kind: {kind}, command: [make]}}\n")
    with pytest.raises(SuiteError, match=problem):
        read_suite(str(path))


def test_training_named_or_not_is_the_same_trial(plan: Plan, tmp_path: Path) -> None:
    named = planned(tmp_path, SUITE.replace("trial:\n", "trial:\n  kind: training\n"), machine=MACHINE)
    assert [cell.cell_id for cell in named.cells] == [cell.cell_id for cell in plan.cells]
    assert named.digest == plan.digest
    assert "kind" not in json.loads(canonical(plan.cells[0].choices))


def test_every_kind_implements_the_members_that_planning_needs(plan: Plan) -> None:
    assert list(KINDS) == ["training", "program", "measurement"]
    assert not any(kind.__abstractmethods__ for kind in KINDS.values())
    for cell in plan.cells:
        choices = cell.choices
        assert not choices.__abstractmethods__
        assert choices.cell_id.startswith(choices.slug) and choices.title
        assert {choice.seam for choice in choices.plugins()} == set(choices.plugin_fields) <= set(registry.SEAMS)
        assert choices.full_budget_seconds(2) > 0 and choices.log_size().steps > 0 and choices.rank_logs() >= 1


# ---- files


def test_a_written_plan_is_read_back(plan: Plan, tmp_path: Path) -> None:
    for item in (plan, twin_plan(plan, plan.cells, 6, 1)):
        write_model(tmp_path / "plan.json", item)
        assert read_model(tmp_path / "plan.json", Plan) == item


# ---- the page and the engines


cells = importlib.import_module("repro.reporters.page.cells")
notices = importlib.import_module("repro.reporters.page.notices").notices


def smoke_plan(root: Path) -> Plan:
    return planned(root, SUITE.replace("seeds: 6", "seeds: 3"))


# ---- notes of a plan


def test_the_note_of_a_smoke_test_is_known_in_any_words(tmp_path: Path) -> None:
    data = json.loads(smoke_plan(tmp_path).model_dump_json(by_alias=True))
    assert data["smoke_note"] in data["notes"]
    data["notes"] = [OTHER_WORDS if note == data["smoke_note"] else note for note in data["notes"]]
    data["smoke_note"] = OTHER_WORDS
    record = make_record(tmp_path / "run")
    found = notices(findings(replace(record, plan=Plan.model_validate(data))))
    assert [item.title for item in found if item.text == OTHER_WORDS] == ["Smoke test"]
    assert not [item for item in notices(findings(record)) if item.title == "Smoke test"]


def test_words_of_another_note_make_no_smoke_test(tmp_path: Path) -> None:
    record = make_record(tmp_path / "run")
    plan = record.plan.model_copy(update={"notes": ("2 repeats make a smoke test, not a result",)})
    found = notices(findings(replace(record, plan=plan)))
    assert [item.title for item in found if item.text == plan.notes[0]] == ["Plan"]


# ---- origins


def test_origins_are_several_words_and_not_one_text() -> None:
    mark = cells.CellMark(1, "c", "cell", "cell", 0, "solid", "circle", "measured")
    assert cells.origins([mark, replace(mark, origin="emulated"), mark]) == ("measured", "emulated")
    assert cells.origins([]) == ("measured",)


# ---- what plug-ins can do


@pytest.mark.parametrize(("engine", "fields", "words"), [
    (Single(), {"own_algorithm": True}, "comm 'mine' would have no effect"), (Single(), {}, None),
    (Ddp(), {"compression": "fp16", "weights": "bfloat16"}, "under mine gradients already have 16 bits"),
    (Ddp(), {"compression": "fp16"}, None),
    (DeepSpeedZero(stage=1), {"autocast": "float16"}, "under fp16 autocast in ZeRO 1"),
    (DeepSpeedZero(stage=0), {"weights": "float16", "master_weights": True}, "use stage 1 to 3"),
    (DeepSpeedZero(stage=1), {"compression": "fp16", "autocast": "bfloat16"}, "only under fp32, not mine"),
    (DeepSpeedZero(stage=1), {"compression": "fp16"}, None),
])
def test_an_engine_judges_what_a_choice_does_and_not_its_name(
    engine: Single | Ddp | DeepSpeedZero, fields: dict[str, Any], words: str | None
) -> None:
    one_gpu = {"processes": 1, "device": "cuda", "device_count": 1}
    reason = engine.unsupported(setting(comm="mine", precision="mine", **one_gpu, **fields))
    assert reason is None if words is None else words in (reason or "")


def test_a_trial_says_what_its_choices_can_do(tmp_path: Path) -> None:
    choices = smoke_plan(tmp_path).cells[0].choices
    chosen = choices.model_copy(update={"comm": parse_choice("comm", "ring"),
                                        "precision": parse_choice("precision", "fp16-master")})
    found, plain = chosen.setting("cpu", 0), choices.setting("cpu", 0)
    assert (found.own_algorithm, found.weights, found.autocast, found.master_weights) == (True, "float16", None, True)
    assert (plain.own_algorithm, plain.weights, plain.autocast, plain.master_weights) == (False, "float32", None, False)
