"""Files that travel between nodes without a shared folder: each with its hash, in parts."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

from repro.core import door
from repro.launchers.nodes.channel import PART, Channel, LinkLost, Message

State = dict[str, tuple[int, int]]
"""Size and time of every file below a folder."""


def state(root: Path) -> State:
    return {path.relative_to(root).as_posix(): (path.stat().st_size, path.stat().st_mtime_ns) for path in _files(root)}


def changed(root: Path, before: State) -> list[str]:
    """Return the files below `root` that are new or other than `before`."""
    now = state(root)
    return [name for name in sorted(now) if before.get(name) != now[name]]


def send(channel: Channel, number: int, root: Path, names: Iterable[str]) -> None:
    """Send files below `root`, which belong to the launch `number`.

    Raises:
        LinkLost: the other side is gone.
    """
    for name in names:
        data = (root / name).read_bytes()
        channel.send("file", {"number": number, "name": name, "size": len(data),
                              "sha256": hashlib.sha256(data).hexdigest()})
        for at in range(0, len(data), PART):
            channel.send("part", {"number": number}, data[at : at + PART])


def all_below(root: Path) -> list[str]:
    """Return the names of all files below `root`; none if there is no such folder."""
    return sorted(path.relative_to(root).as_posix() for path in _files(root))


class Arrivals:
    """Files that come from another node, written below a folder of this one."""

    def __init__(self, root: Path) -> None:
        self._root, self._name, self._sha256, self._size = root, "", "", 0
        self._data = bytearray()

    def take(self, message: Message) -> None:
        """Take a message of kind `file` or `part`; write the file with its last part.

        Raises:
            LinkLost: the file is damaged, or its name leads out of the folder.
        """
        if message.kind == "file":
            self._name, self._size = str(message.content["name"]), int(message.content["size"])
            self._sha256, self._data = str(message.content["sha256"]), bytearray()
        else:
            self._data += message.body
        if len(self._data) == self._size:
            self._write()

    def _write(self) -> None:
        inside = PurePosixPath(self._name)
        if inside.is_absolute() or ".." in inside.parts or hashlib.sha256(self._data).hexdigest() != self._sha256:
            raise LinkLost(f"file {self._name!r} is damaged, or leads out of its folder")
        target = self._root / inside
        target.parent.mkdir(parents=True, exist_ok=True)
        with door.open_plain(target, "wb") as stream:
            stream.write(self._data)


def _files(root: Path) -> Iterator[Path]:
    return (path for path in root.rglob("*") if path.is_file() and not path.is_symlink())
