"""A short cut: experiments whose verdict is clear from a few tests are not compared.

Open are logs whose t test and whose two one-sided tests are far above their levels; for pairs of which some trials
missed, the sign test. Different are logs whose t test and sign-flip test are far below. "Far" is a factor of `FAR`,
more than an adjustment for drift by chance can move a p. One experiment in `EVERY` is compared nevertheless, and
another answer there is an error of the simulation.
"""

from __future__ import annotations

import math

import numpy as np

from repro import stats
from repro.compare.evidence.missed import sign_test
from repro.stats.anytime import bet, e_same
from repro.suite.model import MARGIN

FAR = 3.0
EVERY = 20
ALPHA = 0.05
DISAGREE = "short cut and compare disagree"


def paired_p(logs: np.ndarray) -> float | None:
    """Return p of the paired t test of log ratios; None if a trial missed, or they do not spread."""
    if not np.all(np.isfinite(logs)):
        return None
    return stats.or_none(lambda: stats.paired_p(np.exp(logs).tolist(), [1.0] * len(logs)))


def is_open(logs: np.ndarray, level: float = ALPHA, same: float = ALPHA) -> bool:
    """Return True if no verdict is possible: a difference at this level, or sameness at that of each side."""
    p = paired_p(logs)
    if p is None:
        sign_p = sign_test(int(np.sum(logs > 0)), int(np.sum(logs < 0)))
        return not np.all(np.isfinite(logs)) and sign_p > FAR * level
    equal = stats.or_none(lambda: stats.tost(logs.tolist(), MARGIN))
    return p > min(FAR * level, 0.5) and equal is not None and equal.p > min(FAR * same, 0.5)


def clear_difference(logs: np.ndarray, level: float = ALPHA) -> str | None:
    """Return the word of a difference that both tests show far below this level; None if they do not."""
    p = paired_p(logs)
    if p is None or p > level / FAR:
        return None
    if len(logs) <= stats.EXACT_PAIRS and stats.sign_flip(logs.tolist()) > level / FAR:
        return None
    return "slower" if float(np.mean(logs)) > 0 else "faster"


def is_open_anytime(logs: np.ndarray) -> bool:
    """Return True if no verdict is possible at any number of pairs, for an e-process."""
    if first_refuted(logs) is not None:
        return False
    return not np.all(np.isfinite(logs)) or e_same(logs.tolist(), MARGIN) < 1 / ALPHA


def first_refuted(logs: np.ndarray) -> int | None:
    """Return the pairs after which the e-value against equal cells first reaches 20; None: after none."""
    reached = np.flatnonzero(bet(logs).either >= math.log(1 / ALPHA))
    return int(reached[0]) + 1 if len(reached) else None
