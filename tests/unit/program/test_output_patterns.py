"""Patterns that a suite declares: a bad one is one line, and none can stall."""

from __future__ import annotations

import contextlib
import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from repro.suite.field_problem import FieldProblem
from repro.suite.kinds.evaluation import READY, OutputPatterns, compile_pattern, ready

GOOD = r"val_loss:(?P<value>\S+)"


@pytest.mark.parametrize(("name", "text", "problem"), [
    ("evaluation", r"val_loss:(\S+)", "no group `value`: write (?P<value>...) around the quality"),
    ("evaluation", r"step (?P<step>\d+)", "no group `value`"),
    ("evaluation", r"val_loss:(?P<value>\S+", "missing ), unterminated subpattern at position 9"),
    ("evaluation", r"(?P<valeu>\S+)", "group `valeu` means nothing here; did you mean 'value'?"),
    ("evaluation", r"(?P<value>\S+) (?P<seed>\d)", "group `seed` means nothing here"),
    ("evaluation", r"(?P<value>\S+) (?P<train_ms>\d)ms (?P<train_s>\d)s", "`train_ms` and `train_s` state one clock"),
    ("evaluation", r"(?P<value>a)(?P<value>b)", "redefinition of group name 'value'"),
    ("evaluation", r"(?<=:)(?P<value>\S+)", "no look-around, no back references"),
    ("evaluation", r"(?P<value>\S+) (?P=value)", "no look-around, no back references"),
    ("evaluation", r"(?P<value>\S*)", "matches an empty line"),
    ("evaluation", "(?P<value>" + "a" * 1000 + ")", "at most 1000"),
    ("evaluation", "(?P<value>a{99999999999999999999})", "not a usable regular expression"),
    ("evaluation", "(?P<value>(?:(?:a{1000}){1000}){1000})", "no repeats above 1000"),
    ("progress", r"(?P<value>\S+)", "a line with it is an evaluation, not progress"),
    ("progress", r"step \d+", "no named group; it needs one of step, samples, epoch"),
    ("context", r"time (?P<train_s>\d+)", "group `train_s` means nothing here"),
    ("start", r"begin (?P<step>\d+)", "start takes no named groups"),
])
def test_a_bad_pattern_is_one_line(name: str, text: str, problem: str) -> None:
    with pytest.raises(FieldProblem) as caught:
        OutputPatterns(**{"evaluation": GOOD, name: text}).compiled()
    assert problem in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.path == (name,)


@given(st.text(alphabet="(?P<value>)[]{}|*+.^$\\\\aC1,-=!:&~\\n\u0663", max_size=60))
@example("(" * 488 + "a" + ")" * 488)
@example(r"(?P<value>\C)")
def test_any_text_is_a_pattern_that_reads_any_line_or_a_problem(text: str) -> None:
    with contextlib.suppress(FieldProblem):
        compile_pattern("evaluation", text).find("a1 \u2501 \ufffd".encode())


@pytest.mark.parametrize("nasty", [
    r"(?P<value>(a+)+)$", r"(?P<value>(?:a|aa)+)$", r"(?P<value>(?:.*a){25}x)", r"(?P<value>(?:\w+\s?)+)x$",
    r"(?P<value>(?:a?){300}a{300}b)",
])
def test_no_pattern_stalls_on_a_long_line(nasty: str) -> None:
    pattern = compile_pattern("evaluation", nasty)
    began = time.process_time()
    assert pattern.find(b"a" * 4096 + b"!") is None
    assert time.process_time() - began < 30  # the first of them takes `re` longer than the universe is old


def test_the_longest_nested_pattern_is_refused_and_a_long_plain_one_is_not() -> None:
    with pytest.raises(FieldProblem):
        compile_pattern("evaluation", r"(?P<value>(?:\pL{100}){10})")
    compile_pattern("evaluation", r"(?P<value>x" + r"[a-z]{50}" * 90 + ")")


@pytest.mark.parametrize(("name", "metric", "problem"), [
    ("kears", "val_loss", "no ready pattern named 'kears'; did you mean 'keras'?"),
    ("nanogpt-speedrun", "val_accuracy", "state no 'val_accuracy'; a name that fits: 'val_loss'"),
    ("huggingface-trainer", "accuracy", "a name that fits: 'eval_loss'"),
    ("keras", "accuracy", "a name that fits: 'val_accuracy'"),
    ("airbench", "accuracy", "a name that fits: 'tta_val_acc'"),
])
def test_a_ready_pattern_that_cannot_be_is_one_line(name: str, metric: str, problem: str) -> None:
    with pytest.raises(FieldProblem) as caught:
        ready(name, metric)
    assert problem in str(caught.value)


@pytest.mark.parametrize("name", sorted(READY))
def test_every_ready_pattern_is_a_good_one(name: str) -> None:
    entry = ready(name, READY[name].example)
    if entry.kind == "patterns":
        assert "evaluation" in entry.patterns(entry.example).compiled()
    else:
        with pytest.raises(FieldProblem, match="by its columns"):
            entry.patterns(entry.example)
    assert "(" not in name, "else a suite that names it states a pattern"
