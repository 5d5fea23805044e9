"""Output of programs, as lines and as what a reader sees in them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from repro.program.observation import Line, LineSplitter, Observation

OUTPUTS = Path(__file__).parent / "outputs"
SECOND = 1_000_000_000


class Reader(Protocol):
    """A reader of a program's lines."""

    def of_line(self, line: Line) -> Observation | None: ...


def printed(*texts: str) -> list[Line]:
    """Return lines that arrive one a second, each in a read of its own."""
    return [Line(text, number * SECOND, number) for number, text in enumerate(texts, 1)]


def output(name: str) -> list[Line]:
    """Return the lines of a file of `outputs`, in one read."""
    splitter = LineSplitter()
    return splitter.feed((OUTPUTS / name).read_bytes(), SECOND) + splitter.end(SECOND)


def seen(reader: Reader, lines: Iterable[Line]) -> list[Observation]:
    """Return what a reader sees in lines."""
    return [found for line in lines if (found := reader.of_line(line)) is not None]


def evaluations(observations: Iterable[Observation]) -> list[Observation]:
    return [found for found in observations if found.seen == "evaluation"]
