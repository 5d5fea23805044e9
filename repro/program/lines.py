"""Bytes that a program wrote, as lines."""

from __future__ import annotations

import re

from repro.program.observation import Line

LONGEST = 4096
"""Characters of a line that are kept."""
ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[ -/]+[0-~]|[0-~])?")
"""Sequences of a terminal (ECMA-48): CSI with its parameters, OSC to its end, others of two or three characters."""


class LineSplitter:
    """Splits the output of one stream. It keeps at most `LONGEST` characters of a line, however long that becomes.

    A carriage return begins the line again and a backspace takes a character back, as on a terminal: of a progress bar
    only the last state counts. What stays on a terminal from a longer earlier state is not kept.
    """

    def __init__(self, longest: int = LONGEST) -> None:
        """Args:
            longest: characters of a line that are kept.
        """
        self._longest = longest
        self._bytes = 4 * longest
        self._pending = b""
        self._reads = 0

    def feed(self, data: bytes, arrived_ns: int) -> list[Line]:
        """Return the lines that end in `data`, which one read brought."""
        self._reads += 1
        *ended, rest = data.split(b"\n")
        lines: list[Line] = []
        for raw in ended:
            lines.append(Line(self._text(self._pending + raw), arrived_ns, self._reads))
            self._pending = b""
        self._pending = self._last_state(self._pending + rest)
        return lines

    def end(self, arrived_ns: int) -> list[Line]:
        """Return the last line if it has no newline. The stream has ended."""
        if not self._pending:
            return []
        self._reads += 1
        line = Line(self._text(self._pending), arrived_ns, self._reads)
        self._pending = b""
        return [line]

    def _last_state(self, raw: bytes) -> bytes:
        """Return what decides the line: what follows the last carriage return that something follows, cut, and whether
        the cursor stands at its beginning again."""
        state = raw.rstrip(b"\r")
        kept = state[state.rfind(b"\r") + 1:][:self._bytes]
        return kept + b"\r" if len(state) < len(raw) else kept

    def _text(self, raw: bytes) -> str:
        text = self._last_state(raw).rstrip(b"\r").decode("utf-8", errors="replace")
        if "\x1b" in text:
            text = ESCAPES.sub("", text)
        if "\b" in text:
            text = _typed(text)
        return text[:self._longest]


def _typed(text: str) -> str:
    """Return `text` with each backspace and the character before it taken away."""
    kept: list[str] = []
    for sign in text:
        if sign != "\b":
            kept.append(sign)
        elif kept:
            kept.pop()
    return "".join(kept)
