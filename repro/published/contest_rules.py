"""The rules by which a contest of fixed runs is judged, and what its authors state, as an import keeps them."""

from __future__ import annotations

from pydantic import Field

from repro.core.frozen import Frozen

MOST = 1e6
"""Largest quality and target: beyond it squares of differences lose their meaning."""
MOST_SECONDS = 1e9


class StatedMean(Frozen):
    """A mean quality that a text next to the logs states."""

    round: str
    """The record that it belongs to."""
    source: str
    """Path of the text below the imported folder."""
    value: float = Field(ge=-MOST, le=MOST)
    decimals: int = Field(ge=0, le=20)


class Contest(Frozen):
    """The rules of an import, declared before its logs are read, and the notes of its reader."""

    alpha: float = Field(default=0.01, gt=0, lt=0.5)
    """Level of the claim that the mean quality is at least as good as the target."""
    margin: float = Field(default=0.005, gt=0, le=1)
    """Two arms are the same if the ratio of their times is shown to be within 1 / (1 + margin) to 1 + margin."""
    target: float | None = Field(default=None, ge=-MOST, le=MOST)
    """Quality of every record; None: that of the record's track."""
    stated: tuple[StatedMean, ...] = ()
    notes: tuple[str, ...] = ()
    """Notes of the reader: arms it split, logs it took as copies, conclusions it drew."""
