"""Lines that a program printed, what a reader sees in them, and the order that its statements must have."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Literal

from repro.core.errors import visible

LONGEST = 4096
"""Characters of a line that are kept."""
ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[ -/]+[0-~]|[0-~])?")
"""Sequences of a terminal (ECMA-48): CSI with its parameters, OSC to its end, others of two or three characters."""
SHOWN = 120
"""Characters of a line that a message shows."""
Seen = Literal["start", "stop", "step", "evaluation"]
"""start, stop: the program says that its training began or ended. step: it reports progress without a quality.
evaluation: it reports the quality."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line of output, with the time at which this harness received its end."""

    text: str
    """Without its newline; bytes that are no UTF-8 are replaced."""
    arrived_ns: int
    """Monotonic nanoseconds of this machine."""
    read: int
    """Number of the read that brought its end: lines of one read share one arrival time, at which the last of them was
    just printed; how much earlier the others were, it does not tell."""
    earlier: tuple[str, ...] = ()
    """What carriage returns replaced on it, and no blanks erased, the latest first: a bar of another process may have
    done so before the end of a statement came."""


@dataclass(frozen=True, slots=True)
class Observation:
    """One statement of a program about its training."""

    seen: Seen
    arrived_ns: int
    read: int
    step: int | None = None
    """Optimizer steps so far."""
    samples: int | None = None
    """Training samples so far."""
    epochs: float | None = None
    value: float | None = None
    """The quality; nan and infinities are values."""
    own_seconds: float | None = None
    """The program's own clock: seconds of training so far, by its own account. None: it states none."""
    own_ns: int | None = None
    """Monotonic nanoseconds at which the program says this happened; None: it does not say."""
    since_ns: int | None = None
    """Of a statement in a file: when the file was looked at before; None: it was read as it came."""


class OutputProblem(Exception):
    """A statement of a program that cannot be right; the text says what and where."""


LARGE = 1 << 15
"""Bytes of a read that more of the same write may follow: half a pipe."""
FOLLOWS_NS = 250_000_000
"""Time within which it does, also on a busy machine."""


class Reader:
    """Reads the statements of one run: of lines, which are those of the output unless it says otherwise, or of a file.
    """

    states_start = False
    """It says when training begins."""
    longest_line = LONGEST
    """Characters of a line of the output that it needs."""
    longest_delay: float | None = None
    """Seconds within which a dated statement must arrive; None: its channel may hold it back."""

    def take(self, line: Line) -> Observation | None:
        """Return what the next line states; None if nothing that matters.

        Raises:
            OutputProblem: it cannot be right, by itself or after what was stated before.
        """
        return None

    def of_line(self, line: Line) -> Observation | None:
        """Return what a line states, by its last state that states anything.

        Raises:
            OutputProblem: as `take`.
        """
        states = (line, *(replace(line, text=text) for text in line.earlier))
        return next((seen for state in states if (seen := self.take(state)) is not None), None)

    def poll(self, arrived_ns: int) -> list[Observation]:
        """Return what was written to a file since the last call; nothing while there is none.

        Raises:
            OutputProblem: as `take`, or the file is damaged.
        """
        return []

    def close(self) -> None:
        """Take the end of a program that ended well.

        Raises:
            OutputProblem: what it stated lacks its end.
        """

    def hint(self) -> str:
        """Return what may explain that no evaluation was seen; "" if nothing does."""
        return ""


class LineSplitter:
    """Splits the output of one stream. It keeps at most `longest` characters of a line, however long that becomes.

    A carriage return begins the line again and a backspace takes a character back, as on a terminal: the last state of
    a progress bar is its text. What stays on a terminal from a longer earlier state is not kept.
    """

    def __init__(self, longest: int = LONGEST) -> None:
        self._longest = longest
        self._bytes = 4 * longest
        self._pending = b""
        self._reads = 0
        self._more_until_ns = 0

    def feed(self, data: bytes, arrived_ns: int) -> list[Line]:
        """Return the lines that end in `data`, which one read brought.

        A pipe holds less than some programs write at once: what follows a large read without delay counts as one read.
        """
        if arrived_ns >= self._more_until_ns:
            self._reads += 1
        self._more_until_ns = arrived_ns + FOLLOWS_NS if len(data) >= LARGE else 0
        *ended, rest = data.split(b"\n")
        lines: list[Line] = []
        for raw in ended:
            lines.append(self._line(self._pending + raw, arrived_ns))
            self._pending = b""
        self._pending += rest
        if len(self._pending) > self._bytes:
            self._pending = self._last_state(self._pending)
        return lines

    def unended(self, arrived_ns: int) -> Line:
        """Return the line that is being written, as far as it has come."""
        return Line(self._text(self._pending), arrived_ns, self._reads)

    def end(self, arrived_ns: int) -> list[Line]:
        """Return the last line if it has no newline. The stream has ended."""
        if not self._pending:
            return []
        self._reads += 1
        line = self._line(self._pending, arrived_ns)
        self._pending = b""
        return [line]

    def _line(self, raw: bytes, arrived_ns: int) -> Line:
        """Return an ended line with its earlier states, back to the first that blanks erased."""
        shown = takewhile(bytes.strip, filter(None, reversed(raw.rstrip(b"\r").split(b"\r"))))
        return Line(self._text(raw), arrived_ns, self._reads, tuple(map(self._text, shown))[1:])

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


class Order:
    """Checks each statement of one run against those before it."""

    def __init__(self) -> None:
        self._reached: dict[str, float] = {}
        self._evaluated: tuple[str, int] | None = None
        self._value: float | None = None

    def accept(self, seen: Observation, source: str) -> Observation:
        """Return `seen`.

        The same step twice is wrong even with an equal value: nothing tells which of the two times is the one at which
        the quality was reached. Epochs may repeat, because programs round them.

        Args:
            source: what was read, for the message.

        Raises:
            OutputProblem: a position or the program's own clock goes back, or one position is evaluated twice.
        """
        stated = {"step": seen.step, "samples": seen.samples, "epoch": seen.epochs, "train time": seen.own_seconds}
        for name, number in stated.items():
            if number is None:
                continue
            before = self._reached.get(name, number)
            if number < before:
                raise OutputProblem(f"{name} goes back from {before:.15g} to {number:.15g}: {quoted(source)}")
            self._reached[name] = number
        if seen.seen == "evaluation":
            position = next(((name, number) for name, number in (("step", seen.step), ("samples", seen.samples))
                             if number is not None), None)
            if position is not None and position == self._evaluated:
                raise OutputProblem(
                    f"{position[0]} {position[1]} is evaluated twice ({self._value:.6g}, then {seen.value:.6g}): "
                    f"{quoted(source)}; one process prints, and each evaluation has a step of its own")
            self._evaluated, self._value = position, seen.value
        return seen


def quoted(text: str) -> str:
    """Return a line of a program as a message shows it."""
    text = visible(text.strip())
    return repr(text if len(text) <= SHOWN else f"{text[:SHOWN]}...")
