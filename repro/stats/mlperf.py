"""MLPerf Training's own score, for results shown next to theirs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from repro.stats.sample import positive


@dataclass(frozen=True, slots=True)
class MlperfScore:
    """Minutes, or the reason why there are none."""

    value: float | None
    valid: bool
    reason: str
    dropped: tuple[float | None, ...]
    """Excluded runs, fastest first; None: a run that missed the target."""


def mlperf_score(
    minutes: Sequence[float | None], drop: int = 1, runs: int | None = None, scaling: float = 1.0
) -> MlperfScore:
    """Return the mean after dropping the `drop` fastest and the `drop` slowest runs (MLPerf Training rules, section
    "Benchmark results"; `mlperf_logging.result_summarizer`, `_compute_olympic_average`).

    A run that missed counts as one of the dropped slowest; more misses than `drop` make the result invalid.

    Args:
        minutes: one per run, None if it missed the target.
        drop: 1 for every benchmark but unet3d, which drops 4.
        runs: how many the benchmark requires (5 for ResNet-50, 10 for Llama 2 70B LoRA); fewer is invalid. None: not
            checked, as in the summarizer's score.
        scaling: factor of the reference convergence check, for submissions that need fewer epochs than the reference.
            The summarizer reads it from `scaling.json` next to the logs, which its first pass writes: the first pass
            over a folder gives the score without it, every later one with it.

    Raises:
        ValueError: a time or `scaling` is not positive and finite, `drop` is negative.
    """
    if drop < 0:
        raise ValueError(f"runs to drop cannot be {drop}")
    positive([scaling], "the scaling")
    reached = sorted(positive([value for value in minutes if value is not None], "minutes").tolist())
    missed = len(minutes) - len(reached)
    dropped = (*reached[:drop], *reached[len(reached) - max(0, drop - missed):], *[None] * missed)
    kept = reached[drop:len(reached) - max(0, drop - missed)]
    if missed > drop:
        return MlperfScore(None, False, f"{missed} of {len(minutes)} runs missed the target; {drop} may",
                           (*[None] * missed,))
    if runs is not None and len(minutes) < runs:
        return MlperfScore(None, False, f"{len(minutes)} runs where the benchmark requires {runs}", ())
    if not kept:
        problem = f"{len(minutes)} runs leave none after {drop} fastest and {drop} slowest are dropped"
        return MlperfScore(None, False, problem, ())
    return MlperfScore(scaling * sum(kept) / len(kept), True, "", dropped)
