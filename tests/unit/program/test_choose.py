"""The reader that a suite asks for."""

from __future__ import annotations

import pytest

from repro.program.airbench import AirbenchReader
from repro.program.choose import line_reader
from repro.suite.field_problem import FieldProblem
from repro.suite.output_patterns import OutputPatterns
from tests.unit.program.printed import output, printed, seen


def test_a_pattern_a_name_and_a_name_with_a_pattern_beside_it() -> None:
    assert len(seen(line_reader(OutputPatterns(r"=(?P<value>\d+)"), "x"), printed("a=1", "a"))) == 1
    lines = [*printed("begin"), *output("keras_verbose2.txt")]
    assert [one.seen for one in seen(line_reader(OutputPatterns("keras"), "val_loss"), lines)] == ["evaluation"] * 3
    found = seen(line_reader(OutputPatterns("keras", start="^begin$"), "val_loss"), lines)
    assert [one.seen for one in found] == ["start", *["evaluation"] * 3]
    assert isinstance(line_reader(OutputPatterns("airbench"), "val_acc"), AirbenchReader)


@pytest.mark.parametrize(("patterns", "problem"), [
    (OutputPatterns("lightning-csv"), "is read from a file"),
    (OutputPatterns("airbench", start="x"), "takes no patterns beside it"),
    (OutputPatterns("keras", progress="x"), "no named group"),
    (OutputPatterns("no such"), "no ready pattern named 'no such'"),
])
def test_what_does_not_fit_is_one_line(patterns: OutputPatterns, problem: str) -> None:
    with pytest.raises(FieldProblem, match=problem):
        line_reader(patterns, "val_acc")
