"""Derives the result of a trial, all of its clocks included, from the events of its log."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from repro.core.events import EVALUATION_KEYS, Event
from repro.core.out_of_memory import says_out_of_memory
from repro.record.compiled import describe_late, read_filling, read_seconds
from repro.record.effective import mismatches
from repro.record.energy import OBSERVER_LIMIT, Energy
from repro.record.final_facts import (
    FinalFacts,
    describe_cost,
    describe_facts,
    describe_gap,
    find_failures,
    read_facts,
)
from repro.record.outcome import read_outcome
from repro.record.result_warnings import (
    ENERGY_RESUMED,
    describe_initialisation,
    describe_log_fault,
    describe_measurement,
    describe_resumed,
    describe_skipped,
    describe_unassigned,
    find_log_faults,
    init_excess,
)
from repro.record.results import (
    LOST,
    PHASES,
    Bracket,
    Formula,
    Point,
    RankTraffic,
    Result,
    Resumed,
    Spent,
    Traffic,
)
from repro.record.status import Status, meaning
from repro.record.training_figures import samples_per_second, step_times, training_figures
from repro.seams.launching import LaunchResult
from repro.seams.training import Workload
from repro.suite.model import Trial
from repro.suite.stop import Stop

UNREAD = ("block_start", "block_stop", "eval_start", "eval_stop")
"""Events that no figure uses; a reader that holds a long log may leave them out."""
SERIES = ("x_steps", "x_rank_steps")
"""Events with a number for every step."""


def is_read(series: str) -> bool:
    """Return True for the lists of a `SERIES` event that figures come from; a reader may leave out the others."""
    return series.endswith("seconds")


def derive(trial: Trial, attempt: int, events: Sequence[Event], outcome: LaunchResult | None) -> Result:
    """Return the result of one attempt, from its log and from how its processes ended.

    Args:
        outcome: None if unknown (a folder found later); the log alone then decides.
    """
    log = _Log(events)
    base: dict[str, Any] = {
        "trial_id": trial.trial_id, "cell_id": trial.cell_id, "repeat": trial.repeat, "attempt": attempt,
        "hashes": log.mapping("x_hashes"), "effective": log.mapping("x_effective"),
        "network": outcome.network if outcome else None,
        "settings": log.mapping("x_settings"), "build": log.mapping("x_build"),
        "every_rank": facts.covers_every_rank if (facts := log.facts()) else None,
        "resumed": tuple(Resumed.model_validate(event.value) for event in log.all("x_resumed")),
    }
    status, reason = _judged(trial, log, *_status(log, outcome))
    if log.run_start is None:
        return Result(**base, status=status, reason=reason)
    points = _curve(log)
    measured = _measured(trial, log, points)
    crossing = _crossing(points, trial.choices.stop)
    clocks = _clocks(log, points, crossing) if status == "ok" and crossing is not None else {}
    if status == "ok" and crossing is None and trial.choices.stop.has_target:
        status, reason = "invalid", "the log ends in success but no evaluation establishes the target"
    warnings = _warnings(trial, log, points, measured)
    return Result(**base, **measured, **clocks, **warnings, status=status, reason=reason, curve=points)


def damaged_log(trial: Trial, attempt: int, damage: str) -> Result:
    """Return the result of an attempt of which every rank ended well, but whose log is damaged.

    Crashed, not invalid: the trial did what was requested, but its record is lost.
    """
    return Result(trial_id=trial.trial_id, cell_id=trial.cell_id, repeat=trial.repeat, attempt=attempt,
                  status="crashed", reason=f"{damage}, though every rank ended well", log_damaged=True)


def with_energy(result: Result, energy: Energy) -> Result:
    """Return the result with its energy, and a warning if the tracker used too much of a core."""
    share, warnings = energy.observer_share, result.warnings
    if share is not None and share > OBSERVER_LIMIT:
        warnings = (*warnings, f"energy tracking took {share:.1%} of a core (limit {OBSERVER_LIMIT:.1%})")
    if result.resumed:
        warnings = (*warnings, ENERGY_RESUMED)
    return result.model_copy(update={"energy": energy, "warnings": warnings})


class _Log:
    """Look-ups in one trial's events."""

    def __init__(self, events: Iterable[Event]) -> None:
        self.events = [event for event in events if event.nanoseconds is not None]
        self.run_start = self._time("run_start")
        self.run_stop = self._time("run_stop")
        self.init_start = self._time("init_start")

    def _time(self, key: str) -> int | None:
        return next((event.nanoseconds for event in self.events if event.key == key), None)

    def all(self, key: str) -> list[Event]:
        return [event for event in self.events if event.key == key]

    def last(self, key: str) -> Event | None:
        return next((event for event in reversed(self.events) if event.key == key), None)

    def facts(self) -> FinalFacts | None:
        event = self.last("x_checked")
        return read_facts(event.value) if event is not None else None

    def mapping(self, key: str) -> dict[str, str]:
        found: dict[str, str] = {}
        for event in self.all(key):
            if isinstance(event.value, dict):
                found |= {str(name): str(value) for name, value in event.value.items()}
        return found


