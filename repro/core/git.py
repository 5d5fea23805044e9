"""What a git repository holds, read without starting a command that the repository names.

The folder of a program may be a stranger's. Its `.git/config` can name hooks, a file system monitor, filters and
transports, each a command; looking at a suite must start none of them.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

GIT_SECONDS = 60.0
# A repository's own configuration can name commands. None of these keys is needed to read what it holds; filters, which
# have any name, act only where git compares or writes files, which is not asked of it for the folder of a program.
_WITHOUT_COMMANDS = ("-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null", "-c", "protocol.allow=never")
_WITHOUT_FETCHING = {"GIT_NO_LAZY_FETCH": "1", "GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0"}


def ask_git(folder: Path, *arguments: str) -> str | None:
    """Return what `git ARGUMENTS` prints in `folder`, without the last line end; None if it fails or is not installed.

    No hook, monitor or transport that the repository's configuration names is started.
    """
    found = _git(folder, arguments, b"")
    return None if found is None else found.decode(errors="replace").rstrip("\n")


def _git(folder: Path, arguments: Sequence[str], given: bytes) -> bytes | None:
    try:
        done = subprocess.run(["git", *_WITHOUT_COMMANDS, "-C", str(folder), *arguments], capture_output=True,
                              check=False, timeout=GIT_SECONDS, input=given, env={**os.environ, **_WITHOUT_FETCHING})
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


class GitFile(NamedTuple):
    """A file of a commit."""

    mode: str
    """`100644`; `100755` of a file that can be executed; `120000` of a link, whose blob is its target; `160000` of a
    submodule, which has no blob here."""
    blob: str
    """Hash of its content as git stores it."""


def git_files(folder: Path, tree: str, paths: Sequence[str] = ()) -> dict[str, GitFile] | None:
    """Return path -> file of a tree of the repository of `folder`; None if git does not know the tree.

    Args:
        paths: relative to `folder`; (): all files of the tree, by their paths in it.
    """
    found = _git(folder, ["ls-tree", "-r", "-z", tree, *(("--", *paths) if paths else ())], b"")
    if found is None:
        return None
    listed = {}
    for entry in filter(None, os.fsdecode(found).split("\0")):
        about, _, path = entry.partition("\t")
        mode, _kind, blob = about.split()
        listed[path] = GitFile(mode, blob)
    return listed


def git_blobs(folder: Path, blobs: Sequence[str]) -> dict[str, bytes] | None:
    """Return hash -> content of blobs, as git stores it: no filter is started; None if git cannot read one."""
    answer = _git(folder, ["cat-file", "--batch"], "".join(f"{blob}\n" for blob in blobs).encode())
    found, place = dict[str, bytes](), 0
    while answer is not None and place < len(answer):
        end = answer.index(b"\n", place)
        blob, kind, *size = answer[place:end].decode().split()
        if kind != "blob":
            return None
        place = end + 1 + int(size[0])
        found[blob] = answer[end + 1:place]
        place += 1  # a line end follows the content
    return found if answer is not None and found.keys() >= set(blobs) else None


def git_hash(content: bytes, like: str) -> str:
    """Return the hash that git gives to a blob of this content, by the algorithm of the hash `like`."""
    algorithm = hashlib.sha1 if len(like) == 40 else hashlib.sha256
    return algorithm(b"blob %d\0%b" % (len(content), content), usedforsecurity=False).hexdigest()
