"""Published results as one self-contained page, a run of one's own beside them in a section of its own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from markupsafe import Markup, escape

from repro.core.files import write_text
from repro.published.refusal import visible
from repro.published.store import Published
from repro.record.store import Record

from ..page.html_page import inline_json, page_script, plotly_bundle, policy, template
from ..page.text import shown
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
    """The page: works offline, its tables without JavaScript, the same bytes for the same folders."""
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    environment = Environment(loader=FunctionLoader(template), autoescape=True, undefined=StrictUndefined,
                              trim_blocks=True, lstrip_blocks=True, finalize=_shown)
    environment.filters["inline_json"] = inline_json
    environment.filters["breaks"] = _breaks
    data = view(imports, own)
    drawn = any(group.charts for item in data["imports"] for group in item.groups) or any(
        item.overlays for item in data["imports"])
    scripts = [*([plotly_bundle()] if drawn else []), page_script("published.js")]
    page = environment.get_template("published.html.j2").render(
        **data, policy=policy(scripts), style=Markup(template("report.css") + template("published.css")),
        scripts=[Markup(script) for script in scripts],
    )
    return page.replace("\r\n", "\n")


def _breaks(text: str) -> Markup:
    """Text whose lines may end behind its slashes and underscores, and nowhere inside a word."""
    found = escape(_shown(text))
    for mark in "/_":
        found = Markup(found.replace(mark, Markup(f"{mark}<wbr>")))
    return found


def _shown(value: object) -> object:
    """As every page prints a value; of foreign text control and direction characters are shown, not obeyed."""
    found = shown(value)
    return visible(found) if isinstance(found, str) and not isinstance(found, Markup) else found
