"""The HTML reporter: the record as one self-contained page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from repro.core.files import write_text
from repro.record.folder.store import Record
from repro.reporting import Reporter

from .page.document import page_scripts, rendered
from .page.view import view

if TYPE_CHECKING:
    from repro.compare.runs.merge import Section


class HtmlPage(Reporter):
    """One page with verdicts, figures, tables and the ledger.

    The page works offline. Without JavaScript everything but the figures works.
    """

    title: ClassVar[str] = "HTML report, one file"

    def write(self, record: Record, out: Path) -> list[str]:
        """Write `report.html` into `out`.

        Raises:
            OutputError: `out` cannot be written.
        """
        path = out / "report.html"
        write_text(path, render(record))
        return [str(path)]

    def write_sections(self, sections: Sequence[Section], out: Path) -> list[str]:
        """Write `report.html` into `out`: a short form of every section, with its figures.

        Raises:
            OutputError: `out` cannot be written.
        """
        from .page.several import write

        return write(sections, out)


def render(record: Record) -> str:
    """Render the page. Links to trials are relative: the page belongs into <run>/report."""
    values = view(record)
    charts = [values["scaling"].charts, values["controller"].charts, values["survival"].charts,
              *(panel.charts for panel in values["panels"]),
              *(values[name].charts for name in ("scores", "tuning") if values[name])]
    return rendered("report.html.j2", values, page_scripts("report.js", any(charts)))
