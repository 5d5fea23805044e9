"""Events and results -> metric points. Pure.

The `step` of a point is the optimizer step, the integer that steps, blocks and evaluations share; cells with one batch
size compare on this axis. Samples and epochs compare across batch sizes and are separate metrics at the same steps.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from repro.compare import Bounds, Comparison, Summary
from repro.record.folder.store import Record
from repro.record.log.reading import Recorded
from repro.record.log.schema import Evaluation, StepBlock, SystemSample, Updates
from repro.record.result.results import Result, figures_of
from repro.record.result.status import meaning
from repro.suite.metrics import METRICS
from repro.suite.model import Metric
from repro.suite.quality import PLAIN, Quality

ANSWER = "answer"
"""The group that is read first."""
OTHER = "other"
"""The group of figures that no other group lists, such as a metric that was added to `METRICS` alone."""
GROUPS: dict[str, tuple[str, ...]] = {
    ANSWER: ("final", "best", "epochs_to_target", "samples_to_target"),
    "energy": ("joules_per_sample", "gpu_joules_per_sample", "energy_joules_measured", "energy_joules_modelled"),
    "memory": ("training_peak_mib", "training_peak_mib_sum", "init_peak_mib", "peak_bytes"),
    "operation": ("operation_time", "operation_throughput"),
    "phase": ("conservation_error", "observer_effect"),
    "speed": ("samples", "samples_per_second", "train_samples_per_second", "tokens_per_second", "mfu", "step_seconds",
              "step_seconds_mean", "input_wait_seconds", "input_wait_share"),
    "staleness": ("version_lag", "clock_lag"),
    "time": ("tta_wall", "tta_train", "tta_cold", "run_seconds", "init_seconds"),
    "traffic": ("bytes_sent", "busiest_bytes", "controller_bytes"),
}
"""Group -> figures of a trial."""
RENAMED = {"final": "quality", "best": "quality_best"}
"""Column -> its name here."""
_GROUP_OF = {column: group for group, columns in GROUPS.items() for column in columns}


def column_of(metric: Metric) -> str:
    """Return the name of a metric's figure: its column, which has the unit; of a contest the metric, which says to the
    end of what it is a time."""
    spec = METRICS[metric]
    return spec.name if spec.at_end else spec.column


def of_trial(column: str, declared: Metric | None) -> str:
    """Return the name of a trial's figure; that of the declared metric belongs to the answer."""
    if declared is not None and column == METRICS[declared].column:
        return f"{ANSWER}/{column_of(declared)}"
    return f"{_GROUP_OF.get(column, OTHER)}/{RENAMED.get(column, column)}"


UNKNOWN = math.nan
"""A figure of a cell that is not known yet, or not any more: without it the store would show the last value."""


@dataclass(frozen=True, slots=True)
class MetricPoint:
    """One value of one metric."""

    key: str
    value: float
    step: int
    time_ms: int


def training_points(events: Iterable[Recorded], batch: int, quality: Quality = PLAIN) -> Iterator[MetricPoint]:
    """Yield the points of training from the events of rank 0.

    Args:
        batch: samples per optimizer step.
        quality: of a loss, the perplexity is a point too.
    """
    step = 0
    for item in events:
        event, at_ms = item.event, item.time_ms
        if isinstance(event, StepBlock):
            step = event.first + len(event.seconds)
            yield from _block(event, at_ms, batch)
        elif isinstance(event, Updates):  # of the block whose steps came last
            lags = {"version": event.staleness, "clock": event.ahead}
            means = {f"curve/{name}_lag": sum(found) / len(found) for name, found in lags.items() if found}
            yield from finite_points(means, step, round(at_ms))
        elif isinstance(event, Evaluation):
            values = {
                f"curve/eval_{event.metric or 'value'}": event.value, "curve/train_loss": event.train_loss,
                "progress/samples": event.samples_count if event.counted else None, "progress/epoch": event.epoch_num,
                **quality.columns("curve/eval_", event.value),
            }
            yield from finite_points(values, round(event.samples_count / batch), round(at_ms))


def _block(block: StepBlock, at_ms: float, batch: int) -> Iterator[MetricPoint]:
    """Yield the loss of each step at its time; step time and throughput as means of the block at its last step."""
    spent = [step + fed for step, fed in zip(block.seconds, block.input_seconds, strict=True)]
    left = total = sum(spent)
    for index, (seconds, loss) in enumerate(zip(spent, block.loss, strict=True)):
        left -= seconds  # the event is written at the end of the block: times count back from it
        if math.isfinite(loss):
            yield MetricPoint("curve/loss", loss, block.first + index + 1, round(at_ms - left * 1e3))
    count, at = len(spent), round(at_ms)
    if count and total > 0:
        last = block.first + count
        yield MetricPoint("curve/step_seconds", sum(block.seconds) / count, last, at)
        yield MetricPoint("curve/step_input_seconds", sum(block.input_seconds) / count, last, at)
        yield MetricPoint("curve/samples_per_second", batch * count / total, last, at)


def system_points(events: Iterable[Recorded], first: int) -> Iterator[MetricPoint]:
    """Yield the system metrics with the names and steps of MLflow: the step counts the samples.

    Args:
        first: number of the first of `events` in its log.
    """
    samples = [(item.event, item.time_ms) for item in events if isinstance(item.event, SystemSample)]
    for number, (sample, at_ms) in enumerate(samples, first):
        yield from finite_points({f"system/{name}": value for name, value in sample}, number, round(at_ms))


