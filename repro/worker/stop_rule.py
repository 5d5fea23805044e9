"""The stop rule: a pure decision after every evaluation."""

from __future__ import annotations

import math
from dataclasses import dataclass

from repro.record.log.schema import Bar, TrialOutcome
from repro.suite.kinds.stop import Stop


@dataclass(frozen=True, slots=True)
class Ending:
    """The decision to end a trial."""

    outcome: TrialOutcome
    reason: str = ""
    """For the reader; no code reads it. Empty for a success."""


@dataclass(frozen=True, slots=True)
class Progress:
    """The part of a trial's past that the stop rule depends on."""

    hits: int = 0
    """Evaluations in a row at or past the target."""
    established: bool = False
    """The target was reached `confirm_evals` times in a row."""


def decide(
    stop: Stop, progress: Progress, value: float, step: int, budget_steps: int
) -> tuple[Progress, Ending | None]:
    """Decide after an evaluation; identical on every rank because `value` is.

    Args:
        value: the metric over all evaluation samples; not finite if the metric is not, or the loss of any rank.
        step: optimizer steps so far.
        budget_steps: the steps that the declared epochs allow.

    Returns:
        The progress with this evaluation, and the ending; None: the trial continues.
    """
    if not math.isfinite(value):
        return progress, Ending("diverged", f"loss or {stop.metric} is not finite at step {step}")
    assert stop.target is not None and stop.max_epochs is not None, "validated: a design with a target"
    hit = value >= stop.target if stop.direction == "higher" else value <= stop.target
    hits = progress.hits + 1 if hit else 0
    progress = Progress(hits, progress.established or hits >= stop.confirm_evals)
    spent = step >= budget_steps
    if progress.established and stop.design == "stop_at_target":
        return progress, Ending("success")
    if spent and (progress.established or stop.judges == "mean"):
        return progress, Ending("success")
    if spent:
        return progress, Ending("missed", f"{stop.metric} {value:.4f} after {stop.max_epochs:g} epochs")
    return progress, None


def decide_steps(step: int, budget_steps: int, finite: bool) -> Ending | None:
    """Decide after a block of design fixed_steps; identical on every rank because `finite` is.

    Args:
        finite: no rank had a loss that was not finite.
    """
    if not finite:
        return Ending("diverged", f"loss is not finite by step {step}")
    return Ending("success") if step >= budget_steps else None


def decide_hopeless(bar: Bar | None, metric: str, value: float, before: int, samples: int) -> Ending | None:
    """Decide whether a trial is abandoned after an evaluation that has not ended it; identical on every rank.

    Args:
        before: samples of the evaluation before; a trial is judged once, at the first evaluation from the bar's on.
        samples: samples so far.
    """
    if bar is None or not before < bar.samples <= samples or not bar.hopeless(value):
        return None
    return Ending("abandoned", f"{metric} {value:.4f} after {samples:,} samples is worse than {bar.value:.4f}, the "
                               f"median of {len(bar.of)} earlier trials of its contender there")
