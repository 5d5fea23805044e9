"""Text that TeX sets as it is, whatever it contains, and tables: booktabs, never shrunk; columns wrap."""

from __future__ import annotations

import math
import re
import unicodedata

from repro.tables.layout import TextTable

GREEK = {
    "\u03b1": "alpha", "\u03b2": "beta", "\u03b3": "gamma", "\u03b4": "delta", "\u03b5": "varepsilon", "\u03b6": "zeta",
    "\u03b7": "eta", "\u03b8": "theta", "\u03bb": "lambda", "\u03bc": "mu", "\u03bd": "nu", "\u03be": "xi",
    "\u03c0": "pi", "\u03c1": "rho", "\u03c3": "sigma", "\u03c4": "tau", "\u03c6": "varphi", "\u03c7": "chi",
    "\u03c8": "psi", "\u03c9": "omega", "\u0393": "Gamma", "\u0394": "Delta", "\u0398": "Theta", "\u039b": "Lambda",
    "\u03a3": "Sigma", "\u03a6": "Phi", "\u03a8": "Psi", "\u03a9": "Omega",
}
SIGNS = {
    "\u00b1": r"\pm", "\u00b7": r"\cdot", "\u00d7": r"\times", "\u00b2": "^2", "\u00b3": "^3", "\u2190": r"\leftarrow",
    "\u2192": r"\rightarrow", "\u2212": "-", "\u221a": r"\surd", "\u221e": r"\infty", "\u2248": r"\approx",
    "\u2260": r"\ne", "\u2264": r"\le", "\u2265": r"\ge", **{sign: f"\\{name}" for sign, name in GREEK.items()},
}
"""Characters that only formulas have."""
SPECIAL = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#", "%": r"\%", "_": r"\_",
    "^": r"\textasciicircum{}", "~": r"\textasciitilde{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "|": r"\textbar{}", '"': r"\symbol{34}", "`": r"\textasciigrave{}",
    "[": "{[}", "]": "{]}", "*": "{*}", "\N{NO-BREAK SPACE}": "~", "\N{SOFT HYPHEN}": r"\-",
    "\N{MICRO SIGN}": r"\textmu{}", "\N{DEGREE SIGN}": r"\textdegree{}", "\N{EURO SIGN}": r"\texteuro{}",
    "\N{EN DASH}": r"\textendash{}", "\N{EM DASH}": r"\textemdash{}", "\N{HORIZONTAL ELLIPSIS}": r"\textellipsis{}",
    "\N{LEFT SINGLE QUOTATION MARK}": r"\textquoteleft{}", "\N{RIGHT SINGLE QUOTATION MARK}": r"\textquoteright{}",
    "\N{LEFT DOUBLE QUOTATION MARK}": r"\textquotedblleft{}",
    "\N{RIGHT DOUBLE QUOTATION MARK}": r"\textquotedblright{}",
    **{sign: f"\\ensuremath{{{command}}}" for sign, command in SIGNS.items()},
}
"""Characters that TeX reads as a command or an optional argument, or that pdflatex knows by a command only."""
DOUBLED = "-',"
"""Characters of which two in a row are a ligature: the second stands in a group."""


def escaped(text: str) -> str:
    """Escape `text` for LaTeX; characters without a glyph in pdflatex become their code point."""
    line = _line(text)
    return "".join(f"{{{one}}}" if one in DOUBLED and one == before else _character(one)
                   for before, one in zip(" " + line, line, strict=False))


def _line(text: str) -> str:
    """Join the lines: an empty one would end a paragraph. No-break spaces stay."""
    return re.sub("[ \\t\\r\\n\\f\\v]+", " ", text).strip(" ")


def _character(character: str) -> str:
    # T1 fonts have the accented letters of Latin Extended-A, and these.
    accented = "\u0100" <= character <= "\u017e" and (
        character in "\u0110\u0111\u0131\u0141\u0142\u0152\u0153" or len(unicodedata.normalize("NFD", character)) > 1)
    if character in SPECIAL:
        return SPECIAL[character]
    if " " <= character <= "~" or "\u00c0" <= character <= "\u00ff" or accented:
        return character
    return f"\\texttt{{U+{ord(character):04X}}}"


def breakable(text: str) -> str:
    """Escape `text` for a narrow column: a word longer than `WORD` may be broken after a mark, else anywhere."""
    return " ".join(r"\allowbreak{}".join(escaped(part) for part in parts(word)) for word in _line(text).split(" "))


def breakable_text(text: str) -> str:
    """Escape `text` for a paragraph: a word longer than `WORD` may be broken after `=`, `_`, `:` or `/` within it."""
    return " ".join(r"\allowbreak{}".join(escaped(part) for part in (
        re.split(r"(?<=[=_:/])(?=\w)", word) if len(word) > WORD else [word])) for word in _line(text).split(" "))


def parts(word: str) -> list[str]:
    """Return the pieces between which a long word may be broken: after a mark, not before one or within a number."""
    if len(word) <= WORD:
        return [word]
    pieces = re.split(r"(?<=[=,;:/_+-])(?=[^=,;:/_.+-])|(?<=\.)(?=[^=,;:/_.+\d-])", word)
    return [part for piece in pieces for part in _cut(piece)]


def _cut(piece: str) -> list[str]:
    """Cut what is too long after `WORD` characters; a mark stays at the end of its word."""
    if len(piece) <= WORD or (len(piece) == WORD + 1 and not piece[-1].isalnum()):
        return [piece]
    return [piece[start:start + WORD] for start in range(0, len(piece), WORD)]


WORD = 12
"""Most characters of a word that a column of a table keeps together."""


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