def _status(log: _Log, outcome: LaunchResult | None) -> tuple[Status, str]:
    """Decide by exit codes AND the last event: a trial without `run_stop` failed even if its exit code is 0."""
    stop = log.last("run_stop")
    failure = outcome.first_failure if outcome else None
    if outcome is not None and outcome.timed_out:
        return "timed_out", f"ended at its time limit, after {outcome.seconds:.0f} s"
    if outcome is not None and outcome.hung:
        return "hung", _by_rank(failure) if failure else "no event for longer than stall_seconds"
    if stop is None:
        reason = failure.reason if failure else ""
        if failure and (failure.cause == "out_of_memory" or says_out_of_memory(reason)):
            return "out_of_memory", _by_rank(failure)
        return "crashed", _by_rank(failure) if failure else "ended without run_stop in its log"
    if failure is not None:
        return "crashed", f"after run_stop: {_by_rank(failure)}"
    ended = read_outcome(stop)
    return ("ok", "") if ended == "success" else (ended, str(stop.metadata.get("reason", "")))


def _judged(trial: Trial, log: _Log, status: Status, reason: str) -> tuple[Status, str]:
    """Make a trial invalid if it trained to its end, but with other data or settings than requested."""
    if not meaning(status).logged:
        return status, reason
    effective, facts = log.mapping("x_effective"), log.facts()
    wrong = [*_wrong_data(log), *_short_evaluations(trial, log),
             *mismatches(trial.choices, effective, log.mapping("x_settings")),
             *(find_failures(trial.choices, facts, effective) if facts else ())]
    return ("invalid", "; ".join(wrong)) if wrong else (status, reason)


def _wrong_data(log: _Log) -> list[str]:
    """Return the differences between the consumed data and the seed."""
    event = log.last("x_fed")
    seeded = event.value.get("as_seeded", {}) if event else {}
    names = {"data_order": "the consumed samples or their order", "augmentation": "the consumed augmentation"}
    return [f"{names.get(kind, kind)} differed from the seed's" for kind, equal in seeded.items() if not equal]


def _short_evaluations(trial: Trial, log: _Log) -> list[str]:
    """Return the first evaluation that lost or repeated samples."""
    for event in log.events:
        if event.key in EVALUATION_KEYS and "evaluated" in event.metadata:
            wanted = trial.choices.workload.get(Workload).eval_samples
            return [f"the evaluation after {event.metadata['samples_count']} samples covered "
                    f"{event.metadata['evaluated']:g} of {wanted} evaluation samples"]
    return []


def _by_rank(end: Any) -> str:
    code = f"killed by signal {-end.exit_code}" if end.exit_code < 0 else f"exit code {end.exit_code}"
    tail = f"; its log ends: {end.tail}" if end.tail else ""
    return f"rank {end.rank}: {end.reason or code}{tail}"


def _curve(log: _Log) -> tuple[Point, ...]:
    start = log.run_start
    assert start is not None
    points = []
    for event in [event for event in log.events if event.key in EVALUATION_KEYS]:
        data = event.metadata
        phases = data.get("phases") or {}
        at = data.get("eval_stop_ns", event.nanoseconds)
        wall = (at - start) / 1e9
        points.append(
            Point(
                samples=int(data["samples_count"]), epochs=float(data["epoch_num"]), wall_seconds=wall,
                train_seconds=wall - sum(phases.get(name, 0.0) for name in ("eval", "checkpoint", "logging")),
                value=event.value, train_loss=data.get("train_loss"),
            )
        )
    return tuple(points)


