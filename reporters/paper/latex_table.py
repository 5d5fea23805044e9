"""One table of a paper in LaTeX: booktabs, never shrunk; columns wrap, and one longer than a page is a longtable."""

from __future__ import annotations

import math
from dataclasses import dataclass

from repro.tables.words import NOTHING, TextTable

from .latex_text import breakable, escaped, parts

LETTERS = 88.0
"""Average characters of `\\small` in a line of 5.5 in; a table never needs more."""
GAP = 1.6
"""Characters that the space between two columns takes."""
LONG = 36
"""Lines above which a table may be longer than a page."""
LEFT_OUT = ("Factors, exploratory",)
"""Headers of columns of sentences; the page and the CSV tables have them."""
SAID_ONCE = ("Figures", "Ratio of", "Division", "Record")
"""Headers of columns that become words of the caption if every row says the same."""


@dataclass(frozen=True, slots=True)
class Compact:
    """A table without the columns that say the same in every row."""

    table: TextTable
    said: str
    """What they say: `Figures: measured.`, and which columns have no value; "" if nothing was left out."""


def compact(table: TextTable) -> Compact:
    """Move what every row repeats into words, and drop the columns in which no row has a value."""
    keep, said, blank, headers = [], [], [], list(table.headers)
    rows = [list(row) for row in table.rows]
    for place, header in enumerate(table.headers):
        values = {row[place] for row in rows}
        if values == {NOTHING}:
            blank.append(header)
        if values == {NOTHING} or header in LEFT_OUT:
            continue
        if header in SAID_ONCE and len({value.removesuffix(" *") for value in values}) == 1:
            said.append(f"{header}: {min(values).removesuffix(' *')}.")
            if any(value.endswith(" *") for value in values):
                for row in rows:
                    row[0] += " *" if row[place].endswith(" *") else ""
            continue
        levels = {value.rpartition(" (")[2] for value in values if value.endswith(" %)")}
        if header == "Interval" and len(levels) == 1 and all(
                value == NOTHING or value.endswith(" %)") for value in values):
            headers[place] = f"Interval ({min(levels)}".replace(" %", "\N{NO-BREAK SPACE}%")
            for row in rows:
                row[place] = row[place].rpartition(" (")[0] or row[place]
        keep.append(place)
    said += [f"Without a value in any row: {', '.join(dict.fromkeys(blank))}."] if blank else []
    return Compact(TextTable(
        table.title, tuple(headers[place] for place in keep), tuple(table.numeric[place] for place in keep),
        tuple(tuple(row[place] for place in keep) for row in rows)), " ".join(said))


def latex_table(table: TextTable, caption: str, label: str = "") -> str:
    """Return a `table*` as wide as the text, or a `longtable`.

    Args:
        caption: already LaTeX.
        label: for `\\ref`; "": none.
    """
    columns = list(zip(table.headers, *table.rows, strict=True))
    widths = _widths(columns, table.numeric)
    wraps = sum(widths) + GAP * len(columns) > 0.85 * LETTERS or max(widths) > 0.5 * LETTERS
    write = breakable if wraps else escaped
    spec = "".join(_column(width, flush, wraps) for width, flush in zip(widths, table.numeric, strict=True))
    head, *rows = [" & ".join(write(cell) for cell in row) + r" \\" for row in (table.headers, *table.rows)]
    body = "\n\\addlinespace[2pt]\n".join(rows) if wraps else "\n".join(rows)
    lines = sum(max(math.ceil(1.1 * len(cell) / width) for cell, width in zip(row, widths, strict=True))
                for row in table.rows)
    name = f"\\label{{{label}}}" if label else ""
    if lines > LONG:
        return "\n".join([
            # A longtable needs a page of one column: in two columns it gets pages of its own.
            r"\csname if@twocolumn\endcsname\onecolumn\def\reproAfter{\twocolumn}\else\def\reproAfter{}\fi",
            r"\begingroup\small\setlength{\tabcolsep}{3pt}\setlength{\LTcapwidth}{\linewidth}",
            f"\\begin{{longtable}}{{@{{}}{spec}@{{}}}}", f"\\caption{{{caption}}}{name} \\\\",
            r"\toprule", head, r"\midrule", r"\endfirsthead", r"\toprule", head, r"\midrule", r"\endhead",
            r"\bottomrule", r"\endfoot", body, r"\end{longtable}", r"\endgroup\reproAfter",
        ])
    return "\n".join([
        r"\begin{table*}[htbp]",
        r"\centering\small\setlength{\tabcolsep}{3pt}\setlength{\belowcaptionskip}{4pt}",
        f"\\caption{{{caption}}}{name}",
        f"\\begin{{tabular}}{{@{{}}{spec}@{{}}}}", r"\toprule", head, r"\midrule", body, r"\bottomrule",
        r"\end{tabular}", r"\end{table*}",
    ])


def _column(width: float, flush: bool, wraps: bool) -> str:
    if not wraps:
        return "r" if flush else "l"
    side = r"\raggedleft" if flush else r"\raggedright"
    # A word after \hspace{0pt} may be hyphenated although it is the first of its cell.
    return f">{{{side}\\arraybackslash\\hspace{{0pt}}}}p{{{math.floor(1000 * width / LETTERS) / 1000:.3f}\\linewidth}}"


def _widths(columns: list[tuple[str, ...]], numeric: tuple[bool, ...]) -> list[float]:
    """Return characters for each column: all that it asks for, or its longest word and a share of what is left.

    Of numbers only the header wraps if there is room; those that need least come first.
    """
    asked = [max(len(cell) for cell in column) + 1.0 for column in columns]
    least = [_longest(column) for column in columns]
    room = LETTERS - GAP * (len(columns) - 1)
    if sum(asked) <= room:
        return asked
    if sum(least) >= room:
        return [width * room / sum(least) for width in least]
    spare = room - sum(least)
    missing = [max(len(cell) + 1.0 for cell in column[1:]) - need if flush else 0.0
               for column, need, flush in zip(columns, least, numeric, strict=True)]
    for place in sorted(range(len(columns)), key=missing.__getitem__):
        if 0.0 < missing[place] <= spare:
            least[place] += missing[place]
            spare -= missing[place]
    more = [max(want - need, 0.0) * (0.1 if flush else 1.0)
            for want, need, flush in zip(asked, least, numeric, strict=True)]
    return [need + spare * extra / (sum(more) or 1.0) for need, extra in zip(least, more, strict=True)]


def _longest(column: tuple[str, ...]) -> float:
    return max(len(piece) for cell in column for word in cell.split(" ") for piece in parts(word)) + 1.2
