"""Figures of training by cell as one table for papers: the columns that papers report."""

from __future__ import annotations

from collections.abc import Sequence

from repro.compare.cell_figures import cell_figures
from repro.record.folder.store import Record
from repro.suite.planning.cell import Cell

from .words import TextTable, name, rounded

COLUMNS = (
    ("step_seconds", "Step (s)"), ("train_samples_per_second", "Samples/s"), ("tokens_per_second", "Tokens/s"),
    ("mfu", "MFU"), ("training_peak_mib", "Peak memory (MiB)"), ("joules_per_sample", "J a sample"),
    ("version_lag", "Version lag"), ("clock_lag", "Clock lag"),
)
"""(path, header) of the figures; a column without any value is left out."""


def training_table(record: Record, cells: Sequence[Cell]) -> TextTable:
    """Return the medians of each of the cells; no row without figures."""
    found = {cell.cell_id: cell_figures(record.of_cell(cell.cell_id)) for cell in cells}
    columns = [item for item in COLUMNS if any(item[0] in values for values in found.values())]
    return TextTable(
        title="Training alone: medians, not tested; memory of the largest rank",
        headers=("Cell", *(header for _, header in columns)), numeric=(False, *(True for _ in columns)),
        rows=tuple((name(cell.label), *(rounded(found[cell.cell_id].get(path)) for path, _ in columns))
                   for cell in cells) if columns else (),
    )
