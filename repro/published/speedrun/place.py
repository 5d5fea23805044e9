"""The record and the arm of a log, from the names of its folders."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date

from repro.published.contest_rules import StatedMean
from repro.published.untrusted.files import plain

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


DATED = re.compile(r"(\d{4})-(\d{2})-(\d{2})(?:[_-].*)?|(\d{2})(\d{2})(\d{2})(?:_.*)?", re.DOTALL)
"""`2025-11-10_CautiousWD`, or `111025_CautiousWD` (month, day, year)."""
TRACK = re.compile(r"track_\d+_(\w+)")
BASELINE = re.compile(r"(?:.*[_\W\d])?(?:baseline|base|previous|prev|prior|before|control|reference)(?:[_\W\d].*)?",
                      re.IGNORECASE | re.DOTALL)
ARM = re.compile(rf"{BASELINE.pattern}|this_pr.*|pr[_-]?\d+.*|runs|logs|candidate.*", re.IGNORECASE | re.DOTALL)
WHOLE = "this record"
"""Name of the arm of a record without subfolders."""


@dataclass(frozen=True, slots=True)
class Place:
    """Place of a log."""

    home: tuple[str, ...]
    """The folder of the record, as names from the root."""
    record: str
    """Its name: its path below the imported folder, or its own name."""
    arm: str
    """The folders between record and log."""
    date: str | None
    """ISO 8601, from the name of the record."""
    track: str | None
    """From a folder above, such as `track_1_short`."""

    @classmethod
    def of(cls, parts: Sequence[str], below: int) -> Place:
        """Read the path of a log: its names from the root of the file system, the last `below` inside the import."""
        above = tuple(parts[:-1])
        dated = [index for index, name in enumerate(above) if _date(name)]
        named = len(above) > 1 and ARM.fullmatch(above[-1]) is not None
        at = dated[-1] if dated else len(above) - 1 - int(named)
        first = min(at, len(parts) - below)
        tracks = [found[1] for name in above[:at] if (found := TRACK.fullmatch(name))]
        return cls(above[:at + 1], plain("/".join(above[first:at + 1])), plain("/".join(above[at + 1:])) or WHOLE,
                   _date(above[at]), plain(tracks[-1]) if tracks else None)


def is_baseline(arm: str) -> bool:
    """Return True if the name says that the arm is the one to compare with."""
    return BASELINE.fullmatch(arm.rpartition("/")[2]) is not None


def _date(name: str) -> str | None:
    found = DATED.fullmatch(name)
    if found is None:
        return None
    year, month, day = ((int(found[1]), int(found[2]), int(found[3])) if found[1] else
                        (2000 + int(found[6]), int(found[4]), int(found[5])))
    try:
        return date(year, month, day).isoformat()
    except ValueError:
        return None
