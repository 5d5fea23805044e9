"""Figures of a record as PDF and SVG, for slides and papers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from repro.published.store import Published
from repro.record.folder.store import Record
from repro.reporting import Reporter

from .paper.figures import draw, figures


class PaperFigures(Reporter):
    """PDF and SVG of every figure, in `figures/`."""

    title: ClassVar[str] = "Figures as PDF and SVG"

    def write(self, record: Record, out: Path) -> list[str]:
        """Write `figures/*.pdf` and `figures/*.svg` into `out`.

        Raises:
            OutputError: `out` cannot be written.
        """
        return draw(figures(record), out)

    def write_published(self, imports: Sequence[Published], own: Sequence[Record], out: Path) -> list[str]:
        """Write `figures/published-*.pdf` and `.svg` into `out`, figures of own runs into folders below it.

        Raises:
            OutputError: `out` cannot be written.
        """
        from .published.figures import published_figures
        from .published.tables import write_own

        return [*draw(published_figures(imports), out), *write_own(self, own, out)]
