"""Lines of scaling charts: cells by their number of processes, with lower bounds of a step and a fitted cost model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from repro.compare import METRICS, Comparison, Metric, contrast
from repro.compare.findings import findings
from repro.core.frozen import canonical
from repro.core.numbers import known_median
from repro.record.folder.store import Record
from repro.record.result.parts import Formula, Traffic
from repro.record.result.results import Result
from repro.record.result.status import meaning
from repro.suite.planning.cell import Cell
from repro.tables.text import Number, number, ratios, seconds, shortened, without_paths

from ..cells import COLORS, DASHES, SYMBOLS, CellMark
from ..document import kibibytes, milliseconds
from ..traffic import NEGLIGIBLE, counted, steps_of

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
        step=_known_median([item.steps.median_seconds for item in items if item.steps]),
        compute=_known_median([_compute(item, processes) for item in items]),
        wire=_known_median([_wire(cell, item) for item in items]),
        network=_known_median([_network(cell, item, model) for item in items]),
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
    return item.traffic.formula if item.traffic and item.traffic.uncounted_share <= NEGLIGIBLE else None


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


def _known_median(values: Sequence[float | None]) -> float | None:
    """Return None if any value is unknown: a median of the others would not describe the cell."""
    return None if None in values else known_median(values)


@dataclass(frozen=True, slots=True)
class ScalingLine:
    """Cells that differ only in their number of processes; drawn like a cell mark."""

    number: int
    label: str
    color: int
    dash: str
    symbol: str
    points: tuple[ScalingPoint, ...]

    @property
    def brief(self) -> str:
        """The label, without its middle if it is long."""
        return shortened(self.label)


@dataclass(frozen=True, slots=True)
class ScalingPoint:
    """One cell of a line: raw values for the charts, texts for the table."""

    mark: CellMark
    processes: int
    batch: int
    n: int
    bounds: StepBounds
    steps: tuple[float, ...]
    """Median step of every trial."""
    epoch: float | None
    tta: float | None
    speedup: float | None
    interval: tuple[float, float] | None
    because: str
    baseline: CellMark | None
    epochs: Number | None
    final: Number | None
    bytes_per_epoch: float | None
    least_bytes_per_epoch: float | None
    """The least that the busiest rank of any all-reduce can send, 2 (p - 1) / p |W| a step (Patarasuk and Yuan, 2009);
    None: other operations ran as well."""
    exposed_per_epoch: float | None

    @property
    def texts(self) -> dict[str, object]:
        """The table's cells."""
        found = ratios([self.speedup, *(self.interval or ())]) if self.speedup else []
        bound = self.bounds
        return {
            "step": milliseconds(bound.step), "compute": milliseconds(bound.compute),
            "wire": milliseconds(bound.one_after_the_other), "overlapped": milliseconds(bound.overlapped),
            "modelled": milliseconds(bound.modelled), "epoch": seconds(self.epoch),
            "tta": seconds(self.tta), "speedup": found[0] if found else None,
            "interval": f"{found[1]} to {found[2]}" if len(found) == 3 else "",
            "bytes": kibibytes(self.bytes_per_epoch) if self.bytes_per_epoch is not None else None,
            "exposed": seconds(self.exposed_per_epoch),
        }


def _label(cell: Cell, more: str) -> str:
    """Return the settings that the cells of a line share and that distinguish it from other lines."""
    parts = [value if key in ("engine", "workload", "precision", "comm", "optimizer", "launcher")
             else f"{key.split('.')[-1].replace('_', ' ')} {value}"
             for key, value in cell.factors.items() if key not in ("processes", "batch.global")]
    return without_paths(", ".join([*parts, *([more] if more else [])]) or cell.choices.title)


def scaling_line(
    record: Record, known: dict[str, CellMark], models: dict[str, CostModel], index: int, cells: Sequence[Cell],
    single: Cell | None, more: str = "",
) -> ScalingLine:
    return ScalingLine(
        number=index + 1, label=_label(cells[0], more), color=index % COLORS, dash=DASHES[0],
        symbol=SYMBOLS[index % len(SYMBOLS)],
        points=tuple(_point(record, known, models, cell, single) for cell in cells),
    )


def _point(
    record: Record, known: dict[str, CellMark], models: dict[str, CostModel], cell: Cell, single: Cell | None
) -> ScalingPoint:
    results = record.of_cell(cell.cell_id)
    items, choices = ended(results), cell.choices
    train, batch = choices.train_samples or 0, choices.global_batch or 1
    steps = train / batch
    moves = [(moved, count) for _, moved, count in counted(cell, items)] if choices.processes > 1 else []
    metric = record.plan.suite.default_metric
    against = _against(record, cell, single, metric)
    summary = findings(record).summary(cell.cell_id, metric)
    speedup = against.speedup if against else None
    if single is not None and cell.cell_id == single.cell_id and summary.median is not None:
        speedup = 1.0
    ends = against.interval if against and against.ratio else None
    return ScalingPoint(
        mark=known[cell.cell_id], processes=choices.processes, batch=batch, n=len(items),
        bounds=bounds(cell, results, models.get(network_of(cell))),
        steps=tuple(item.steps.median_seconds for item in items if item.steps),
        epoch=known_median([_epoch(item, train) for item in items]), speedup=speedup,
        tta=summary.median if summary.has_target else None,
        interval=None if ends is None else (1 / ends.high, 1 / ends.low) if METRICS[metric].better == "lower" else
        (ends.low, ends.high),
        because=against.because if against and not against.ratio else "",
        baseline=known[single.cell_id] if single else None, epochs=number(summary.median_epochs),
        final=number(summary.median_final, 4),
        bytes_per_epoch=known_median([steps * moved.busiest_sent_bytes / count for moved, count in moves]),
        least_bytes_per_epoch=known_median([_least(moved, choices.processes, steps / count) for moved, count in moves]),
        exposed_per_epoch=known_median([steps * moved.training.exposed_seconds / count for moved, count in moves]),
    )


def _least(moved: Traffic, processes: int, share: float) -> float | None:
    """Return the bound on the bytes of an epoch.

    Args:
        share: steps of an epoch over those of the trial.
    """
    lines = moved.ranks[moved.busiest_rank].lines
    payload = sum(line.payload_bytes for line in lines if line.operation == "all_reduce")
    if payload < (1 - NEGLIGIBLE) * sum(line.payload_bytes for line in lines):
        return None
    return 2 * (processes - 1) / processes * payload * share


def _epoch(item: Result, train: int) -> float | None:
    """Return the training seconds of one pass over the training samples, without evaluation."""
    return item.phases["train"] * train / item.samples if item.samples and item.phases.get("train") else None


def _against(record: Record, cell: Cell, single: Cell | None, metric: Metric) -> Comparison | None:
    if single is None or cell.cell_id == single.cell_id:
        return None
    return contrast(cell, single, record.of_cell(cell.cell_id), record.of_cell(single.cell_id), metric,
                    primary=False, planned=record.plan.design.common)
