"""Published results as one self-contained page; own runs are in separate sections."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from markupsafe import Markup, escape

from repro.core.errors import visible
from repro.core.files import write_text
from repro.published.store import Published
from repro.record.folder.store import Record
from repro.tables.text import shown

from ..page.document import page_scripts, rendered
from .view import view

NAME = "published.html"


def write(imports: Sequence[Published], own: Sequence[Record], out: Path) -> list[str]:
    """Write the page into `out`.

    Raises:
        OutputError: `out` cannot be written.
    """
    path = out / NAME
    write_text(path, render(imports, own))
    return [str(path)]


def render(imports: Sequence[Published], own: Sequence[Record] = ()) -> str:
    """Render the page: works offline, tables need no JavaScript, the same bytes for the same folders."""
    values = view(imports, own)
    charts = any(group.charts for item in values["imports"] for group in item.groups) or any(
        item.overlays or item.contest for item in values["imports"])
    return rendered("published.html.j2", values, page_scripts("published.js", charts),
                    styles=("report.css", "published.css"), show=_shown, filters={"breaks": _breaks})


def _breaks(text: str) -> Markup:
    """Let lines break after slashes and underscores, and nowhere inside a word."""
    found = escape(_shown(text))
    for mark in "/_":
        found = Markup(found.replace(mark, Markup(f"{mark}<wbr>")))
    return found


def _shown(value: object) -> object:
    """Print a value as on every page; control and direction characters of foreign text become visible."""
    found = shown(value)
    return visible(found) if isinstance(found, str) and not isinstance(found, Markup) else found
