"""The first screen: the declared contrast as one sentence, one picture, its arms, its price and its cautions."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from repro.bundle.stated import StatedAnswer, stated_answer
from repro.compare import METRICS
from repro.compare.figures import Bounds, Claim
from repro.compare.findings import findings
from repro.compare.runs.run_warnings import alterations, busy, run_warnings
from repro.record.folder.ledger import Look
from repro.record.folder.store import Record
from repro.suite.kinds.program import ProgramConfig
from repro.tables.text import Number, duration, plural

from .axis import Axis, RatioMark, around_one, ratio_mark
from .cells import CellRow
from .speedup import Forest, Ratio

MOST_CLAIMS = 4
"""Claims of a contest without a primary contrast."""
MOST_ARMS = 6
"""Rows of the short table where no contrast is declared."""
SHOWN = ("torch", "deepspeed", "accelerate", "lightning")
"""Libraries named on the first screen if the record has their version."""
SENTENCE = re.compile(r"(?<=[^.\s][^.\s]{2}[.?!])\s+(?=[A-Z])")
"""Between two sentences; an abbreviation of one or two letters (`E.g.`, `vs.`) ends none."""


@dataclass(frozen=True, slots=True)
class Slope:
    """One pair of trials: a line from the baseline's figure to the candidate's."""

    left: float
    """Per cent of the height from the top, as is `right`."""
    right: float
    words: str


@dataclass(frozen=True, slots=True)
class Picture:
    """The ratio of the primary contrast on an axis of its own; places in per cent of the width."""

    axis: Axis
    slopes: tuple[Slope, ...]
    ends: tuple[Number, Number] | None
    """Figures at the top and bottom of the slopes."""
    margin: tuple[float, float]
    """Ends of the band within which two count as the same."""


@dataclass(frozen=True, slots=True)
class FirstScreen:
    """The part of the page that is visible before scrolling."""

    lead: str
    """First sentence of the description."""
    rest: str
    """The other sentences."""
    picture: Picture | None
    """None without a ratio."""
    claims: tuple[Claim, ...]
    """Of a contest: those of the two cells of the primary contrast; without one, the first."""
    arms: tuple[CellRow, ...]
    """Baseline and candidate of the primary contrast; without one, the first cells."""
    left_out: int
    """Cells that are not among `arms`."""
    prices: dict[str, str]
    """Cell id -> cost to the target: the declared price times its median. Empty without a price or a measured time."""
    cost: str
    machine: str
    """Processor or devices, and the versions of what trained."""
    busy: str
    """The load before the run, if other work made the machine busy; else ""."""
    modified: str
    """In what the record is not the one that its run sealed; "" if in nothing."""
    stated: StatedAnswer | None
    """Of a reproduction: the answer that its folder states."""
    beside: tuple[str, ...]
    """What stands beside that answer, without the warnings of this run, which the page has anyway."""
    unstated: str
    """Of a reproduction without an answer: why there is none; else ""."""
    cautions: tuple[str, ...]
    """Of the primary contrast."""
    shared: dict[str, str]
    """Cautions of two or more other contrasts -> the letter by which each of these names it: they are said once."""


def first_screen(
    record: Record, forest: Forest, cells: Sequence[CellRow], claims: Sequence[Claim] = (),
) -> FirstScreen:
    """Choose what the first screen shows."""
    primary = forest.primary
    stated = stated_answer(record) if record.plan.terms else None
    lead, *rest = SENTENCE.split(record.plan.suite.description.strip(), maxsplit=1)
    arms = _arms(primary, cells)
    often = Counter(text for row in forest.others for text in dict.fromkeys(row.item.cautions))
    shared = [text for text, count in often.items() if count > 1]
    return FirstScreen(
        lead=lead, rest=" ".join(rest), picture=_picture(primary, record.plan.suite.margin), arms=arms,
        left_out=len(cells) - len(arms), claims=_claims(primary, claims),
        prices=_prices(record, arms), cost=_cost(record), machine=_machine(record),
        busy="; ".join(item.text for item in busy(record)), modified=alterations(record),
        stated=stated if isinstance(stated, StatedAnswer) else None,
        beside=tuple(text for text in stated.beside if text not in {item.line for item in run_warnings(record)})
        if isinstance(stated, StatedAnswer) else (),
        unstated=stated if isinstance(stated, str) else "",
        cautions=tuple(dict.fromkeys(primary.item.cautions)) if primary else (),
        shared={text: _letter(place) for place, text in enumerate(shared)},
    )


def _letter(place: int) -> str:
    """Return a, b, ..., z, aa, ab, ..."""
    return (_letter(place // 26 - 1) if place >= 26 else "") + chr(ord("a") + place % 26)


def _arms(primary: Ratio | None, cells: Sequence[CellRow]) -> tuple[CellRow, ...]:
    if primary is None:
        return tuple(cells[:MOST_ARMS])
    by_cell = {row.mark.cell_id: row for row in cells}
    return by_cell[primary.baseline.cell_id], by_cell[primary.candidate.cell_id]


def _claims(primary: Ratio | None, claims: Sequence[Claim]) -> tuple[Claim, ...]:
    if primary is None:
        return tuple(claims[:MOST_CLAIMS])
    ours = (primary.baseline.cell_id, primary.candidate.cell_id)
    return tuple(row for row in claims if row.cell_id in ours)


def _picture(primary: Ratio | None, margin: float) -> Picture | None:
    if primary is None or primary.ratio is None:
        return None
    ends = tuple(item.value for item in primary.interval) if primary.interval else ()
    limits = (1 / (1 + margin), 1 + margin)
    axis = around_one([primary.ratio.value, *ends, *limits, *(row.ratio.value for row in primary.pairs)])
    slopes, extremes = _slopes(primary)
    return Picture(axis, slopes, extremes, (axis.at(limits[0]), axis.at(limits[1])))


def _slopes(primary: Ratio) -> tuple[tuple[Slope, ...], tuple[Number, Number] | None]:
    """Return the pairs as lines, and the figures at both ends of their axis."""
    pairs = [(row, row.baseline, row.candidate) for row in primary.pairs]
    known = [(row, left, right) for row, left, right in pairs if left is not None and right is not None]
    figures = sorted((item for _, *both in known for item in both), key=lambda item: item.value)
    if not figures:
        return (), None
    low, high = figures[0], figures[-1]
    span = (high.value - low.value) or 1.0

    def place(item: Number) -> float:
        return round(94.0 - 88.0 * (item.value - low.value) / span, 2)

    return tuple(
        Slope(place(left), place(right), f"seed {row.repeat}: {left} to {right}, ratio {row.ratio}")
        for row, left, right in known
    ), (high, low)


def _prices(record: Record, arms: Sequence[CellRow]) -> dict[str, str]:
    price, metric = record.environment.price, METRICS[record.plan.suite.metric]
    if price is None or not (metric.timed and metric.to_target):
        return {}
    return {row.mark.cell_id: price.text(row.median.value) for row in arms
            if row.median is not None and row.mark.origin == "measured"}


def _machine(record: Record) -> str:
    environment = record.environment
    where = ", ".join(dict.fromkeys(environment.devices)) or f"{plural(environment.cores, 'core')} of {environment.cpu}"
    nodes = f"{1 + len(record.nodes.nodes)} nodes, the first with " if record.nodes.nodes else ""
    programs = all(isinstance(cell.choices, ProgramConfig) for cell in record.plan.cells)  # with their own libraries
    versions = [f"{name} {version}" for name in (() if programs else SHOWN)
                if (version := environment.libraries.get(name))]
    return ", ".join([nodes + where, *versions])


def _cost(record: Record) -> str:
    spent = findings(record).cost
    text = f"{plural(spent.trials, 'trial')}, {duration(spent.wall_seconds)} on the clock"
    if price := record.environment.price:
        text += f" ({price.text(spent.wall_seconds)} at a declared {price.per_hour:g} {price.currency} an hour)"
    if spent.processor_seconds > 1.01 * spent.wall_seconds:
        text += f", {duration(spent.processor_seconds)} of processes"
    return text + (f"; {plural(spent.unknown, 'start')} without a recorded end" if spent.unknown else "")


@dataclass(frozen=True)
class LookRow(RatioMark):
    """One look at the primary contrast."""

    look: Look


@dataclass(frozen=True, slots=True)
class Looks:
    """All looks that were taken, on one axis."""

    rows: tuple[LookRow, ...]
    axis: Axis
    margin: tuple[float, float]
    """Positions of the ends of the margin: an interval inside them is "same"."""


def looks(record: Record) -> Looks:
    """Return the looks of a record; without rows for a fixed number of pairs."""
    margin = 1 + record.plan.suite.margin
    known = [value for look in record.looks for value in (look.low, look.high, look.ratio) if value is not None]
    axis = around_one([*known, 1 / margin, margin])
    return Looks(tuple(LookRow(**vars(ratio_mark(axis, look.ratio, _interval(look))), look=look)
                       for look in record.looks), axis, (axis.at(1 / margin), axis.at(margin)))


def _interval(look: Look) -> Bounds | None:
    if look.low is None or look.high is None:
        return None
    return Bounds(low=look.low, high=look.high, level=1 - look.nominal)
