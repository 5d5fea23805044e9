"""Numbers and free text as reports print them: significant digits, units, no path of the machine."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone

from markupsafe import Markup, escape

from repro.core.numbers import ratio_texts, readable, significant

PATH = re.compile(r"(?:file://|(?<![\w./:<~]))(?:[A-Za-z]:\\(?:[^\\\s'\"]+\\)*|~?/(?:[\w.@+=%-]+/)+)(?=[^\s'\"]|$|[\s'\"])")
"""The folders of an absolute path, up to the last separator; URLs and fractions do not match."""
HIDDEN = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028\u2029\u202a-\u202e"
    "\u2060-\u2069\ufeff\ud800-\udfff]"
)
"""Control characters and marks of writing direction: invisible, but they change how other text reads."""
LONGEST = 2000
"""Most characters of one text on the page; names and notes of a suite can have any length."""


@dataclass(frozen=True, slots=True)
class Number:
    """A number with its exact value: the page shows the text and keeps the value in a `data` element."""

    value: float
    text: str

    def __html__(self) -> Markup:
        return Markup(f'<data value="{self.value!r}">{escape(self.text)}</data>')

    def __str__(self) -> str:
        return self.text


def trimmed(value: float, digits: int = 3) -> str:
    """Format `value` with at most `digits` significant digits, without trailing zeros."""
    text = significant(value, digits)
    return text.rstrip("0").rstrip(".") if "." in text and "e" not in text else text


def number(value: float | None, digits: int = 3, unit: str = "") -> Number | None:
    """Format a number; None if it is unknown."""
    if value is None:
        return None
    text = significant(value, digits)
    return Number(value, f"{text}\N{NO-BREAK SPACE}{unit}" if unit else text)


def seconds(value: float | None) -> Number | None:
    """Format seconds, below 0.1 s in milliseconds; under half a nanosecond (rounding of a subtraction) becomes 0."""
    if value is None:
        return None
    amount, unit = readable(value)
    return Number(value, f"{significant(amount)}\N{NO-BREAK SPACE}{unit}")


def duration(value: float) -> str:
    """Format seconds as a person says them: `87 s`, `25 min`, `3.4 h`."""
    unit, size = ("s", 1.0) if value < 120 else ("min", 60.0) if value < 7200 else ("h", 3600.0)
    return f"{significant(value / size, 2)}\N{NO-BREAK SPACE}{unit}"


def share(value: float | None) -> Number | None:
    """Format a share in per cent; the exact value stays a share. The rounding of a subtraction becomes 0."""
    if value is None:
        return None
    text = "0" if abs(value) < 1e-12 else "< 0.001" if abs(value) < 1e-5 else significant(100 * value, 2)
    return Number(value, f"{text} %".replace(" ", "\N{NO-BREAK SPACE}"))


def ratios(values: Sequence[float]) -> list[Number]:
    """Format ratios for the page: with two decimals, or as many as each needs to differ from 1."""
    return [Number(value, text) for value, text in zip(values, ratio_texts(values, 2), strict=True)]


def gibibytes(value: int | None) -> Number | None:
    """Format bytes as GiB, or MiB below one GiB."""
    if value is None:
        return None
    scale, unit = (1 << 30, "GiB") if value >= 1 << 30 else (1 << 20, "MiB")
    return Number(value, f"{significant(value / scale)}\N{NO-BREAK SPACE}{unit}")


def moment(milliseconds: float) -> str:
    """Format milliseconds since 1970 as UTC."""
    return datetime.fromtimestamp(milliseconds / 1e3, tz=timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")


def plural(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def shortened(text: str, head: int = 56, tail: int = 24) -> str:
    """Cut the middle of a long `text`: the ends distinguish labels."""
    return text if len(text) <= head + tail + 5 else f"{text[:head].rstrip()} ... {text[-tail:].lstrip()}"


def without_paths(text: str) -> str:
    """Remove the folders of absolute paths: a report is shared, the layout of a machine is not."""
    return PATH.sub(".../", text) if "/" in text or "\\" in text else text


def spaced(text: str) -> str:
    """Put a no-break space between each number and its per cent sign."""
    return re.sub(r"(?<=\d) ?%", "\N{NO-BREAK SPACE}%", text)


def visible(text: str) -> str:
    """Show hidden characters of `text` as escapes."""
    return HIDDEN.sub(lambda found: f"\\u{ord(found.group()):04x}", text)


def limited(text: str, most: int = LONGEST) -> str:
    """Cut a long `text` and say how much is missing."""
    return text if len(text) <= most else f"{text[:most]} ... ({len(text) - most:,} more characters)"


def shown(value: object) -> object:
    """Return what the template prints for a value: "-" for None, safe text for text, other values unchanged."""
    if value is None:
        return "-"
    if isinstance(value, str) and not isinstance(value, Markup):
        return visible(without_paths(limited(value)))
    return value


def wrapped(text: str, width: int = 44) -> str:
    """Escape text and break it into lines of at most `width`, for the hover labels of plotly."""
    lines: list[str] = []
    rest = visible(without_paths(text))
    while len(rest) > width and len(lines) < 5:
        cut = rest.rfind(" ", 1, width)
        cut = cut if cut > 0 else width
        lines.append(rest[:cut])
        rest = rest[cut:].lstrip()
    lines.append(rest if len(rest) <= width else f"{rest[:width]}...")
    return "<br>".join(str(escape(line)) for line in lines)
