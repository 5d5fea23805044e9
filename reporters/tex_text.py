"""Text for LaTeX."""

from __future__ import annotations

import re

SPECIAL = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#", "%": r"\%", "_": r"\_",
    "^": r"\textasciicircum{}", "~": r"\textasciitilde{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "|": r"\textbar{}", '"': r"\textquotedbl{}", "'": r"\textquotesingle{}", "`": r"\textasciigrave{}", "-": "{-}",
    "[": "{[}", "]": "{]}", "*": "{*}", "\N{NO-BREAK SPACE}": "~", "\N{MULTIPLICATION SIGN}": r"\texttimes{}",
    "\N{SOFT HYPHEN}": r"\-", "\N{MICRO SIGN}": r"\textmu{}",
}
"""Characters that TeX reads as a command, a ligature or an optional argument."""


def escaped(text: str) -> str:
    """Escape `text` for LaTeX; characters without a glyph in pdflatex become their code point."""
    return "".join(_character(character) for character in _line(text))


def _line(text: str) -> str:
    """Join the lines: an empty one would end a paragraph. No-break spaces stay."""
    return re.sub("[ \\t\\r\\n\\f\\v]+", " ", text).strip(" ")


def _character(character: str) -> str:
    if character in SPECIAL:
        return SPECIAL[character]
    if " " <= character <= "~" or "\u00c0" <= character <= "\u00ff":
        return character
    return f"\\texttt{{U+{ord(character):04X}}}"
