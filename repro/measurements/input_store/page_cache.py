"""The kernel's page cache: evict a file from it, and read back how much of a file is in it."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]


def evict(files: Iterable[Path]) -> None:
    """Ask the kernel to drop the clean pages of files. File systems in memory keep them; `resident_share` tells."""
    for file in files:
        handle = os.open(file, os.O_RDONLY)
        try:
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(handle)


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
