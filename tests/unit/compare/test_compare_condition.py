"""Conditions for scripts: read, refused, and never passed without a figure."""

from __future__ import annotations

import pytest

from repro.compare import Comparison, contrast
from repro.compare.condition import parse
from repro.core.errors import UsageError
from tests.made_cells import BASELINE, CANDIDATE, trials

BASE = [10.0, 10.2, 9.9, 10.1, 10.0, 9.8]


def found(scale: float) -> Comparison:
    ours = [scale * value * factor for value, factor in zip(BASE, (1, 1.01, 0.99, 1, 1.02, 0.98), strict=True)]
    return contrast(CANDIDATE, BASELINE, trials(CANDIDATE, ours), trials(BASELINE, BASE), "tta_wall", primary=True)


@pytest.mark.parametrize(("text", "fails"), [
    ("ratio > 1.05", True), ("ratio>1.25", False), ("low >= 1.1", True), (" high < 1.3 ", True), ("p <= 0.05", True),
    ("speedup < 0.9", True), ("speedup > 0.9", False), ("n != 6", False), ("n == 6", True), ("ratio > 1e0", True),
    ("probability_less < 0.5", True),
])
def test_a_condition_is_a_name_a_sign_and_a_number(text: str, fails: bool) -> None:
    assert bool(parse(text).failure(found(1.2))) is fails


def test_a_failed_condition_shows_its_figures() -> None:
    assert parse("ratio>1.05").failure(found(1.2)).startswith("candidate against baseline: ratio = 1.2")


@pytest.mark.parametrize(("text", "message"), [
    ("ratio", "a name, a sign and a number"), ("ratio > ", "a name, a sign and a number"),
    ("ratoi > 1", "did you mean 'ratio'?"), ("ratio > one", "'one' is not a number"), ("ratio > nan", "not a number"),
    ("__import__('os') > 1", "a name, a sign and a number"), ("ratio > 1 or 1", "a name, a sign and a number"),
    ("ratio = 1", "a name, a sign and a number"),
])
def test_anything_else_is_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError) as raised:
        parse(text)
    assert message in str(raised.value)


def test_a_figure_that_does_not_exist_fails() -> None:
    empty = contrast(CANDIDATE, BASELINE, [], [], "tta_wall", primary=True)
    assert "no result, so 'ratio > 1.05' cannot be ruled out" in parse("ratio > 1.05").failure(empty)
