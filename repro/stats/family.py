"""Many tests at once: Holm's step-down correction."""

from __future__ import annotations

from collections.abc import Sequence

from repro.stats.sample import finite


def holm(ps: Sequence[float]) -> list[float]:
    """Adjusted p values, in the order given (Holm 1979): significant at alpha where the adjusted p is at most alpha.

    Raises:
        ValueError: a p outside 0 to 1.
    """
    values = finite(ps, "p values").tolist()
    if any(not 0 <= p <= 1 for p in values):
        raise ValueError("p values lie between 0 and 1")
    adjusted, highest = [0.0] * len(values), 0.0
    for rank, index in enumerate(sorted(range(len(values)), key=lambda place: values[place])):
        highest = max(highest, min(1.0, (len(values) - rank) * values[index]))
        adjusted[index] = highest
    return adjusted
