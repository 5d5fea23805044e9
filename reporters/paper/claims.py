"""The table of a contest's claims for a README or a paper."""

from __future__ import annotations

from repro.tables.words import NOTHING, TextTable, name

from .shown import Shown


def claims_table(part: Shown) -> TextTable:
    """Return one row a cell; none if the run is no contest."""
    found = [item for item in part.found.claims if part.has(item.cell_id)]
    return TextTable(
        title=f"Claims of quality: {name(found[0].statement)}" if found else "",
        headers=("Cell", "Figures", "Runs", "Mean", "Standard deviation", "p, one-sided", "alpha", "Claim"),
        numeric=(False, False, True, True, True, True, True, False),
        rows=tuple((
            name(item.label), part.found.record.cell(item.cell_id).choices.origin, f"{item.n}/{item.declared}",
            NOTHING if item.mean is None else f"{item.mean:.5f}",
            NOTHING if item.deviation is None else f"{item.deviation:.5f}",
            NOTHING if item.p is None else f"{item.p:.2g}", f"{item.alpha:g}",
            item.verdict if item.supported else f"{item.verdict}: {name(item.because)}") for item in found),
    )
