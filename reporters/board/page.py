"""The pages of a board: the index of all records, and the report of each."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from repro.board.build import page_name
from repro.board.entry import Entry
from repro.board.groups import Group
from repro.published.store import Published
from repro.record.store import Record

from ..html_page import render as render_run
from ..page.axis import Axis, from_zero
from ..page.document import page_scripts, rendered
from ..published.page import render as render_published
from ..text import Number, ratios, seconds

SHOWN_ARMS = 12
"""Systems of published results in a row; its page has all."""


@dataclass(frozen=True, slots=True)
class Row:
    """One record."""

    entry: Entry
    page: str
    best: Number | None
    best_label: str
    ratio: Number | None
    ends: tuple[Number, Number] | None
    verify: str
    words: str
    """What the filter searches."""


@dataclass(frozen=True, slots=True)
class Mark:
    """One step of a progression: the place of its time in per cent, and its words."""

    at: float
    day: str
    best: Number | None
    page: str
    label: str


@dataclass(frozen=True, slots=True)
class Progression:
    """The records of one system that were each the best so far."""

    system: str
    marks: tuple[Mark, ...]

    @property
    def count(self) -> int:
        return len(self.marks)


@dataclass(frozen=True, slots=True)
class GroupView:
    """Records that answer one question."""

    id: str
    group: Group
    rows: tuple[Row, ...]
    axis: Axis | None
    progressions: tuple[Progression, ...]


def render_record(record: Record | Published) -> str:
    """Return the page of one record."""
    return render_published([record]) if isinstance(record, Published) else render_run(record)


def render_board(groups: Sequence[Group], title: str) -> str:
    """Return the index."""
    entries = [item for group in groups for item in group.entries]
    standings = [item.standing for item in entries]
    values = {
        "title": title, "groups": [_group(at, group) for at, group in enumerate(groups, 1)],
        "count": len(entries), "verified": standings.count("verified"), "modified": standings.count("modified"),
        "suites": sorted({item.suite for item in entries}), "systems": sorted({item.system for item in entries} - {""}),
        "versions": sorted({item.version for item in entries} - {""}), "shown_arms": SHOWN_ARMS,
    }
    return rendered("board.html.j2", values, page_scripts("board.js", charts=False), ("report.css", "board.css"))


def _group(at: int, group: Group) -> GroupView:
    rows = tuple(map(_row, group.entries))
    steps = {system: group.progression(system) for system in group.systems}
    steps = {system: found for system, found in steps.items() if found}
    axis = from_zero([step.seconds for found in steps.values() for step in found]) if steps else None
    return GroupView(f"g{at}", group, rows, axis, tuple(
        Progression(system, tuple(
            Mark(axis.at(step.seconds), step.day, seconds(step.seconds), f"pages/{page_name(step.entry.place)}",
                 step.entry.best.label if step.entry.best else "") for step in found))
        for system, found in steps.items()) if axis else ())


def _row(entry: Entry) -> Row:
    best, answer = entry.best, entry.answer
    known = [item for item in (answer.ratio, answer.low, answer.high) if item is not None] if answer else []
    texts = [Number(value, text.text) for value, text in zip(known, ratios(known), strict=True)]
    return Row(
        entry=entry, page=f"pages/{page_name(entry.place)}" if entry.origin else "",
        best=seconds(best.median) if best else None, best_label=best.label if best else "",
        ratio=texts[0] if texts else None, ends=(texts[1], texts[2]) if len(texts) == 3 else None,
        verify=f"repro verify {shlex.quote(entry.place)}" if entry.kind == "run" else "",
        words=" ".join((entry.suite, entry.system, entry.version, entry.standing, *entry.engines)).lower(),
    )
