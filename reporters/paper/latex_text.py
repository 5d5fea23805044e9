"""Text that TeX sets as it is, whatever it contains."""

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


def breakable(text: str) -> str:
    """Escape `text` for a narrow column: a word longer than `WORD` may be broken after a mark, else anywhere."""
    return " ".join(r"\allowbreak{}".join(escaped(part) for part in parts(word)) for word in _line(text).split(" "))


def parts(word: str) -> list[str]:
    """Return the pieces between which a long word may be broken."""
    if len(word) <= WORD:
        return [word]
    pieces = re.findall(r"[^=,;:/_.+-]*[=,;:/_.+-]+|[^=,;:/_.+-]+", word)
    return [piece[start:start + WORD] for piece in pieces for start in range(0, len(piece), WORD)]


WORD = 11
"""Most characters of a word that a column of a table keeps together."""
