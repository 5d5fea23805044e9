"""The looks of a sequential run: the ratio with its repeated interval at each, and what followed."""

from __future__ import annotations

from dataclasses import dataclass

from repro.record.folder.ledger import Look
from repro.record.folder.store import Record
from repro.tables.text import ratios, significant

from ..axis import Axis, around_one

FOLLOWS = {"settled": "settled", "continues": "continues", "last": "the last look", "failed": "a trial failed"}


@dataclass(frozen=True, slots=True)
class LookRow:
    """One look, with the positions of its drawing in per cent of the width."""

    number: int
    n: int
    ratio: str
    """ "" if there is none."""
    ends: tuple[str, str] | None
    dot: float | None
    whisker: tuple[float, float] | None
    p: str
    needed: str
    same_p: str
    same_needed: str
    verdict: str
    follows: str


@dataclass(frozen=True, slots=True)
class Looks:
    """All looks that were taken."""

    rows: tuple[LookRow, ...]
    of: int
    anytime: bool
    axis: Axis
    one: float
    margin: tuple[float, float]
    """Positions of the ends of the margin: an interval inside them is "same"."""
    words: str


def looks(record: Record) -> Looks:
    """Return the looks of a record; without rows for a fixed number of pairs."""
    taken, design, margin = record.looks, record.plan.design, 1 + record.plan.suite.margin
    known = [value for look in taken for value in (look.low, look.high, look.ratio) if value is not None]
    axis = around_one([*known, 1 / margin, margin])
    return Looks(
        rows=tuple(_row(look, axis) for look in taken), of=len(design.looks), anytime=design.anytime, axis=axis,
        one=axis.at(1.0), margin=(axis.at(1 / margin), axis.at(margin)), words=design.rule)


def _row(look: Look, axis: Axis) -> LookRow:
    texts = ratios([value for value in (look.ratio, look.low, look.high) if value is not None])
    complete = look.ratio is not None and look.low is not None and look.high is not None
    return LookRow(
        number=look.number, n=look.n, ratio=texts[0].text if look.ratio is not None else "",
        ends=(texts[1].text, texts[2].text) if complete else None,
        dot=axis.at(look.ratio) if look.ratio is not None else None,
        whisker=(axis.at(look.low), axis.at(look.high)) if look.low is not None and look.high is not None else None,
        p=_p(look.p), needed=significant(look.nominal, 3), same_p=_p(look.same_p),
        same_needed=significant(look.same_nominal, 3), verdict=look.verdict, follows=FOLLOWS[look.decision])


def _p(value: float | None) -> str:
    return "-" if value is None else significant(value, 2)
