"""The lock of a run folder: one writer, named; void when its owner is gone."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import repro
from repro.core.errors import OutputError
from repro.record.folder.lock import NAME, RunLock

HOLD = """
import sys
from pathlib import Path
from repro.record.folder.lock import RunLock
RunLock(Path(sys.argv[1])).acquire()
print("held", flush=True)
sys.stdin.read()
"""


def holder(folder: Path) -> subprocess.Popen[str]:
    """Another process that has the lock until its standard input is closed, and then ends without giving it back."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": str(Path(repro.__file__).parents[1])},
    )
    assert process.stdout is not None and process.stdout.readline() == "held\n"
    return process


def test_a_second_writer_is_refused_with_the_first_named_and_a_dead_one_is_ignored(tmp_path: Path) -> None:
    process = holder(tmp_path)
    try:
        with pytest.raises(OutputError, match=f"is being written by process {process.pid} on .* since 20") as caught:
            RunLock(tmp_path).acquire(force=True)
        assert "\n" not in str(caught.value)
    finally:
        process.kill()
        process.communicate()
    assert (tmp_path / NAME).exists()
    lock = RunLock(tmp_path).acquire()
    assert lock.stale.startswith(f"process {process.pid} on ")
    lock.release()
    assert not (tmp_path / NAME).exists()


def test_the_lock_is_gone_after_its_block_and_can_be_taken_again(tmp_path: Path) -> None:
    for _ in range(2):
        with RunLock(tmp_path).acquire() as lock:
            assert lock.stale == ""
            assert json.loads((tmp_path / NAME).read_text())["pid"] == os.getpid()
            with pytest.raises(OutputError, match="is being written by"):
                RunLock(tmp_path).acquire()
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("since_ms", "said"), [(1_700_000_000_000, " since 2023-"), (10**30, "")])
def test_an_owner_on_another_machine_cannot_be_asked(tmp_path: Path, since_ms: int, said: str) -> None:
    (tmp_path / NAME).write_text(json.dumps({"pid": 1, "host": f"not-{socket.gethostname()}", "since_ms": since_ms}))
    with pytest.raises(OutputError, match=r"locked by process 1 on not-.*no longer runs: --force") as caught:
        RunLock(tmp_path).acquire()
    assert (said or " on not-") in str(caught.value) and ("since" in str(caught.value)) is bool(said)
    with RunLock(tmp_path).acquire(force=True) as lock:
        assert "process 1 on not-" in lock.stale


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"null", b"[" * 4096, b'{"since_ms": 1e', b"\xff"])
def test_an_empty_lock_is_stale(tmp_path: Path, text: bytes) -> None:
    (tmp_path / NAME).write_bytes(text)
    RunLock(tmp_path).acquire().release()


def test_a_folder_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match=r"run\.lock: cannot be written: No such file"):
        RunLock(tmp_path / "none").acquire()
