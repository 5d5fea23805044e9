"""The kernel's page cache: evict a file from it, and read back how much of a file is in it."""

from __future__ import annotations

import ctypes
import mmap
import os
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]


def evict(files: Sequence[Path]) -> None:
    """Drop the clean pages of files from the page cache.

    A page that another processor has just used stays at the first request, so it is repeated for a second. File systems
    in memory keep all pages; `resident_share` tells.
    """
    until, left = time.monotonic() + 1, list(files)
    while left and time.monotonic() < until:
        for file in left:
            handle = os.open(file, os.O_RDONLY)
            try:
                os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(handle)
        left = [file for file in left if resident_share([file])]


def resident_share(files: Iterable[Path]) -> float:
    """Return the share of the files' pages that are in the page cache, from 0 to 1 (mincore(2)).

    Raises:
        OSError: the kernel refuses.
    """
    found = pages = 0
    for file in files:
        with file.open("rb") as source, mmap.mmap(source.fileno(), 0, prot=mmap.PROT_READ) as mapped:
            view = np.frombuffer(mapped, np.uint8)
            states = np.zeros(-(-len(view) // mmap.PAGESIZE), np.uint8)
            if _LIBC.mincore(view.ctypes.data, len(view), states.ctypes.data):
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(file))
            found, pages = found + int((states & 1).sum()), pages + len(states)
            del view  # the map can be closed only without it
    return found / pages if pages else 0.0
