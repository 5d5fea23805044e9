"""Design fixed_steps in a suite: what it asks for, what it refuses in one line, and what stays as it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from repro.core.errors import SuiteError
from repro.suite.kinds.training import TrainingConfig
from repro.suite.planning.plan import Plan
from tests.plans import planned, suite

FIXED = "{design: fixed_steps, steps: 20, warmup: 3}"
TARGET = "{metric: top1, target: 0.9, max_epochs: 2}"


def plan(folder: Path, stop: str = FIXED, more: str = "", rest: str = "") -> Plan:
    return planned(folder, written(f"matrix: {{processes: [1, 2]}}\n{rest}\n", stop, more))


def written(rest: str, stop: str = FIXED, more: str = "") -> str:
    return suite("steps", f"  {more}\n{rest}", seeds=2, stop=stop, evaluate_every=None)


def test_it_is_judged_by_the_training_throughput_unless_it_says_otherwise(tmp_path: Path) -> None:
    assert plan(tmp_path).suite.metric == "train_throughput"
    declared = "primary: {candidate: {processes: 2}, baseline: {processes: 1}, metric: peak_memory}"
    assert plan(tmp_path, rest=declared).suite.metric == "peak_memory"
    assert plan(tmp_path, TARGET, "evaluate_every: 64").suite.metric == "tta_wall"


def test_its_budget_is_its_steps_and_its_schedule_runs_over_them(tmp_path: Path) -> None:
    choices = plan(tmp_path).cells[0].choices
    assert (choices.budget_steps, choices.always_runs_full_budget) == (23, True)
    assert choices.budget_epochs == pytest.approx(23 * 64 / 1437)
    assert (choices.log_size().steps, choices.log_size().evaluations) == (23, 0)
    assert choices.gate_metric == "top1"


@pytest.mark.parametrize(("stop", "more", "rest", "message"), [
    ("{design: fixed_steps, steps: 5, target: 0.9}", "", "", "trial.stop.target: design fixed_steps asks for"),
    ("{design: fixed_steps, steps: 5, metric: top1}", "", "", "trial.stop.metric: design fixed_steps asks for"),
    ("{design: fixed_steps, steps: 5, max_epochs: 1}", "", "", "it has no max_epochs"),
    ("{design: fixed_steps}", "", "", "trial.stop.steps: is missing"),
    ("{design: fixed_steps, steps: 0}", "", "", "greater than or equal to 1"),
    (FIXED, "evaluate_every: 64", "", "trial.evaluate_every: design fixed_steps evaluates nothing"),
    (TARGET, "", "", "trial.evaluate_every: is missing"),
    ("{target: 0.9, max_epochs: 2}", "evaluate_every: 64", "", "trial.stop.metric: is missing"),
    ("{metric: top1, max_epochs: 2}", "evaluate_every: 64", "", "trial.stop.target: is missing"),
    ("{metric: top1, target: 0.9}", "evaluate_every: 64", "", "trial.stop.max_epochs: is missing"),
    ("{metric: top1, target: 0.9, max_epochs: 2, warmup: 3}", "evaluate_every: 64", "",
     "trial.stop.warmup: only design fixed_steps has it"),
    (FIXED, "", "primary: {candidate: {processes: 2}, baseline: {processes: 1}}",
     "primary.metric: tta_wall is not a figure of training alone"),
    (FIXED, "", "primary: {candidate: {processes: 2}, baseline: {processes: 1}, metric: throughput}",
     "use one of: train_throughput, tokens, step_time, peak_memory"),
    (FIXED, "", "primary: {candidate: {processes: 2}, baseline: {processes: 1}, metric: tokens}",
     "workload digits has no tokens"),
    (FIXED, "", "horizon: 5", "horizon: design fixed_steps has no target"),
])
def test_what_does_not_fit_is_one_line(tmp_path: Path, stop: str, more: str, rest: str, message: str) -> None:
    with pytest.raises(SuiteError) as caught:
        plan(tmp_path, stop, more, rest)
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_cells_with_and_without_a_target_are_not_compared(tmp_path: Path) -> None:
    both = f"matrix: {{stop: [{FIXED}, {{metric: top1, target: 0.9, max_epochs: 2}}], evaluate_every: [null, 64]}}\n"
    exclude = ("exclude: [{stop: {design: fixed_steps}, evaluate_every: 64}, "
               "{stop: {metric: top1}, evaluate_every: null}]\n")
    with pytest.raises(SuiteError, match="fixed_steps cannot be compared with designs that have a target"):
        planned(tmp_path, written(both + exclude))


def test_the_json_of_a_design_has_its_own_fields_only() -> None:
    def stop(**given: Any) -> dict[str, Any]:
        found: dict[str, Any] = TrainingConfig.model_validate({
            "workload": "digits", "engine": "ddp", "batch": 64, "optimizer": {"kind": "sgd", "lr": 0.1}, **given,
        }).model_dump(mode="json")["stop"]
        return found

    assert stop(stop={"design": "fixed_steps", "steps": 5}) == {"design": "fixed_steps", "steps": 5, "warmup": 0}
    assert set(stop(stop={"metric": "top1", "target": 0.9, "max_epochs": 2}, evaluate_every=64)) == {
        "metric", "target", "max_epochs", "confirm_evals", "design", "direction"}
