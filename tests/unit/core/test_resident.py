"""Resident memory of a process: its peak can be counted anew, so that initialisation stays apart."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from repro.core import resident

LARGE, SMALL = 120 << 20, 64 << 20  # above 32 MiB malloc never takes them from its heap


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux counts the peak anew")
def test_a_new_count_forgets_what_was_freed_and_sees_what_comes() -> None:
    block = np.ones(LARGE, dtype=np.uint8)
    high = resident.peak_bytes()
    del block
    resident.reset_peak()
    low = resident.peak_bytes()
    assert high - low > LARGE // 2
    again = np.ones(SMALL, dtype=np.uint8)
    assert resident.peak_bytes() - low > SMALL // 2
    del again


def test_without_the_files_of_linux_it_is_the_peak_of_the_life(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resident, "STATUS", tmp_path / "none")
    monkeypatch.setattr(resident, "CLEAR", tmp_path / "none" / "either")
    resident.reset_peak()
    assert resident.peak_bytes() > 1 << 20
