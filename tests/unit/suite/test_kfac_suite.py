"""The suite of K-FAC: equal budgets and widths, a primary contrast of two tuned contenders, every period and size."""

from __future__ import annotations

import math

import pytest

from repro.cli.workflows.tuning import Phases, plan_phases
from repro.core import pattern
from repro.suite.file import read_suite

SHORT = ("processes=2", "tune.trials=1", "stop.max_epochs=1")


@pytest.fixture(scope="module")
def phases() -> Phases:
    return plan_phases(read_suite("kfac"), ())


def test_budgets_and_ranges_of_the_rate_are_equal(phases: Phases) -> None:
    assert len(phases.contenders) == 5 and {len(item.settings) for item in phases.contenders} == {8}
    for item in phases.contenders:
        low, high = item.space.space["optimizer.lr"].ends
        assert high / low == pytest.approx(25), item.label
        damped = "preconditioner.damping" in item.space.space
        assert damped == (item.levels["preconditioner"] != "none") and len(item.space.origin.split()) >= 3
        if damped:
            ends = item.space.space["preconditioner.damping"].ends
            assert math.log10(ends[1] / ends[0]) == pytest.approx(2)


def test_the_primary_compares_two_contenders_where_they_were_tuned(phases: Phases) -> None:
    tuned_on = {cell.choices.processes for cell in phases.tuning.cells}
    primary = phases.draft.suite.primary
    assert primary is not None and primary.metric == "tta_wall"
    for side in (primary.candidate, primary.baseline):
        found = [cell for cell in phases.draft.cells
                 if pattern.matches(cell.choices.model_dump(mode="json", by_alias=True), side)]
        assert len(found) == 1 and {found[0].choices.processes} == tuned_on == {2}


def test_every_period_runs_on_every_number_of_processes_and_lw_on_several(phases: Phases) -> None:
    found = {(cell.training.preconditioner.options.get("placement", "none"),
              cell.training.preconditioner.options.get("eigen_every", 0), cell.choices.processes)
             for cell in phases.draft.cells}
    assert found == {("none", 0, count) for count in (1, 2, 4)} | {
        ("opt", every, count) for every in (1, 10, 100) for count in (1, 2, 4)} | {("lw", 10, 2), ("lw", 10, 4)}


def test_the_short_form_keeps_all_contenders() -> None:
    short = plan_phases(read_suite("kfac", SHORT, None, {"seeds": 1}), SHORT)
    assert (len(short.tuning.order), len(short.draft.order)) == (5, 5)
