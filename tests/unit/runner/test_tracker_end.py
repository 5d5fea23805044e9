"""The end of a run's tracking process, also if a signal arrives while it ends."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from repro.runner import tracking
from repro.runner.tracking import Tracker


def test_a_signal_while_the_tracking_process_ends_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = tmp_path / "server"
    server.write_text("#!/bin/sh\nwhile read -r line; do echo '{\"problem\": \"\", \"uri\": \"here\"}'; done\n")
    server.chmod(0o700)
    monkeypatch.setattr(tracking.sys, "executable", str(server))
    real, calls = subprocess.Popen.wait, []

    def wait(self: subprocess.Popen[bytes], timeout: float | None = None) -> int:
        calls.append(timeout)
        if len(calls) == 1:
            raise KeyboardInterrupt  # as the handler of a signal does
        return real(self, timeout)

    monkeypatch.setattr(subprocess.Popen, "wait", wait)
    tracker = Tracker(tmp_path)
    pid: Any = tracker.pid
    with pytest.raises(KeyboardInterrupt):
        tracker.finish(30.0)
    end = tracker.finish(0.0)
    assert (end.uri, end.problem, end.pending) == ("here", "", False)
    assert not Path(f"/proc/{pid}").exists() and tracker.pid is None
