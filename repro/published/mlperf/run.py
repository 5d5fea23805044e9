"""Events of one MLPerf log -> the outcome of the run."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from repro.published.mlperf.log import LogEvent, MlperfLog
from repro.published.mlperf.rules import EpochUnit, Quality, Version
from repro.published.record import PublishedBracket, PublishedPoint, PublishedStatus
from repro.published.untrusted.files import DamagedInput, number, plain, setting

MAX_WARNINGS = 20
CHECKPOINT_TIME = re.compile(r"timestamp=(\d{1,16}(?:\.\d{1,6})?)(?!\d)")
"""In the path of a checkpoint: milliseconds since 1970 at which it was taken."""


class Points:
    """Turns evaluation events into points and collects warnings."""

    def __init__(
        self, since: float, per_second: float, unit: EpochUnit, train_samples: int | None, batch: float | None
    ) -> None:
        self._since, self._per_second, self._unit, self._train_samples = since, per_second, unit, train_samples
        self._batch = batch
        self.warnings: list[str] = []
        self.afterwards = False
        """Evaluations name the time of their checkpoint: they were made after training."""

    def read(self, event: LogEvent) -> Iterable[PublishedPoint]:
        seconds = (self._time(event) - self._since) / self._per_second
        samples, epochs = self._progress(event)
        named = event.metadata.get("metric")
        name = named if isinstance(named, str) else ""
        values = event.value if isinstance(event.value, dict) else {name: event.value}
        for metric, value in list(values.items())[:8]:
            found = number(value)
            if found is None:
                self._warn(f"line {event.line}: the value of an evaluation is not a finite number")
            yield PublishedPoint(seconds=seconds, samples=samples, epochs=epochs, value=found, metric=plain(metric, 40))

    def _time(self, event: LogEvent) -> float:
        """Return the time of the state that was evaluated: its checkpoint's, if the evaluation names it."""
        found = CHECKPOINT_TIME.search(path) if isinstance(path := event.metadata.get("path"), str) else None
        milliseconds = number(float(found[1])) if found else None
        if milliseconds is None or not self._since <= milliseconds * self._per_second / 1e3 <= event.time:
            return event.time
        self.afterwards = True
        return milliseconds * self._per_second / 1e3

    def _progress(self, event: LogEvent) -> tuple[int | None, float | None]:
        """Return (samples, epochs) before the evaluation, as far as the log has them."""
        data = event.metadata
        counted, epoch = self._count(event, "samples_count"), self._count(event, "epoch_num")
        if self._unit == "steps":
            steps = self._count(event, "step_num")
            counted = steps * self._batch if counted is None and steps is not None and self._batch else counted
        if counted is None and self._unit == "samples" and "epoch_num" in data:
            counted = epoch
        epochs = epoch if self._unit == "epochs" else None
        if counted is None and epochs is not None and self._train_samples:
            counted = epochs * self._train_samples
        return None if counted is None or counted > 1e15 else round(counted), epochs

    def _count(self, event: LogEvent, name: str) -> float | None:
        if name not in event.metadata:
            return None
        found = number(event.metadata[name])
        if found is None or found < 0:
            self._warn(f"line {event.line}: {name} is not a count")
            return None
        return found

    def _warn(self, text: str) -> None:
        if len(self.warnings) < MAX_WARNINGS:
            self.warnings.append(text)


EVALUATIONS = {"eval_accuracy", "eval_error"}
MAX_POINTS = 10_000
MAX_KEYS = 2_000
"""Different keys of one log."""
LATE_SECONDS = 60.0
"""An evaluation that ends longer after run_stop was made after training."""
STRUCTURE = {
    "cache_clear", "init_start", "init_stop", "run_start", "run_stop", "run_final", "run_clear_caches", "epoch_start",
    "epoch_stop", "block_start", "block_stop", "eval_start", "eval_stop", "train_loop", "train_epoch",
    "train_checkpoint", "tracked_stats", "weights_initialization", "throughput", "eval_target",
    "eval_iteration_accuracy", "seed", "global_batch_size", "train_samples", "eval_offset", "checkpoint_start",
    "checkpoint_stop", "power_reading",
}
"""Keys of the structure of a run; like `submission_*` they are no settings."""
AGREE = (
    "submission_org", "submission_platform", "submission_division", "submission_benchmark", "submission_status",
    "global_batch_size", "train_samples",
)
"""Keys that must have one value, even if repeated (`REQ: EXACTLY_ONE` of the compliance checker)."""


