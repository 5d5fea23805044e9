"""Lower bounds of a step: compute alone, compute with the links' rate, and a cost model fitted to the run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from repro.core.frozen import canonical
from repro.record.folder.store import Record
from repro.record.result.parts import Formula
from repro.record.result.results import Result
from repro.record.result.status import meaning
from repro.suite.planning.cell import Cell

from ..traffic import NEGLIGIBLE, steps_of

LEAST_CELLS = 3
"""Fewest cells for a fit of the two parameters."""


@dataclass(frozen=True, slots=True)
class StepBounds:
    """Seconds of one step of one cell, medians over its trials; None if an input is unknown."""

    step: float | None
    """Measured: the median step of the slowest rank, without input."""
    compute: float | None
    """The step multiplied by the share of training in which the ranks did not wait for communication."""
    wire: float | None
    """The formula's bytes of the busiest rank divided by the rate of the slowest link."""
    network: float | None
    """Seconds of all collectives of a step, by the cost model."""

    @property
    def one_after_the_other(self) -> float | None:
        """Compute plus wire, without overlap."""
        return _plus(self.compute, self.wire)

    @property
    def overlapped(self) -> float | None:
        """The longer of compute and wire: full overlap. No step on these links can be shorter."""
        return None if self.compute is None or self.wire is None else max(self.compute, self.wire)

    @property
    def modelled(self) -> float | None:
        """Compute plus the modelled collectives, without overlap."""
        return _plus(self.compute, self.network)


@dataclass(frozen=True, slots=True)
class CostModel:
    """Seconds alpha per round and beta per byte on the path, fitted to the collectives of this run."""

    alpha: float
    beta: float
    cells: int
    error: float
    """Median absolute relative error over the cells."""

    def seconds(self, rounds: float, path_bytes: float) -> float:
        return self.alpha * rounds + self.beta * path_bytes


def ended(results: Sequence[Result]) -> list[Result]:
    """Return the trials that trained to the end, whose step times are complete."""
    return [item for item in results if item.steps and meaning(item.status).completed]


def fits(record: Record) -> dict[str, CostModel]:
    """Fit a model for each launcher of the plan (by its canonical text): each has its own network."""
    cells: dict[str, list[Cell]] = {}
    for cell in record.plan.cells:
        cells.setdefault(network_of(cell), []).append(cell)
    found = {name: fit([record.of_cell(cell.cell_id) for cell in of]) for name, of in cells.items()}
    return {name: model for name, model in found.items() if model}


def network_of(cell: Cell) -> str:
    """Return the key of the network that a cell runs on."""
    return canonical(cell.choices.launcher)


def fit(cells: Sequence[Sequence[Result]]) -> CostModel | None:
    """Fit the model by least squares on the relative error of the busy seconds of each cell, parameters not negative.

    Hockney's model (1994) on the rounds and the bytes on the path of each cell's schedules. Busy seconds are those in
    which a collective ran, including the wait for other ranks, mean over ranks.
    """
    from scipy.optimize import nnls

    rows: list[tuple[float, float]] = []
    for results in cells:
        found = [(formula.rounds / spent, formula.path_bytes / spent)
                 for item in ended(results)
                 if (formula := _formula(item)) and item.traffic and (spent := item.traffic.training.busy_seconds) > 0]
        if found:
            rows.append((median(rounds for rounds, _ in found), median(path for _, path in found)))
    scale = [max(row[index] for row in rows) for index in (0, 1)] if rows else []
    if len(rows) < LEAST_CELLS or not all(scale):
        return None
    weights, _ = nnls([[row[0] / scale[0], row[1] / scale[1]] for row in rows], [1.0] * len(rows))
    alpha, beta = (float(weight) / most for weight, most in zip(weights, scale, strict=True))
    error = median(abs(alpha * rounds + beta * path - 1) for rounds, path in rows)
    return CostModel(alpha, beta, len(rows), error)


def bounds(cell: Cell, results: Sequence[Result], model: CostModel | None) -> StepBounds:
    """Compute the bounds of one cell."""
    items, processes = ended(results), cell.choices.processes
    return StepBounds(
        step=_median([item.steps.median_seconds for item in items if item.steps]),
        compute=_median([_compute(item, processes) for item in items]),
        wire=_median([_wire(cell, item) for item in items]),
        network=_median([_network(cell, item, model) for item in items]),
    )


def _compute(item: Result, processes: int) -> float | None:
    assert item.steps is not None
    if processes == 1:
        return item.steps.median_seconds
    if item.traffic is None or not item.phases.get("train"):
        return None
    return item.steps.median_seconds * max(0.0, 1 - item.traffic.training.exposed_seconds / item.phases["train"])


def _wire(cell: Cell, item: Result) -> float | None:
    """Return None also if ranks share a node: messages between them do not use its link."""
    processes = cell.choices.processes
    if processes == 1:
        return 0.0
    formula = _formula(item)
    if formula is None or item.network is None or len(set(item.network.node_of_rank)) < processes:
        return None
    return max(formula.sent_bytes, formula.received_bytes) * 8 / item.network.slowest / steps_of(cell, item)


def _formula(item: Result) -> Formula | None:
    """Return None if the formula covers too little of the payload (`NEGLIGIBLE`)."""
    known = item.traffic is not None and item.traffic.uncounted_share <= NEGLIGIBLE
    return item.traffic.formula if item.traffic and known else None


def _network(cell: Cell, item: Result, model: CostModel | None) -> float | None:
    if cell.choices.processes == 1:
        return 0.0
    formula = _formula(item)
    if model is None or formula is None:
        return None
    steps = steps_of(cell, item)
    return model.seconds(formula.rounds / steps, formula.path_bytes / steps)


def _plus(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one + other


def _median(values: Sequence[float | None]) -> float | None:
    """Return None if any value is unknown: a median of the others would not describe the cell."""
    known = [value for value in values if value is not None]
    return median(known) if known and len(known) == len(values) else None
