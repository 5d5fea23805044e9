"""Carry-over: what a trial leaves behind for the one after it, such as heat, caches or memory that is not returned.

In a drawn order a trial of each cell follows trials of the other one more often than trials of its own: with two cells
in 3 of 4 cases. So half of what the cells leave behind is in the ratio of two cells, and no number of pairs removes it.
The drawn order shows it: pairs whose two trials followed the same cell do not contain it, the others do.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from repro import stats
from repro.compare.figures import Bounds, CarryOver, Estimate, Pair
from repro.stats.interval import from_log, t_quantile

LEAST = 5
"""Fewest pairs that give an estimate."""
LEVEL = 0.95
FLAT = 1e-12
"""Standard deviation of log ratios below which all of it is rounding."""


@dataclass(frozen=True, slots=True)
class Carry:
    """The part of the carry-over of two cells that each of their pairs contains."""

    parts: Mapping[int, float] = field(default_factory=dict)
    """Repeat -> part, -1 to 1; without repeats of which a trial's predecessor is unknown."""
    washed: bool = False
    """The suite declares `wash_out`."""

    @classmethod
    def of(cls, candidate: str, baseline: str, before: Mapping[str, Mapping[int, str]], washed: bool = False) -> Carry:
        """Return the parts of two cells.

        Args:
            before: cell -> repeat -> cell of the trial before.
        """
        side = {baseline: 0.5, candidate: -0.5}
        ours, theirs = before.get(candidate, {}), before.get(baseline, {})
        return cls({repeat: side.get(ours[repeat], 0.0) - side.get(theirs[repeat], 0.0)
                    for repeat in ours if repeat in theirs}, washed)

    def estimate(self, pairs: Sequence[Pair], sign: float = 1.0) -> CarryOver | None:
        """Return the carry-over that the pairs show: least squares of log ratio = effect + part x carry-over.

        Args:
            sign: 1 for times, -1 for rates.

        Returns:
            None if the order or the number of pairs cannot tell it from the effect.
        """
        known = [pair for pair in pairs if pair.repeat in self.parts]
        parts = np.array([self.parts[pair.repeat] for pair in known])
        if len(known) < LEAST or (spread := float(np.sum((parts - parts.mean()) ** 2))) < FLAT:
            return None
        logs = stats.log_ratios([pair.candidate for pair in known], [pair.baseline for pair in known])
        slope = float(np.sum((parts - parts.mean()) * logs)) / spread
        effect = float(logs.mean()) - slope * float(parts.mean())
        left = logs - effect - slope * parts
        error = math.sqrt(float(np.sum(left**2)) / (len(known) - 2))
        if error < FLAT:
            return None
        wide = t_quantile(0.5 + LEVEL / 2, len(known) - 2) * error
        return CarryOver(
            after_baseline=_estimate(sign * slope, wide / math.sqrt(spread)),
            contained=from_log(slope * float(parts.mean())), washed=self.washed,
            ratio=_estimate(effect, wide * math.sqrt(1 / len(known) + float(parts.mean()) ** 2 / spread)))


def _estimate(log: float, half: float) -> Estimate:
    return Estimate(value=from_log(log), interval=Bounds(low=from_log(log - half), high=from_log(log + half),
                                                         level=LEVEL))
