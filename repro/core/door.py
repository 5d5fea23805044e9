"""The door: how a folder that another person may have made enters a command. Behind it plain code reads and writes.

Every name below such a folder is checked before anything in it is used: a link, a pipe, a socket or a device is refused
(`refuse_links`). Where somebody else may still change it (`is_shared`), a private copy is checked and used instead. The
path of the folder itself is the user's choice and may contain links. A run that this process writes is its own.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Container, Iterator
from itertools import islice
from pathlib import Path
from typing import IO, Any

from repro.core.errors import OutputError

LINK = "is a symbolic link; links are not followed"
SECOND_NAME = "has a second name elsewhere (a hard link), which a change would reach; replace it by a copy"
NO_FILE = "is no plain file (a pipe, socket or device)"
MAX_ENTRIES, MAX_DEPTH = 200_000, 32
"""Most files and folders below a folder that is copied, or that others' results are imported from; levels of a copy."""
MAX_COPY_BYTES = 8 << 30


def walk(root: Path, skipped: Container[str] = ()) -> Iterator[tuple[Path, str]]:
    """Yield every file below a folder, by path, with the reason to refuse it or "". No link is followed.

    A folder that cannot be read, or whose name is in `skipped`, is yielded with a reason as well.

    Raises:
        OutputError: there are more than MAX_ENTRIES files and folders.
    """
    return ((Path(place), reason) for place, reason in _walked(root, skipped))


def _walked(root: Path, skipped: Container[str] = ()) -> Iterator[tuple[str, str]]:
    waiting, count = [os.fspath(root)], 0
    while waiting:
        place = waiting.pop()
        try:
            with os.scandir(place) as listing:
                entries = sorted(islice(listing, MAX_ENTRIES + 1), key=lambda entry: entry.name)
        except OSError as error:
            yield place, f"the folder cannot be read: {error.strerror}"
            continue
        count += len(entries)
        if count > MAX_ENTRIES:
            raise OutputError(f"{root}: has more than {MAX_ENTRIES:,} files; give the folder of results inside it")
        folders = []
        for entry in entries:
            if entry.is_symlink():
                yield entry.path, LINK
            elif entry.is_dir(follow_symlinks=False):
                if entry.name in skipped:
                    yield entry.path, "a folder of version control; it is not read"
                else:
                    folders.append(entry.path)
            else:
                yield entry.path, "" if entry.is_file(follow_symlinks=False) else NO_FILE
        waiting += reversed(folders)


def intruders(root: Path) -> Iterator[tuple[Path, str]]:
    """Yield everything below a folder that is neither a folder nor a plain file, with the reason to refuse it."""
    return ((Path(place), reason) for place, reason in _walked(root) if reason in (LINK, NO_FILE))


def refuse_links(root: Path) -> None:
    """Check every name below a folder, before anything is read or written.

    Raises:
        OutputError: there is a link, a pipe, a socket or a device.
    """
    for path, reason in intruders(root):
        raise OutputError(f"{path}: {reason}: nothing is read or written; replace it by the file or folder itself")


def is_shared(root: Path) -> bool:
    """Return whether somebody else may change a folder while it is read.

    That is so where anything in it belongs to neither this user nor the administrator, or may be written by everybody.
    """
    mine = (os.geteuid(), 0)
    waiting = [os.fspath(root)]
    states = [root.stat()]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as listing:
                entries = list(listing)
        except OSError:
            continue  # what cannot be listed cannot be read either
        for entry in entries:
            states.append(entry.stat(follow_symlinks=False))
            if entry.is_dir(follow_symlinks=False):
                waiting.append(entry.path)
        if any(state.st_uid not in mine or (state.st_mode & stat.S_IWOTH and not stat.S_ISLNK(state.st_mode))
               for state in states):
            return True
        states.clear()
    return False


def copy_private(root: Path, to: Path) -> None:
    """Copy a folder that others may change meanwhile into the new folder `to`, which only this user can enter.

    Raises:
        OutputError: there is a link, a pipe, a socket or a device; it is too large, too deep or cannot be read.
    """
    try:
        to.mkdir(mode=0o700)
        count = size = 0
        for place, folders, files, handle in os.fwalk(root):
            inner = Path(place).relative_to(root)
            count += len(folders) + len(files)
            if count > MAX_ENTRIES or len(inner.parts) > MAX_DEPTH:
                raise OutputError(f"{root}: has more than {MAX_ENTRIES:,} files, or {MAX_DEPTH} levels of folders")
            for name in folders:
                if stat.S_ISLNK(os.stat(name, dir_fd=handle, follow_symlinks=False).st_mode):
                    raise OSError(errno.ELOOP, LINK, str(root / inner / name))
                (to / inner / name).mkdir(mode=0o700)
            for name in files:
                size += _copy_file(root / inner / name, handle, to / inner / name, MAX_COPY_BYTES - size)
    except OSError as error:
        raise OutputError(f"{error.filename or root}: {error.strerror}: nothing is read or written") from error


def _copy_file(path: Path, folder: int, to: Path, room: int) -> int:
    """Copy a plain file out of an open folder, at most `room` bytes; return its size."""
    with open(path, "rb", opener=lambda _, flags: open_handle(path, flags | os.O_NOFOLLOW, folder)) as source, \
            to.open("xb") as target:
        size = os.fstat(source.fileno()).st_size
        if size > room:
            raise OSError(errno.EFBIG, f"more than {MAX_COPY_BYTES >> 30} GiB to copy", str(path))
        left = size  # it may grow meanwhile
        while left and (piece := source.read(min(left, 1 << 20))):
            target.write(piece)
            left -= len(piece)
    return size


def open_handle(path: str | Path, flags: int, folder: int | None = None) -> int:
    """Open a plain file; the caller closes the handle. A file to be written may be no link and have no second name.

    Args:
        folder: handle of the folder of `path`; None: it is opened by its path.

    Raises:
        OSError: it cannot be opened, or is no such file.
    """
    writes = flags & (os.O_WRONLY | os.O_RDWR)
    how = (flags & ~os.O_TRUNC) | os.O_CLOEXEC | os.O_NONBLOCK | (os.O_NOFOLLOW if writes else 0)  # a pipe would block
    try:
        handle = os.open(path if folder is None else Path(path).name, how, 0o644, dir_fd=folder)
    except OSError as error:
        raise OSError(error.errno, LINK if error.errno == errno.ELOOP else error.strerror, str(path)) from None
    try:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, NO_FILE, str(path))
        if writes and found.st_nlink > 1:
            raise OSError(errno.EMLINK, SECOND_NAME, str(path))
        if flags & os.O_TRUNC:
            os.ftruncate(handle, 0)
    except OSError:
        os.close(handle)
        raise
    return handle


def open_plain(path: Path, mode: str = "rb", **how: Any) -> IO[Any]:
    """Open a plain file as `open` does, by `open_handle`.

    Raises:
        OSError: as `open_handle`.
    """
    return open(path, mode, opener=lambda _, flags: open_handle(path, flags), **how)  # Path.open takes no opener
