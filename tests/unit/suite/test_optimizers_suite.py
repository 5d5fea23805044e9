"""The suite of optimizers: equal budgets, origins and widths, one target a workload, at most 8 hours, a short form."""

from __future__ import annotations

import math

import pytest

from repro.cli.workflows.tuning import Phases, plan_phases
from repro.suite.file import read_suite
from repro.suite.planning.plan import estimate

SHORT = ("tune.trials=1", "stop.max_epochs=0.05")


@pytest.fixture(scope="module")
def phases() -> Phases:
    return plan_phases(read_suite("optimizers"), ())


def test_every_optimizer_competes_on_every_workload_but_muon_on_convolutions(phases: Phases) -> None:
    found = {(item.levels["workload"], item.levels["optimizer"]["kind"] if isinstance(item.levels["optimizer"], dict)
              else item.levels["optimizer"]) for item in phases.contenders}
    kinds = {kind for _, kind in found}
    assert kinds == {"sgd", "rmsprop", "adam", "adamw", "adaptahead", "lars", "lamb", "lion", "muon", "soap",
                     "schedule-free-adamw"}
    assert {(task, kind) for task in ("digits", "mnist1d", "text") for kind in kinds} - found == {
        ("digits", "muon"), ("mnist1d", "muon")}


def test_budgets_and_widths_are_equal(phases: Phases) -> None:
    assert {len(item.settings) for item in phases.contenders} == {8}
    for item in phases.contenders:
        low, high = item.space.space["optimizer.lr"].ends
        assert math.log10(high / low) == pytest.approx(3, abs=0.01), item.label
        assert len(item.space.space["optimizer.weight_decay"].choices or ()) == 3
        assert len(item.space.origin.split()) >= 3


def test_a_workload_has_one_target_and_the_cost_fits_a_night(phases: Phases) -> None:
    targets = {(cell.choices.task, cell.choices.stop.target) for cell in phases.draft.cells}
    assert len(targets) == 3
    seconds = estimate(phases.tuning).full_budget_seconds + estimate(phases.draft).full_budget_seconds
    assert seconds < 8 * 3600


def test_the_short_form_has_a_trial_a_contender_and_phase(phases: Phases) -> None:
    short = plan_phases(read_suite("optimizers", SHORT, None, {"seeds": 1}), SHORT)
    assert len(short.contenders) == len(phases.contenders)
    ran = {len(plan.order) + len(plan.skipped) for plan in (short.tuning, short.draft)}
    assert ran == {31}
    assert all(cell.choices.stop.max_epochs == 0.05 for cell in short.draft.cells)
