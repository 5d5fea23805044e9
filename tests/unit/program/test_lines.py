"""Lines of a stream: the same whatever the reads, bounded whatever the program prints."""

from __future__ import annotations

import sys
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repro.program.observation import LONGEST, Line, LineSplitter

PIECES = st.lists(st.sampled_from([
    b"\n", b"\r", b"\r\n", b"\b", b"\b\b\b", b"abc", b"step 7", "\u2501".encode(), b"\xff\xe2", b"\x1b[1m", b"\x1b[K",
    b"\x1b]0;title\x07", b"x" * 41, b" ", b"\x1b", b"\x00"]), max_size=30).map(b"".join)


def texts(data: bytes, cuts: list[int], longest: int = 8) -> list[str]:
    splitter = LineSplitter(longest)
    places = [0, *sorted(cut for cut in cuts if cut < len(data)), len(data)]
    lines = [line for start, end in pairwise(places) for line in splitter.feed(data[start:end], 0)]
    return [line.text for line in lines + splitter.end(0)]


@given(PIECES, st.lists(st.integers(0, 300), max_size=12))
def test_the_reads_do_not_change_the_texts(data: bytes, cuts: list[int]) -> None:
    assert texts(data, cuts) == texts(data, []) == texts(data, list(range(len(data))))


@pytest.mark.parametrize(("data", "expected"), [
    (b"a\nb\n", ["a", "b"]),
    (b"a\r\nb\r\n", ["a", "b"]),
    (b"a\nrest", ["a", "rest"]),
    (b"10%\r50%\r100% val 0.9\n", ["100% val 0.9"]),
    (b"10%\r50%\r", ["50%"]),
    (b"old\r\r\n", ["old"]),
    (b"abc\b\b\bxy\n", ["xy"]),
    (b"\b\bab\n", ["ab"]),
    (b"\x1b[1m\x1b[38;5;12mval\x1b[0m 0.9\x1b[K\n", ["val 0.9"]),
    (b"\x1b]0;a title\x07text \x1b(Bmore\n", ["text more"]),
    ("gr\u00fc\u00df \u2501\n".encode(), ["gr\u00fc\u00df \u2501"]),
    (b"bad \xff byte\n", ["bad \ufffd byte"]),
    (b"\n\n", ["", ""]),
    (b"", []),
])
def test_what_a_terminal_shows_last_is_the_line(data: bytes, expected: list[str]) -> None:
    assert texts(data, [], longest=LONGEST) == expected


def test_a_line_has_the_time_and_the_number_of_the_read_that_ended_it() -> None:
    splitter = LineSplitter()
    assert splitter.feed(b"first\nsec", 10) == [Line("first", 10, 1)]
    assert splitter.feed(b"o", 20) == []
    assert splitter.feed(b"nd\nthird\nlast", 30) == [Line("second", 30, 3), Line("third", 30, 3)]
    assert splitter.end(40) == [Line("last", 40, 4)]
    assert splitter.end(50) == []


@pytest.mark.parametrize("chunk", [b"x" * 65536, b"bar\r" * 16384, b"\b" * 65536, b"\x1b[1m" * 16384])
def test_a_line_without_end_takes_no_memory(chunk: bytes) -> None:
    splitter = LineSplitter()
    for _ in range(200):
        assert splitter.feed(chunk, 0) == []
    assert sys.getsizeof(splitter._pending) <= 4 * LONGEST + 100
    [line] = splitter.feed(b"\n", 0)
    assert len(line.text) <= LONGEST
