"""The frame of every HTML page: template environment, style sheet, scripts and their security policy."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from markupsafe import Markup, escape

from repro.core.numbers import significant
from repro.tables.text import Number, gibibytes, moment, number, seconds, share, shown, spaced
from repro.tables.values import finite

if TYPE_CHECKING:
    from jinja2 import Environment


@dataclass(frozen=True, slots=True)
class Scripts:
    """The script of a page."""

    source: str = ""
    charts: bool = False
    """The page draws figures: it carries plotly.js."""

    @property
    def markup(self) -> Markup:
        """The script elements: plotly.js packed (page.js unpacks it), then the page's own."""
        packed = [f'<script type="application/gzip" id="plotly">{_packed()}</script>'] * self.charts
        return Markup("\n".join([*packed, f"<script>{self.source}</script>"]))

    @property
    def policy(self) -> Markup:
        """The Content-Security-Policy: only these scripts, nothing from outside.

        Styles are `unsafe-inline` because plotly.js inserts style elements when it loads. With hashes instead, its
        hover labels and cursors have no style and every page load logs violations. Styles cannot run scripts.
        """
        allowed = [*([plotly()] if self.charts else ()), *([self.source] if self.source else ())]
        hashes = " ".join(f"'sha256-{_digest(script)}'" for script in allowed) or "'none'"
        return escape(
            f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:; "
            "base-uri 'none'; form-action 'none'"
        )


@cache
def page_scripts(name: str, charts: bool = True) -> Scripts:
    """Return the scripts of a page: the shared script with the page's own, and plotly.js if it has charts."""
    return Scripts(template("page.js") + template(name), charts)


@cache
def plotly() -> str:
    """Return plotly.js: its `basic` build (scatter, bar and pie), a quarter of the full one, kept packed with the
    templates (CONTRIBUTING.md says how it is renewed).
    """
    return gzip.decompress(base64.b64decode(_packed())).decode()


@cache
def _packed() -> str:
    return base64.b64encode(files("repro.templates").joinpath("plotly-basic.min.js.gz").read_bytes()).decode()


@cache
def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def rendered(
    name: str, values: Mapping[str, Any], scripts: Scripts = Scripts(), styles: Sequence[str] = ("report.css",),
    show: Callable[[object], object] = shown, filters: Mapping[str, Callable[..., Any]] | None = None,
) -> str:
    """Render the template `name` as one self-contained page: the same bytes for the same values.

    Args:
        scripts: the policy allows these and no others.
        styles: names of the style sheets.
        show: converts each printed value to what the page shows.
    """
    environment = _environment(show)
    environment.filters |= filters or {}
    page = environment.get_template(name).render(
        **values, policy=scripts.policy, style=Markup("".join(map(template, styles))),
        scripts=scripts.markup,
    )
    return page.replace("\r\n", "\n")


@cache  # compiling the templates takes longer than filling them in
def _environment(show: Callable[[object], object]) -> Environment:
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    found = Environment(loader=FunctionLoader(template), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
                        lstrip_blocks=True, finalize=show)
    found.filters |= FILTERS
    return found


@cache
def template(name: str) -> str:
    """Return a template file as text with LF line ends."""
    return files("repro.templates").joinpath(name).read_text(encoding="utf-8").replace("\r\n", "\n")


def fragment(name: str, values: Mapping[str, Any]) -> str:
    """Render the template `name` as a part of somebody else's page: without a script, and without links, which would
    lead into that page.
    """
    text = _environment(shown).get_template(name).render(**values, style=Markup(scoped_style()))
    return re.sub(r' href="#(?!s-)[^"]*"', "", text.replace("\r\n", "\n"))


@cache
def scoped_style() -> str:
    """Return the style sheet of the report for one element of class `repro-display`, light and dark.

    The page around it says which: JupyterLab and editors by an attribute or class of the body, others by the system.
    """
    light, dark, rest = re.split(r"^@media screen and [^{]*{\s*|^  }\n}$", template("report.css").partition(
        "\n@media (max-width")[0], maxsplit=2, flags=re.MULTILINE)
    light, dark = (part.partition("{")[2].rpartition("}")[0] or part.partition("{")[2] for part in (light, dark))
    rest = re.sub(r"^(?:html|@media \(prefers-reduced-motion).*$", "", rest, flags=re.MULTILINE)
    rest = rest.replace("body { margin: 0; background: var(--page);", "& { background: var(--surface);")
    return (f".repro-display {{{light}}}\n@media (prefers-color-scheme: dark) {{ .repro-display {{{dark}}} }}\n"
            f"[data-jp-theme-light=true] .repro-display, .vscode-light .repro-display {{{light}}}\n"
            f"[data-jp-theme-light=false] .repro-display, .vscode-dark .repro-display {{{dark}}}\n"
            f".repro-display {{{rest}\n main > section {{ border: 0; border-radius: 0; margin: 0; padding: 4px 12px; }}"
            "\n a:not([href]) { color: inherit; text-decoration: none; border: 0; }"
            "\n main table { color: inherit; table-layout: auto; }"
            "\n main th, main td { text-align: left !important; max-width: none; }"
            "\n main td.n, main th.n { text-align: right !important; } }")


def milliseconds(value: float | None) -> Number | None:
    """Format seconds as milliseconds; the exact value stays in seconds."""
    return None if value is None else Number(value, f"{significant(value * 1e3)}\N{NO-BREAK SPACE}ms")


def kibibytes(value: float) -> Number:
    """Format bytes as KiB or MiB; the exact value stays in bytes."""
    scale, unit = (1 << 20, "MiB") if value >= 1 << 20 else (1 << 10, "KiB")
    return Number(value, f"{significant(value / scale, 4)}\N{NO-BREAK SPACE}{unit}")


def decimals(value: float | None, places: int = 5) -> Number | None:
    """Format with a fixed number of decimals."""
    return None if value is None else Number(value, f"{value:,.{places}f}")


def finite_data(data: Any) -> Any:
    """Return data for JSON with None in place of values that are not finite."""
    if isinstance(data, dict):
        return {key: finite_data(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [finite_data(value) for value in data]
    return finite(data)


def inline_json(data: Any) -> Markup:
    """Return JSON that cannot end its script element; a value that is not finite becomes null, a gap in a figure."""
    try:
        text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    except ValueError:  # rare, so the search for such values runs only then
        text = json.dumps(finite_data(data), separators=(",", ":"), allow_nan=False)
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)


FILTERS: dict[str, Callable[..., Any]] = {
    "inline_json": inline_json, "spaced": spaced, "capitalize_first": lambda text: text[:1].upper() + text[1:],
    "kibibytes": kibibytes, "milliseconds": milliseconds, "number": number, "seconds": seconds,
    "share": share, "significant": significant, "gibibytes": gibibytes, "moment": moment, "decimals": decimals,
    "whole": lambda value: Number(value, f"{value:,}"),
}
"""The forms of values that templates ask for."""
