"""What the page and the engines decide comes from fields: neither words of notes and reasons nor names of plug-ins."""

from __future__ import annotations

import importlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from repro.compare.findings import findings
from repro.engines.deepspeed_zero import DeepSpeedZero
from repro.engines.torch_engines import Ddp, Single
from repro.suite.choice import parse_choice
from repro.suite.planning.plan import Plan
from tests.plans import planned, setting
from tests.records import SUITE, make_record

cells = importlib.import_module("repro.reporters.page.cells")
notices = importlib.import_module("repro.reporters.page.notices").notices

OTHER_WORDS = "Quite another sentence."


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
