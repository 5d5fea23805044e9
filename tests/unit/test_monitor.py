"""What is watched beside a trial may not spoil the trial."""

from __future__ import annotations

from pathlib import Path

import pytest

from repro import monitor
from repro.monitor import Monitor


def test_a_full_disk_ends_the_system_metrics_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """/dev/full refuses every byte with "No space left on device", as a full disk does."""
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("no /dev/full here")
    monkeypatch.setattr(monitor, "PERIOD_SECONDS", 0.02)
    lived: list[bool] = []
    with Monitor(tmp_path / "result_1.txt", full, lambda *_: None, lambda: lived.append(True)) as watch:
        while len(lived) < 3:
            pass
    assert watch.unwritten == "No space left on device"
