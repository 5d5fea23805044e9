"""`contrasts` of a suite: factors only, one line otherwise, in the digest only if there are any."""

from __future__ import annotations

from pathlib import Path

import pytest

from repro.core.errors import SuiteError
from tests.plans import planned
from tests.records import SUITE


@pytest.mark.parametrize(("written", "said"), [
    ("[engine, overlap]", "'overlap' is not a factor; factors of this suite with several levels: engine, processes"),
    ("[processes, processes]", "'processes' is named twice"),
    ("[precision]", "factor 'precision' has one level, so it has no effect"),
])
def test_a_contrast_that_is_no_factor_is_one_line_with_its_place(tmp_path: Path, written: str, said: str) -> None:
    text = SUITE.replace("  processes: [1, 2]\n", "  processes: [1, 2]\n  precision: [fp32]\n", 1)
    with pytest.raises(SuiteError) as error:
        planned(tmp_path, f"{text}contrasts: {written}\n")
    message = str(error.value)
    assert said in message and "suite.yaml:" in message and "contrasts[" in message and "\n" not in message
    assert f":{text.count(chr(10)) + 1}:" in message


def test_an_override_that_removes_a_factor_drops_its_main_effect_with_a_note(tmp_path: Path) -> None:
    plan = planned(tmp_path, SUITE + "contrasts: [engine, processes]\n", "engine=ddp")
    assert plan.suite.contrasts == ("processes",)
    assert any("main effects of engine are dropped" in note for note in plan.notes)


def test_a_level_that_is_the_default_has_its_name_and_is_meant_by_it(tmp_path: Path) -> None:
    text = SUITE.replace("  processes: [1, 2]\n", "  eval_batch: [8, 512]\n", 1).partition("primary:")[0]
    plan = planned(tmp_path, f"{text}primary: {{candidate: {{engine: ddp, eval_batch: 8}}, "
                             "baseline: {engine: ddp, eval_batch: 512}}\n")
    assert [cell.factors["eval_batch"] for cell in plan.cells] == ["8", "512"] * (len(plan.cells) // 2)
    assert all(cell.well_labelled for cell in plan.cells) and not any("None" in cell.label for cell in plan.cells)
    without = planned(tmp_path, text.replace("  eval_batch: [8, 512]\n", ""))
    assert {cell.cell_id for cell in without.cells} < {cell.cell_id for cell in plan.cells}, "no other cell than before"


def test_contrasts_are_in_the_digest_only_if_there_are_any(tmp_path: Path) -> None:
    plain = planned(tmp_path, SUITE)
    asked = planned(tmp_path, SUITE + "contrasts: [engine]\n")
    assert planned(tmp_path, SUITE + "contrasts: []\n").digest == plain.digest != asked.digest
