"""Claims of a contest about the quality of each cell, as the page shows them."""

from __future__ import annotations

from dataclasses import dataclass

from repro.compare.figures import Claim
from repro.compare.findings import Findings
from repro.tables.text import Number, number

from ..cells import CellMark, marks

STYLES = {"supported": "b-pass", "not supported": "b-fail", "cannot be tested": "b-inconclusive"}
"""Verdict -> class of its badge."""


@dataclass(frozen=True, slots=True)
class ClaimRow:
    """The claim of one cell."""

    mark: CellMark
    n: int
    declared: int
    mean: Number | None
    bounds: str
    deviation: Number | None
    p: Number | None
    verdict: str
    style: str
    because: str
    cautions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PageClaims:
    """The section of claims."""

    statement: str
    metric: str
    declared: int
    rows: tuple[ClaimRow, ...]


def page_claims(findings: Findings) -> PageClaims | None:
    """Compute the section; None: the run is no contest."""
    found, known = findings.claims, marks(findings.record)
    if not found:
        return None
    return PageClaims(found[0].statement, found[0].metric, found[0].declared,
                      tuple(_row(item, known[item.cell_id]) for item in found))


def _row(item: Claim, mark: CellMark) -> ClaimRow:
    limits = item.interval
    return ClaimRow(
        mark=mark, n=item.n, declared=item.declared, mean=_decimals(item.mean),
        bounds=f"{limits.low:,.5f} to {limits.high:,.5f}" if limits else "", deviation=_decimals(item.deviation),
        p=number(item.p, 2), verdict=item.verdict, style=STYLES[item.verdict], because=item.because,
        cautions=item.cautions,
    )


def _decimals(value: float | None) -> Number | None:
    return None if value is None else Number(value, f"{value:,.5f}")
