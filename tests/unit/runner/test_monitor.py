"""Monitoring next to a trial must not disturb the trial."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from repro.core.events import Event, EventLog
from repro.record.log.schema import EvalAccuracy, RunStart
from repro.runner import attempt
from repro.runner.attempt import Monitor


def test_a_full_disk_ends_the_system_metrics_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    full = tmp_path / "full"
    full.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4k", "none", str(full)], capture_output=True).returncode:
        pytest.skip("mounting a small disk takes root")
    request.addfinalizer(lambda: subprocess.run(["umount", str(full)], check=True))
    (full / "other").write_bytes(bytes(4096))
    monkeypatch.setattr(attempt, "PERIOD_SECONDS", 0.02)
    lived: list[bool] = []
    log, figures = tmp_path / "result_1.txt", full / "system_1.txt"
    with Monitor(log, figures, lambda *_: None, lambda: lived.append(True)) as watch:
        while len(lived) < 3:
            pass
    assert watch.unwritten == "No space left on device"


def test_a_log_is_not_read_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The parent reads a log every second next to a timed trial."""
    monkeypatch.setattr(attempt, "PERIOD_SECONDS", 0.01)
    path, read, told = tmp_path / "result_1.txt", [], []
    real = attempt.follow_log

    def follow(log: Path, offset: int) -> Iterator[tuple[Event | None, int]]:
        for event, after in real(log, offset):
            read.append((offset, after))
            yield event, after

    monkeypatch.setattr(attempt, "follow_log", follow)
    looks: list[bool] = []
    now = [1_000_000_000]
    with Monitor(path, tmp_path / "system_1.txt", lambda *seen: told.append(seen), lambda: looks.append(True)):
        log = EventLog(path, 0, lambda: now[0], anchor_ms=0.0)
        log.write(RunStart())
        for number in range(1, 4):
            now[0] += 1_000_000_000
            log.write(EvalAccuracy(value=number / 10, samples_count=number * 100, epoch_num=float(number)))
            log.flush()
            seen = len(looks)
            while len(looks) < seen + 2:
                time.sleep(0.001)
        log.close()
    assert [after for _, after in read] == sorted({after for _, after in read}), "a line was read twice"
    assert all(offset < after for offset, after in read) and read[-1][1] == path.stat().st_size
    assert told == [(0.1, 1.0, 100.0), (0.2, 2.0, 100.0), (0.3, 3.0, 100.0)]


def test_a_signal_while_the_thread_begins_leaves_none_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempt, "PERIOD_SECONDS", 0.01)
    real = threading.Thread.start

    def interrupted(thread: threading.Thread) -> None:
        real(thread)
        raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    watch = Monitor(tmp_path / "log", tmp_path / "system", lambda *_: None, lambda: None)
    with pytest.raises(KeyboardInterrupt), watch:
        raise AssertionError("the context is not entered")
    assert "repro-monitor" not in {thread.name for thread in threading.enumerate()}
