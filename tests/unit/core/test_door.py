"""What a stranger may have planted is refused at the door; a folder that others can change is copied first."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from repro.bundle.source import is_foreign, open_record
from repro.core import door
from repro.core.errors import OutputError
from repro.core.files import read_bounded, write_text


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder of a stranger, next to one of the user."""
    (tmp_path / "home").mkdir()
    (tmp_path / "home/file").write_text("mine")
    (tmp_path / "run/sub").mkdir(parents=True)
    (tmp_path / "run/sub/file").write_text("theirs")
    return tmp_path / "run"


PLANTED: dict[str, Callable[[Path], None]] = {
    "link": lambda path: path.symlink_to("../../home/file"),
    "linked folder": lambda path: path.symlink_to("../../home"),
    "broken link": lambda path: path.symlink_to("nowhere"),
    "pipe": os.mkfifo,
    "socket": lambda path: os.mknod(path, stat.S_IFSOCK | 0o600),
}


@pytest.mark.parametrize("what", PLANTED)
def test_what_is_no_file_is_refused_wherever_it_lies(root: Path, tmp_path: Path, what: str) -> None:
    PLANTED[what](root / "sub/planted")
    reason = "is no plain file" if what in ("pipe", "socket") else "is a symbolic link"
    with pytest.raises(OutputError, match=f"run/sub/planted: {reason}"):
        door.refuse_links(root)
    with pytest.raises(OutputError, match=f"run/sub/planted: {reason}|cannot|No such device"):
        door.copy_private(root, tmp_path / "copy")
    assert [path for path, _ in door.intruders(root)] == [root / "sub/planted"]


def test_the_folder_itself_may_be_reached_over_a_link(root: Path) -> None:
    (root.parent / "latest").symlink_to(root)
    door.refuse_links(root.parent / "latest")
    assert not door.is_shared(root.parent / "latest")


def test_a_folder_that_others_can_change_is_used_as_a_copy(root: Path) -> None:
    with open_record(root) as place:
        assert place == root
    (root / "sub").chmod(0o777)
    assert door.is_shared(root) and is_foreign(root)
    with open_record(root) as place:
        assert place != root and place.name == "run" and not door.is_shared(place)
        (root / "sub/file").unlink()
        (root / "sub/file").symlink_to("../../home/file")  # the stranger goes on
        assert (place / "sub/file").read_text() == "theirs"
    assert not place.exists()


@pytest.mark.parametrize("change", [lambda path: path.chmod(0o666), lambda path: os.chown(path, 4711, 4711)])
def test_a_single_file_that_others_can_change_makes_the_folder_theirs(
    root: Path, change: Callable[[Path], None]
) -> None:
    try:
        change(root / "sub/file")
    except PermissionError:
        pytest.skip("only the administrator can give a file away")
    assert door.is_shared(root)


def test_a_copy_is_bounded(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "MAX_COPY_BYTES", 5)
    with pytest.raises(OutputError, match="GiB to copy"):
        door.copy_private(root, tmp_path / "large")
    monkeypatch.setattr(door, "MAX_ENTRIES", 1)
    with pytest.raises(OutputError, match="more than 1 files"):
        door.copy_private(root, tmp_path / "many")
    with pytest.raises(OutputError, match="more than 1 files"):
        door.refuse_links(root)


def test_a_pipe_does_not_block_and_a_second_name_is_not_changed(root: Path) -> None:
    os.link(root.parent / "home/file", root / "hard")
    (root / "link").symlink_to("../home/file")
    os.mkfifo(root / "pipe")
    for name, reason in ("hard", "second name elsewhere"), ("link", "symbolic link"), ("pipe", "no plain file|device"):
        for mode in ("ab", "wb", "r+b"):
            with pytest.raises(OSError, match=reason):
                door.open_plain(root / name, mode)
    with pytest.raises(OutputError, match="no plain file"):
        read_bounded(root / "pipe")
    assert read_bounded(root / "hard") == b"mine"
    for name in ("hard", "link", ".new.tmp"):
        (root / ".new.tmp").unlink(missing_ok=True)
        (root / ".new.tmp").symlink_to("../home/file")
        write_text(root / name.strip(".").removesuffix(".tmp"), "new")  # a new file takes the name
    assert (root.parent / "home/file").read_text() == "mine" and (root / "new").read_text() == "new"
