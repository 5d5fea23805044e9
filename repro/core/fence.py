"""A fence around a folder whose content may come from a stranger: below it no link is followed and no `..` is taken.

A run folder may come from a stranger: any file or folder in it may be a link, a pipe, or a second name of a file that
lies elsewhere. Every file of a run is therefore opened, written, renamed and removed by this module. It opens the
folders below the fence one by one and refuses a link at any step, so that not even a link that appears meanwhile leads
out. The folder itself is the user's choice, and may be reached over links.
"""

from __future__ import annotations

import contextlib
import errno
import fnmatch
import io
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from repro.core.errors import OutputError

LINK = "is a symbolic link; links are not followed"
ELSEWHERE = "leads out of its folder by `..`"
SECOND_NAME = "has a second name elsewhere (a hard link), which a change would reach; replace it by a copy"
NO_FILE = "is no plain file (a pipe, socket or device)"
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_fences: set[str] = set()
"""The absolute path of every fenced folder. They are only ever added, so that no code can forget one."""


def put_around(root: Path) -> None:
    """Fence a folder, which need not exist yet, for the rest of this process."""
    _fences.add(_absolute(root))


def open_handle(path: Path, flags: int, mode: int = 0o644) -> int:
    """Open a plain file; the caller closes the handle. Links are followed only where there is no fence.

    Raises:
        OSError: it cannot be opened or is no plain file; below a fence also: it is a link, or has a second name and
            would be changed.
    """
    place, how = _fenced(path), (flags & ~os.O_TRUNC) | os.O_NONBLOCK | os.O_CLOEXEC
    link = 0 if place is None else os.O_NOFOLLOW
    if place is None:
        handle = os.open(path, how, mode)
    else:
        folder, name = _enter(path, place)
        try:
            handle = os.open(name, how | link, mode, dir_fd=folder)
        except OSError as error:
            raise _told(error, path) from None
        finally:
            os.close(folder)
    try:
        found, writes = os.fstat(handle), flags & (os.O_WRONLY | os.O_RDWR)
        if not stat.S_ISREG(found.st_mode) and (link or not writes):  # reading a pipe could wait for ever
            raise OSError(errno.EINVAL, NO_FILE, str(path))
        if link and writes and found.st_nlink > 1:
            raise OSError(errno.EMLINK, SECOND_NAME, str(path))
        if flags & os.O_TRUNC and stat.S_ISREG(found.st_mode):
            os.ftruncate(handle, 0)
    except OSError:
        os.close(handle)
        raise
    return handle


def open_file(path: Path, mode: str = "rb", **how: Any) -> IO[Any]:
    """Open a plain file as `open` does, by `open_handle`.

    Raises:
        OSError: as `open_handle`.
    """
    def opener(_: str, flags: int) -> int:
        return open_handle(path, flags)

    return open(path, mode, opener=opener, **how)  # Path.open takes no opener


def open_text(path: Path, mode: str, **how: Any) -> io.TextIOWrapper:
    """Open a plain file as UTF-8 text.

    Raises:
        OSError: as `open_handle`.
    """
    stream = open_file(path, mode, encoding="utf-8", **how)
    assert isinstance(stream, io.TextIOWrapper)
    return stream


