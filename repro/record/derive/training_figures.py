"""Figures from the log of a trial: step time, throughput, memory, arithmetic, communication, traffic of the controller.

Steps that design fixed_steps declares as warm-up are in none of the figures of steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from repro.core.numbers import plain_sum
from repro.record.derive.trial_log import TrialLog
from repro.record.log import schema
from repro.record.result.parts import Controller, Exchange, Frames, RankTraffic, Spent, Traffic
from repro.record.result.results import Steps
from repro.suite.model import Trial

MIB = 1 << 20
TRAINING_PASSES = 3
"""FLOPs of a training step over those of its forward pass: the backward pass takes two products for each of the
forward pass. What is computed again (activation checkpointing) does not count."""


def training_figures(trial: Trial, log: TrialLog, per_second: float | None) -> dict[str, Any]:
    """Return fields of `Result`.

    Args:
        per_second: training samples a second of all ranks.
    """
    found = memory_figures(log)
    if len(whole := _timed(trial, log, "whole_seconds")):
        found |= {"step_seconds": float(np.median(whole)), "step_seconds_mean": float(np.mean(whole))}
    event = log.last(schema.ModelStated)
    if event is None:
        return found
    model = event.value
    found["model"] = model
    if per_second is None:
        return found
    if model.tokens_per_sample:
        found["tokens_per_second"] = per_second * model.tokens_per_sample
    if model.forward_flops and model.peak_flops:
        found["mfu"] = per_second * TRAINING_PASSES * model.forward_flops / (model.peak_flops * trial.choices.processes)
    return found


def samples_per_second(trial: Trial, log: TrialLog, samples: int, train_seconds: float) -> float | None:
    """Return the training samples a second of all ranks; None if no step was timed.

    Args:
        samples: of all steps.
        train_seconds: rank 0's seconds of all steps with their input.
    """
    left_out = trial.choices.stop.warmup
    if left_out:
        seconds = [step + waited for block in log.all(schema.StepBlock)
                   for step, waited in zip(block.seconds, block.input_seconds, strict=True)]
        train_seconds, samples = plain_sum(seconds[left_out:]), samples - left_out * trial.training.batch.global_
    return samples / train_seconds if train_seconds > 0 else None


def step_times(trial: Trial, log: TrialLog) -> Steps | None:
    """Return the step times, without input where the clock tells the two apart; None if no step was timed."""
    slowest, fastest = (_timed(trial, log, f"{rank}_seconds") for rank in ("slowest", "fastest"))
    if not len(slowest):
        return None
    return Steps(
        count=len(slowest), median_seconds=float(np.median(slowest)), p95_seconds=float(np.quantile(slowest, 0.95)),
        straggler_seconds=float(np.sum(slowest - fastest)),
    )


def _timed(trial: Trial, log: TrialLog, field: str) -> np.ndarray:
    """Return a field of `RankSteps` for the timed steps among all steps [steps]."""
    every = [value for block in log.all(schema.RankSteps) for value in getattr(block, field)]
    return np.asarray(every[trial.choices.stop.warmup:])


def memory_figures(log: TrialLog) -> dict[str, Any]:
    """Return the largest memory of the ranks as fields of `Result`; {} if the log does not have it."""
    event = log.last(schema.MemoryPeaks)
    if event is None:
        return {}
    init, training = ([value / MIB for value in peaks if value is not None] for peaks in (event.init, event.training))
    if not training:
        return {}
    return {"memory": event.kind, "init_peak_mib": max(init, default=None),
            "training_peak_mib": max(training), "training_peak_mib_sum": plain_sum(training)}


def read_traffic(log: TrialLog) -> Traffic | None:
    """Return the communication of all ranks; None: nothing was counted."""
    event, formula = log.last(schema.TrafficCounted), log.last(schema.FormulaTraffic)
    if event is None:
        return None
    ranks = tuple(rank for rank in event.value if rank)
    sent = [rank.sent_bytes for rank in ranks]
    return Traffic(
        ranks=ranks, busiest_rank=sent.index(max(sent)), busiest_sent_bytes=max(sent),
        busiest_received_bytes=max(rank.received_bytes for rank in ranks),
        collectives=max(sum(line.collectives for line in rank.lines) for rank in ranks), **_means(ranks),
        uncounted=tuple(sorted({line.operation for rank in ranks for line in rank.lines if line.sent_bytes is None})),
        training=Spent(**_means([rank.training for rank in ranks])), formula=formula.value if formula else None,
    )


def _means(ranks: Sequence[RankTraffic | Spent]) -> dict[str, float]:
    return {name: plain_sum(getattr(rank, name) for rank in ranks) / len(ranks) for name in Spent.model_fields}


def derive_controller(log: TrialLog, node_of_rank: Sequence[int]) -> Controller | None:
    """Return the traffic through the controller; None if a rank did not count it, or the trial was resumed.

    Args:
        node_of_rank: node of each rank; ranks of one node share its interfaces. Empty: the launcher makes no network.
    """
    event = log.last(schema.ControllerCounted)
    if event is None or log.run_start is None:
        return None
    ranks = event.value
    starts, stops = [rank.start for rank in ranks], [rank.stop for rank in ranks]
    startup, whole = _exchange(starts), _exchange(stops)
    before, after = (sum(reading.log_bytes for reading in found) for found in (starts, stops))
    nodes = list(dict(reversed(list(zip(node_of_rank, ranks, strict=False)))).values())
    return Controller(
        ranks=len(ranks), startup=startup, training=Exchange(
            **{name: getattr(whole, name) - getattr(startup, name) for name in Exchange.model_fields}),
        control_frames=_frames(nodes, "control"), data_frames=_frames(nodes, "data"),
        log_startup_bytes=before, log_training_bytes=after - before,
    )


def _exchange(readings: Sequence[schema.ControllerReading]) -> Exchange:
    return Exchange(
        sent_bytes=sum(reading.sent_bytes for reading in readings),
        received_bytes=sum(reading.received_bytes for reading in readings),
        sent_messages=sum(reading.sent_segments for reading in readings),
        received_messages=sum(reading.received_segments for reading in readings),
    )


def _frames(nodes: Sequence[schema.ControllerReadings], network: str) -> Frames | None:
    if not nodes or not all(network in moment.interfaces for node in nodes for moment in (node.start, node.stop)):
        return None
    return Frames(**{name: sum(getattr(node.stop.interfaces[network], name)
                               - getattr(node.start.interfaces[network], name) for node in nodes)
                     for name in Frames.model_fields})
