"""A slice of the hostile command lines of `tests/fuzz/command_lines.py`."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fuzz.command_lines import drive


@pytest.fixture
def _handlers() -> Iterator[None]:
    kinds = (signal.SIGTERM, signal.SIGHUP, signal.SIGALRM)
    before = [signal.getsignal(each) for each in kinds]
    yield
    for each, handler in zip(kinds, before, strict=True):
        signal.signal(each, handler)


@pytest.mark.usefixtures("_handlers")
def test_hostile_command_lines_end_with_a_result_or_one_line(tmp_path: Path) -> None:
    assert drive(100, 7, tmp_path) == {}
