"""How every layer's gradient travelled in the cells that may send sufficient factors, and what each way costs."""

from __future__ import annotations

from dataclasses import dataclass

from repro.record.folder.store import Record
from repro.record.result.parts import LayerCost
from repro.tables.tables import Table
from repro.tables.values import plain

from ..page.cells import CellMark, marks
from ..page.charts.scaling import ScalingView


@dataclass(frozen=True, slots=True)
class LayerRow:
    """One layer of one cell."""

    mark: CellMark
    layer: LayerCost

    @property
    def choice(self) -> str:
        """Describe how the gradient travels."""
        if not self.layer.linear:
            return "all-reduce: not a separate fully connected layer"
        way, paper = ("factors" if chosen else "all-reduce" for chosen in (self.layer.factors, self.layer.paper))
        return way if way == paper else f"{way}; the paper's rule: {paper}"


def layer_table(record: Record) -> Table:
    """Return one row per layer and trial that planned how its gradients travel."""
    title = "One row per layer of a trial that planned how its gradients travel (modelled)"
    return Table("gradient_plan", title, tuple(
        {"trial_id": item.trial_id, "cell_id": item.cell_id, "seed": item.repeat, "origin": "modelled",
         **layer.model_dump(), "name": plain(layer.name)}
        for item in record.results for layer in item.gradient_plan or ()))


def layer_rows(record: Record, _: ScalingView) -> tuple[LayerRow, ...]:
    """Return the cost tables of all cells that have one, as their first trial planned it: shapes decide it alone."""
    known = marks(record)
    return tuple(
        LayerRow(known[cell.cell_id], layer)
        for cell in record.plan.cells
        for layer in next((item.gradient_plan for item in record.of_cell(cell.cell_id) if item.gradient_plan), ()))
