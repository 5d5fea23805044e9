"""The command line that calls `repro` on this machine, for messages that name the next step."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path


def command(arguments: str) -> str:
    """Return `repro ARGUMENTS`; with the path of the script if it is not on the PATH (no activated environment)."""
    script = Path(sys.executable).with_name("repro")
    if shutil.which("repro") or not script.exists():
        return f"repro {arguments}"
    return f"{os.path.relpath(script)} {arguments}"