@dataclass(slots=True)
class LogFacts:
    """The facts of a log, collected line by line so that a long log needs little memory."""

    first: dict[str, Any] = field(default_factory=dict)
    """First value of every key."""
    differ: set[str] = field(default_factory=set)
    """Keys repeated with another value."""
    starts: list[LogEvent] = field(default_factory=list)
    stops: list[LogEvent] = field(default_factory=list)
    init_start: float | None = None
    init_stop: float | None = None
    evaluations: list[LogEvent] = field(default_factory=list)
    backwards: int = 0
    """Event lines of the run that are more than a second older than an earlier line."""


def read_facts(log: MlperfLog) -> LogFacts:
    """Read a whole log.

    Raises:
        DamagedInput: as `MlperfLog`; or no event, too many evaluations, too many different keys.
    """
    facts, latest = LogFacts(), 0.0
    for event in log:
        key = event.key
        if key in EVALUATIONS:
            facts.evaluations.append(event)
            if len(facts.evaluations) > MAX_POINTS:
                raise DamagedInput(f"line {event.line}: more than {MAX_POINTS:,} evaluations")
        elif key == "run_start":
            facts.starts = [*facts.starts[:1], event]
        elif key == "run_stop":
            facts.stops = [*facts.stops[:1], event]
        elif key == "init_start" and facts.init_start is None:
            facts.init_start = event.time
        elif key == "init_stop" and facts.init_stop is None:
            facts.init_stop = event.time
        _note(facts, event)
        if facts.starts and not facts.stops:
            facts.backwards += event.time < latest - log.per_second
            latest = max(latest, event.time)
    if not facts.first:
        raise DamagedInput("it has no MLPerf event line")
    return facts


def _note(facts: LogFacts, event: LogEvent) -> None:
    key = plain(event.key, 100)
    if key not in facts.first:
        if len(facts.first) >= MAX_KEYS:
            raise DamagedInput(f"line {event.line}: more than {MAX_KEYS:,} different keys")
        facts.first[key] = None if key in EVALUATIONS else setting(event.value)
    elif key not in EVALUATIONS and key not in facts.differ and facts.first[key] != setting(event.value):
        facts.differ.add(key)


