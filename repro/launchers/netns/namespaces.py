"""Network namespaces without names: made by unshare, kept by open files, gone with the last process that uses them.

An ordinary user may make network namespaces inside a user namespace of its own, in which it has every capability; its
uid and gid stand for themselves there, so files look and behave as before. Needs no other program.
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
        None where that was allowed as it is (root); else an open file of the user namespace that it took.

    Raises:
        OSError: the kernel has no such namespaces, or this user may not make them.
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
    """An open file of this thread's network namespace."""
    return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)


def another() -> int:
    """An open file of a new network namespace; this thread stays where it is."""
    home = here()
    try:
        _call("unshare", _NEW_NET)
        made = here()
        _call("setns", home, _NEW_NET)
    finally:
        os.close(home)
    return made


def enter(user: int | None, net: int) -> None:
    """Move this process (one thread, where there is a user namespace to enter) into these namespaces."""
    if user is not None:
        _call("setns", user, _NEW_USER)
    _call("setns", net, _NEW_NET)


@contextmanager
def inside(net: int) -> Iterator[None]:
    """This thread in another network namespace for a while; a socket made there stays there."""
    home = here()
    try:
        _call("setns", net, _NEW_NET)
        yield
    finally:
        _call("setns", home, _NEW_NET)
        os.close(home)


def _write(file: str, text: str) -> None:
    # In one write each: the kernel takes these files whole.
    Path(file).write_text(text)


def _call(name: str, *arguments: int) -> None:
    """A system call that returns 0 or sets errno; Python itself has these two only since 3.12."""
    if getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments):
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
