"""The pages of a board: the index of all records, and the report of each."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from repro.board.build import page_name
from repro.board.entry import Answer, Entry, Group, Mean, Statement, Step
from repro.core.numbers import significant
from repro.published.store import Published
from repro.record.folder.store import Record
from repro.stats.interval import from_log
from repro.tables.text import Number, plural, ratios, seconds, trimmed

from ..html_page import render as render_run
from ..page.axis import Axis, from_zero
from ..page.document import page_scripts, rendered
from ..published.contest import WORDS
from ..published.view import render as render_published

FIRST = 12
"""Questions on the first screen; the others stand below."""
STATEMENTS = 3
"""Statements of published results in a row; its page has all."""
HEIGHT, ABOVE, BELOW = 96.0, 12.0, 84.0
"""Pixels of the drawing of a progression: its height, and the places of its axis's ends."""


@dataclass(frozen=True, slots=True)
class Row:
    """One record."""

    entry: Entry
    page: str
    best: Number | None
    best_label: str
    verify: str
    said: tuple[Statement, ...]
    """The first statements of published results; its page has all."""
    words: str
    """What the filter searches."""


@dataclass(frozen=True, slots=True)
class Mark:
    """One step of a progression: the place of its start in per cent, that of its time in pixels, and its words."""

    at: float
    y: float
    day: str
    best: Number | None
    page: str
    label: str


@dataclass(frozen=True, slots=True)
class Progression:
    """The records of one system that were each the best so far."""

    system: str
    marks: tuple[Mark, ...]
    ticks: tuple[tuple[float, str], ...]
    """(pixels, words) of the axis of times."""


@dataclass(frozen=True, slots=True)
class GroupView:
    """Records that answer one question."""

    id: str
    group: Group
    rows: tuple[Row, ...]
    progressions: tuple[Progression, ...]
    lead: Row
    """The row whose answer stands on the first screen: the last verified one with an answer."""
    counted: str
    """The records and their verdicts in words."""
    mean: Answer | None
    """The declared contrast over the verified records, without a verdict; None: fewer than three count."""
    spread: str
    """How far those records are from each other; "" without a mean."""


def render_record(record: Record | Published) -> str:
    """Return the page of one record."""
    return render_published([record]) if isinstance(record, Published) else render_run(record)


def render_board(groups: Sequence[Group], title: str) -> str:
    """Return the index."""
    entries = [item for group in groups for item in group.entries]
    standings = [item.standing for item in entries]
    runs = [item for item in entries if item.kind == "run" and item.day]
    systems = sorted({item.system for item in runs})  # published results state a number of them
    values = {
        "title": title, "groups": [_group(at, group) for at, group in enumerate(groups, 1)], "first": FIRST,
        "count": len(entries), "verified": standings.count("verified"), "modified": standings.count("modified"),
        "suites": sorted({item.suite for item in entries}), "systems": systems,
        "versions": sorted({item.version for item in entries} - {""}), "height": HEIGHT,
        "machines": plural(len(systems), "system"),
        "days": sorted({item.day for item in runs}), "styles": WORDS,
    }
    return rendered("board.html.j2", values, page_scripts("board.js", charts=False), ("report.css", "board.css"),
                    filters={"figures": _figures, "score": _score})


def _group(at: int, group: Group) -> GroupView:
    rows = tuple(map(_row, group.entries))
    steps = {system: found for system in group.systems if (found := group.progression(system))}
    drawn = len(steps) > 1 or any(len(found) > 1 for found in steps.values())
    return GroupView(
        id=f"g{at}", group=group, rows=rows, progressions=_progressions(steps) if drawn else (),
        lead=max(rows, key=lambda row: (bool(row.entry.answers or row.said), row.entry.standing == "verified",
                                        row.entry.started_ms)),
        counted=_counted(group.entries), mean=_answer(group.mean) if group.mean else None,
        spread=_spread(group.mean) if group.mean else "")


