"""A test of pairs that is valid at every n: an e-process of sign flips (Ville 1939; Ramdas and others 2020).

Assumption: given the past and the size of a log ratio, its sign is a fair coin. That is what the exact sign-flip test
assumes, it holds for any symmetric distribution, and for two equal cells whatever their distribution. A bet on every
sign, fixed before that sign is seen, is then a fair game: it multiplies its stake by 20 with a probability of at most
1 / 20, however long it goes on and whenever it stops.

Each bet is tanh(c |x| / r), the best one for normal logs whose mean over root mean square r is about c; the stakes of
four c are averaged.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from repro.stats.interval import Interval, from_log
from repro.stats.sample import finite, margin_edge

BETS = (0.3, 0.7, 1.5, 4.0)
MISSED_SIZE = 2.0
"""Size, in root mean squares, of a pair of which one run missed: a clear order, an unknown ratio."""
_PLACES = (48, 12, 12, 12, 12)
"""Places tried for a limit; then those in the gap in which it lies, and so on."""


@dataclass(frozen=True, slots=True)
class Stakes:
    """The stakes after each pair, from 1 at the start, as natural logs. The last axis is the pairs."""

    above: np.ndarray
    """On the mean log ratio being above the value tested."""
    below: np.ndarray

    @property
    def either(self) -> np.ndarray:
        """The mean of the two stakes: the evidence of a difference."""
        found: np.ndarray = np.logaddexp(self.above, self.below) - math.log(2)
        return found


def bet(logs: np.ndarray, at: float = 0.0) -> Stakes:
    """Return the evidence that the location of log ratios is not `at`.

    Args:
        logs: pairs along the last axis, in the order of the runs; infinite for a pair of which one run missed, its sign
            that of the ratio; NaN for a pair of which both did.
    """
    share = _shares(logs, at)
    return Stakes(_stake(share), _stake(-share))


def _shares(logs: np.ndarray, at: float) -> np.ndarray:
    """Return the share of its stake that each of the four players bets on a pair, positive on the side it fell to."""
    sizes, signs = np.abs(logs - at), np.sign(logs - at)
    known = np.isfinite(logs)
    count = np.maximum(np.cumsum(known, axis=-1), 1)
    root = np.sqrt(np.cumsum(np.where(known, sizes, 0.0) ** 2, axis=-1) / count)
    relative = np.divide(sizes, root, out=np.zeros_like(sizes), where=known & (root > 0))
    relative = signs * np.where(np.isinf(logs), MISSED_SIZE, relative)
    relative = np.where(np.isnan(logs), 0.0, relative)
    found: np.ndarray = np.tanh(np.multiply.outer(np.asarray(BETS), relative))
    return found


def _stake(share: np.ndarray) -> np.ndarray:
    """Return the log of the mean stake of the players after each pair."""
    logs = np.cumsum(np.log1p(np.maximum(share, -1 + 1e-15)), axis=-1)
    top = np.max(logs, axis=0)
    found: np.ndarray = top + np.log(np.mean(np.exp(logs - top), axis=0))
    return found


def e_difference(logs: Sequence[float]) -> float:
    """Return the largest e-value so far against equal cells; at most 1 / alpha with probability 1 - alpha.

    Args:
        logs: as `bet`, one list.

    Raises:
        ValueError: no pairs.
    """
    return _largest(bet(_flat(logs)).either)


def is_below(logs: Sequence[float]) -> bool:
    """Return whether the largest e-value so far is evidence of a location below 0.

    Args:
        logs: as `bet`, one list.

    Raises:
        ValueError: no pairs.
    """
    stakes = bet(_flat(logs))
    largest = int(np.argmax(stakes.either))
    return bool(stakes.below[largest] > stakes.above[largest])


def e_same(logs: Sequence[float], margin: float) -> float:
    """Return the smaller of the largest e-values against a ratio of 1 + margin or more, and 1 / (1 + margin) or less.

    Raises:
        ValueError: no pairs, one that is not finite, or a margin that is not positive.
    """
    values, edge = finite(_flat(logs).tolist(), "logs of ratios"), margin_edge(margin)
    return min(_largest(bet(values, -edge).above), _largest(bet(values, edge).below))


def anytime_interval(logs: Sequence[float], level: float = 0.95) -> Interval | None:
    """Return the confidence sequence of the ratio: it contains the true one at every n at once with this probability.

    It assumes that the logs are symmetric about their location. None: a side is still unlimited, or a log is not
    finite.
    """
    values = _flat(logs)
    if not np.all(np.isfinite(values)):
        return None
    threshold = math.log(2 / (1 - level))
    reach = float(np.max(values) - np.min(values)) or max(abs(float(values[0])), 1.0) * 1e-9
    low, high = _limit(values, reach, threshold), _limit(-values, reach, threshold)
    if low is None or high is None:
        return None
    return Interval(from_log(low), from_log(-high), level)


def _limit(values: np.ndarray, reach: float, threshold: float) -> float | None:
    """Return the largest location below which every one is refuted by stakes on a mean above it."""
    outside, inside = float(np.max(values)), float(np.min(values)) - 4 * reach
    for count in _PLACES:
        places = np.linspace(inside, outside, count)
        refuted = np.max(_stake(_shares(values[None, :] - places[:, None], 0.0)), axis=-1) >= threshold
        if not refuted[0]:
            return None
        first = int(np.argmin(refuted)) if not refuted.all() else count - 1
        inside, outside = float(places[first - 1]), float(places[first])
    return inside


def _largest(stakes: np.ndarray) -> float:
    return math.exp(min(max(0.0, float(np.max(stakes))), 700.0))


def _flat(logs: Sequence[float]) -> np.ndarray:
    values = np.asarray(logs, dtype=float)
    if values.ndim != 1 or not len(values):
        raise ValueError(f"an e-value needs one list of logs, not one of shape {values.shape}")
    return values


