"""One table of a paper in LaTeX: booktabs, never shrunk; columns wrap, and one longer than a page is a longtable."""

from __future__ import annotations

import math

from repro.tables.layout import TextTable

from .latex_text import breakable, escaped, parts

LETTERS = 88.0
"""Average characters of `\\small` in a line of 5.5 in; a table never needs more."""
GAP = 1.6
"""Characters that the space between two columns takes."""
LONG = 36
"""Lines above which a table may be longer than a page."""


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
