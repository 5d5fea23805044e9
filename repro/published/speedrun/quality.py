"""The quality claim of one arm: is the mean loss at the end at least as good as the target, by its own logs?"""

from __future__ import annotations

from collections.abc import Sequence

from repro.compare.figures import ClaimVerdict
from repro.compare.verdict.contest import figures_in_words
from repro.core.frozen import Frozen
from repro.published.record import PublishedResult
from repro.stats import mean_interval, or_none, quality_claim
from repro.stats.sample import finite, mean


class ArmQuality(Frozen):
    """The claim and its figures, over all runs of an arm."""

    verdict: ClaimVerdict
    because: str
    n: int
    """Runs with a loss and a time at the end."""
    target: float
    mean: float | None = None
    deviation: float | None = None
    p: float | None = None
    """One-sided; None: not tested."""
    interval: tuple[float, float] | None = None
    """95 % interval of the mean loss."""


def final_loss(item: PublishedResult) -> float | None:
    """Return the loss at the end of a complete run."""
    return item.curve[-1].value if item.status == "ok" and item.curve else None


def judge_quality(results: Sequence[PublishedResult], refused: int, target: float, alpha: float) -> ArmQuality:
    """Test the claim; a run without a final loss forbids it, because leaving it out could make the claim true.

    Args:
        refused: logs of the arm that are no result: cut, unreadable, without an evaluation.
    """
    losses = [value for item in results if (value := final_loss(item)) is not None]
    missed = sum(item.status == "missed" for item in results)
    invalid = sum(item.status == "invalid" for item in results)
    middle = mean(finite(losses)) if losses else None
    found = ArmQuality(verdict="cannot be tested", because="", n=len(losses), target=target, mean=middle)
    total = len(results) + refused
    claim = or_none(lambda: quality_claim(losses, target, "lower", alpha))
    complete = not missed and not refused and not invalid
    if claim is not None and complete:  # p of the runs that are left would be taken for that of all
        spread = mean_interval(losses)
        found = found.model_copy(update={"deviation": claim.deviation, "p": claim.p,
                                         "interval": (spread.low, spread.high)})
    if missed:
        return found.model_copy(update={"verdict": "not supported", "because": (
            f"{missed} of {total} runs ended without a finite loss, so there is no mean over all runs")})
    if refused or invalid:
        parts = [f"{refused} refused"] * bool(refused) + [f"{invalid} with an impossible clock"] * bool(invalid)
        return found.model_copy(update={"because": (
            f"{refused + invalid} of {total} logs give no result ({', '.join(parts)}), and the claim is about all of "
            "them")})
    if len(losses) < 2:
        word = "one run" if losses else "no run"
        return found.model_copy(update={"because": f"{word}: a t test needs at least two"})
    if claim is None:
        return found.model_copy(update={"because": f"all {len(losses)} losses are equal: a t test needs values that "
                                                   "differ"})
    verdict, because = figures_in_words(claim, target, "lower", alpha)
    return found.model_copy(update={"verdict": verdict, "because": because})
