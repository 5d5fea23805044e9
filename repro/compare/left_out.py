"""Cells that leave near-duplicates out of the training data, and what that leaves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from repro.record.folder.store import Record
from repro.suite.kinds.training import TrainingConfig
from repro.suite.planning.cell import Cell
from repro.workloads.selected_data import Dedup, Selected


class LeftOut(NamedTuple):
    """One cell; the facts are those of its plan, which its trials have checked."""

    cell: Cell
    dedup: Dedup
    selected: Selected


def left_out(record: Record) -> Iterator[LeftOut]:
    """Yield the cells in the order of the plan."""
    for cell in record.plan.cells:
        if isinstance(cell.choices, TrainingConfig):
            plugin = cell.choices.workload.plugin
            dedup, selected = getattr(plugin, "dedup", None), getattr(plugin, "selected", None)
            if isinstance(dedup, Dedup) and isinstance(selected, Selected):
                yield LeftOut(cell, dedup, selected)
