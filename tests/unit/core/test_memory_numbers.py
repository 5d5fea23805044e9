"""Memory: a peak starts anew."""

from __future__ import annotations

import mmap
import sys
from pathlib import Path

import pytest

from repro.core import machine

LARGE, SMALL = 120 << 20, 64 << 20


def resident_block(size: int) -> mmap.mmap:
    """Return memory of its own, written to; malloc could take it from pages that are resident already."""
    block = mmap.mmap(-1, size)
    for page in range(0, size, mmap.PAGESIZE):
        block[page] = 1
    return block


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux counts the peak anew")
def test_a_new_count_forgets_what_was_freed_and_sees_what_comes() -> None:
    block = resident_block(LARGE)
    high = machine.peak_bytes()
    block.close()
    machine.reset_peak()
    low = machine.peak_bytes()
    assert high - low > LARGE // 2
    again = resident_block(SMALL)
    assert machine.peak_bytes() - low > SMALL // 2
    again.close()


def test_without_the_files_of_linux_it_is_the_peak_of_the_life(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "STATUS", tmp_path / "none")
    monkeypatch.setattr(machine, "CLEAR", tmp_path / "none" / "either")
    machine.reset_peak()
    assert machine.peak_bytes() > 1 << 20