def result_points(
    result: Result, time_ms: int, quality: Quality = PLAIN, declared: Metric | None = None
) -> list[MetricPoint]:
    """Return the results of a finished trial at step 0, which MLflow draws as bars; the declared metric is the first.

    A trial that will run again has none: its next result replaces this one in the record, and the content of the store
    would depend on the time of the replay. The points of its log are sent all the same.
    """
    if meaning(result.status).reruns:
        return []
    figures = figures_of(result)
    if figures["training_peak_mib"] is not None:
        del figures["peak_bytes"]  # the same memory in another unit
    values = {of_trial(column, declared): value for column, value in figures.items()}
    values |= quality.columns(f"{ANSWER}/quality_", result.final)
    values |= {f"phase/{name}_seconds": seconds for name, seconds in result.phases.items()}
    if result.steps:
        values |= {f"step/{name}": value for name, value in result.steps.model_dump().items()}
    if result.model:
        values |= {"model/parameters": result.model.parameters, "model/forward_flops": result.model.forward_flops}
    if result.operation:
        values |= {_key(f"operation/{item.name}"): item.value for item in result.operation.figures}
        values |= {_key(f"check/{item.name}"): item.error for item in result.operation.checks}
    if result.bracket:
        values |= {f"target/{name}": value for name, value in result.bracket.model_dump().items()}
    head = f"{ANSWER}/{column_of(declared)}" if declared else ""
    ordered = sorted(values, key=lambda key: (key != head, not key.startswith(f"{ANSWER}/")))  # the answer first
    return list(finite_points({key: values[key] for key in ordered}, 0, time_ms))


def trials_to_come(record: Record, time_ms: int) -> tuple[int, int]:
    """Return (step, milliseconds) of a cell's figures; both never decrease: MLflow takes the largest as the latest.

    The step is minus the number of missing trials. It rises to 0, so the history shows how a figure changed, and MLflow
    draws the final value as a bar. A repeated trial keeps the step, and its time is later.

    Args:
        time_ms: last time of the cell. Trials of other cells change its figures too, so the last start or end in the
            ledger is used if it is later.
    """
    last = max((round(item.started_ms + item.seconds * 1e3) for item in record.attempts), default=time_ms)
    return -len(record.missing()), max(time_ms, last)


def cell_metrics(record: Record) -> list[Metric]:
    """Return the metrics whose medians a cell's run has, the declared one first; of a contest times to the end."""
    first, contest = record.plan.suite.metric, record.plan.design.is_contest
    return [first, *(spec.name for spec in METRICS.values() if spec.name != first and spec.tracked
                     and not (spec.to_target if contest else spec.at_end))]


def cell_points(
    summaries: Sequence[Summary], comparisons: Sequence[Comparison], step: int, time_ms: int
) -> list[MetricPoint]:
    """Return the figures of a cell; one that is unknown is `UNKNOWN`.

    The headline is the group `answer`, at most five: the median of the declared metric, the ratio, the final quality,
    how many trials reached the target. Numbers of pairs and contrasts with further baselines, ends of intervals and
    medians of other metrics follow. The verdict is a tag, which the table of runs has as a column. The median of the
    first summary is the first point, because MLflow's comparison draws the first logged metric.

    Args:
        step: see `trials_to_come`.
    """
    first, *others = summaries
    values: dict[str, Any] = {f"{ANSWER}/median_{column_of(first.metric)}": first.median}
    for index, found in enumerate(comparisons):
        group, against = ("contrast", f"_vs_{found.baseline}") if index else (ANSWER, "")
        ends = "contrast" if index else "interval"
        values |= {f"{group}/ratio{against}": found.ratio, **_bounds(f"{ends}/ratio", found.interval, against),
                   f"contrast/pairs{against}": found.n}
    values |= {f"{ANSWER}/quality": first.median_final} if first.has_target else {}
    ended = "ended_well" if first.contest or not first.has_target else "reached"
    values |= {f"{ANSWER}/{ended}": first.ok, "interval/trials": first.n}
    values |= _bounds(f"interval/{column_of(first.metric)}", first.interval)
    values["interval/success_probability"] = first.ok / first.n if first.n else None
    values |= _bounds("interval/success_probability", first.success)
    for item in others:
        values |= _bounds(f"interval/{column_of(item.metric)}", item.interval)
    values |= {f"median/{column_of(item.metric)}": item.median for item in others}
    values |= {"median/samples_per_second": first.median_samples_per_second,
               "median/epochs_to_target": first.median_epochs}
    return [MetricPoint(key, float(value) if _is_finite(value) else UNKNOWN, step, time_ms)
            for key, value in values.items()]


def levels(summaries: Sequence[Summary], comparisons: Sequence[Comparison]) -> dict[str, str]:
    """Return name -> nominal coverage of each interval of `cell_points`: constants, so they are no metrics."""
    named = {column_of(item.metric): item.interval for item in summaries}
    named |= {"ratio": comparisons[0].interval} if comparisons else {}
    named |= {"success_probability": summaries[0].success} if summaries else {}
    return {name: f"{bounds.level:.6g}" for name, bounds in named.items() if bounds}


def _key(name: str) -> str:
    """Return a name that MLflow accepts: those of checks and figures are a plug-in's own."""
    return re.sub(r"[^\w/.\- ]", "_", name)[:250]


def _bounds(name: str, bounds: Bounds | None, against: str = "") -> dict[str, float | None]:
    low, high = (bounds.low, bounds.high) if bounds else (None, None)
    return {f"{name}_low{against}": low, f"{name}_high{against}": high}


def finite_points(values: Mapping[str, Any], step: int, time_ms: int) -> Iterator[MetricPoint]:
    """Yield a point for every finite value."""
    for key, value in values.items():
        if _is_finite(value):
            yield MetricPoint(key, float(value), step, time_ms)


def _is_finite(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)
