"""Figures of training by cell as one table for papers: the columns that papers report."""

from __future__ import annotations

from repro.tables.words import TextTable, name, rounded

from .shown import Shown

COLUMNS = (
    ("step_seconds", "Step (s)"), ("train_samples_per_second", "Samples/s"), ("tokens_per_second", "Tokens/s"),
    ("mfu", "MFU"), ("training_peak_mib", "Peak memory (MiB)"), ("joules_per_sample", "J a sample"),
    ("version_lag", "Version lag"), ("clock_lag", "Clock lag"),
)
"""(path, header) of the figures; a column without any value is left out."""


def training_table(part: Shown) -> TextTable:
    """Return the medians of each of the cells; no row without figures."""
    found = {cell.cell_id: part.found.figures[cell.cell_id] for cell in part.cells}
    columns = [item for item in COLUMNS if any(item[0] in values for values in found.values())]
    return TextTable(
        title="Training alone: medians, not tested; memory of the largest rank",
        headers=("Cell", *(header for _, header in columns)), numeric=(False, *(True for _ in columns)),
        rows=tuple((name(cell.label), *(rounded(found[cell.cell_id].get(path)) for path, _ in columns))
                   for cell in part.cells) if columns else (),
    )
