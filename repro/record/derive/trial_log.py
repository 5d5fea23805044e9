"""Read from a log what every kind of trial has: its end, its curve, the clocks up to its target."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from repro.core.machine import says_out_of_memory
from repro.core.numbers import plain_sum
from repro.record.log import schema
from repro.record.log.event import LogEvent
from repro.record.log.facts import FinalFacts
from repro.record.log.reading import Recorded
from repro.record.result.reasons import NoStop, OutOfTime, RankFailed, Reason, Silent
from repro.record.result.remarks import stated
from repro.record.result.result_warnings import init_excess
from repro.record.result.results import Bracket, Point
from repro.record.result.status import Status
from repro.seams.launching import LaunchResult, RankEnd
from repro.suite.kinds.stop import Bar, Repeats
from repro.suite.model import Trial

Goal = Bar | Repeats
Kind = TypeVar("Kind", bound=LogEvent)


class TrialLog:
    """Look-ups in one trial's events."""

    def __init__(self, events: Iterable[Recorded]) -> None:
        self.recorded = [item for item in events if item.at_ns is not None]
        self.run_start = self._time(schema.RunStart)
        self.run_stop = self._time(schema.RunStop)
        self.init_start = self._time(schema.InitStart)

    def _time(self, kind: type[LogEvent]) -> int | None:
        return next((item.at_ns for item in self.recorded if isinstance(item.event, kind)), None)

    def all(self, kind: type[Kind]) -> list[Kind]:
        """Return the events of a kind, in their order."""
        return [item.event for item in self.recorded if isinstance(item.event, kind)]

    def last(self, kind: type[Kind]) -> Kind | None:
        """Return the last event of a kind; None: there is none."""
        return next((item.event for item in reversed(self.recorded) if isinstance(item.event, kind)), None)

    def facts(self) -> FinalFacts | None:
        event = self.last(schema.FactsGathered)
        return event.value if event is not None else None

    def mapping(self, kind: type[schema.Hashes | schema.Settings | schema.Build | schema.EffectiveSettings]
                ) -> dict[str, str]:
        """Return the entries of all events of a kind together."""
        return {name: value for event in self.all(kind) for name, value in event.value.items()}


def common_fields(trial: Trial, attempt: int, log: TrialLog) -> dict[str, Any]:
    """Return the fields of `Result` that a trial has however it ended."""
    return {
        "trial_id": trial.trial_id, "cell_id": trial.cell_id, "repeat": trial.repeat, "attempt": attempt,
        "effective": log.mapping(schema.EffectiveSettings), "settings": log.mapping(schema.Settings),
        "build": log.mapping(schema.Build),
    }


def read_quality(points: Sequence[Point], stop: Goal) -> dict[str, float | None]:
    """Return the last and the best quality as fields of `Result`; {} if no evaluation has a finite one."""
    values = [point.value for point in points if point.value is not None]
    best = min if stop.direction == "lower" else max
    return {"final": points[-1].value, "best": best(values)} if values else {}


def read_status(log: TrialLog, outcome: LaunchResult | None) -> tuple[Status, tuple[Reason, ...]]:
    """Decide by exit codes AND the last event: a trial without `run_stop` failed even if its exit code is 0."""
    stop = log.last(schema.RunStop)
    failure = outcome.first_failure if outcome else None
    if outcome is not None and outcome.timed_out:
        return "timed_out", (OutOfTime(seconds=outcome.seconds),)
    if outcome is not None and outcome.hung:
        return "hung", (_by_rank(failure) if failure else Silent(),)
    if stop is None:
        reason = failure.reason if failure else ""
        if failure and (failure.cause == "out_of_memory" or says_out_of_memory(reason)):
            return "out_of_memory", (_by_rank(failure),)
        return "crashed", (_by_rank(failure) if failure else NoStop(),)
    if failure is not None:
        return "crashed", (_by_rank(failure, after_stop=True),)
    return ("ok", ()) if stop.outcome == "success" else (stop.outcome, stated(stop.reason))


def _by_rank(end: RankEnd, after_stop: bool = False) -> RankFailed:
    return RankFailed(rank=end.rank, exit_code=end.exit_code, said=end.reason, tail=end.tail, after_stop=after_stop)


def read_curve(log: TrialLog) -> tuple[Point, ...]:
    start = log.run_start
    assert start is not None
    points = []
    for item in log.recorded:
        event = item.event
        if not isinstance(event, schema.Evaluation) or item.at_ns is None:
            continue
        wall = ((item.at_ns if event.eval_stop_ns is None else event.eval_stop_ns) - start) / 1e9
        points.append(Point(
            samples=event.samples_count, epochs=event.epoch_num, wall_seconds=wall,
            train_seconds=event.own_seconds if event.own_seconds is not None else (
                wall - plain_sum(event.phases.get(name, 0.0) for name in ("eval", "checkpoint", "logging"))),
            value=event.value, train_loss=event.train_loss,
        ))
    return tuple(points)


def reached(value: float | None, stop: Goal) -> bool:
    """Return True if an evaluation is at or past the target."""
    if value is None or stop.target is None:
        return False
    return bool(value >= stop.target if stop.direction == "higher" else value <= stop.target)


def find_crossing(points: Sequence[Point], stop: Goal) -> tuple[int, int] | None:
    """Return (first hit, establishing evaluation) of the first `confirm_evals` hits in a row; None: no such row."""
    run = 0
    for index, point in enumerate(points):
        run = run + 1 if reached(point.value, stop) else 0
        if run == stop.confirm_evals:
            return index - run + 1, index
    return None


def find_stop(points: Sequence[Point], stop: Goal) -> tuple[int, int] | None:
    """Return (first hit, evaluation that ends the clocks); None: a trial with this curve is no success.

    In a contest the clocks run to the last evaluation, whatever its finite quality: the target judges the mean only.
    """
    if stop.judges != "mean":
        return find_crossing(points, stop)
    last = len(points) - 1
    return (last, last) if points and points[last].value is not None else None


def read_clocks(log: TrialLog, points: Sequence[Point], stop: Goal, crossing: tuple[int, int]) -> dict[str, Any]:
    """Return the clocks up to an evaluation; of a contest, which crosses no target, without the figures of one."""
    first, established = (points[index] for index in crossing)
    miss = points[crossing[0] - 1] if crossing[0] else None
    launch, compiled = log.last(schema.Launched), log.last(schema.Compilation)
    assert log.run_start is not None
    filling = compiled.filling_seconds if compiled else 0.0  # a warm cache was filled before any clock
    excess = init_excess(read_init_seconds(log))
    clocks = {
        "tta_wall": established.wall_seconds + excess,
        "tta_train": established.train_seconds + excess,
        "tta_cold": established.wall_seconds + (log.run_start - launch.value) / 1e9 - filling if launch else None,
    }
    if stop.judges == "mean":
        return clocks
    return clocks | {
        "samples_to_target": established.samples,
        "epochs_to_target": established.epochs,
        "bracket": Bracket(
            miss_samples=miss.samples if miss else 0, hit_samples=first.samples,
            miss_wall_seconds=miss.wall_seconds if miss else 0.0, hit_wall_seconds=first.wall_seconds,
        ),
    }


def read_init_seconds(log: TrialLog) -> float | None:
    if log.init_start is None or log.run_start is None:
        return None
    return (log.run_start - log.init_start) / 1e9
