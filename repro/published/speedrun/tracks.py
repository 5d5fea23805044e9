"""The tracks of the speed-run and their targets."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

TARGETS = {"short": 3.28, "medium": 2.92}
"""Validation loss on FineWeb by track: GPT-2 small and GPT-2 medium (the contest's own rules)."""


def track_of(stated: str | None, losses: Sequence[float], target: float | None) -> tuple[str, float, str]:
    """Return (track, target, what had to be concluded).

    Args:
        stated: the track that a folder names; None: none.
        losses: finite losses at the end of all arms of a record.
        target: the declared target of all records; None: that of the track.
    """
    if target is not None:
        return stated or "declared", target, ""
    if stated in TARGETS:
        return stated, TARGETS[stated], ""
    if not losses:
        return stated or "short", TARGETS["short"], ""
    middle = median(losses)
    name, found = min(TARGETS.items(), key=lambda item: abs(item[1] - middle))
    return stated or name, found, (
        f"no folder names a track with a known target: {found:g} is the nearer one to its losses (median {middle:.4g}); "
        "--target declares another")
