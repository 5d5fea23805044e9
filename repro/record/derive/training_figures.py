"""Figures of training alone: step time, throughput, memory, arithmetic; without evaluation, data opening, checkpoints.

Steps that design fixed_steps declares as warm-up are in none of them but the memory.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from repro.core.numbers import plain_sum
from repro.record.derive.trial_log import TrialLog
from repro.record.log.schema import MemoryPeaks, ModelStated, RankSteps, StepBlock
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
    found = _whole_steps(trial, log) | memory_figures(log)
    event = log.last(ModelStated)
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
        seconds = [step + waited for block in log.all(StepBlock)
                   for step, waited in zip(block.seconds, block.input_seconds, strict=True)]
        train_seconds, samples = plain_sum(seconds[left_out:]), samples - left_out * trial.training.batch.global_
    return samples / train_seconds if train_seconds > 0 else None


def step_times(trial: Trial, log: TrialLog) -> Steps | None:
    """Return the step times, without input where the clock tells the two apart; None if no step was timed."""
    slowest = _timed(trial, [value for block in log.all(RankSteps) for value in block.slowest_seconds])
    fastest = _timed(trial, [value for block in log.all(RankSteps) for value in block.fastest_seconds])
    if not len(slowest):
        return None
    return Steps(
        count=len(slowest), median_seconds=float(np.median(slowest)), p95_seconds=float(np.quantile(slowest, 0.95)),
        straggler_seconds=float(np.sum(slowest - fastest)),
    )


def _whole_steps(trial: Trial, log: TrialLog) -> dict[str, Any]:
    timed = _timed(trial, [value for block in log.all(RankSteps) for value in block.whole_seconds])
    if not len(timed):
        return {}
    return {"step_seconds": float(np.median(timed)), "step_seconds_mean": float(np.mean(timed))}


def _timed(trial: Trial, steps: list[float]) -> np.ndarray:
    """Return the figures of the timed steps among those of all steps [steps]."""
    return np.asarray(steps[trial.choices.stop.warmup:])


def memory_figures(log: TrialLog) -> dict[str, Any]:
    """Return the largest memory of the ranks as fields of `Result`; {} if the log does not have it."""
    event = log.last(MemoryPeaks)
    if event is None:
        return {}
    init, training = ([value / MIB for value in peaks if value is not None] for peaks in (event.init, event.training))
    if not training:
        return {}
    return {"memory": event.kind, "init_peak_mib": max(init, default=None),
            "training_peak_mib": max(training), "training_peak_mib_sum": plain_sum(training)}
