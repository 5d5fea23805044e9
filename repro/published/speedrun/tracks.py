"""The tracks of the speed-run and their targets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

TARGETS = {"short": 3.28, "medium": 2.92}
"""Validation loss on FineWeb by track: GPT-2 small and GPT-2 medium (the contest's own rules)."""


@dataclass(frozen=True, slots=True)
class Track:
    """The track of a record and its target."""

    name: str
    target: float
    guessed: bool = False
    """The target was concluded from the losses: no folder names the track."""


def track_of(stated: str | None, losses: Sequence[float], target: float | None) -> Track:
    """Return the track of a record.

    Args:
        stated: the track that a folder names; None: none.
        losses: finite losses at the end of all arms of a record.
        target: the declared target of all records; None: that of the track.
    """
    if target is not None:
        return Track(stated or "declared", target)
    if stated in TARGETS:
        return Track(stated, TARGETS[stated])
    if not losses:
        return Track(stated or "short", TARGETS["short"])
    middle = median(losses)
    name, nearest = min(TARGETS.items(), key=lambda item: abs(item[1] - middle))
    return Track(stated or name, nearest, guessed=True)
