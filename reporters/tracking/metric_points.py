"""Events and results -> metric points. Pure.

A point's `step` is the optimizer step: the one whole number that steps, blocks and evaluations share, and the axis on
which cells with one batch size compare. Samples and epochs, which compare across batch sizes, are metrics of their own
at the same steps.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from repro.compare import Bounds, Comparison, Summary
from repro.core.events import EVALUATION_KEYS, Event
from repro.record.metrics import figures_of
from repro.record.results import Result
from repro.record.status import meaning
from repro.record.store import Record
from repro.suite.metrics import METRICS
from repro.suite.model import Metric


@dataclass(frozen=True, slots=True)
class MetricPoint:
    """One value of one metric."""

    key: str
    value: float
    step: int
    time_ms: int


def training_points(events: Iterable[Event], batch: int) -> Iterator[MetricPoint]:
    """What rank 0's events say about the course of training.

    Args:
        batch: samples per optimizer step.
    """
    for event in events:
        if event.key == "x_steps":
            yield from _block(event, batch)
        elif event.key in EVALUATION_KEYS:
            yield from _evaluation(event, batch)


def _block(event: Event, batch: int) -> Iterator[MetricPoint]:
    """Loss by step, each at the moment it was there; times and throughput as the block's means at its last step."""
    data = event.value
    spent = [step + fed for step, fed in zip(data["seconds"], data["input_seconds"], strict=True)]
    left = total = sum(spent)
    for index, (seconds, loss) in enumerate(zip(spent, data["loss"], strict=True)):
        left -= seconds  # the event is written when the block ends, so moments are counted back from it
        if loss is not None:
            yield MetricPoint("train/loss", loss, data["first"] + index + 1, round(event.time_ms - left * 1e3))
    count, at = len(spent), round(event.time_ms)
    if count and total > 0:
        last = data["first"] + count
        yield MetricPoint("train/step_seconds", sum(data["seconds"]) / count, last, at)
        yield MetricPoint("train/input_seconds", sum(data["input_seconds"]) / count, last, at)
        yield MetricPoint("train/samples_per_second", batch * count / total, last, at)


def _evaluation(event: Event, batch: int) -> Iterator[MetricPoint]:
    data = event.metadata
    samples = data["samples_count"]
    values = {
        f"eval/{data.get('metric', 'value')}": event.value, "eval/train_loss": data.get("train_loss"),
        "eval/samples": samples, "eval/epoch": data["epoch_num"],
    }
    yield from _points(values, round(samples / batch), round(event.time_ms))


def system_points(events: Iterable[Event], first: int) -> Iterator[MetricPoint]:
    """System metrics, named and numbered as MLflow does with its own: the step counts the samples taken.

    Args:
        first: number of the first of `events` in its log.
    """
    samples = [event for event in events if event.key == "x_system" and isinstance(event.value, Mapping)]
    for number, event in enumerate(samples, first):
        yield from _points({f"system/{name}": value for name, value in event.value.items()}, number,
                           round(event.time_ms))


def result_points(result: Result, time_ms: int) -> list[MetricPoint]:
    """The figures of a finished trial, at step 0: MLflow draws those as bars, others as lines of one point.

    A trial that crashed or hung has none: once it ran again its result is no longer in the record, and what a store
    holds would depend on when it was asked. What it did until then are the points of its log.
    """
    if meaning(result.status).reruns:
        return []
    values = figures_of(result)
    values |= {f"phase/{name}_seconds": seconds for name, seconds in result.phases.items()}
    if result.steps:
        values |= {f"step/{name}": value for name, value in result.steps.model_dump().items()}
    if result.bracket:
        values |= {f"bracket/{name}": value for name, value in result.bracket.model_dump().items()}
    return list(_points(values, 0, time_ms))


def settled(record: Record, time_ms: int) -> tuple[int, int]:
    """(step, milliseconds) of a cell's figures, neither ever less than before: MLflow takes the largest as the latest.

    The step counts the trials that are still to come, downwards to 0: so the history shows how a figure settled, and
    what has settled is drawn as bars. A trial that ran again leaves their number as it was, and the time is later.

    Args:
        time_ms: the cell's own last moment. Its figures also change with other cells' trials, so the last start or end
            in the ledger counts where it is later.
    """
    last = max((round(item.started_ms + item.seconds * 1e3) for item in record.attempts), default=time_ms)
    return -len(record.missing()), max(time_ms, last)


def cell_metrics(record: Record) -> list[Metric]:
    """Return the metrics whose medians a cell's run has, the declared one first."""
    first = record.plan.suite.metric
    return [first, *(spec.name for spec in METRICS.values() if spec.tracked and spec.name != first)]


def cell_points(
    summaries: Sequence[Summary], comparisons: Sequence[Comparison], step: int, time_ms: int
) -> list[MetricPoint]:
    """A cell in figures; the first of `comparisons` under plain names, the others by their baseline.

    The first summary's median comes first, as MLflow's comparison draws the first metric that was logged.

    Args:
        step: see `settled`.
    """
    first = summaries[0]
    values: dict[str, Any] = {}
    for item in summaries:
        values |= {f"{item.metric}_median": item.median, **_bounds(item.metric, item.interval)}
    for index, comparison in enumerate(comparisons):
        baseline = f"_vs_{comparison.baseline}" if index else ""
        values |= {f"ratio{baseline}": comparison.ratio, **_bounds(f"ratio{baseline}", comparison.interval),
                   f"n_pairs{baseline}": comparison.n}
    values |= {
        "samples_per_second_median": first.median_samples_per_second, "epochs_median": first.median_epochs,
        "final_median": first.median_final, "n": first.n, "reached": first.ok,
        "success_probability": first.ok / first.n if first.n else None,
        **_bounds("success_probability", first.success),
    }
    return list(_points(values, step, time_ms))


def levels(summaries: Sequence[Summary], comparisons: Sequence[Comparison]) -> dict[str, str]:
    """Name -> nominal coverage of the interval whose ends `cell_points` gives: constants, which make no chart."""
    named = {item.metric: item.interval for item in summaries}
    named |= {"ratio": comparisons[0].interval} if comparisons else {}
    named |= {"success_probability": summaries[0].success} if summaries else {}
    return {name: f"{bounds.level:.6g}" for name, bounds in named.items() if bounds}


def _bounds(name: str, bounds: Bounds | None) -> dict[str, float]:
    return {f"{name}_low": bounds.low, f"{name}_high": bounds.high} if bounds else {}


def _points(values: Mapping[str, Any], step: int, time_ms: int) -> Iterator[MetricPoint]:
    """A point for every value that is known and finite."""
    for key, value in values.items():
        if isinstance(value, int | float) and math.isfinite(value):
            yield MetricPoint(key, float(value), step, time_ms)
