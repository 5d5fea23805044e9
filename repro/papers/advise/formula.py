"""The formulas of the advice, without any measurement. Zou et al. 2017; Hockney 1994."""

from __future__ import annotations

import math
from collections.abc import Sequence

MOST_FULL = 0.6
"""Share of a server's link above which workers queue noticeably."""


def efficiency(overhead: float, workers: int) -> float:
    """Return (1 + R) / (1 + G R): the efficiency of G workers whose overhead grows with each of them (Zou et al. 2017).

    Args:
        overhead: R, overhead of one worker that nothing hides, over its computation.
    """
    return (1 + overhead) / (1 + workers * overhead)


def speed_up(alone: float, together: float, workers: int) -> float:
    """Return how many times as many samples a second `workers` train, each with the samples of one in every step.

    Args:
        alone: seconds of a step of one worker.
        together: seconds of a step of all.
    """
    return workers * alone / together


def shards_by_lemma(parameter_bytes: float, workers: int, bytes_per_second: float, compute: float) -> int:
    """Return ceil(2 S N / (B T)): servers whose links carry all gradients and weights of a step within its computation.

    Zou et al. 2017: each link carries one direction at a time.
    """
    return max(1, math.ceil(2 * parameter_bytes * workers / (bytes_per_second * compute) - 1e-9))


def shards_with_room(parameter_bytes: float, workers: int, bytes_per_second: float, compute: float) -> int:
    """Return ceil(S N / (0.6 B (T + 2 S / B))): servers whose links, in both directions, are at most 60 % full.

    Every worker computes for T, sends S and receives S in turn. With fewer servers workers wait: always where the links
    are full, in queues where they nearly are. 60 % was chosen after suite `server-shards` had run (docs/advise.md).
    """
    alone = compute + 2 * parameter_bytes / bytes_per_second
    return max(1, math.ceil(parameter_bytes * workers / (MOST_FULL * bytes_per_second * alone) - 1e-9))


def stops_paying(
    batches: Sequence[int], gains: Sequence[tuple[float, float]], least: float = 1.1
) -> tuple[int | None, int | None]:
    """Return the smallest batch of which a doubling gains less than `least`, and the first that is not settled.

    Args:
        batches: ascending.
        gains: the 95 % interval of the factor in samples a second that a doubling of each batch gives, but of the last.

    Returns:
        (stops, open): stops is None if it still pays at the largest batch or a smaller one is open, that is, its
        interval contains `least`.
    """
    for batch, (low, high) in zip(batches, gains, strict=False):
        if high < least:
            return batch, None
        if low < least:
            return None, batch
    return None, None


def largest_batch(batches: Sequence[int], peaks: Sequence[float], available: float) -> int | None:
    """Return the largest power of two times the smallest batch that fits, memory being linear in the batch.

    Args:
        peaks: most memory of a worker at each batch, any unit.
        available: memory for a worker, the same unit.

    Returns:
        None: memory does not grow with the batch, so nothing can be said.
    """
    slope = (peaks[-1] - peaks[0]) / (batches[-1] - batches[0]) if len(batches) > 1 else 0.0
    if slope <= 0:
        return None
    most = batches[0] + (available - peaks[0]) / slope
    return batches[0] * 2 ** int(math.log2(most / batches[0])) if most >= batches[0] else 0
