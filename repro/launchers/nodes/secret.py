"""The secret that lets a node join: from `REPRO_SECRET`, or from a file that only its owner can read."""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import stat
from pathlib import Path

from repro.core.errors import UsageError

VARIABLE = "REPRO_SECRET"
SHORTEST = 16
"""Characters."""


def place() -> Path:
    """Return the file of the secret; where the home folder is shared, all nodes have it."""
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "repro" / "secret"


def read(make: bool = False) -> str:
    """Return the secret.

    Args:
        make: write a new secret if there is none.

    Raises:
        UsageError: there is none, it is too short, or others can read its file.
    """
    text = os.environ.get(VARIABLE) or _of_file(place(), make)
    if len(text) < SHORTEST:
        raise UsageError(f"{VARIABLE} has fewer than {SHORTEST} characters; a process that guesses it can run code "
                         "here: use `openssl rand -hex 32`")
    return text


def key_of(text: str) -> bytes:
    """Return the key that proofs are made with."""
    return hashlib.sha256(b"repro nodes\n" + text.encode()).digest()


def _of_file(path: Path, make: bool) -> str:
    if make and not path.exists():
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):  # another run has just made it
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(handle, "w") as out:
                out.write(secrets.token_hex(32) + "\n")
    try:
        if path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise UsageError(f"{path}: others can read it; chmod 600 {path}")
        return path.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise UsageError(f"no secret here: copy {path} from the computer where repro run runs, or set {VARIABLE}"
                         ) from error
