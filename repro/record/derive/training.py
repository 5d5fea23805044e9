"""Derives the result of a trial of kind training, all of its clocks included, from the events of its log."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from repro.core.numbers import plain_sum
from repro.record.derive.effective import (
    block_gap,
    covers_every_rank,
    find_contradictions,
    find_failures,
    find_other_steps,
    mismatches,
    slow_evaluation,
    unchecked,
)
from repro.record.derive.training_figures import (
    derive_controller,
    read_traffic,
    samples_per_second,
    step_times,
    training_figures,
)
from repro.record.derive.trial_log import (
    TrialLog,
    common_fields,
    find_stop,
    read_clocks,
    read_curve,
    read_init_seconds,
    read_quality,
    read_status,
)
from repro.record.log import schema
from repro.record.result import result_warnings
from repro.record.result.parts import Protocol
from repro.record.result.reasons import NoSuccess, OtherData, Reason, ShortEvaluation
from repro.record.result.results import LOST, PHASES, Point, Result
from repro.record.result.status import meaning
from repro.seams.launching import LaunchResult
from repro.seams.training import Workload
from repro.suite.model import Trial


def derive_training(trial: Trial, attempt: int, log: TrialLog, outcome: LaunchResult | None) -> Result:
    """Return the result of one attempt of a trial of kind training."""
    base = common_fields(trial, attempt, log) | {
        "hashes": log.mapping(schema.Hashes), "network": (network := outcome.network if outcome else None),
        "controller": derive_controller(log, network["node_of_rank"] if network else ()),
        "every_rank": covers_every_rank(facts) if (facts := log.facts()) else None,
    }
    resumed = tuple(event.value for event in log.all(schema.ResumedFrom))
    status, reasons = read_status(log, outcome)
    if meaning(status).logged and (wrong := tuple(_unlike_requested(trial, log))):
        status, reasons = "invalid", wrong
    if log.run_start is None:
        return Result(**base, status=status, reasons=reasons, warnings=resumed)
    points = read_curve(log)
    measured = _measured(trial, log, points)
    stop = trial.training.stop
    crossing = find_stop(points, stop)
    clocks = read_clocks(log, points, stop, crossing) if status == "ok" and crossing is not None else {}
    if status == "ok" and crossing is None and stop.has_target:
        status, reasons = "invalid", (NoSuccess(contest=stop.judges == "mean"),)
    return Result(**base, **measured, **clocks, status=status, reasons=reasons, curve=points, warnings=(
        *_log_faults(trial, log, points), *_of_figures(measured), *resumed, *_of_events(log),
        *_doubts(trial, log, points, measured)))


def _unlike_requested(trial: Trial, log: TrialLog) -> Iterator[Reason]:
    """Yield why a trial that trained to its end is invalid: other data or settings than requested."""
    if fed := log.last(schema.Fed):
        yield from (OtherData(what=kind) for kind, equal in fed.as_seeded.model_dump().items() if not equal)
    if short := next((event for event in log.all(schema.Evaluation) if event.evaluated is not None), None):
        yield ShortEvaluation(samples=short.samples_count, evaluated=short.evaluated,
                              wanted=trial.training.workload.get(Workload).eval_samples)
    effective, facts = log.mapping(schema.EffectiveSettings), log.facts()
    kept, again = log.last(schema.LedgerKept), log.last(schema.StepsRepeated)
    yield from mismatches(trial.training, effective, log.mapping(schema.Settings))
    yield from find_contradictions(kept.value if kept else ())
    yield from find_other_steps(trial.training, again.value if again else None)
    if facts:
        yield from find_failures(trial.training, facts, effective)


def _measured(trial: Trial, log: TrialLog, points: Sequence[Point]) -> dict[str, Any]:
    """Return the figures that need no target: phases, throughput, step times, memory, traffic."""
    stop = trial.training.stop
    found: dict[str, Any] = {"steps": step_times(trial, log), **_input_wait(trial, log), **read_quality(points, stop),
                             "init_seconds": read_init_seconds(log), "peak_bytes": _peak_bytes(log)}
    found["compile_seconds"] = compiled.seconds if (compiled := log.last(schema.Compilation)) else None
    if states := log.last(schema.StateMemory):
        found["state_bytes"] = states.value
    if protocol := log.last(schema.ServerProtocol):
        found["protocol"] = protocol.value
    if planned := log.last(schema.GradientPlan):
        found["gradient_plan"] = planned.value
    traffic = read_traffic(log)
    if traffic is not None:
        servers = found["protocol"].servers if "protocol" in found else ()
        found |= {"traffic": traffic, "bytes_sent": sum(rank.sent_bytes for rank in (*traffic.ranks, *servers))}
    if log.run_stop is None or log.run_start is None:
        return found
    wall = (log.run_stop - log.run_start) / 1e9
    phases = _phases(log)
    samples = (points[-1].samples if points else 0) if stop.has_target else _counted_samples(trial, log) or 0
    per_second = samples_per_second(trial, log, samples, phases["train"])
    found |= {
        "run_seconds": wall, "phases": phases, "samples": samples,
        "samples_per_second": samples / wall if wall > 0 else None,
        "train_samples_per_second": per_second,
        **training_figures(trial, log, per_second),
        "conservation_error": abs(plain_sum(phases.values()) - wall) / wall if wall > 0 else None,
        "observer_effect": phases.get("logging", 0.0) / wall if wall > 0 else None,
    }
    return found


def _phases(log: TrialLog) -> dict[str, float]:
    """Return the seconds by phase.

    Training is the sum of the steps and their input; the rest of the training loop counts as `other`. A missing block
    of steps therefore enlarges `other`; `_log_faults` reports it.
    """
    event = log.last(schema.Phases) or schema.Phases()
    watched = event.model_dump(include={*PHASES})
    if event.lost is not None:
        watched[LOST] = event.lost
    stepped = _stepped(log)
    watched["other"] += max(0.0, watched["train"] - stepped)
    watched["train"] = stepped
    return watched


def _peak_bytes(log: TrialLog) -> int | None:
    """Return the largest memory of a rank: in training; of a process, whose peak cannot be forgotten, in its life."""
    event = log.last(schema.MemoryPeaks)
    if event is None:
        return None
    peaks = (*event.training, *event.init) if event.kind == "resident" else event.training
    return max((peak for peak in peaks if peak is not None), default=None)


def _input_wait(trial: Trial, log: TrialLog) -> dict[str, float]:
    event = log.last(schema.InputWaits)
    steps = sum(len(block.seconds) for block in log.all(schema.StepBlock)) - trial.training.stop.warmup
    if event is None or steps < 1:
        return {}
    waited, stepped = max(event.value)
    return {"input_wait_seconds": waited / steps, "input_wait_share": waited / (waited + stepped) if waited else 0.0}


def _counted_samples(trial: Trial, log: TrialLog) -> int | None:
    """Return the samples of all step records; None if the run did not end."""
    if log.run_stop is None:
        return None
    return sum(len(block.seconds) for block in log.all(schema.StepBlock)) * trial.training.batch.global_


def _log_faults(trial: Trial, log: TrialLog, points: Sequence[Point]) -> Iterator[result_warnings.Warned]:
    """Yield the faults that an unmodified log never has."""
    counted = _counted_samples(trial, log)
    wanted = points[-1].samples if points else None
    if (stop := log.last(schema.RunStop)) and not points and not trial.training.stop.has_target:
        wanted = stop.samples_count  # by its own account
    if counted is not None and wanted is not None and counted != wanted:
        yield result_warnings.StepsMissing(counted=counted, wanted=wanted)
    if any(later.wall_seconds < earlier.wall_seconds for earlier, later in pairwise(points)):
        yield result_warnings.ClockBackwards()


def _of_figures(measured: Mapping[str, Any]) -> Iterator[result_warnings.Warned]:
    """Yield the warnings that follow from figures of the result."""
    error, observer = measured.get("conservation_error"), measured.get("observer_effect")
    if error is not None and error > result_warnings.CONSERVATION_TOLERANCE:
        yield result_warnings.Unexplained(share=error)
    if observer is not None and observer > result_warnings.LOGGING_LIMIT:
        yield result_warnings.SlowLogging(share=observer)
    if excess := result_warnings.init_excess(measured.get("init_seconds")):
        yield result_warnings.LongInitialisation(excess_seconds=excess)
    wall, other = measured.get("run_seconds"), measured.get("phases", {}).get("other", 0.0)
    if wall and other > result_warnings.OTHER_SHARE * wall:
        yield result_warnings.Unassigned(share=other / wall)
    protocol: Protocol | None = measured.get("protocol")
    if protocol is not None and protocol.lost:
        yield result_warnings.WorkersLost(ranks=protocol.lost, left=protocol.workers - len(protocol.lost))


def _of_events(log: TrialLog) -> Iterator[result_warnings.Warned]:
    """Yield the warnings about checkpoints that were not written, and graphs that were compiled late."""
    if skipped := [event for event in log.all(schema.CheckpointWritten) if event.skipped]:
        yield result_warnings.CheckpointsSkipped(count=len(skipped), step=skipped[0].step, problem=skipped[0].skipped)
    late = log.last(schema.CompiledLate)
    if late is not None and (graphs := max((rank.graphs for rank in late.value), default=0)):
        yield result_warnings.CompiledLate(graphs=graphs, seconds=max(rank.seconds for rank in late.value))


def _doubts(
    trial: Trial, log: TrialLog, points: Sequence[Point], measured: Mapping[str, Any]
) -> Iterator[result_warnings.Warned]:
    """Yield the warnings about what the harness checked at the end, and about times that cannot be."""
    facts = log.facts()
    if facts is None:
        return
    yield from unchecked(facts)
    again = log.last(schema.StepsRepeated)
    if again and again.value.problem:
        yield result_warnings.NotChecked(problem=f"the steps after the trial: {again.value.problem}")
    phases, samples = measured.get("phases", {}), measured.get("samples", 0)
    yield from slow_evaluation(trial.training, phases, samples, len(points))
    if clocked := log.last(schema.Phases):  # its blocks may have taken longer than their steps
        yield from block_gap(clocked.train - _stepped(log), measured.get("run_seconds"))


def _stepped(log: TrialLog) -> float:
    """Return the seconds of all steps and their input."""
    return plain_sum(plain_sum(block.seconds) + plain_sum(block.input_seconds) for block in log.all(schema.StepBlock))