def reached(value: float | None, stop: Stop) -> bool:
    """Return True if an evaluation is at or past the target."""
    if value is None or stop.target is None:
        return False
    return value >= stop.target if stop.direction == "higher" else value <= stop.target


def _crossing(points: Sequence[Point], stop: Stop) -> tuple[int, int] | None:
    """Return (first hit, establishing evaluation) of the first `confirm_evals` hits in a row; None: no such row."""
    run = 0
    for index, point in enumerate(points):
        run = run + 1 if reached(point.value, stop) else 0
        if run == stop.confirm_evals:
            return index - run + 1, index
    return None


def _clocks(log: _Log, points: Sequence[Point], crossing: tuple[int, int]) -> dict[str, Any]:
    first, established = (points[index] for index in crossing)
    miss = points[crossing[0] - 1] if crossing[0] else None
    launch = log.last("x_launch_ns")
    assert log.run_start is not None
    filling = read_filling(log.last("x_compile"))
    excess = init_excess(_init_seconds(log))
    return {
        "tta_wall": established.wall_seconds + excess,
        "tta_train": established.train_seconds + excess,
        "tta_cold": established.wall_seconds + (log.run_start - launch.value) / 1e9 - filling if launch else None,
        "samples_to_target": established.samples,
        "epochs_to_target": established.epochs,
        "bracket": Bracket(
            miss_samples=miss.samples if miss else 0, hit_samples=first.samples,
            miss_wall_seconds=miss.wall_seconds if miss else 0.0, hit_wall_seconds=first.wall_seconds,
        ),
    }


def _init_seconds(log: _Log) -> float | None:
    if log.init_start is None or log.run_start is None:
        return None
    return (log.run_start - log.init_start) / 1e9


def _measured(trial: Trial, log: _Log, points: Sequence[Point]) -> dict[str, Any]:
    """Return the figures that need no target: phases, throughput, step times, memory, traffic."""
    stop = trial.choices.stop
    found: dict[str, Any] = {"steps": step_times(trial, log.events), **_input_wait(trial, log)}
    values = [point.value for point in points if point.value is not None]
    if values and points:
        found |= {"final": points[-1].value, "best": min(values) if stop.direction == "lower" else max(values)}
    found["init_seconds"] = _init_seconds(log)
    found["compile_seconds"] = read_seconds(log.last("x_compile"))
    peaks = log.last("x_peak_bytes")
    if peaks is not None and any(value is not None for value in peaks.value):
        found["peak_bytes"] = max(value for value in peaks.value if value is not None)
    if states := log.last("x_state_memory"):
        found["state_bytes"] = states.value
    traffic = _traffic(log)
    if traffic is not None:
        found |= {"traffic": traffic, "bytes_sent": sum(rank.sent_bytes for rank in traffic.ranks)}
    if log.run_stop is None or log.run_start is None:
        return found
    wall = (log.run_stop - log.run_start) / 1e9
    phases = _phases(log)
    samples = (points[-1].samples if points else 0) if stop.has_target else _counted_samples(trial, log) or 0
    per_second = samples_per_second(trial, log.events, samples, phases["train"])
    found |= {
        "run_seconds": wall, "phases": phases, "samples": samples,
        "samples_per_second": samples / wall if wall > 0 else None,
        "train_samples_per_second": per_second,
        **training_figures(trial, log.events, per_second),
        "conservation_error": abs(sum(phases.values()) - wall) / wall if wall > 0 else None,
        "observer_effect": phases.get("logging", 0.0) / wall if wall > 0 else None,
    }
    return found


def _traffic(log: _Log) -> Traffic | None:
    event = log.last("x_traffic")
    if event is None:
        return None
    ranks = tuple(RankTraffic.model_validate(rank) for rank in event.value if rank)
    sent = [rank.sent_bytes for rank in ranks]
    means = {part: sum(getattr(rank, part) for rank in ranks) / len(ranks)
             for part in ("exposed_seconds", "overlapped_seconds", "busy_seconds")}
    return Traffic(
        ranks=ranks, busiest_rank=sent.index(max(sent)), busiest_sent_bytes=max(sent),
        busiest_received_bytes=max(rank.received_bytes for rank in ranks),
        collectives=max(sum(line.collectives for line in rank.lines) for rank in ranks), **means,
        uncounted=tuple(sorted({line.operation for rank in ranks for line in rank.lines if line.sent_bytes is None})),
        training=_training(ranks), formula=_formula(log),
    )


