"""Figures of measurements by cell: medians over trials, the worst error of every check; described, not tested."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from repro import stats
from repro.compare.figures import Bounds, bounds
from repro.record.result.results import Result
from repro.record.result.status import meaning


@dataclass(frozen=True, slots=True)
class CellFigure:
    """One figure of a cell, over its trials that ended well."""

    name: str
    title: str
    unit: str
    label: str
    """counted, measured or modelled."""
    n: int
    median: float
    interval: Bounds | None
    """Order-statistic interval of the median; None: too few trials, or all are equal."""


@dataclass(frozen=True, slots=True)
class CellCheck:
    """One check of a cell's answers, over all trials that made it."""

    name: str
    n: int
    passed: int
    worst: float | None
    """Largest error; None: one was not finite."""
    limit: float


def cell_measures(results: Sequence[Result]) -> list[CellFigure]:
    """Return the figures of one cell: time, throughput, memory and traffic, then those that its measurement adds."""
    known = [item for item in results if item.operation is not None and meaning(item.status).counts]
    if not known:
        return []
    first = known[0].operation
    assert first is not None
    found = [_figure(name, title, unit.format(items=first.items), label, [item.at(path) for item in known])
             for name, path, title, unit, label in FIGURES]
    for kind in first.figures:
        values = [figure.value for item in known if item.operation for figure in item.operation.figures
                  if figure.name == kind.name]
        found.append(_figure(kind.name, kind.title, kind.unit, kind.label, values))
    return [item for item in found if item is not None]


FIGURES = (
    ("operation_seconds", "operation.median_seconds", "Operation, median", "s", "measured"),
    ("operation_p95_seconds", "operation.p95_seconds", "Operation, 95th percentile", "s", "measured"),
    ("items_per_second", "operation.items_per_second", "Throughput", "{items}/s", "measured"),
    ("training_peak_mib", "training_peak_mib", "Peak memory, largest rank", "MiB", "measured"),
    ("sent_bytes", "operation.sent_bytes", "Bytes sent by all ranks", "bytes an operation", "counted"),
    ("busiest_sent_bytes", "operation.busiest_sent_bytes", "Bytes sent by the busiest rank", "bytes an operation",
     "counted"),
)
"""(name, path in a result, title, unit, label) of the figures that every measurement has, as far as they are known."""


def _figure(name: str, title: str, unit: str, label: str, values: Sequence[float | None]) -> CellFigure | None:
    known = [value for value in values if value is not None]
    if not known:
        return None
    ends = bounds(stats.median_interval(known)) if len(set(known)) > 1 else None
    return CellFigure(name, title, unit, label, len(known), median(known), ends)


def cell_checks(results: Sequence[Result]) -> list[CellCheck]:
    """Return the checks of one cell, in the order in which they were made; trials with wrong answers are among them."""
    made: dict[str, list[tuple[float | None, float, bool]]] = {}
    for item in results:
        for check in item.operation.checks if item.operation else ():
            made.setdefault(check.name, []).append((check.error, check.limit, check.passed))
    return [
        CellCheck(name, len(found), sum(passed for *_, passed in found),
                  None if any(error is None for error, *_ in found) else max(error or 0.0 for error, *_ in found),
                  min(limit for _, limit, _ in found))
        for name, found in made.items()]
