"""Figures of a record as PDF and SVG, for slides and papers."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

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
