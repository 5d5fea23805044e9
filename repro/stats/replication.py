"""A claim measured twice: the change of a ratio between two executions, and the change that they can show.

Each execution gives a mean log ratio of its own pairs, so the level of a session or of a machine, which all trials of
an execution share, cancels within it. What does not cancel is an interaction: a machine on which one cell gains more
than the other. Its standard deviation from one session to another can be declared; it then widens both answers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from repro.stats import ratio
from repro.stats.interval import Interval, from_log, t_quantile
from repro.stats.power import variances
from repro.stats.sample import FLAT, finite, least, margin_edge, mean, spread
from repro.stats.sequential import LookLevel, look_levels

ALPHA, POWER = 0.05, 0.8
DRAWN = 30
"""Values of a spread that a power is averaged over."""
MOST_PAIRS = 1000
"""Pairs of a second execution beyond which the answer is: too many to run."""


class MeanLog(NamedTuple):
    """A mean of logs, measured in one execution."""

    value: float
    error: float
    """Standard error; 0: all figures are equal, as simulated times are."""
    freedom: float
    """Degrees of freedom of the error."""

    @property
    def figures(self) -> int:
        """Figures that it is the mean of."""
        return round(self.freedom) + 1


def mean_log(logs: Sequence[float]) -> MeanLog:
    """Return the mean of at least two logs.

    Raises:
        ValueError: fewer than two, one not finite, or all equal: without a spread there is no error.
    """
    values = finite(logs, "logs")
    return MeanLog(mean(values), spread(values, "a change of a ratio") / math.sqrt(len(values)), len(values) - 1)


def two_sided(found: MeanLog) -> float:
    """Return the two-sided p of Student's t test that the mean of logs is 0."""
    return ratio.two_sided(found.value / found.error, found.freedom) if found.error else 0.0


@dataclass(frozen=True, slots=True)
class Change:
    """The figure of the second execution over that of the first."""

    ratio: float
    interval: Interval
    """At 95 % over all claims tested together."""
    within: Interval
    """At 90 %: inside the margin exactly if two one-sided tests at 5 % show a change within it."""
    margin: float

    @property
    def is_within(self) -> bool:
        edge = 1 + self.margin
        return 1 / edge <= self.within.low and self.within.high <= edge

    @property
    def is_beyond(self) -> bool:
        """The interval excludes no change, and the change found is beyond the margin."""
        edge = 1 + self.margin
        return not self.interval.low <= 1 <= self.interval.high and not 1 / edge <= self.ratio <= edge


class Shift(NamedTuple):
    """The log of the change found, and its error."""

    value: float
    error: float
    freedom: float


def shift(first: MeanLog, second: MeanLog) -> Shift:
    """Return the shift between two executions with other seeds: Welch's error and degrees of freedom (Welch 1947)."""
    parts = [first.error**2, second.error**2]
    weights = math.fsum(part**2 / max(1.0, side.freedom) for part, side in zip(parts, (first, second), strict=True))
    total = math.fsum(parts)
    return Shift(second.value - first.value, math.sqrt(total), total**2 / weights if weights else 1.0)


def paired_shift(first: Sequence[float], second: Sequence[float]) -> Shift:
    """Return the shift between two executions with the same seeds: what a seed does to both cancels.

    Args:
        first, second: logs of both executions, in one order of the seeds.

    Raises:
        ValueError: lengths differ, fewer than two, or one is not finite.
    """
    if len(first) != len(second):
        raise ValueError(f"pairs need two lists of one length, not {len(first)} and {len(second)}")
    apart = finite([other - one for one, other in zip(first, second, strict=True)], "logs")
    error = 0.0 if np.ptp(apart) <= FLAT else spread(apart, "a change of a ratio") / math.sqrt(len(apart))
    return Shift(mean(apart), error, len(apart) - 1)


def looks_up_to(pairs: int) -> tuple[LookLevel, ...]:
    """Return the looks of a second execution that may stop early: at half of its pairs, at three quarters and at all,
    with a share of the 5 % in proportion to the pairs (Lan & DeMets 1983).

    The bounds are those of means whose information is in proportion to the pairs, as between executions with the same
    seeds. With other seeds the first execution's error is in every look, so the looks are more alike and err less.
    """
    looks = {max(LEAST_PAIRS, math.ceil(share * pairs)) for share in (0.5, 0.75)}
    return look_levels((*sorted(n for n in looks if n < pairs), pairs), "power", 1.0)


