"""Which program a gate compares with which, and what it takes for one that an earlier start has compared."""

from __future__ import annotations

from pathlib import Path

import pytest

from repro.runner.program_gate import passed, references_of
from tests.plans import plan_file

SUITE = """\
suite: gated
seeds: 1
trial:
  engine: {kind: program, run: [python, train.py, "{seed}", "{backend}", "{dropout}"]}
  parameters: {backend: none, dropout: 0.0}
  evaluation: {reader: watch, metric: loss, direction: lower}
  stop: {target: 1.0}
  gate: {steps: 2}
matrix: {parameters.backend: [none, ddp, zero], parameters.dropout: [0.0, 0.2]}
"""


@pytest.mark.parametrize(("baseline", "wanted"), [
    ("baseline: {parameters.backend: none}", ["none 0.0", "none 0.2"] * 3),
    ("baseline: {parameters.backend: ddp, parameters.dropout: 0.2}", ["ddp 0.2"] * 6),
    ("primary:\n  candidate: {parameters.backend: ddp, parameters.dropout: 0.2}\n"
     "  baseline: {parameters.backend: none, parameters.dropout: 0.2}\n", ["none 0.0", "none 0.2"] * 3),
    ("", ["none 0.0"] * 6),
])
def test_each_is_compared_with_the_baseline_that_has_its_other_factors(
    baseline: str, wanted: list[str], tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text("")
    (tmp_path / "suite.yaml").write_text(SUITE + baseline)
    plan = plan_file(tmp_path / "suite.yaml")
    found = references_of(plan, plan.cells)
    named = [found[cell.cell_id].choices.parameters for cell in plan.cells]
    assert [f"{each['backend']} {each['dropout']}" for each in named] == wanted


def test_a_verdict_of_other_files_does_not_count(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    (tmp_path / "suite.yaml").write_text(SUITE)
    plan = plan_file(tmp_path / "suite.yaml")
    findings = [{"group": "programs", "reference": "a", "candidate": cell.label, "problem": "",
                 "largest_difference": 0.0, "cell": cell.cell_id, "files": cell.choices.engine.sha256}
                for cell in plan.cells]
    assert passed(plan, {"findings": findings})
    assert not passed(plan, {"findings": [*findings[:-1], findings[-1] | {"files": "0" * 64}]})
    assert not passed(plan, {"findings": [*findings[:-1], findings[-1] | {"problem": "step 1"}]})
    assert not passed(plan, None)
