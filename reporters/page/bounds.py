"""What a step would take at least: compute alone, with the links' rate, and by a cost model fitted to the run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from repro.record.results import Formula, Result
from repro.record.status import meaning
from repro.record.store import Record
from repro.suite.cell import Cell
from repro.suite.identity import canonical

from .traffic import NEGLIGIBLE

LEAST_CELLS = 3
"""A fit of two parameters to fewer cells would show nothing."""


@dataclass(frozen=True, slots=True)
class StepBounds:
    """Seconds of one step of one cell; medians over its trials, None where something they need is not known."""

    step: float | None
    """Measured: the trial's median step, slowest rank, input left out."""
    compute: float | None
    """The step times the share of training in which the ranks did not stand still for communication."""
    wire: float | None
    """The formula's bytes of the busiest rank over the slowest link's rate."""
    network: float | None
    """The cost model's seconds of all collectives of a step."""

    @property
    def one_after_the_other(self) -> float | None:
        """Compute, then the wire: nothing overlaps."""
        return _plus(self.compute, self.wire)

    @property
    def overlapped(self) -> float | None:
        """The longer of the two: everything overlaps. No step on these links can be shorter."""
        return None if self.compute is None or self.wire is None else max(self.compute, self.wire)

    @property
    def modelled(self) -> float | None:
        """Compute, then the modelled collectives."""
        return _plus(self.compute, self.network)


@dataclass(frozen=True, slots=True)
class CostModel:
    """alpha a round and beta a byte on the path, fitted to this run's own collectives."""

    alpha: float
    beta: float
    cells: int
    error: float
    """Median size of the relative error over the cells."""

    def seconds(self, rounds: float, path_bytes: float) -> float:
        return self.alpha * rounds + self.beta * path_bytes


def ended(results: Sequence[Result]) -> list[Result]:
    """The trials that trained to their end: their step times are whole."""
    return [item for item in results if item.steps and meaning(item.status).completed]


def fits(record: Record) -> dict[str, CostModel]:
    """A model for every launcher of the plan (its canonical text): links of different rates are no one network."""
    cells: dict[str, list[Cell]] = {}
    for cell in record.plan.cells:
        cells.setdefault(network_of(cell), []).append(cell)
    found = {name: fit([record.of_cell(cell.cell_id) for cell in of]) for name, of in cells.items()}
    return {name: model for name, model in found.items() if model}


def network_of(cell: Cell) -> str:
    """What tells the networks of a plan apart."""
    return canonical(cell.choices.launcher)


def fit(cells: Sequence[Sequence[Result]]) -> CostModel | None:
    """Least squares on the relative error of the busy seconds a step, cell by cell; neither parameter below zero.

    Hockney's model (1994) on what each cell's schedules ask for: rounds and bytes on the path. Busy seconds are those
    in which a collective ran, waiting for the other ranks included, mean over ranks.
    """
    from scipy.optimize import nnls

    rows: list[tuple[float, float]] = []
    for results in cells:
        found = [(formula.rounds / spent, formula.path_bytes / spent)
                 for item in ended(results)
                 if (formula := _formula(item)) and item.traffic and (spent := item.traffic.steps.busy_seconds) > 0]
        if found:
            rows.append((median(rounds for rounds, _ in found), median(path for _, path in found)))
    scale = [max(row[index] for row in rows) for index in (0, 1)] if rows else []
    if len(rows) < LEAST_CELLS or not all(scale):
        return None
    weights, _ = nnls([[row[0] / scale[0], row[1] / scale[1]] for row in rows], [1.0] * len(rows))
    alpha, beta = (float(weight) / most for weight, most in zip(weights, scale, strict=True))
    error = median(abs(alpha * rounds + beta * path - 1) for rounds, path in rows)
    return CostModel(alpha, beta, len(rows), error)


def bounds(results: Sequence[Result], processes: int, model: CostModel | None) -> StepBounds:
    """Of one cell."""
    items = ended(results)
    return StepBounds(
        step=_median([item.steps.median_seconds for item in items if item.steps]),
        compute=_median([_compute(item, processes) for item in items]),
        wire=_median([_wire(item, processes) for item in items]),
        network=_median([_network(item, processes, model) for item in items]),
    )


def _compute(item: Result, processes: int) -> float | None:
    assert item.steps is not None
    if processes == 1:
        return item.steps.median_seconds
    if item.traffic is None or not item.phases.get("train"):
        return None
    return item.steps.median_seconds * max(0.0, 1 - item.traffic.steps.exposed_seconds / item.phases["train"])


def _wire(item: Result, processes: int) -> float | None:
    """None also where ranks share a node: what they tell each other does not use its link."""
    assert item.steps is not None
    if processes == 1:
        return 0.0
    formula = _formula(item)
    if formula is None or item.network is None or len(set(item.network.node_of_rank)) < processes:
        return None
    return max(formula.sent_bytes, formula.received_bytes) * 8 / item.network.slowest / item.steps.count


def _formula(item: Result) -> Formula | None:
    """None where a good part of the payload went through operations that the formula leaves out."""
    known = item.traffic is not None and item.traffic.uncounted_share <= NEGLIGIBLE
    return item.traffic.formula if item.traffic and known else None


def _network(item: Result, processes: int, model: CostModel | None) -> float | None:
    assert item.steps is not None
    if processes == 1:
        return 0.0
    formula = _formula(item)
    if model is None or formula is None:
        return None
    return model.seconds(formula.rounds / item.steps.count, formula.path_bytes / item.steps.count)


def _plus(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one + other


def _median(values: Sequence[float | None]) -> float | None:
    """None where it is not known of every trial: a median of some would stand for others."""
    known = [value for value in values if value is not None]
    return median(known) if known and len(known) == len(values) else None
