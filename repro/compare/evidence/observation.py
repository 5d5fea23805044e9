"""The time that a trial was watched for its target, in the unit of a metric."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from repro.core.numbers import plain_sum
from repro.record.result.remarks import Resumed
from repro.record.result.results import Bracket, Measured, Point, figure
from repro.record.result.status import meaning
from repro.suite.metrics import MetricSpec

OFF_TRAINING_CLOCK = ("eval", "checkpoint", "logging")


def is_meaningless(value: float) -> bool:
    """Return True for a value that no duration, count or quality can have, or that no ratio can be formed of."""
    return not (math.isfinite(value) and value > 0)


class Observed(Measured, Protocol):
    """What a comparison reads of one trial. A result has it; so has a mean of several, which is no result."""

    @property
    def repeat(self) -> int: ...

    @property
    def attempt(self) -> int:
        """0 for what no attempt made."""

    @property
    def bracket(self) -> Bracket | None: ...

    @property
    def curve(self) -> Sequence[Point]: ...

    @property
    def hashes(self) -> Mapping[str, str]: ...

    @property
    def effective(self) -> Mapping[str, str]: ...

    @property
    def phases(self) -> Mapping[str, float]: ...

    @property
    def resumed(self) -> Sequence[Resumed]: ...

    @property
    def samples(self) -> int | None: ...

    @property
    def samples_to_target(self) -> float | None: ...

    @property
    def run_seconds(self) -> float | None: ...

    @property
    def init_seconds(self) -> float | None: ...


@dataclass(frozen=True, slots=True)
class Observation:
    """The known facts of one trial and its target."""

    kind: Literal["reached", "watched", "never", "unknown"]
    """watched: not reached by `at`, might have been later; never: cannot be reached later; unknown: not a result."""
    at: float


UNKNOWN = Observation("unknown", 0.0)


def observe(result: Observed, spec: MetricSpec) -> Observation:
    """Return when the trial reached its target, or until when it is known not to have reached it."""
    value = figure(result, spec)
    if value is not None:
        return Observation("reached", value)
    target = meaning(result.status).target
    if target == "never":
        return Observation("never", math.inf)
    end = watched_until(result, spec) if target == "watched" else None
    return UNKNOWN if end is None or is_meaningless(end) else Observation("watched", end)


def watched_until(result: Observed, spec: MetricSpec) -> float | None:
    """Return the last moment at which a trial without the target is known not to have reached it."""
    if spec.watched == "samples":
        last = result.curve[-1] if result.curve else None
        return float(result.samples) if result.samples is not None else float(last.samples) if last else None
    wall = _wall(result)
    if wall is None or spec.watched == "wall":
        return wall
    if spec.watched == "cold":  # the launch is before init_start: a lower bound, which is what censoring needs
        return wall + (result.init_seconds or 0.0)
    if result.run_seconds is None:
        return result.curve[-1].train_seconds
    return wall - plain_sum(result.phases.get(name, 0.0) for name in OFF_TRAINING_CLOCK)


def _wall(result: Observed) -> float | None:
    if result.run_seconds is not None:
        return result.run_seconds
    return result.curve[-1].wall_seconds if result.curve else None
