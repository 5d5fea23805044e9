"""Unnamed network namespaces: made by unshare, kept by open files, removed with the last process that uses them.

An ordinary user may make network namespaces inside a new user namespace, in which it has every capability. Its uid and
gid map to themselves there, so files behave as before. No other program is needed.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_NEW_USER = 0x10000000
_NEW_NET = 0x40000000


def leave() -> int | None:
    """Move this process, which must have one thread, into a new network namespace.

    Returns:
        None if that was allowed directly (root); else an open file of the user namespace that was needed.

    Raises:
        OSError: the kernel has no such namespaces, or this user must not make them.
    """
    try:
        _call("unshare", _NEW_NET)
        return None
    except PermissionError:
        user, group = os.geteuid(), os.getegid()
    _call("unshare", _NEW_USER | _NEW_NET)
    _write("/proc/self/setgroups", "deny")
    _write("/proc/self/uid_map", f"{user} {user} 1")
    _write("/proc/self/gid_map", f"{group} {group} 1")
    return os.open("/proc/self/ns/user", os.O_RDONLY | os.O_CLOEXEC)


def here() -> int:
    """Return an open file of this thread's network namespace."""
    return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)


def another() -> int:
    """Return an open file of a new network namespace; this thread does not move."""
    home = here()
    try:
        _call("unshare", _NEW_NET)
        made = here()
        _call("setns", home, _NEW_NET)
    finally:
        os.close(home)
    return made


def enter(user: int | None, net: int) -> None:
    """Move this process into these namespaces; it must have one thread if there is a user namespace."""
    if user is not None:
        _call("setns", user, _NEW_USER)
    _call("setns", net, _NEW_NET)


@contextmanager
def inside(net: int) -> Iterator[None]:
    """Move this thread to another network namespace inside the block; a socket made there stays there."""
    home = here()
    try:
        _call("setns", net, _NEW_NET)
        yield
    finally:
        _call("setns", home, _NEW_NET)
        os.close(home)


def _write(file: str, text: str) -> None:
    # One write each: the kernel accepts no partial writes to these files.
    Path(file).write_text(text)


def _call(name: str, *arguments: int) -> None:
    """Make a system call that returns 0 or sets errno; Python has these two only since 3.12."""
    if getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments):
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
