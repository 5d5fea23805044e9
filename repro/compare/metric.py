"""What is compared: where a result has the figure, what it is called, how far a run was watched for it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from repro.compare.figures import Verdict
from repro.record.results import Result
from repro.suite.model import Metric

STATUS_WORDS = {
    "ok": "reached the target", "missed": "missed the target", "diverged": "diverged",
    "out_of_memory": "ran out of memory", "timed_out": "ran into the time limit", "crashed": "crashed", "hung": "hung",
    "invalid": "left an invalid log",
}
NOT_A_RESULT = ("crashed", "hung", "invalid")
"""Ends that say nothing of the cell: to be run again, never counted as a missed target."""
NEVER = ("diverged", "out_of_memory")
"""Ends after which the target cannot be reached any more, however long one waits."""


@dataclass(frozen=True, slots=True)
class MetricSpec:
    """One metric."""

    name: Metric
    field: str
    noun: str
    """As in `its time to the target`."""
    times: str
    """As in `0.8 x the time`."""
    unit: str
    to_target: bool
    """Only a run that reached its target has one."""
    below: Verdict
    above: Verdict
    """What the candidate is where the ratio is below 1, and above."""


SCALES: dict[str, MetricSpec] = {
    "tta_wall": MetricSpec("tta_wall", "tta_wall", "time to the target", "the time", "s", True, "faster", "slower"),
    "tta_train": MetricSpec("tta_train", "tta_train", "training time to the target", "the training time", "s", True,
                       "faster", "slower"),
    "tta_cold": MetricSpec("tta_cold", "tta_cold", "time from a cold start to the target", "the time from a cold start",
                      "s", True, "faster", "slower"),
    "samples": MetricSpec("samples", "samples_to_target", "samples to the target", "the samples", "samples", True,
                          "faster", "slower"),
    "throughput": MetricSpec("throughput", "samples_per_second", "throughput", "the throughput", "samples/s", False,
                        "slower", "faster"),
    "accuracy": MetricSpec("accuracy", "final", "final quality", "the final quality", "", False, "lower", "higher"),
}


def figure(result: Result, scale: MetricSpec) -> float | None:
    """The metric of one trial; None where the trial has none."""
    if scale.to_target and result.status != "ok":
        return None
    if result.status in NOT_A_RESULT:
        return None
    value = getattr(result, scale.field)
    return None if value is None else float(value)


def meaningless(value: float) -> bool:
    """Neither a duration, a count nor a quality can be this, or none that a ratio could be formed of."""
    return not (math.isfinite(value) and value > 0)


@dataclass(frozen=True, slots=True)
class Observation:
    """How far one trial was watched for the target, in the metric's unit."""

    kind: Literal["reached", "watched", "never", "unknown"]
    """watched: not reached by `at`, might have been later; never: cannot be reached later; unknown: not a result."""
    at: float


def course(result: Result, scale: MetricSpec) -> Observation:
    """Reached, or not and up to where, for a metric that needs the target."""
    value = figure(result, scale)
    if value is not None:
        return Observation("reached", value)
    if result.status in NEVER:
        return Observation("never", math.inf)
    if result.status in ("missed", "timed_out"):
        end = watched(result, scale.name)
        return Observation("watched", end) if end is not None and not meaningless(end) else Observation("unknown", 0.0)
    return Observation("unknown", 0.0)


def watched(result: Result, metric: Metric) -> float | None:
    """The last moment at which a run that did not reach the target is known not to have reached it."""
    last = result.curve[-1] if result.curve else None
    if metric == "samples":
        return float(result.samples) if result.samples is not None else float(last.samples) if last else None
    wall = result.run_seconds if result.run_seconds is not None else last.wall_seconds if last else None
    if wall is None:
        return None
    if metric == "tta_wall":
        return wall
    if metric == "tta_cold":  # the launch lies before init_start: a lower bound, and that is what is asked for
        return wall + (result.init_seconds or 0.0)
    if result.run_seconds is None:
        return last.train_seconds if last else None
    return wall - sum(result.phases.get(name, 0.0) for name in ("eval", "checkpoint", "logging"))
