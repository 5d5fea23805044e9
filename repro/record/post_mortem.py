"""Why a launch failed, as far as the machine can tell afterwards: what the rank printed last, what the kernel did."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from repro.core.events import TOKEN, complete_lines, parse_line
from repro.core.redact import HIDDEN, masked, secrets
from repro.seams.launching import LaunchResult, RankEnd

FIRST, LAST = "cache_clear", "x_effective"
"""The events that a worker's log begins and ends with."""
LINES = 3
LONGEST = 300
_READ = 8192


@dataclass(frozen=True, slots=True)
class Before:
    """How things stood before a launch."""

    folder: Path
    sizes: dict[str, int]
    """Bytes by name of every rank's log: attempts of one trial print into the same file."""
    oom_kills: int | None


def before(folder: Path) -> Before:
    """Take note of the ranks' logs in `folder` and of the kernel's count."""
    return Before(folder, {path.name: path.stat().st_size for path in folder.glob("rank*.log")}, oom_kills())


def explained(outcome: LaunchResult, then: Before) -> LaunchResult:
    """The outcome with the last words of the rank that failed first, and with the kernel's part where it had one."""
    cause = outcome.cause
    if cause is None or outcome.timed_out or outcome.hung:
        return outcome
    reason = _by_the_kernel(cause, then) or cause.reason
    told = replace(cause, reason=reason, tail=tail(then, cause.rank, reason))
    return replace(outcome, ends=tuple(told if end is cause else end for end in outcome.ends))


def _by_the_kernel(end: RankEnd, then: Before) -> str:
    """A rank that was killed while the kernel was ending processes for want of memory."""
    now = oom_kills()
    if end.exit_code != -signal.SIGKILL or now is None or then.oom_kills is None or now <= then.oom_kills:
        return ""
    ended = now - then.oom_kills
    return f"out of memory: killed by SIGKILL while the kernel ended {ended} process(es) for want of memory"


def oom_kills() -> int | None:
    """Processes that the kernel has killed since boot because memory ran out; None: it does not say."""
    try:
        lines = Path("/proc/vmstat").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), None)


def tail(then: Before, rank: int, reason: str = "") -> str:
    """The last lines that a rank printed since `then`, joined by " | "; without what `reason` says already."""
    path = then.folder / f"rank{rank}.log"
    start = then.sizes.get(path.name, 0)
    try:
        with path.open("rb") as stream:
            stream.seek(max(start, path.stat().st_size - _READ))
            text = stream.read(_READ).decode(errors="replace")
    except OSError:
        return ""
    lines = [line.strip() for line in masked(text).splitlines()]
    lines = [line for line in lines if line and line not in reason]
    return " | ".join(lines[-LINES:])[-LONGEST:]


def hide(folder: Path) -> None:
    """Take the environment's credentials out of what the ranks of a launch printed.

    Libraries print the addresses they use, and a traceback the values it was about; nobody reads a thousand logs before
    passing them on. While the ranks live the files are theirs; a run that is killed outright leaves them as they are.
    """
    values = [value.encode() for value in secrets(os.environ)]
    for path in sorted(folder.glob("rank*.log")) if values else ():
        with contextlib.suppress(OSError):
            _hide(path, values)


def _hide(path: Path, values: Sequence[bytes]) -> None:
    with path.open("rb") as source:
        if not any(value in line for line in source for value in values):
            return
        source.seek(0)
        aside = path.with_name(f".{path.name}.tmp")
        with aside.open("wb") as target:
            for line in source:
                for value in values:
                    line = line.replace(value, HIDDEN.encode())
                target.write(line)
    aside.replace(path)


def damage(log: Path) -> str:
    """What is wrong with the log of a trial whose ranks all ended well; "" when it is whole.

    Lines that no longer start where they should, or cannot be read, were touched from outside: a trial whose log has
    lost an evaluation could be given a later time than it took.
    """
    first = last = ""
    lines = bad = 0
    try:
        with log.open("rb") as stream:
            size = stream.seek(0, os.SEEK_END)
            stream.seek(max(0, size - 1))
            if stream.read(1) != b"\n":
                return "its log ends in the middle of a line"
        for line in complete_lines(log):
            lines += 1
            event = parse_line(line) if line.startswith(TOKEN) else None
            bad += event is None
            last = event.key if event else ""
            first = first or last
    except OSError as error:
        return f"its log cannot be read: {error.strerror}"
    if bad:
        return f"{bad} of {lines} lines of its log are damaged"
    if first != FIRST or last != LAST:
        return f"its log does not go from {FIRST} to {LAST}"
    return ""
