"""Alpha-beta-gamma cost model of a network: fitted to times measured on its links, then used for predictions.

A schedule costs alpha per round (latency), beta per byte on its path (the link's rate) and gamma per reduced byte
(Hockney 1994; Thakur, Rabenseifner and Gropp, 2005, section 3). Rounds and bytes are read from the schedule that runs
(`Algorithm.cost`), so that prediction and execution cannot drift apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from repro.comm.schedule import ScheduleCost


@dataclass(frozen=True, slots=True)
class Sample:
    """One measured time and the cost that it belongs to."""

    cost: ScheduleCost
    seconds: float


@dataclass(frozen=True, slots=True)
class LinkModel:
    """Parameters of a network, none negative."""

    alpha: float
    """Seconds per round."""
    beta: float
    """Seconds per byte on the busiest link."""
    gamma: float = 0.0
    """Seconds per reduced byte."""

    @property
    def bytes_per_second(self) -> float:
        """Rate of a link; infinite if the fit found no cost of bytes."""
        return 1 / self.beta if self.beta else float("inf")

    def seconds(self, cost: ScheduleCost) -> float:
        """Return the modelled seconds of a schedule."""
        return cost.seconds(self.alpha, self.beta, self.gamma)


def transfer(size: int) -> ScheduleCost:
    """Return the cost of one message of `size` bytes from one rank to another."""
    return ScheduleCost(rounds=1, path_bytes=size, reduced_bytes=0)


ROUNDS = 20


def fit(samples: Iterable[Sample]) -> LinkModel:
    """Fit by least squares on the relative error (`fit_parameters`).

    Raises:
        ValueError: there are no samples, or a time is not a positive number.
    """
    known = list(samples)
    alpha, beta, gamma = fit_parameters(
        [(item.cost.rounds, item.cost.path_bytes, item.cost.reduced_bytes) for item in known],
        [item.seconds for item in known], 3)
    return LinkModel(alpha, beta, gamma)


def fit_parameters(rows: Sequence[Sequence[float]], times: Sequence[float], count: int) -> tuple[float, ...]:
    """Fit seconds = rows x parameters by least squares on the relative error, with no parameter below zero.

    The error is relative, so that a millisecond at 1 KiB counts like a second at 64 MiB. It is a logarithm,
    |log(predicted / measured)|: with predicted / measured - 1 a time far too short costs at most 1 and one too long
    without limit, so that scattered samples would be predicted much too fast.

    1. A first solution by predicted / measured - 1, which is linear.
    2. Gauss-Newton: with x the prediction so far, log(x'/t) is about (x' - x)/x + log(x/t); at most a factor e a step.
    Both solutions are non-negative least squares.

    Args:
        rows: samples x `count`: how often each parameter counts in a sample.

    Raises:
        ValueError: there are no samples, or a time is not a positive number.
    """
    from scipy.optimize import nnls

    seconds = np.array(times, dtype=float)
    if not len(seconds) or not np.all(np.isfinite(seconds)) or not np.all(seconds > 0):
        raise ValueError("a fit needs samples whose seconds are positive numbers")
    asked = np.array(rows, dtype=float).reshape(len(seconds), count)
    scale = np.where(asked.max(axis=0) > 0, asked.max(axis=0), 1.0)
    scaled = asked / scale
    # 1. linear
    found, _ = nnls(scaled / seconds[:, None], np.ones(len(seconds)))
    for _ in range(ROUNDS):
        # 2. by logarithm
        predicted = np.maximum(scaled @ found, 1e-9 * seconds)
        wanted = 1 - np.clip(np.log(predicted / seconds), -1, 1)
        found, _ = nnls(scaled / predicted[:, None], wanted)
    return tuple(float(value) for value in found / scale)


def fit_robustly(rows: Sequence[Sequence[float]], times: Sequence[float], least: Sequence[float]) -> tuple[float, ...]:
    """Fit seconds = rows x parameters so that the relative errors add up to the least, with no parameter below `least`.

    A sample that no parameters explain together with the others is left aside and does not draw them to itself
    (Boscovich's least absolute deviations, a linear program). For few samples, of which each was measured often.

    Args:
        rows: samples x parameters: how often each counts in a sample.
        times: positive.
    """
    from scipy.optimize import linprog

    count = len(times)
    asked = np.array(rows, dtype=float).reshape(count, len(least)) / np.array(times, dtype=float)[:, None]
    scale = np.where(asked.max(axis=0) > 0, asked.max(axis=0), 1.0)
    bounds = [(value * size, None) for value, size in zip(least, scale, strict=True)] + [(0.0, None)] * (2 * count)
    # asked @ parameters - what is above + what is below = 1
    found = linprog(np.concatenate([np.zeros(len(least)), np.ones(2 * count)]), bounds=bounds,
                    A_eq=np.hstack([asked / scale, -np.eye(count), np.eye(count)]), b_eq=np.ones(count))
    return tuple(float(value) for value in np.asarray(found.x)[:len(least)] / scale)


def typical_error(model: LinkModel, samples: Sequence[Sample]) -> float:
    """Return the median absolute relative error over `samples`."""
    return float(np.median([abs(model.seconds(item.cost) / item.seconds - 1.0) for item in samples]))
