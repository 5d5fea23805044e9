"""The order of a record: it follows from the seed that was drawn for it, in every kind of plan."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from repro.bundle.verify import verify
from repro.bundle.verify_files import Verification
from repro.bundle.verify_plan import check_plan
from repro.cli.workflows.reproduce import reduce_plan
from repro.compare.design.calibration import twin_plan
from repro.core.files import write_model
from repro.core.machine import Machine
from repro.record.folder import index
from repro.record.folder.store import RunFolder
from repro.suite.planning.plan import Plan, planned_order
from repro.suite.planning.terms import Terms
from tests.records import make_record

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
