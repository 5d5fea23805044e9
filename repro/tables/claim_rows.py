"""Claims of a contest as rows of plain values."""

from __future__ import annotations

from collections.abc import Iterator

from repro.compare.runs.findings import Findings
from repro.tables.values import Row, bounds, plain


def claim_rows(found: Findings) -> Iterator[Row]:
    """Yield one row a cell, exact; none if the run is no contest."""
    for item in found.claims:
        row: Row = {
            "cell_id": item.cell_id, "cell": plain(item.label),
            "origin": found.record.cell(item.cell_id).choices.origin,
            "quality": plain(item.metric), "direction": item.direction, "target": item.target, "alpha": item.alpha,
            "declared": item.declared, "n": item.n, "mean": item.mean, "deviation": item.deviation,
        }
        yield row | bounds("mean", item.interval) | {
            "p": item.p, "verdict": item.verdict, "because": plain(item.because),
            "cautions": plain("; ".join(item.cautions))}
