"""One line of a scaling chart: cells that differ only in their number of processes, with their values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from repro.compare import METRICS, Bounds, Comparison, Metric, contrast
from repro.compare.findings import findings
from repro.record.folder.store import Record
from repro.record.result.parts import Traffic
from repro.record.result.results import Result
from repro.suite.planning.cell import Cell
from repro.tables.text import Number, number, ratios, seconds, shortened, without_paths

from ..cells import COLORS, DASHES, SYMBOLS, CellMark
from ..document import milliseconds
from ..traffic import NEGLIGIBLE, counted, kibibytes
from .bounds import CostModel, StepBounds, bounds, ended, network_of


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
            "step": _ms(bound.step), "compute": _ms(bound.compute), "wire": _ms(bound.one_after_the_other),
            "overlapped": _ms(bound.overlapped), "modelled": _ms(bound.modelled), "epoch": seconds(self.epoch),
            "tta": seconds(self.tta), "speedup": found[0] if found else None,
            "interval": f"{found[1]} to {found[2]}" if len(found) == 3 else "",
            "bytes": kibibytes(self.bytes_per_epoch) if self.bytes_per_epoch is not None else None,
            "exposed": seconds(self.exposed_per_epoch),
        }


def _label(cell: Cell, more: str = "") -> str:
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
    metric = speed_of(record)
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
        epoch=_median([_epoch(item, train) for item in items]), speedup=speedup,
        tta=summary.median if summary.has_target else None,
        interval=_inverted(ends, metric) if ends else None,
        because=against.because if against and not against.ratio else "",
        baseline=known[single.cell_id] if single else None, epochs=number(summary.median_epochs),
        final=number(summary.median_final, 4),
        bytes_per_epoch=_median([steps * moved.busiest_sent_bytes / count for moved, count in moves]),
        least_bytes_per_epoch=_median([_least(moved, choices.processes, steps / count) for moved, count in moves]),
        exposed_per_epoch=_median([steps * moved.training.exposed_seconds / count for moved, count in moves]),
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


def speed_of(record: Record) -> Metric:
    """Return the metric of speed-ups: the time to the target or the end or, without a target, training throughput."""
    return record.plan.suite.default_metric


def _inverted(ends: Bounds, metric: Metric) -> tuple[float, float]:
    """Return the interval of the speed-up: of a time it is that of the inverse ratio."""
    return (1 / ends.high, 1 / ends.low) if METRICS[metric].better == "lower" else (ends.low, ends.high)


def _against(record: Record, cell: Cell, single: Cell | None, metric: Metric) -> Comparison | None:
    if single is None or cell.cell_id == single.cell_id:
        return None
    return contrast(cell, single, record.of_cell(cell.cell_id), record.of_cell(single.cell_id), metric,
                    primary=False, planned=record.plan.design.common)


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def _ms(value: float | None) -> Number | None:
    return None if value is None else milliseconds(value)
