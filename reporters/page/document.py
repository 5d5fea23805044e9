"""The frame of every HTML page: template environment, style sheet, scripts and their security policy."""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache, lru_cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from markupsafe import Markup, escape

from ..text import shown, spaced

if TYPE_CHECKING:
    from jinja2 import Environment


def rendered(
    name: str, values: Mapping[str, Any], scripts: Sequence[str] = (), styles: Sequence[str] = ("report.css",),
    show: Callable[[object], object] = shown, filters: Mapping[str, Callable[..., Any]] | None = None,
) -> str:
    """Render the template `name` as one self-contained page: the same bytes for the same values.

    Args:
        scripts: JavaScript sources, one script element each; the policy allows these and no others.
        styles: names of the style sheets.
        show: converts each printed value to what the page shows.
    """
    environment = _environment(show)
    environment.filters |= {"inline_json": inline_json, "spaced": spaced, "capitalize_first": _capitalized}
    environment.filters |= filters or {}
    page = environment.get_template(name).render(
        **values, policy=policy(scripts), style=Markup("".join(map(template, styles))),
        scripts=[Markup(script) for script in scripts],
    )
    return page.replace("\r\n", "\n")


def _capitalized(text: str) -> str:
    return text[:1].upper() + text[1:]


@lru_cache(maxsize=4)  # compiling the templates takes longer than filling them in
def _environment(show: Callable[[object], object]) -> Environment:
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    return Environment(loader=FunctionLoader(template), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
                       lstrip_blocks=True, finalize=show)


def template(name: str) -> str:
    """Return a template file as text with LF line ends."""
    return files("repro.templates").joinpath(name).read_text(encoding="utf-8").replace("\r\n", "\n")


def page_scripts(name: str, charts: bool = True) -> list[str]:
    """Return the scripts of a page: plotly.js if it has charts, then the shared script with the page's own."""
    return [*([plotly_bundle()] if charts else []), template("page.js") + template(name)]


@cache
def plotly_bundle() -> str:
    """Return plotly.js in a form that is safe inside a script element: its `basic` build (scatter, bar and pie), a
    quarter of the full one, kept with the templates (CONTRIBUTING.md says how it is renewed).
    """
    return template("plotly-basic.min.js").replace("</script", "<\\/script").replace("<!--", "<\\!--")


def policy(scripts: Sequence[str]) -> Markup:
    """Return the Content-Security-Policy: only these scripts, nothing from outside.

    Styles are `unsafe-inline` because plotly.js inserts style elements when it loads. With hashes instead, its hover
    labels and cursors have no style and every page load logs violations. Styles cannot run scripts.
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
    """Return JSON that cannot end its script element; a value that is not finite becomes null, a gap in a figure."""
    try:
        text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    except ValueError:  # rare, so the search for such values runs only then
        text = json.dumps(_finite(data), separators=(",", ":"), allow_nan=False)
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)
