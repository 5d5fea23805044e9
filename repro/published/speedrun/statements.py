"""Mean qualities that a text next to the logs states (README.md, statistics.md)."""

from __future__ import annotations

import re
from collections.abc import Iterator

from repro.published.contest_rules import StatedMean

NEAR = 0.1
"""Only numbers this near the target can be means of the quality: means of times stand in the same texts."""
MOST = 100
STATED = re.compile(
    r"(?:\bmean\b[^0-9\n]{0,40}|tensor\([0-9.e-]{1,20}\),\s{0,9}tensor\()(\d\.(\d{3,16}))", re.IGNORECASE)


def stated_means(text: str, target: float, record: str, source: str) -> Iterator[StatedMean]:
    """Yield every mean near the target that `text` states: `mean=3.2784`, `| mean val loss | 3.27837 |`, and the
    output of `torch.std_mean`; each value once."""
    seen: set[str] = set()
    for found in STATED.finditer(text):
        value = float(found[1])
        if abs(value - target) <= NEAR and found[1] not in seen and len(seen) < MOST:
            seen.add(found[1])
            yield StatedMean(round=record, source=source, value=value, decimals=len(found[2]))


def agrees(stated: StatedMean, mean: float) -> bool:
    """Return True if the mean of some logs, rounded or cut, is the stated one; float32 has about seven digits."""
    return abs(mean - stated.value) <= max(10.0**-stated.decimals, 1e-6) * (1 + 1e-9)
