"""Observations by the patterns of a suite."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repro.program.observation import Observation, OutputProblem
from repro.program.output_readers import PatternReader
from repro.suite.kinds.evaluation import OutputPatterns
from tests.unit.program.printed import SECOND, evaluations, printed, seen

EVALUATION = r"step (?P<step>\S+) loss (?P<value>\S+)(?: after (?P<train_ms>\S+) ms)?"


def reader(evaluation: str = EVALUATION, **others: str) -> PatternReader:
    return PatternReader(OutputPatterns(evaluation, **others))


def test_an_evaluation_has_all_that_its_line_states() -> None:
    pattern = r"(?P<epoch>\S+) epochs, (?P<step>\d+) steps, (?P<samples>\d+) seen, (?P<train_s>\S+) s: (?P<value>\S+)"
    assert seen(reader(pattern), printed("hello", "0.5 epochs, 7 steps, 224 seen, 1.25 s: 3.5e-1")) == [
        Observation("evaluation", 2 * SECOND, 2, step=7, samples=224, epochs=0.5, value=0.35, own_seconds=1.25)]


@pytest.mark.parametrize(("text", "value"), [
    ("3.28", 3.28), ("-1", -1.0), ("1.", 1.0), (".5", 0.5), ("1E+2", 100.0), ("6.25e-02", 0.0625), ("inf", math.inf),
    ("-Infinity", -math.inf), ("1e999", math.inf),
])
def test_numbers_of_every_common_form_are_values(text: str, value: float) -> None:
    assert seen(reader(), printed(f"step 1 loss {text}"))[0].value == value


@pytest.mark.parametrize("text", ["nan", "NaN", "-nan"])
def test_nan_is_a_value(text: str) -> None:
    value = seen(reader(), printed(f"step 1 loss {text}"))[0].value
    assert value is not None and math.isnan(value)


@pytest.mark.parametrize("text", [
    "3,28", "1_000", "97%", "tensor(0.3)", "3.28,", "None", "0x10", "\u0663", "1e", "--1"])
def test_what_is_no_number_is_a_problem_that_shows_the_line(text: str) -> None:
    with pytest.raises(OutputProblem, match="is no number") as caught:
        seen(reader(), printed(f"step 1 loss {text}"))
    assert "step 1 loss" in str(caught.value)


@given(st.floats(allow_nan=False))
def test_every_float_that_python_prints_is_read_back(value: float) -> None:
    assert seen(reader(), printed(f"step 1 loss {value!r}"))[0].value == value


@pytest.mark.parametrize(("lines", "problem"), [
    (("step 5 loss 1", "step 5 loss 1"), r"step 5 is evaluated twice \(1, then 1\)"),
    (("step 5 loss 1", "step 5 loss 2"), r"step 5 is evaluated twice \(1, then 2\)"),
    (("step 5 loss 1", "step 4 loss 2"), "step goes back from 5 to 4"),
    (("step 1 loss 1 after 20 ms", "step 2 loss 1 after 10 ms"), "train time goes back from 0.02 to 0.01"),
    (("step 1 loss 1 after nan ms",), "train time 'nan' is no number of at least 0"),
    (("step 1 loss 1 after -3 ms",), "no number of at least 0"),
    (("step 1.5 loss 1",), "step '1.5' is no whole number"),
    (("step 1,000 loss 1",), "step '1,000' is no whole number"),
    (("step 99999999999999999999 loss 1",), "at most|no whole number"),
])
def test_what_cannot_be_is_a_problem(lines: tuple[str, ...], problem: str) -> None:
    with pytest.raises(OutputProblem, match=problem):
        seen(reader(), printed(*lines))


def test_the_same_samples_twice_are_a_problem_where_no_step_is_stated() -> None:
    with pytest.raises(OutputProblem, match="samples 64 is evaluated twice"):
        seen(reader(r"after (?P<samples>\d+): (?P<value>\S+)"), printed("after 64: 1", "after 64: 1"))


def test_epochs_may_repeat_because_programs_round_them() -> None:
    found = seen(reader(r"epoch (?P<epoch>\S+): (?P<value>\S+)"), printed("epoch 0.1: 1", "epoch 0.1: 2"))
    assert [one.value for one in found] == [1.0, 2.0]


def test_progress_is_no_evaluation_and_shares_its_order() -> None:
    progress = r"^step (?P<step>\d+) time (?P<train_time>\S+)"
    found = seen(reader(progress=progress), printed("step 1 time 10ms", "step 2 time 0.5s", "step 2 loss 3", "x"))
    assert [(one.seen, one.step, one.own_seconds) for one in found] == [
        ("step", 1, 0.01), ("step", 2, 0.5), ("evaluation", 2, None)]
    with pytest.raises(OutputProblem, match="step goes back"):
        seen(reader(progress=progress), printed("step 9 loss 3", "step 8 time 1s"))


@pytest.mark.parametrize(("text", "expected"), [("250ms", 0.25), ("2s", 2.0), ("1.5min", 90.0), ("2 h", 7200.0)])
def test_a_train_time_has_its_unit(text: str, expected: float) -> None:
    found = seen(reader(r"(?P<train_time>.+): (?P<value>\S+)"), printed(f"{text}: 1"))
    assert found[0].own_seconds == expected


@pytest.mark.parametrize("text", ["250", "250us", "ms", "1.2.3s"])
def test_a_train_time_without_a_known_unit_is_a_problem(text: str) -> None:
    with pytest.raises(OutputProblem, match="train time"):
        seen(reader(r"(?P<train_time>.+): (?P<value>\S+)"), printed(f"{text}: 1"))


def test_context_holds_until_the_next_and_states_nothing_itself() -> None:
    found = seen(reader(r"^loss (?P<value>\S+)", context=r"^epoch (?P<epoch>\d+)"),
                 printed("loss 9", "epoch 1", "loss 8", "epoch 2", "loss 7"))
    assert [(one.seen, one.epochs) for one in found] == [("evaluation", None), ("evaluation", 1.0), ("evaluation", 2.0)]


def test_the_training_begins_once_and_nothing_counts_after_its_end() -> None:
    found = seen(reader(start="^go$", stop="^done$"),
                 printed("go", "step 1 loss 3", "go", "step 2 loss 2", "done", "step 2 loss 1", "done"))
    assert [(one.seen, one.step) for one in found] == [
        ("start", None), ("evaluation", 1), ("evaluation", 2), ("stop", None)]


def test_a_message_shows_control_characters_as_escapes_and_a_long_line_cut() -> None:
    with pytest.raises(OutputProblem) as caught:
        seen(reader(), printed("step 1 loss \x07" + "z" * 5000))
    assert "\x07" not in str(caught.value) and len(str(caught.value)) < 500


def test_ranks_that_print_alike_are_told_so() -> None:
    lines = printed("step 10 loss 3", "step 10 loss 3")
    assert len(evaluations(seen(reader(), lines[:1]))) == 1
    with pytest.raises(OutputProblem, match="one process prints"):
        seen(reader(), lines)
