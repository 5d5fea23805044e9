"""The record as one self-contained HTML page: no outside request, the same bytes for the same record."""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from markupsafe import Markup, escape

from repro.core.files import write_text
from repro.record.store import Record
from repro.reporting import Reporter

from .text import shown, spaced
from .view import view

if TYPE_CHECKING:
    from repro.compare.merge import Section
    from repro.published.store import Published


class HtmlPage(Reporter):
    """One page with verdict, figures, tables and the ledger; works offline and without JavaScript (figures apart)."""

    title: ClassVar[str] = "HTML report, one file"

    def write(self, record: Record, out: Path) -> list[str]:
        """Write `report.html` into `out`.

        Raises:
            OutputError: `out` cannot be written.
        """
        path = out / "report.html"
        write_text(path, render(record))
        return [str(path)]

    def write_published(self, imports: Sequence[Published], own: Sequence[Record], out: Path) -> list[str]:
        """Write `published.html` into `out`.

        Raises:
            OutputError: `out` cannot be written.
        """
        from ..published.page import write

        return write(imports, own, out)

    def write_sections(self, sections: Sequence[Section], out: Path) -> list[str]:
        """Write `report.html` into `out`: every section in short, with its figures and why it stands apart.

        Raises:
            OutputError: `out` cannot be written.
        """
        from .merged import write

        return write(sections, out)


def render(record: Record) -> str:
    """The page. Links to trials are relative: the page belongs into <run>/report."""
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    environment = Environment(
        loader=FunctionLoader(template), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True, finalize=shown,
    )
    environment.filters["inline_json"] = inline_json
    environment.filters["spaced"] = spaced
    data = view(record)
    drawn = any(panel.charts for panel in data["panels"]) or bool(data["scaling"].charts or data["survival"].charts)
    scripts = [*([plotly_bundle()] if drawn else []), page_script("report.js")]
    page = environment.get_template("report.html.j2").render(
        **data, policy=policy(scripts), style=Markup(template("report.css")),
        scripts=[Markup(script) for script in scripts],
    )
    return page.replace("\r\n", "\n")


def template(name: str) -> str:
    """A file of the page's template, as text with plain line ends."""
    return files("repro.templates").joinpath(name).read_text(encoding="utf-8").replace("\r\n", "\n")


def page_script(name: str) -> str:
    """A page's own script after what all pages share, as one element."""
    return template("page.js") + template(name)


def plotly_bundle() -> str:
    """plotly.js as it may stand inside a script element."""
    from plotly.offline import get_plotlyjs

    return str(get_plotlyjs()).replace("\r\n", "\n").replace("</script", "<\\/script").replace("<!--", "<\\!--")


def policy(scripts: list[str]) -> Markup:
    """Content-Security-Policy: only these scripts, nothing from outside.

    Styles are `unsafe-inline` because plotly.js inserts style elements of its own when it loads; tried with hashes, its
    hover labels and cursors go unstyled and every page load logs violations. No script can come in that way.
    """
    hashes = " ".join(f"'sha256-{_digest(script)}'" for script in scripts) or "'none'"
    return escape(
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )


def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _finite(data: Any) -> Any:
    if isinstance(data, dict):
        return {key: _finite(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_finite(value) for value in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data


def inline_json(data: Any) -> Markup:
    """JSON that cannot end the script element it stands in; what is not finite is null, a gap in a figure."""
    try:
        text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    except ValueError:  # rare, so that only then everything is looked at
        text = json.dumps(_finite(data), separators=(",", ":"), allow_nan=False)
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)
