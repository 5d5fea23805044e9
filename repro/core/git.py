"""Questions to git about a checkout."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

LIMIT_SECONDS = 60.0


def ask(folder: Path, *arguments: str, **environment: str) -> str | None:
    """Return what `git ARGUMENTS` prints in `folder`, without the last line end; None if it fails or is not installed.

    Args:
        environment: variables for git, in addition to those of this process.
    """
    try:
        done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=False,
                              timeout=LIMIT_SECONDS, stdin=subprocess.DEVNULL, env={**os.environ, **environment})
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None
    return done.stdout.rstrip("\n") if done.returncode == 0 else None