def judge_run(
    facts: LogFacts, per_second: float, qualities: Sequence[Quality], unit: EpochUnit, train_samples: int | None,
    breach: str,
) -> dict[str, Any]:
    """Decide the outcome of a run; return it by the names of `PublishedResult`.

    Image generation may evaluate its checkpoints after training, in any order; each evaluation then counts at the time
    of its checkpoint, and the run ends at the first checkpoint at which all qualities hold.

    Args:
        per_second: units of the log's times per second.
        qualities: what it had to reach; empty: unknown, then the log decides.
        unit: unit of `epoch_num`.
        train_samples: samples of one epoch; None: unknown.
        breach: rule of the compliance check that the log breaks; "" for none.
    """
    start = facts.starts[0] if facts.starts else None
    stop, init = facts.stops[0] if facts.stops else None, facts.init_start
    since = start.time if start else (facts.evaluations[0].time if facts.evaluations else 0.0)
    batch = None if "global_batch_size" in facts.differ else number(facts.first.get("global_batch_size"))
    reader = Points(since, per_second, unit, train_samples, batch)
    points = tuple(point for event in facts.evaluations for point in reader.read(event))
    afterwards = reader.afterwards or _evaluated_after(facts, points)
    if afterwards:  # lines come in the order of evaluation, which is not that of the checkpoints
        points = tuple(sorted(points, key=lambda point: (point.seconds, point.samples or 0)))
    rounds = _rounds(points)
    elapsed = (stop.time - start.time) / per_second if start and stop else None
    last = elapsed + LATE_SECONDS if reader.afterwards and elapsed is not None else math.inf
    hit = next((index for index, group in enumerate(rounds) if _reached(group, qualities)
                and group[-1].seconds <= last), None) if qualities else None
    status, reason = _status(facts, () if afterwards else points, bool(qualities), hit is not None, breach)
    good = status == "ok"
    reached = (rounds[hit][-1] if hit is not None else points[-1] if points else None) if good else None
    return {
        "status": status, "reason": reason, "seconds": elapsed if good else None,
        "run_seconds": elapsed if elapsed is not None and elapsed > 0 else None,
        "init_seconds": None if start is None or init is None or start.time < init else
        (start.time - init) / per_second,
        "run_start_ms": start.time / per_second * 1e3 if start else None,
        "run_stop_ms": stop.time / per_second * 1e3 if stop else None,
        "curve": points, "epochs_to_target": reached.epochs if reached else None,
        "samples_to_target": reached.samples if reached else None,
        "bracket": _bracket(rounds, hit, elapsed) if good and hit is not None else None,
        "warnings": tuple(dict.fromkeys([*reader.warnings, *_warnings(facts, points, good and not qualities)])),
    }


def _evaluated_after(facts: LogFacts, points: Sequence[PublishedPoint]) -> bool:
    """Return True if checkpoints were evaluated after the time of run_stop, and each says after how many samples."""
    return bool(facts.stops) and bool(points) and all(point.samples is not None for point in points) and any(
        event.time > facts.stops[0].time for event in facts.evaluations)


def _status(
    facts: LogFacts, points: Sequence[PublishedPoint], known: bool, hit: bool, breach: str
) -> tuple[PublishedStatus, str]:
    broken = _broken(facts, points)
    if broken:
        return "invalid", broken
    word = facts.stops[0].metadata.get("status")
    if word != "success":
        said = f"run_stop says {plain(word, 40)!r}" if word is not None else "run_stop gives no status"
        return ("missed", said) if word is not None else ("invalid", said)
    if known and not hit:
        return "invalid", "run_stop says success, but no evaluation reaches the target"
    if breach:
        return "invalid", f"it fails MLCommons' compliance check: {breach}"
    return "ok", ""


def _broken(facts: LogFacts, points: Sequence[PublishedPoint]) -> str:
    """Return the inconsistency of the log; empty if there is none."""
    for name, events in (("run_start", facts.starts), ("run_stop", facts.stops)):
        if len(events) != 1:
            return f"no {name}" if not events else f"{name} more than once (line {events[1].line} again)"
    start, stop = facts.starts[0], facts.stops[0]
    if stop.time <= start.time:
        return f"time goes backwards: run_stop (line {stop.line}) is not after run_start (line {start.line})"
    latest: dict[str, float] = {}
    for point in points:
        if point.seconds < latest.get(point.metric, -1e300):
            return f"time goes backwards: an evaluation at {point.seconds:g} s after one at {latest[point.metric]:g} s"
        latest[point.metric] = point.seconds
    conflicts = [key for key in AGREE if key in facts.differ]
    return f"{conflicts[0]} is logged with different values" if conflicts else ""


def _warnings(facts: LogFacts, points: Sequence[PublishedPoint], unchecked: bool) -> list[str]:
    found = []
    if facts.backwards:
        found.append(f"{facts.backwards} event lines are more than 1 s older than a line before them")
    if any(point.seconds < 0 for point in points):
        found.append("evaluations before run_start")
    if "seed" in facts.differ:
        found.append("several seeds are logged; the first is used")
    if unchecked:
        found.append("the target is unknown here; only the log says that the run reached it")
    return found