def read_bytes(path: Path) -> bytes:
    """Read a file of a trusted size.

    Raises:
        OSError: as `open_handle`.
    """
    with open_file(path) as stream:
        found: bytes = stream.read()
    return found


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file in place; for files that no reader expects to be complete at any moment.

    Raises:
        OSError: as `open_handle`.
    """
    with open_file(path, "wb") as stream:
        stream.write(data)


def replace_file(path: Path, data: bytes) -> None:
    """Replace a file by `data`, as `replacing` does.

    Raises:
        OSError: it cannot be written.
    """
    with replacing(path) as stream:
        stream.write(data)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """Write a temporary file, make it durable, rename it: a reader sees the old file or the new one, never a part.

    The temporary file is a new one: a link of its name is removed, not followed, in a folder without a fence too. An
    error inside the context leaves the old file.

    Raises:
        OSError: it cannot be written.
    """
    aside = f".{path.name}.tmp"
    with _parent(path) as (folder, name):
        try:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(aside, dir_fd=folder)  # of a writer that was killed, or a link
            handle = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666, dir_fd=folder)
            with open(handle, "wb") as stream:  # noqa: PTH123  # a handle, not a path
                yield stream
                stream.flush()
                os.fsync(stream.fileno())
            os.replace(aside, name, src_dir_fd=folder, dst_dir_fd=folder)
            os.fsync(folder)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(aside, dir_fd=folder)
            raise


def make_folder(path: Path, new: bool = False) -> None:
    """Make a folder and those above it; below a fence none of them may be a link.

    Args:
        new: refuse a folder that exists.

    Raises:
        OSError: it cannot be made; FileExistsError with `new`.
    """
    place = _fenced(path)
    if place is None:
        path.mkdir(parents=True, exist_ok=not new)
        return
    Path(place[0]).mkdir(parents=True, exist_ok=True)
    here, made = os.open(place[0], _FOLDER), True
    try:
        for name in place[1]:
            made = _make(here, name)
            here = _step(here, name, path)
        if new and not made:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
    finally:
        os.close(here)


def _make(folder: int, name: str) -> bool:
    """Make a folder unless there is something of that name."""
    try:
        os.mkdir(name, dir_fd=folder)
    except FileExistsError:
        return False
    return True


def rename(path: Path, to: Path) -> None:
    """Rename a file or folder, replacing a file.

    Raises:
        OSError: it cannot be renamed, or a folder on the way is a link.
    """
    with _parent(path) as (source, name), _parent(to) as (target, new):
        os.replace(name, new, src_dir_fd=source, dst_dir_fd=target)


def remove(path: Path) -> None:
    """Remove a file, or a link itself; do nothing if there is none.

    Raises:
        OSError: it cannot be removed, or a folder on the way is a link.
    """
    with contextlib.suppress(FileNotFoundError), _parent(path) as (folder, name):
        os.unlink(name, dir_fd=folder)


def remove_tree(path: Path) -> None:
    """Remove a folder with all that it holds; do nothing if there is none. A link in it is removed, not followed.

    Raises:
        OSError: something cannot be removed, or a folder on the way is a link.
    """
    with contextlib.suppress(FileNotFoundError), _parent(path) as (folder, name):
        _remove(folder, name)


def names(path: Path, pattern: str = "*") -> list[str]:
    """Return the sorted names in a folder that match a shell pattern; none if it is missing, no folder, or a link."""
    try:
        with _parent(path / "_") as (folder, _):
            found = os.listdir(folder)  # noqa: PTH208  # a handle, not a path
    except OSError:
        return []
    return sorted(name for name in found if fnmatch.fnmatchcase(name, pattern))


def intruders(root: Path) -> Iterator[tuple[Path, str]]:
    """Yield everything below a folder that is neither a folder nor a plain file, with the reason to refuse it.

    Nothing is opened and no link is followed.
    """
    waiting = [os.fspath(root)]
    while waiting:
        with contextlib.suppress(OSError), os.scandir(waiting.pop()) as listing:
            for entry in listing:
                if entry.is_symlink():
                    yield Path(entry.path), LINK
                elif entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
                elif not entry.is_file(follow_symlinks=False):
                    yield Path(entry.path), NO_FILE


def refuse_links(root: Path) -> None:
    """Check every name below a folder, before anything is read or written.

    Raises:
        OutputError: there is a link, a pipe, a socket or a device.
    """
    for path, reason in intruders(root):
        raise OutputError(f"{path}: {reason}: nothing is read or written; replace it by the file or folder itself")


def _remove(folder: int, name: str) -> None:
    try:
        inner = os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=folder)
    except OSError as error:
        if error.errno not in (errno.ENOTDIR, errno.ELOOP):
            raise
        os.unlink(name, dir_fd=folder)
        return
    try:
        for entry in os.listdir(inner):  # noqa: PTH208  # a handle, not a path
            _remove(inner, entry)
    finally:
        os.close(inner)
    os.rmdir(name, dir_fd=folder)


@contextlib.contextmanager
def _parent(path: Path) -> Iterator[tuple[int, str]]:
    """Yield a handle of the folder of `path`, reached without links below a fence, and the name in it."""
    folder, name = _enter(path, _fenced(path))
    try:
        yield folder, name
    finally:
        os.close(folder)


def _enter(path: Path, place: tuple[str, list[str]] | None) -> tuple[int, str]:
    """Return a handle of the folder of `path`, and the name in it; `place` is that of `_fenced`."""
    if place is None:
        return os.open(path.parent, _FOLDER), path.name
    here = os.open(place[0], _FOLDER)
    try:
        for name in place[1][:-1]:
            here = _step(here, name, path)
    except OSError:
        os.close(here)
        raise
    return here, place[1][-1]


def _step(here: int, name: str, path: Path) -> int:
    """Return a handle of the folder `name` in `here`, and close `here`."""
    try:
        inner = os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=here)
    except OSError as error:
        raise _told(error, path, here, name) from None
    os.close(here)
    return inner


def _told(error: OSError, path: Path, folder: int | None = None, name: str = "") -> OSError:
    """Return the error of an open in words of this module, if it met a link."""
    if error.errno == errno.ELOOP or (error.errno == errno.ENOTDIR and _is_link(folder, name)):
        return OSError(errno.ELOOP, LINK, str(path))
    return OSError(error.errno, os.strerror(error.errno or 0), str(path))


def _is_link(folder: int | None, name: str) -> bool:
    try:
        return folder is not None and stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
    except OSError:
        return False


def _absolute(path: Path) -> str:
    text = os.fspath(path)
    if text == ".":
        return os.getcwd()  # noqa: PTH109  # a Path takes ten times as long, and a record may have 100,000 files
    return text if text.startswith("/") else f"{os.getcwd()}/{text}"  # noqa: PTH109


def _fenced(path: Path) -> tuple[str, list[str]] | None:
    """Return the outermost fenced folder above `path` and the names below it; None: there is none.

    Raises:
        OSError: a name below the fence is `..`.
    """
    if not _fences:
        return None
    text = _absolute(path)
    end = text.find("/", 1)
    while end > 0:
        if text[:end] in _fences:
            below = text[end + 1:].split("/")
            if ".." in below:
                raise OSError(errno.EPERM, ELSEWHERE, text)
            return text[:end], below
        end = text.find("/", end + 1)
    return None
