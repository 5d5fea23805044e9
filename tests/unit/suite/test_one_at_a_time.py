"""Suites whose cells differ from one reference in one factor."""

from __future__ import annotations

from pathlib import Path

import pytest

from repro.bundle.verify_plan import wrong_cells
from repro.compare.cells import CellIndex, contrast_pairs
from repro.core.errors import SuiteError
from repro.core.machine import Machine
from repro.suite.planning.cell import truly_labelled
from repro.suite.planning.plan import Plan, expand_again
from tests import plans
from tests.plans import suite

HERE = Machine("cpu", 0, 2)
SUITE = suite("ablation", """\
matrix:
  optimizer: [{kind: sgd, lr: 0.1}, {kind: adamw, lr: 0.01}]
  comm: [ring, tree, hybrid]
  workload.label_smoothing: [0.1, 0.0]
""", seeds=6, head="combine: one_at_a_time\n", optimizer="{kind: sgd, lr: 0.1}",
    stop="{metric: top1, target: 0.9, max_epochs: 2}", processes=2)


def planned(folder: Path, text: str = SUITE) -> Plan:
    return plans.planned(folder, text)


def test_each_cell_differs_from_the_reference_in_one_factor(tmp_path: Path) -> None:
    plan = planned(tmp_path)
    reference, *others = plan.cells
    assert len(others) == 4
    for cell in others:
        changed = [key for key in plan.suite.matrix if cell.factors[key] != reference.factors[key]]
        assert len(changed) == 1, cell.label
    assert expand_again(Plan.model_validate_json(plan.model_dump_json(by_alias=True)), HERE).digest == plan.digest


def test_each_is_compared_with_the_reference(tmp_path: Path) -> None:
    plan = planned(tmp_path)
    first, pairs = contrast_pairs(CellIndex(plan.cells), plan.suite)
    reference = plan.cells[0].cell_id
    assert first is None
    assert pairs == [(cell.cell_id, reference) for cell in plan.cells[1:]]


def test_another_baseline_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SuiteError, match=r"baseline: one_at_a_time compares with the first level of every factor"):
        planned(tmp_path, SUITE + "baseline: {comm: tree}\n")


def test_labels_name_only_what_differs_and_a_record_cannot_misname(tmp_path: Path) -> None:
    plan = planned(tmp_path)
    assert [cell.label for cell in plan.cells] == [
        "reference", "adamw (lr=0.01)", "tree (shape=heap)", "hybrid", "label smoothing 0.0"]
    assert truly_labelled(plan.cells) == plan.cells
    swapped = tuple(cell.model_copy(update={"label": other.label, "differs_in": other.differs_in})
                    for cell, other in zip(plan.cells, (plan.cells[1], plan.cells[0], *plan.cells[2:]), strict=True))
    assert [cell.label for cell in truly_labelled(swapped)][:2] == [
        "sgd (lr=0.1), ring, label smoothing 0.1", "adamw (lr=0.01), ring, label smoothing 0.1"]


@pytest.mark.parametrize(("text", "machine", "labels"), [
    (suite("small", "matrix: {processes: [1]}\n", head="combine: one_at_a_time\n"), HERE, ["reference"]),
    (suite("small", "matrix: {engine: [single, ddp, fsdp]}\n", head="combine: one_at_a_time\n", processes=2), HERE,
     ["ddp", "fsdp"]),
    (suite("small", "matrix: {device: [cpu, auto]}\n", engine="fake"), Machine("cuda", 1, 8),
     ["device cpu", "device cuda"]),
], ids=["one cell", "no reference", "device auto"])
def test_labels_are_what_a_reader_finds(tmp_path: Path, text: str, machine: Machine, labels: list[str]) -> None:
    """Else `verify` calls an unmodified plan modified, or reports name its cells otherwise than the plan did."""
    plan = plans.planned(tmp_path, text, machine=machine)
    assert [cell.label for cell in plan.cells] == labels
    assert truly_labelled(plan.cells) == plan.cells and not list(wrong_cells(plan))


@pytest.mark.parametrize("rest", [
    "baseline: {device: auto}\n", "primary: {candidate: {device: auto}, baseline: {device: cpu}}\n"])
def test_a_contrast_names_no_device_that_the_machine_decides(tmp_path: Path, rest: str) -> None:
    """No cell of a plan has device auto: the declared contrast was lost without a word."""
    text = suite("small", f"matrix: {{device: [auto, cpu]}}\n{rest}", engine="fake")
    with pytest.raises(SuiteError, match=r"names device auto, which the machine decides"):
        plans.planned(tmp_path, text, machine=Machine("cuda", 1, 8))


def test_a_baseline_that_every_cell_matches_is_named(tmp_path: Path) -> None:
    text = suite("small", "matrix: {processes: [1, 2]}\nbaseline: {engine: fake}\n", engine="fake")
    assert any(note.endswith("matches every cell, so none is compared with it: name a level of a factor")
               for note in plans.planned(tmp_path, text).notes)
