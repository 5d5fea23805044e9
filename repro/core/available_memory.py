"""Memory that this process may still take: of the machine, and within the limits of its control groups."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil

CGROUP = Path("/sys/fs/cgroup")
OWN = Path("/proc/self/cgroup")


def available_memory() -> int:
    """Return bytes: the least of what the kernel calls available and what each control group has left."""
    return max(0, min([psutil.virtual_memory().available, *_left()]))


def _left() -> Iterator[int]:
    """Yield what is left below the limit of each control group of this process, of version 2 and 1."""
    for line in _lines(OWN):
        _, kinds, path = (*line.split(":", 2), "", "")[:3]
        if kinds and "memory" not in kinds.split(","):
            continue
        top, limit, used = (CGROUP / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes") if kinds else (
            CGROUP, "memory.max", "memory.current")
        own = top / path.lstrip("/")
        # In a container the path may be the host's, and only the top is visible.
        for folder in dict.fromkeys((own, *(item for item in own.parents if item.is_relative_to(top)), top)):
            with suppress(ValueError, IndexError):  # no such file, or "max"
                yield int(_lines(folder / limit)[0]) - int(_lines(folder / used)[0]) + _reclaimable(folder)


def _reclaimable(folder: Path) -> int:
    """Return the bytes of cached files that count as used and that the kernel drops first."""
    found = re.findall(r"^(?:total_)?inactive_file (\d+)$", "\n".join(_lines(folder / "memory.stat")), re.MULTILINE)
    return max(map(int, found), default=0)


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except (OSError, UnicodeDecodeError):
        return []