def _rounds(points: Sequence[PublishedPoint]) -> list[tuple[PublishedPoint, ...]]:
    """Group the points of one evaluation: several qualities of one state of the model, each at most once.

    They need not be adjacent: image generation logs each of its two qualities when it is done.
    """
    groups: list[dict[str, PublishedPoint]] = []
    latest: dict[tuple[int | None, float | None], dict[str, PublishedPoint]] = {}
    for point in points:
        place = (point.samples, point.epochs)
        group = latest.get(place)
        if group is None or point.metric in group:
            group = latest[place] = {}
            groups.append(group)
        group[point.metric] = point
    return [tuple(group.values()) for group in groups]


def _reached(group: Sequence[PublishedPoint], qualities: Sequence[Quality]) -> bool:
    values = {point.metric: point.value for point in group}
    if len(qualities) == 1 and len(values) == 1:  # one quality: any name
        return qualities[0].reached(next(iter(values.values())))
    return all(quality.reached(values.get(quality.metric)) for quality in qualities)


def _bracket(rounds: Sequence[tuple[PublishedPoint, ...]], hit: int, elapsed: float | None) -> PublishedBracket | None:
    """Return between which evaluations the target was crossed; None if they have no time within the run."""
    miss = rounds[hit - 1][-1] if hit else None
    first = rounds[hit][-1]
    if elapsed is not None and first.seconds > elapsed + LATE_SECONDS:
        return None
    return PublishedBracket(
        miss_seconds=miss.seconds if miss else 0.0, hit_seconds=first.seconds,
        miss_samples=(miss.samples if miss else 0), hit_samples=first.samples,
    )


SINCE, UNTIL = (5, 0), (5, 1)
EXACTLY_ONE = ("submission_division", "submission_benchmark", "init_stop", "train_samples", "eval_samples")
CLOSED = ("gradient_accumulation_steps",)
"""The same, in the closed division."""
AT_LEAST_ONE = ("cache_clear", "init_start")
ONE_OF = (("block_start", "epoch_start"), ("block_stop", "epoch_stop"), ("eval_start", "block_start"),
          ("eval_stop", "block_stop"))
INIT_SECONDS = {"closed": 30 * 60.0, "open": 240 * 60.0}
"""Longest time from init_start to init_stop, by division."""


def why_not_compliant(facts: LogFacts, usage: str, version: Version | None, per_second: float) -> str:
    """Return the first rule that the log breaks; "" if there is none, or if no rules of its round are here."""
    if usage != "training" or version is None or not SINCE <= version <= UNTIL:
        return ""
    division = facts.first.get("submission_division")
    for key in (*EXACTLY_ONE, *(CLOSED if division == "closed" else ())):
        if key not in facts.first:
            return f"it has no {key}"
        if key in facts.differ:
            return f"{key} is logged with different values"
    missing = next((key for key in AT_LEAST_ONE if key not in facts.first), "")
    missing = missing or next((" or ".join(keys) for keys in ONE_OF if not any(key in facts.first for key in keys)), "")
    if missing:
        return f"it has no {missing}"
    if not all({"epoch_num", "samples_count"} & event.metadata.keys() for event in facts.evaluations
               if event.key == "eval_accuracy"):
        return "an evaluation has neither epoch_num nor samples_count"
    steps = number(facts.first.get("gradient_accumulation_steps"))
    if steps is not None and steps <= 0:
        return "gradient_accumulation_steps is not positive"
    if division not in INIT_SECONDS:
        return "submission_division is neither closed nor open"
    assert facts.init_start is not None and facts.init_stop is not None, "both keys are there"
    seconds, limit = (facts.init_stop - facts.init_start) / per_second, INIT_SECONDS[division]
    return f"its initialisation took {seconds:.0f} s, {limit:.0f} s or more" if seconds >= limit else ""