def _answer(mean: Mean) -> Answer:
    found = mean.effects
    return mean.answer.model_copy(update={
        "ratio": from_log(found.mean), "low": from_log(found.interval.low), "high": from_log(found.interval.high),
        "verdict": f"no verdict, {found.count} submitted records", "qualifier": "", "because": ""})


def _spread(mean: Mean) -> str:
    found = mean.effects
    text = (f"random effects over {found.count} submitted records (DerSimonian-Laird, Hartung-Knapp): standard "
            f"deviation between them {100 * found.between:.2g} %, I2 {100 * found.inconsistent:.0f} % "
            f"(Q = {found.heterogeneity:.3g}, p = {found.heterogeneity_p:.2g})")
    if (other := found.prediction) is not None:
        text += f"; another record: {from_log(other.low):.4g} to {from_log(other.high):.4g}"
    text += "".join(f"; not counted: {part.name} ({part.left_out})" for part in mean.left_out)
    return f"{text}. Which records are submitted was not declared beforehand, so the mean has no verdict."


def _progressions(steps: Mapping[str, Sequence[Step]]) -> tuple[Progression, ...]:
    """Draw the steps of each system over time, on one axis of dates and one of times."""
    every = [step for found in steps.values() for step in found]
    axis = from_zero([step.seconds for step in every])
    starts = [step.entry.started_ms for step in every]
    first, last = min(starts), max(starts)

    def mark(step: Step) -> Mark:
        share = (step.entry.started_ms - first) / (last - first) if last > first else 0.5
        return Mark(round(16 + 80 * share, 3), _down(axis, step.seconds), step.day, seconds(step.seconds),
                    page_name(step.entry.place), step.entry.best.label if step.entry.best else "")

    ticks = tuple((_down(axis, value), f"{trimmed(value)} s") for value in (axis.low, axis.high))
    return tuple(Progression(system, tuple(map(mark, found)), ticks) for system, found in steps.items())


def _down(axis: Axis, value: float) -> float:
    share = (axis.at(value) - axis.left) / (axis.right - axis.left)
    return round(BELOW - (BELOW - ABOVE) * share, 2)


def _counted(entries: Sequence[Entry]) -> str:
    verified = [item for item in entries if item.standing == "verified"]
    origins = " and ".join(sorted({one for item in verified or entries for one in item.origin.split(" and ") if one}))
    told = f", {origins}" + (" by others" if entries[0].kind == "published" else "")
    known = Counter(item.answers[0].verdict for item in verified if len(item.answers) == 1)
    if not verified:
        return plural(len(entries), "record") + (", none verified" if entries[0].kind == "run" else "") + told
    verdicts = ", ".join(f"{count} {verdict}" for verdict, count in known.most_common())
    said = plural(len(verified), "verified record")
    if len(verified) < len(entries):
        said = f"{said} of {len(entries)}"
    return (f"{said}: {verdicts}" if known and len(verified) > 1 else said) + told


def _row(entry: Entry) -> Row:
    best = entry.best
    page = page_name(entry.place) if entry.origin else ""
    return Row(
        entry=entry, page=page, best=seconds(best.median) if best else None, best_label=best.label if best else "",
        verify=f"repro verify {shlex.quote(entry.place)}" if entry.kind == "run" else "",
        said=entry.statements[:STATEMENTS],
        words=" ".join((entry.suite, entry.title, entry.system, entry.version, entry.standing, *entry.engines)).lower(),
    )


def _figures(item: Answer | Statement) -> list[Number]:
    """Return a ratio and the ends of its interval as text, as far as they are known."""
    known = [value for value in (item.ratio, item.low, item.high) if value is not None]
    if isinstance(item, Statement):
        return [Number(value, f"{value:.4f}") for value in known]
    return ratios(known)


def _score(item: Statement) -> str:
    """Return a score in the unit of its program: seconds in a contest, else minutes."""
    if item.seconds is None:
        return "no time"
    return f"{item.seconds:.3f} s" if item.quality else f"{significant(item.seconds / 60, 4)} minutes"
