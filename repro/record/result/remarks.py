"""A kind with its values, the form of warnings, reasons and advice.

Records hold kinds and values, and all code decides by them. `words` is for readers only: it is made where it is shown.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar, Literal

from repro.core.frozen import Frozen


class Worded(Frozen):
    """A kind with its values."""

    sentence: ClassVar[str] = ""
    """The words, with fields in braces; a kind whose words depend on more has `_words`."""

    @property
    def words(self) -> str:
        """The sentence for a reader, without its full stop."""
        return self._words()

    def _words(self) -> str:
        return self.sentence.format(**dict(self))


class Stated(Worded):
    """A text from outside: of a program, a library, a log or a published result."""

    kind: Literal["stated"] = "stated"
    text: str
    sentence = "{text}"


def stated(text: str) -> tuple[Stated, ...]:
    """Return a text from outside as reasons or warnings; none if it is empty."""
    return (Stated(text=text),) if text else ()


def joined(found: Iterable[Worded]) -> str:
    """Return the words of all, for a reader; "" for none."""
    return "; ".join(item.words for item in found)
