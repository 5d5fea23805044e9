"""The reader of a program's lines that a suite asks for."""

from __future__ import annotations

from dataclasses import replace

from repro.program.airbench import AirbenchReader
from repro.program.observation import Reader
from repro.program.pattern import PatternReader
from repro.suite.field_problem import FieldProblem
from repro.suite.output_patterns import OutputPatterns
from repro.suite.ready_patterns import is_name, ready


def line_reader(declared: OutputPatterns, metric: str) -> Reader:
    """Return the reader of lines: by `declared`, or by the ready pattern that its `evaluation` names; what else is
    declared then replaces the ready one's.

    Raises:
        FieldProblem: as `OutputPatterns.compiled` and `ready`; what is named reads a file, or takes no patterns.
    """
    if not is_name(declared.evaluation):
        return PatternReader(declared)
    entry = ready(declared.evaluation, metric)
    others = {name: text for name, text in declared.given() if name != "evaluation"}
    if entry.kind == "patterns":
        return PatternReader(replace(entry.patterns(metric), **others))
    if others:
        raise FieldProblem(f"{declared.evaluation} is read by its columns and takes no patterns beside it",
                           (next(iter(others)),))
    if entry.kind == "csv":
        raise FieldProblem(f"{declared.evaluation} is read from a file, not from what the program prints", ("pattern",))
    return AirbenchReader(metric)