def _training(ranks: Sequence[RankTraffic]) -> Spent | None:
    known = [rank.training for rank in ranks if rank.training]
    if len(known) < len(ranks):
        return None
    return Spent(**{name: sum(getattr(spent, name) for spent in known) / len(known) for name in Spent.model_fields})


def _formula(log: _Log) -> Formula | None:
    event = log.last("x_formula")
    return Formula.model_validate(event.value) if event is not None else None


def _phases(log: _Log) -> dict[str, float]:
    """Return the seconds by phase.

    Training is the sum of the steps and their input; the rest of the training loop counts as `other`. A missing block
    of steps therefore enlarges `other`; `find_log_faults` reports it.
    """
    event = log.last("x_phases")
    watched = {name: float(event.value.get(name, 0.0)) for name in PHASES} if event else dict.fromkeys(PHASES, 0.0)
    if event and LOST in event.value:
        watched[LOST] = float(event.value[LOST])
    stepped = _stepped(log)
    watched["other"] += max(0.0, watched["train"] - stepped)
    watched["train"] = stepped
    return watched


def _input_wait(trial: Trial, log: _Log) -> dict[str, float]:
    event = log.last("x_input")
    steps = sum(len(block.value["seconds"]) for block in log.all("x_steps")) - trial.choices.stop.warmup
    if event is None or steps < 1:
        return {}
    waited, stepped = max(event.value)
    return {"input_wait_seconds": waited / steps, "input_wait_share": waited / (waited + stepped) if waited else 0.0}


def _counted_samples(trial: Trial, log: _Log) -> int | None:
    """Return the samples of all step records; None if the run did not end."""
    if log.run_stop is None:
        return None
    return sum(len(event.value["seconds"]) for event in log.all("x_steps")) * trial.choices.batch.global_


def _ended_after(log: _Log) -> int | None:
    """Return the samples after which the run ended by its own account; None if it did not end."""
    event = log.last("run_stop")
    return int(event.metadata["samples_count"]) if event is not None else None


def _warnings(trial: Trial, log: _Log, points: Sequence[Point], measured: dict[str, Any]) -> dict[str, Any]:
    """Return the fields `warnings` and `log_faults`."""
    counted = _counted_samples(trial, log)
    wanted = points[-1].samples if points else None if trial.choices.stop.has_target else _ended_after(log)
    faults = find_log_faults(points, counted, wanted)
    skipped = [event.value for event in log.all("x_checkpoint") if event.value.get("skipped")]
    return {"log_faults": faults, "warnings": (
        *describe_measurement(measured),
        *(describe_log_fault(fault, counted, wanted) for fault in faults),
        *describe_initialisation(measured.get("init_seconds")),
        *(describe_resumed(Resumed.model_validate(event.value)) for event in log.all("x_resumed")),
        *describe_skipped(skipped),
        *describe_unassigned(measured),
        *describe_late(log.last("x_compiled_late")),
        *_doubts(trial, log, points, measured),
    )}


def _doubts(trial: Trial, log: _Log, points: Sequence[Point], measured: dict[str, Any]) -> list[str]:
    """Return warnings that logs of version 0.1.0 never had: they are derived again word for word."""
    facts = log.facts()
    if facts is None:
        return []
    phases, samples = measured.get("phases", {}), measured.get("samples", 0)
    return [*describe_facts(facts), *describe_cost(trial.choices, phases, samples, len(points)),
            *describe_gap(_block_gap(log), measured.get("run_seconds"))]


def _block_gap(log: _Log) -> float:
    """Return the seconds that blocks of steps took longer than the sum of their steps."""
    event = log.last("x_phases")
    return float(event.value.get("train", 0.0)) - _stepped(log) if event is not None else 0.0


def _stepped(log: _Log) -> float:
    """Return the seconds of all steps and their input."""
    return float(sum(sum(block.value["seconds"]) + sum(block.value["input_seconds"]) for block in log.all("x_steps")))
