"""What can go wrong before a command begins: signals, a removed working directory, paths that are none."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

import repro.cli.main as command
from repro.cli.options import check_place
from repro.core.errors import TrialError, UsageError
from repro.record.folder.store import RunFolder
from repro.runner.run import discarded_if_unstarted


@pytest.fixture
def handlers() -> Iterator[None]:
    # Default at first: under nohup SIGHUP is ignored, and stays so.
    before = {each: signal.signal(each, signal.SIG_DFL) for each in (signal.SIGTERM, signal.SIGHUP)}
    yield
    for each, handler in before.items():
        signal.signal(each, handler)


def ends(capsys: pytest.CaptureFixture[str]) -> tuple[object, str]:
    with pytest.raises(SystemExit) as end:
        command.main()
    return end.value.code, capsys.readouterr().err


@pytest.mark.usefixtures("handlers")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_before_a_run_begins_ends_like_ctrl_c(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command.cli, "main", lambda **_: os.kill(os.getpid(), number))
    assert ends(capsys) == (130, "interrupted\n")


@pytest.mark.usefixtures("handlers")
def test_an_ignored_signal_stays_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    monkeypatch.setattr(command.cli, "main", lambda **_: os.kill(os.getpid(), signal.SIGHUP))
    command.main()


@pytest.mark.usefixtures("handlers")
def test_a_removed_working_directory_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert ends(capsys) == (2, "error: the working directory was removed; change to one that exists\n")


@pytest.mark.usefixtures("handlers")
def test_an_error_of_the_file_system_names_the_file(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command.cli, "main", lambda **_: Path("n" * 300).stat())
    code, said = ends(capsys)
    assert code == 2 and said.startswith("error: nnn") and said.endswith("cannot be used: File name too long\n")


@pytest.mark.usefixtures("handlers")
@pytest.mark.parametrize(("arguments", "said"), [
    (["bench", "comm", "--seconds", "nan"], "'nan' is not a finite number"),
    (["show", "a", "b\x1b[31m"], r"unexpected extra argument (b\x1b[31m)"),
])
def test_a_wrong_argument_is_quoted_so_that_it_can_be_printed(
    arguments: list[str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command.sys, "argv", ["repro", *arguments])
    code, text = ends(capsys)
    assert code == 2 and said in text and "\x1b" not in text


@pytest.mark.parametrize(("place", "said"), [
    ("n" * 300, "File name too long"), ("\u00e9" * 200, "File name too long"), ("", "a path is empty"),
    ("ab/" * 2000, "File name too long"), ("a\0b", "no file system can"), ("\ud800", "no file system can"),
    ("/dev/null", "is a pipe, "),
    ("fifo", "is a pipe"), ("socket", "is a pipe"), ("loop", "cannot be used"),
])
def test_a_path_that_is_none_is_one_line(
    place: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkfifo("fifo")
    Path("loop").symlink_to("loop")
    with socket.socket(socket.AF_UNIX) as door:
        door.bind("socket")
        with pytest.raises(UsageError, match=said) as caught:
            check_place(place)
    assert len(str(caught.value)) < 200


def test_ordinary_paths_are_accepted(tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "new", tmp_path / ("n" * 255), "~", "runs/\u00e4 b", "\udcff"):
        check_place(place)


def test_a_run_that_never_started_leaves_no_folder(tmp_path: Path) -> None:
    for begun in (False, True):
        folder = RunFolder.create(tmp_path / f"run{begun}")
        if begun:
            folder.parity.mkdir()
        with pytest.raises(TrialError), discarded_if_unstarted(folder):
            raise TrialError("the fork server was killed")
        assert folder.root.exists() is begun
    kept = RunFolder.create(tmp_path / "interrupted")
    with pytest.raises(KeyboardInterrupt), discarded_if_unstarted(kept):
        raise KeyboardInterrupt
    assert kept.root.exists()
