"""The claims of a contest as a table for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from repro.compare.figures import Claim


def quality_lines(claims: Sequence[Claim]) -> list[str]:
    """Return a line for each claim with its figures, and its cautions."""
    return [text for item in claims
            for text in (f"quality of {item.sentence}", *(f"caution: {item.label}: {note}" for note in item.cautions))]


