"""The result of an import, before it is written."""

from __future__ import annotations

from dataclasses import dataclass, field

from repro.published.contest_rules import Contest
from repro.published.record import PublishedCell, PublishedReference, PublishedResult, PublishedSystem, Refused


@dataclass(slots=True)
class Imported:
    """Cells, systems, results, refused files and reference points of one import."""

    cells: list[PublishedCell] = field(default_factory=list)
    systems: list[PublishedSystem] = field(default_factory=list)
    results: list[PublishedResult] = field(default_factory=list)
    refused: list[Refused] = field(default_factory=list)
    references: list[PublishedReference] = field(default_factory=list)
    contest: Contest | None = None
    """Rules and notes of a contest; None: the program is none."""
