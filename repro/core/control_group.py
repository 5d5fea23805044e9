"""The control group of this process (container, slice, job), version 1 or 2: what the kernel lets it use."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path

LIMITS = {"cpu.max": ("cpu", "cpu.max"), "memory.max": ("memory", "memory.max"),
          "cpuset.cpus": ("cpuset", "cpuset.cpus.effective"), "cpu.cfs_quota_us": ("cpu", "cpu.cfs_quota_us"),
          "cpu.cfs_period_us": ("cpu", "cpu.cfs_period_us"),
          "memory.limit_in_bytes": ("memory", "memory.limit_in_bytes"), "pids.max": ("pids", "pids.max")}
"""Name -> controller and file."""
MICROSECONDS = {"throttled_usec": 1, "throttled_time": 1000}
"""Of `cpu.stat`, version 2 and 1: key -> its unit's part of a microsecond."""


def folders(controller: str, root: Path = Path("/")) -> Iterator[Path]:
    """Yield the folder of this process's group, and those of the groups around it, the innermost first.

    In a container the name of the group cannot be seen, and its folder is the outermost.
    """
    for line in text_of(root / "proc/self/cgroup").splitlines():
        controllers, _, group = line.partition(":")[2].partition(":")
        if controllers and controller not in controllers.split(","):
            continue
        inside, top = Path(group.lstrip("/")), root / "sys/fs/cgroup"
        for base in (top / controllers,) if controllers else (top, top / "unified"):
            yield from (base / place for place in dict.fromkeys((inside, *inside.parents)))


def limits(root: Path = Path("/")) -> dict[str, str]:
    """Return the limits of this process in the kernel's notation: of each the tightest of the groups that it is in."""
    found = {}
    for name, (controller, file) in LIMITS.items():
        texts = (text_of(place / file).partition("\n")[0].strip() for place in folders(controller, root))
        if stated := [text for text in texts if text]:
            found[name] = stated[0] if controller == "cpuset" else min(stated, key=_amount)
    return found


def cores(stated: Mapping[str, str]) -> float:
    """Return how many cores' time some limits allow; infinity without a limit."""
    quota = stated.get("cpu.max") or f"{stated.get('cpu.cfs_quota_us', 'max')} {stated.get('cpu.cfs_period_us', 1)}"
    return _amount(quota)


def _amount(stated: str) -> float:
    """Return a limit, or a quota over its period, as a number."""
    first, _, second = stated.partition(" ")
    return int(first) / int(second or 1) if first.isdecimal() else math.inf  # "max", or -1 in version 1


def held_back_seconds(root: Path = Path("/")) -> float:
    """Return the seconds for which a limit of processor time has held this process's group, or one around it, back."""
    found = 0.0
    for place in folders("cpu", root):
        for row in text_of(place / "cpu.stat").splitlines():
            key, _, value = row.partition(" ")
            if key in MICROSECONDS and value.isdecimal():
                found += int(value) / MICROSECONDS[key] / 1e6
    return found


def text_of(path: Path) -> str:
    """Return a file of the kernel; "" if it has none."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