def change(found: Shift, margin: float, interaction: float = 0.0, tests: int = 1, look: LookLevel | None = None
           ) -> Change:
    """Return the change between two executions.

    Args:
        interaction: standard deviation over sessions of the log ratio's true value, declared beforehand.
        tests: claims that share the 5 % for a change that is none.
        look: the levels at which it is judged; None: 5 % each.

    Raises:
        ValueError: a margin that is not positive, or a negative interaction.
    """
    if not interaction >= 0:
        raise ValueError(f"an interaction is a standard deviation of log ratios, at least 0, not {interaction}")
    margin_edge(margin)
    error = math.hypot(found.error, math.sqrt(2) * interaction)
    # The declared part is known: only the measured part of the error has few degrees of freedom (Satterthwaite).
    freedom = min(1e6, found.freedom * (error / found.error)**4) if found.error else 1e6
    both = []
    for level in (1 - (look.difference if look else ALPHA) / tests, 1 - 2 * (look.same if look else ALPHA)):
        half = t_quantile(0.5 + level / 2, freedom) * error if error else 0.0
        both.append(Interval(from_log(found.value - half), from_log(found.value + half), level))
    return Change(from_log(found.value), both[0], both[1], margin)


def replication_power(
    first: MeanLog, pairs: int, margin: float, interaction: float = 0.0, in_looks: bool = False,
) -> float:
    """Return the probability that a second execution of `pairs` pairs shows an unchanged ratio to be within the margin.

    The true spread is unknown: the power is averaged over what it may be, given that of the first execution
    (variance found / true variance ~ chi2(f) / f), and over the spread that is then found. With the seeds of the first
    execution the power is that of a paired shift whose pairs share nothing: if a seed does the same to both executions,
    it is higher.

    Args:
        in_looks: the pairs are judged at the looks up to them. The power is then that of the last look alone, so the
            looks before it only add to it.

    Raises:
        ValueError: as `change`, or fewer than two pairs.
    """
    if pairs < 2:
        raise ValueError(f"a spread needs at least two pairs, not {pairs}")
    from scipy.special import ndtr, stdtrit

    error = max(first.error, FLAT)
    each = error**2 * first.figures / variances(first.freedom, DRAWN)[:, None]  # true variance of a log ratio
    found = variances(pairs - 1, DRAWN)[None, :]
    if pairs <= first.figures:
        measured, freedom = 2 * each / pairs * found, np.full((1, 1), pairs - 1.0)
        apart = 2 * each / pairs
    else:
        parts = np.full_like(found, error**2), each / pairs * found
        measured = parts[0] + parts[1]
        freedom = measured**2 / (parts[0]**2 / first.freedom + parts[1]**2 / (pairs - 1))
        apart = each / first.figures + each / pairs
    total = measured + 2 * interaction**2
    level = looks_up_to(pairs)[-1].same if in_looks else ALPHA
    room = margin_edge(margin) - stdtrit(np.minimum(1e6, freedom * (total / measured)**2), 1 - level) * np.sqrt(total)
    return float(np.mean(np.where(room > 0, 2 * ndtr(room / np.sqrt(apart + 2 * interaction**2)) - 1, 0.0)))


def supported_margin(
    first: MeanLog, pairs: int, interaction: float = 0.0, power: float = POWER, in_looks: bool = False,
) -> float | None:
    """Return the smallest margin, in whole per cent upwards, that `pairs` new pairs show with this power; None: none up
    to a factor of 2.

    Raises:
        ValueError: as `replication_power`.
    """
    found = least(lambda hundredths: replication_power(first, pairs, hundredths / 100, interaction, in_looks) >= power,
                  1, 100)
    return None if found is None else found / 100


def pairs_for_margin(
    first: MeanLog, margin: float, interaction: float = 0.0, power: float = POWER, in_looks: bool = False,
) -> int | None:
    """Return the fewest new pairs that show this margin with this power; None: more than 1,000 do not either.

    Raises:
        ValueError: as `replication_power`.
    """
    return least(lambda pairs: replication_power(first, pairs, margin, interaction, in_looks) >= power,
                 LEAST_PAIRS, MOST_PAIRS)


LEAST_PAIRS = 5
"""Fewest pairs of a second execution for any answer."""
