"""Figures of training and of measurements by cell: medians over its trials, the worst error of every check.

They are described, not tested: a verdict on one of them needs `--metric`, or a suite that declares it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

from repro import stats
from repro.compare.figures import Bounds, bounds
from repro.record.result.results import Result
from repro.record.result.status import meaning


class Figure(NamedTuple):
    """One column of a table."""

    path: str
    """Field of a result, or of its model after a dot."""
    title: str
    unit: str
    """"" for a share or a count; "s" for a time."""


GROUPS: dict[str, tuple[Figure, ...]] = {
    "Speed": (
        Figure("step_seconds", "Step time, median", "s"), Figure("step_seconds_mean", "Step time, mean", "s"),
        Figure("train_samples_per_second", "Training throughput", "samples/s"),
        Figure("tokens_per_second", "Tokens a second", "tokens/s"), Figure("mfu", "MFU", ""),
    ),
    "Memory": (
        Figure("training_peak_mib", "Peak in training, largest rank", "MiB"),
        Figure("training_peak_mib_sum", "Sum over ranks", "MiB"), Figure("init_peak_mib", "Until training", "MiB"),
        Figure("state_mib_modelled", "Model states of a rank, modelled", "MiB"),
    ),
    "Input": (
        Figure("input_wait_seconds", "Wait for input a step, mean", "s"),
        Figure("input_wait_share", "Share of the step", ""),
    ),
    "Servers": (
        Figure("version_lag", "Version lag, mean", ""), Figure("clock_lag", "Clock lag, mean", ""),
        Figure("protocol.evaluation_delay_seconds", "Delay of an evaluation", "s"),
    ),
    "Energy": (Figure("joules_per_sample", "Measured energy a sample", "J"),
               Figure("gpu_joules_per_sample", "Measured energy of the GPUs a sample", "J")),
    "Model": (
        Figure("model.parameters", "Parameters", ""), Figure("model.forward_flops", "Forward pass of a sample", "FLOP"),
    ),
}
"""Title of a group -> its figures."""


def cell_figures(results: Sequence[Result]) -> dict[str, float]:
    """Return path -> median over the trials that have the figure; {} for results of versions that had no such figures.

    A trial that failed tells nothing about its cell and is left out.
    """
    known = [item for item in results if item.step_seconds is not None and meaning(item.status).counts]
    found = {}
    for figure in (figure for group in GROUPS.values() for figure in group):
        if values := [value for item in known if (value := item.at(figure.path)) is not None]:
            found[figure.path] = median(values)
    return found


def notes(results: Iterable[Result]) -> list[str]:
    """Return what a reader must know of the figures: what memory counts, whose peak MFU is a share of, or why there is
    none, what is modelled; each once."""
    found: dict[str, None] = {}
    for item in results:
        if item.memory:
            found.setdefault(MEMORY[item.memory])
        if item.state_mib_modelled is not None:
            found.setdefault(STATES)
        if item.model is not None and item.model.peak_flops:
            found.setdefault(f"MFU is a share of {item.model.peak_flops / 1e12:g} TFLOP/s a device, the stated peak of "
                             f"{item.model.device} ({item.model.peak_source})")
        elif item.model is not None and item.model.why:
            found.setdefault(f"no MFU: {item.model.why}")
    return list(found)


MEMORY = {
    "resident": "memory is the resident memory of a process, with the interpreter and its libraries; what processes "
                "share counts for each",
    "allocated": "memory is what torch allocated on the GPU, without its context and what its allocator holds in "
                 "reserve",
}
"""`Result.memory` -> what it counts."""
STATES = ("the memory of model states is modelled, not measured: weights, gradients, master weights and optimizer by "
          "the engine's formula, without activations, buckets and gathered weights")


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
