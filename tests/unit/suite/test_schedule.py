"""Schedules and scaling rules: the rate as a pure function of samples seen."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from repro.suite.kinds.training_options import Constant, Cosine, Polynomial, Scaling, Schedule, Step

CALM = settings(max_examples=50, deadline=None, derandomize=True, database=None)


def test_warm_up_runs_linearly_from_its_start_to_the_full_rate() -> None:
    schedule = Constant(warmup_epochs=4, warmup_start=0.2)
    assert [schedule.factor(epoch, 10) for epoch in (0, 1, 2, 3, 4, 9)] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1, 1])


def test_steps_drop_at_their_milestones() -> None:
    schedule = Step(milestones=(3.0, 6.0), gamma=0.1)
    assert [schedule.factor(epoch, 9) for epoch in (0, 2.99, 3, 5.99, 6, 9)] == pytest.approx(
        [1, 1, 0.1, 0.1, 0.01, 0.01])


def test_polynomial_decay_by_hand() -> None:
    assert Polynomial().factor(2.5, 10) == pytest.approx(0.75)
    assert Polynomial(power=2, end=0.1).factor(5, 10) == pytest.approx(0.1 + 0.9 * 0.25)
    assert Polynomial(end=0.1).factor(10, 10) == pytest.approx(0.1)


def test_cosine_decay_by_hand() -> None:
    assert Cosine().factor(0, 20) == 1
    assert Cosine().factor(10, 20) == pytest.approx(0.5)
    assert Cosine(end=0.2).factor(5, 20) == pytest.approx(0.2 + 0.8 * (1 + math.sqrt(0.5)) / 2)
    assert Cosine().factor(20, 20) == pytest.approx(0)


def test_decay_begins_at_the_end_of_the_warm_up() -> None:
    assert Cosine(warmup_epochs=2).factor(2, 12) == 1
    assert Cosine(warmup_epochs=2).factor(7, 12) == pytest.approx(0.5)


def test_a_warm_up_longer_than_the_budget_and_samples_past_it_do_no_harm() -> None:
    assert Cosine(warmup_epochs=5).factor(5, 5) == pytest.approx(0)
    assert Polynomial(end=0.3).factor(12, 10) == pytest.approx(0.3)


@CALM
@given(st.floats(0, 100), st.sampled_from([Constant(), Cosine(), Polynomial(), Step(milestones=(1.0,))]))
def test_a_share_of_the_rate_stays_between_0_and_1(epoch: float, schedule: Constant) -> None:
    assert 0 <= schedule.factor(epoch, 50) <= 1


@pytest.mark.parametrize("given", [
    {"kind": "step", "milestones": [5, 3]}, {"kind": "step", "milestones": [3, 3]}, {"kind": "step", "milestones": []},
    {"kind": "cosine", "end": 2}, {"kind": "constant", "gamma": 0.1}, {"kind": "exponential"},
    {"kind": "cosine", "warmup_epochs": math.inf}, {"kind": "polynomial", "power": math.nan},
])
def test_schedules_that_make_no_sense_are_refused(given: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter[object](Schedule).validate_python(given)


@pytest.mark.parametrize(("rule", "factor"), [("none", 1.0), ("linear", 4.0), ("sqrt", 2.0)])
def test_scaling_rules(rule: str, factor: float) -> None:
    assert Scaling.model_validate({"rule": rule, "base_batch": 64}).scale(256) == factor


def test_a_rule_without_its_base_batch_is_refused_with_the_missing_field() -> None:
    with pytest.raises(ValidationError, match="needs base_batch"):
        Scaling(rule="linear")
