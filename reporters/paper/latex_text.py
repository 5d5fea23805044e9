"""Text that TeX sets as it is, whatever it contains."""

from __future__ import annotations

import re
import unicodedata

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
    if character in SPECIAL:
        return SPECIAL[character]
    if " " <= character <= "~" or "\u00c0" <= character <= "\u00ff" or _accented(character):
        return character
    return f"\\texttt{{U+{ord(character):04X}}}"


def _accented(character: str) -> bool:
    """Return if T1 fonts have this letter of Latin Extended-A."""
    return "\u0100" <= character <= "\u017e" and (
        character in "\u0110\u0111\u0131\u0141\u0142\u0152\u0153" or len(unicodedata.normalize("NFD", character)) > 1)


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
