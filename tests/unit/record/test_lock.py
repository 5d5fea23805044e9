"""The lock of a run folder: one writer, named; void when its owner is gone."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import repro
from repro.core.errors import OutputError
from repro.record.folder import lock as lock_module
from repro.record.folder.lock import NAME, RunLock

HOLD = """
import sys
from pathlib import Path
from repro.record.folder import lock
from repro.record.folder.lock import RunLock
lock.BEAT_SECONDS = float(sys.argv[2])
RunLock(Path(sys.argv[1])).acquire()
print("held", flush=True)
sys.stdin.read()
"""


def holder(folder: Path, beat_seconds: float = 5.0) -> subprocess.Popen[str]:
    """Another process that has the lock until its standard input is closed, and then ends without giving it back."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder), str(beat_seconds)], text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path(repro.__file__).parents[1])},
    )
    assert process.stdout is not None and process.stdout.readline() == "held\n"
    return process


def test_a_second_writer_is_refused_with_the_first_named_and_a_dead_one_is_ignored(tmp_path: Path) -> None:
    process = holder(tmp_path)
    try:
        with pytest.raises(OutputError, match=f"is being written by process {process.pid} on .* since 20") as caught:
            RunLock(tmp_path).acquire()
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
def test_an_owner_on_another_computer_that_does_not_beat_is_gone(
    tmp_path: Path, since_ms: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock_module, "WATCH_SECONDS", 0.2)
    monkeypatch.setattr(lock_module, "BEAT_SECONDS", 0.2)
    told: list[str] = []
    (tmp_path / NAME).write_text(json.dumps({"pid": 1, "host": "lost", "boot": "x", "job": "7", "since_ms": since_ms}))
    with RunLock(tmp_path).acquire(told.append) as lock:
        assert lock.stale.startswith("process 1 on another computer in job 7"), "the record names no computer"
        assert (said or "job 7") in lock.stale and ("since" in lock.stale) is bool(said)
    assert len(told) == 1 and "is locked by process 1 on lost in job 7" in told[0]


def test_without_locks_of_the_kernel_beats_tell_of_this_computer_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lustre mounted without flock."""
    def missing(handle: int, operation: int) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(lock_module.fcntl, "flock", missing)
    monkeypatch.setattr(lock_module, "WATCH_SECONDS", 1.0)
    monkeypatch.setattr(lock_module, "BEAT_SECONDS", 0.2)
    with RunLock(tmp_path).acquire(), pytest.raises(OutputError, match="is being written by"):
        RunLock(tmp_path).acquire()
    (tmp_path / NAME).write_text(json.dumps({"pid": 1, "host": "here", "boot": lock_module.boot_id()}))
    with RunLock(tmp_path).acquire() as lock:
        assert lock.stale.startswith("process 1 on ")


def test_a_lock_that_its_owner_removes_while_it_is_watched_is_taken_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a new file two processes would hold a lock of this name."""
    monkeypatch.setattr(lock_module, "WATCH_SECONDS", 20.0)
    monkeypatch.setattr(lock_module, "BEAT_SECONDS", 0.2)
    (tmp_path / NAME).write_text(json.dumps({"pid": 1, "host": "far", "boot": "x"}))
    with RunLock(tmp_path).acquire(lambda _: (tmp_path / NAME).unlink()):
        assert json.loads((tmp_path / NAME).read_text())["pid"] == os.getpid()
        with pytest.raises(OutputError, match="is being written by"):
            RunLock(tmp_path).acquire()


def test_a_file_server_that_fails_for_a_while_ends_no_beats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without beats another computer would take over a lock whose owner runs."""
    monkeypatch.setattr(lock_module, "BEAT_SECONDS", 0.05)
    path, read = tmp_path / NAME, os.pread

    def beat() -> int:
        return int(json.loads(path.read_text() or '{"beat": 0}')["beat"])

    def until(least: int) -> None:
        end = time.monotonic() + 30
        while beat() < least:
            assert time.monotonic() < end, "no beat"
            time.sleep(0.01)

    def fails(*_: int) -> bytes:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    with RunLock(tmp_path).acquire():
        until(1)
        monkeypatch.setattr(os, "pread", fails)
        until(beat() + 2)
        monkeypatch.setattr(os, "pread", read)
        until(beat() + 2)


def test_the_lock_of_another_owner_is_not_removed(tmp_path: Path) -> None:
    """As of an owner that was suspended, taken over, and then ended."""
    lock = RunLock(tmp_path).acquire()
    (tmp_path / "new").write_text(json.dumps({"pid": 1, "host": "far", "boot": "x"}))
    (tmp_path / "new").replace(tmp_path / NAME)
    lock.release()
    assert json.loads((tmp_path / NAME).read_text())["pid"] == 1


def test_an_owner_on_another_computer_that_beats_is_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The owner holds no lock that this kernel sees, as on NFS without lock daemon: only its beats show."""
    monkeypatch.setattr(lock_module, "WATCH_SECONDS", 20.0)
    monkeypatch.setattr(lock_module, "BEAT_SECONDS", 0.2)
    owner, path, over = {"pid": 1, "host": "far", "boot": "x", "beat": 0}, tmp_path / NAME, threading.Event()
    path.write_text(json.dumps(owner))

    def beat() -> None:
        while not over.wait(0.05):
            owner["beat"] = int(owner["beat"]) + 1
            path.write_text(json.dumps(owner))

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        with pytest.raises(OutputError, match="is being written by process 1 on far"):
            RunLock(tmp_path).acquire()
    finally:
        over.set()
        thread.join()


def test_an_owner_whose_lock_was_taken_over_writes_no_more(tmp_path: Path) -> None:
    """Suspended for longer than others watch: it ends at its next beat."""
    process = holder(tmp_path, beat_seconds=0.2)
    (tmp_path / "new").write_text(json.dumps({"pid": 1, "host": "far", "boot": "x", "beat": 3}))
    (tmp_path / "new").replace(tmp_path / NAME)
    try:
        assert process.wait(30) == 1
    finally:
        process.kill()
        _, error = process.communicate()
    assert "was taken over by process 1 on far while this process did not run" in error
    assert json.loads((tmp_path / NAME).read_text())["pid"] == 1, "the other one's lock is untouched"


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"null", b"[" * 4096, b'{"since_ms": 1e', b"\xff"])
def test_an_empty_lock_is_stale(tmp_path: Path, text: bytes) -> None:
    (tmp_path / NAME).write_bytes(text)
    with RunLock(tmp_path).acquire() as lock:
        assert lock.stale == "" and json.loads((tmp_path / NAME).read_text())["pid"] == os.getpid()
    assert not (tmp_path / NAME).exists()


def test_a_folder_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match=r"run\.lock: cannot be written: No such file"):
        RunLock(tmp_path / "none").acquire()
