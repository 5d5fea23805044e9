"""Evidence of why a launch failed: the last lines that a rank printed, OOM kills, a damaged log."""

from __future__ import annotations

import contextlib
import os
import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from repro.core.control_group import text_of
from repro.core.redact import HIDDEN, masked, secrets
from repro.seams.launching import LaunchResult, RankEnd

LINES = 3
LONGEST = 300
_READ = 8192

EXITED = re.compile(r"exit code \d+: (.+)", re.DOTALL)
"""The reason of a program that ended by an exception."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Log sizes and the kernel's count before a launch."""

    folder: Path
    sizes: dict[str, int]
    """Bytes of every rank's log, by name: attempts of one trial print into the same file."""
    oom_kills: int | None


def take_snapshot(folder: Path) -> Snapshot:
    """Record the sizes of the ranks' logs in `folder` and the kernel's count of OOM kills."""
    return Snapshot(folder, {path.name: path.lstat().st_size for path in folder.glob("rank*.log")}, oom_kills())


def explain(outcome: LaunchResult, before: Snapshot) -> LaunchResult:
    """Add the last lines of the rank that failed first to `outcome`, and its OOM kill if there was one."""
    first = outcome.first_failure
    if first is None or outcome.timed_out or outcome.hung:
        return outcome
    found = _with_oom_kill(first, before)
    found = replace(found, tail=tail(before, found.rank, found.reason))
    return replace(outcome, ends=tuple(found if end is first else end for end in outcome.ends))


def _with_oom_kill(end: RankEnd, before: Snapshot) -> RankEnd:
    """Mark a rank as out of memory if SIGKILL ended it while the kernel's count of OOM kills rose."""
    now = oom_kills()
    if end.exit_code != -signal.SIGKILL or now is None or before.oom_kills is None or now <= before.oom_kills:
        return end
    count = now - before.oom_kills
    reason = f"out of memory: killed by SIGKILL while the OOM killer ended {count} process{'es' if count > 1 else ''}"
    return replace(end, cause="out_of_memory", reason=reason)


def oom_kills() -> int | None:
    """Return the number of OOM kills since boot; None if the kernel does not report it."""
    lines = text_of(Path("/proc/vmstat")).splitlines()
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), None)


def tail(before: Snapshot, rank: int, reason: str) -> str:
    """Return the last lines that a rank printed since `before`, joined by " | ", without what `reason` contains."""
    path = before.folder / f"rank{rank}.log"
    start = before.sizes.get(path.name, 0)
    try:
        with path.open("rb") as stream:
            stream.seek(max(start, path.stat().st_size - _READ))
            text = stream.read(_READ).decode(errors="replace")
    except OSError:
        return ""
    lines = [line.strip() for line in masked(text).splitlines()]
    said = EXITED.match(reason)
    if said is not None and any(line.endswith(said[1]) for line in lines):
        return ""  # the exception that the reason has from these lines
    lines = [line for line in lines if line and line not in reason]
    if lines and reason and lines[-1].endswith(reason):
        return ""  # the traceback of the reason itself
    return " | ".join(lines[-LINES:])[-LONGEST:]


def mask_secrets(folder: Path) -> None:
    """Mask the environment's credentials in the printed output of the ranks.

    Libraries print the addresses they use, a traceback prints values, and logs are published unread. Called after the
    ranks have ended, because they write these files; a run that is killed with SIGKILL leaves them unmasked.
    """
    values = [value.encode() for value in secrets(os.environ)]
    for path in folder.glob("rank*.log") if values else ():
        with contextlib.suppress(OSError):
            _mask(path, values)


def _mask(path: Path, values: Sequence[bytes]) -> None:
    with path.open("rb") as source:
        if not any(value in line for line in source for value in values):
            return
        source.seek(0)
        aside = path.with_name(f".{path.name}.tmp")
        aside.unlink(missing_ok=True)
        with aside.open("xb") as target:
            for line in source:
                for value in values:
                    line = line.replace(value, HIDDEN.encode())
                target.write(line)
    aside.replace(path)
