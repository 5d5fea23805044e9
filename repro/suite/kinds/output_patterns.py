"""Regular expressions by which a suite says what the lines of a program mean."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

import re2

from repro.core.errors import nearest
from repro.suite.field_problem import FieldProblem

POSITIONS = ("step", "samples", "epoch")
"""Counters of progress: optimizer steps, training samples, epochs so far."""
CLOCKS = ("train_ms", "train_s", "train_time")
"""The program's own clock, training time so far: milliseconds, seconds, or a number with its unit (ms, s, min, h)."""
LONGEST = 1000
"""Longest pattern, in characters."""
MEMORY = 8 << 20
"""Most bytes that a compiled pattern may take while it matches."""
GROUPS: dict[str, tuple[str, ...]] = {
    "evaluation": ("value", *POSITIONS, *CLOCKS), "progress": (*POSITIONS, *CLOCKS), "context": POSITIONS,
    "start": (), "stop": (),
}
"""Named groups that each pattern may have."""


class Pattern:
    """A compiled pattern.

    RE2 matches in time linear in the line: no pattern can stall the harness, whatever a program prints.
    """

    def __init__(self, expression: Any) -> None:
        """Args:
            expression: compiled by `re2`.
        """
        self._search = expression.search
        self._groups = tuple(expression.groupindex.items())

    def find(self, line: bytes) -> dict[str, str] | None:
        """Return the named groups that took part in the first match in a line of UTF-8; None if nothing matches."""
        match = self._search(line)
        if match is None:
            return None
        return {name: found.decode(errors="replace")  # \C matches a part of a character
                for name, index in self._groups if (found := match[index]) is not None}


@dataclass(frozen=True, slots=True)
class OutputPatterns:
    """Patterns of a program's lines. Each is searched anywhere in a line."""

    evaluation: str
    """A statement of the quality: group `value`, and where it has them a position and a clock."""
    progress: str | None = None
    """A statement of position or clock without a quality."""
    context: str | None = None
    """A line whose position holds for the evaluations after it that state none."""
    start: str | None = None
    """The training begins; the first such line counts."""
    stop: str | None = None
    """The training ended; lines after it mean nothing."""

    def given(self) -> Iterator[tuple[str, str]]:
        """Yield the name and the text of each pattern."""
        for field in fields(self):
            text = getattr(self, field.name)
            if text is not None:
                yield field.name, text

    def compiled(self) -> dict[str, Pattern]:
        """Return the compiled patterns by name.

        Raises:
            FieldProblem: a pattern is no regular expression, has a group that means nothing, or lacks one it needs.
        """
        return {name: compile_pattern(name, text) for name, text in self.given()}


def compile_pattern(name: str, text: str) -> Pattern:
    """Return the compiled pattern; `name` is a key of `GROUPS`. It has neither look-around nor back references.

    Raises:
        FieldProblem: as `OutputPatterns.compiled`.
    """
    if len(text) > LONGEST:
        raise FieldProblem(f"a pattern of {len(text)} characters; at most {LONGEST} are read", (name,))
    try:
        with warnings.catch_warnings():  # of sets that a later Python may read otherwise; RE2 decides what they mean
            warnings.simplefilter("ignore")
            known = re.compile(text).groupindex  # its messages have the position; RE2's have not
    except re.error as reason:
        raise FieldProblem(f"not a regular expression: {reason}", (name,)) from None
    except (RecursionError, OverflowError) as reason:
        raise FieldProblem(f"not a usable regular expression: {reason}", (name,)) from None
    _check_groups(name, tuple(known))
    options = re2.Options()
    options.log_errors, options.max_mem = False, MEMORY
    try:
        pattern = Pattern(re2.compile(text, options))
    except re2.error as reason:
        why = reason.args[0].decode() if reason.args and isinstance(reason.args[0], bytes) else str(reason)
        raise FieldProblem(
            f"{why}: patterns are RE2's, which has no look-around, no back references and no repeats above 1000",
            (name,)) from None
    if pattern.find(b"") is not None:
        raise FieldProblem("the pattern matches an empty line, so it matches every line", (name,))
    return pattern


def _check_groups(name: str, groups: tuple[str, ...]) -> None:
    allowed = GROUPS[name]
    for group in groups:
        if group == "value" and name == "progress":
            raise FieldProblem("group `value` is the quality: a line with it is an evaluation, not progress", (name,))
        if group not in allowed:
            valid = nearest(group, allowed) if allowed else f"; {name} takes no named groups"
            raise FieldProblem(f"group `{group}` means nothing here{valid}", (name,))
    if name == "evaluation" and "value" not in groups:
        raise FieldProblem("no group `value`: write (?P<value>...) around the quality, such as "
                           r"'val_loss:(?P<value>\S+)'", (name,))
    if allowed and not groups:
        raise FieldProblem(f"no named group; it needs one of {', '.join(allowed)}", (name,))
    clocks = [group for group in groups if group in CLOCKS]
    if len(clocks) > 1:
        raise FieldProblem(f"groups {' and '.join(f'`{clock}`' for clock in clocks)} state one clock twice; keep one "
                           "(`train_time` reads a number with its unit)", (name,))
