"""MLPerf Training's own score, for results that stand beside theirs. The one place where it is computed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from repro.stats.sample import positive


@dataclass(frozen=True, slots=True)
class Score:
    """Minutes, and whether the rules accept them."""

    value: float | None
    """None where nothing is left or too many runs missed; fewer runs than asked for still give minutes."""
    valid: bool
    reason: str
    """Why it is not valid."""
    dropped: tuple[float | None, ...]
    """Runs left out, fastest first; None: a run that missed the target. Empty where there is no value."""
    missed: int


def mlperf_score(minutes: Sequence[float | None], drop: int = 1, runs: int | None = None) -> Score:
    """Olympic mean: the `drop` fastest and the `drop` slowest runs are left out and the rest averaged (MLPerf Training
    rules, section "Benchmark results"; `mlperf_logging.result_summarizer`, `_compute_strong_score_standalone` and
    `_compute_olympic_average`).

    A run that missed counts as one of the dropped slowest; more misses than `drop` and there is no score.

    Args:
        minutes: one a run, None where it missed the target.
        drop: 1 for every benchmark but unet3d, which drops 4.
        runs: how many the benchmark requires (5 for ResNet-50, 10 for Llama 2 70B LoRA); fewer is not valid. None: not
            checked.

    Raises:
        ValueError: a time is not positive and finite, `drop` is negative.
    """
    if drop < 0:
        raise ValueError(f"runs to drop cannot be {drop}")
    reached = sorted(positive([value for value in minutes if value is not None], "minutes").tolist())
    missed = len(minutes) - len(reached)
    if missed > drop:
        return Score(None, False, f"{missed} of {len(minutes)} runs gave no time to target; {drop} may", (), missed)
    end = len(reached) - (drop - missed)
    kept = reached[drop:end]
    if not kept:
        told = f"nothing is left of {len(minutes)} runs after the fastest and the slowest"
        return Score(None, False, told, (), missed)
    few = runs is not None and len(minutes) < runs
    reason = f"{len(minutes)} runs of the {runs} that the rules ask for" if few else ""
    return Score(sum(kept) / len(kept), not few, reason, (*reached[:drop], *reached[end:], *[None] * missed), missed)
