"""One look of a sequential design: the levels at which its pairs are judged, and the figures that belong to them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from repro import stats
from repro.compare.evidence.pairing import CellTrials, observe
from repro.stats.anytime import anytime_interval, e_difference, e_same, is_below
from repro.suite.metrics import MetricSpec

ALPHA = 0.05


@dataclass(frozen=True, slots=True)
class Stage:
    """One look, as the part of a comparison that is declared before the results."""

    number: int
    of: int
    n: int
    """Pairs at this look."""
    difference: float = ALPHA
    """Nominal level of the two-sided test."""
    same: float = ALPHA
    """Nominal level of each of the two one-sided tests."""
    anytime: bool = False
    """An e-process decides; p is 1 / its largest value so far, and the intervals are confidence sequences."""


def stage_figures(
    candidate: Sequence[float], baseline: Sequence[float], margin: float, stage: Stage
) -> tuple[stats.Interval | None, float, stats.Equivalence | None]:
    """Return (the repeated interval, whose coverage all looks together keep, p, equivalence) of pairs with a spread."""
    logs = stats.log_ratios(candidate, baseline).tolist()
    if stage.anytime:
        p = 1 / e_same(logs, margin)
        inner = anytime_interval(logs, 1 - 2 * ALPHA)
        test = None if inner is None else stats.Equivalence(min(1.0, p), inner, p <= ALPHA)
        return anytime_interval(logs), 1 / e_difference(logs), test
    exact = len(logs) <= stats.EXACT_PAIRS
    return (
        stats.paired_ratio(candidate, baseline, 1 - stage.difference)[1],
        stats.sign_flip(logs) if exact else stats.paired_p(candidate, baseline),
        stats.or_none(lambda: stats.equivalent_pairs(logs, margin, stage.same)),
    )


def missed_stakes(ours: CellTrials, theirs: CellTrials, scale: MetricSpec) -> tuple[float, bool]:
    """Return (p of the e-process of pairs of which some trials missed, whether it is on the candidate's taking less).

    Pairs with a missed trial count with their order, the others with the size of their ratio.
    """
    logs = []
    for repeat in sorted(ours.results.keys() & theirs.results.keys()):
        one, other = observe(ours.results[repeat], scale), observe(theirs.results[repeat], scale)
        if one.kind == other.kind == "reached":
            logs.append(math.log(one.at / other.at))
        elif one.kind == "reached" and one.at <= other.at:
            logs.append(-math.inf)
        elif other.kind == "reached" and other.at <= one.at:
            logs.append(math.inf)
        else:
            logs.append(math.nan)
    return 1 / e_difference(logs), is_below(logs)
