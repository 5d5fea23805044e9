"""Users without privileges, for what they must be able to run."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]


def environment_of(folder: Path) -> dict[str, str]:
    """For another user's Python: with this one's libraries, and a home that it may write."""
    path = os.pathsep.join([str(ROOT), *(part for part in sys.path if part.endswith("site-packages"))])
    return {**os.environ, "PYTHONPATH": path, "TMPDIR": str(folder), "HOME": str(folder)}


def ordinary_users() -> list[Any]:
    """Users without privileges: this user, or as root one without capabilities, and another one."""
    if os.geteuid() != 0:
        return [pytest.param((), sys.executable, id="this user")]
    # A map of user 0 needs CAP_SETFCAP; a container's root usually has it, but not the one for namespaces.
    bare = ("setpriv", "--bounding-set=-all,+setfcap", "--inh-caps=-all")
    nobody = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
    minor = f"python3.{sys.version_info.minor}"
    found = [python for python in (sys.executable, shutil.which(minor, path="/usr/bin:/usr/local/bin")) if python and
             subprocess.run([*nobody, python, "-c", "import os, sys; os.stat(sys.executable)"], check=False,
                            capture_output=True).returncode == 0]
    missing = pytest.mark.skipif(not found, reason=f"no {minor} here that another user may run")
    return [pytest.param(bare, sys.executable, id="a container's root"),
            pytest.param(nobody, found[0] if found else "", id="nobody", marks=missing)]


def homeless() -> tuple[str, ...]:
    """The beginning of a command that runs as a user without a name and without a home folder.

    Skips the test where no namespace of users can be made.
    """
    found = ("unshare", "-U", "--map-user=54321", "env", "-u", "HOME")
    if shutil.which(found[0]) is None or subprocess.run([*found, "true"], check=False, capture_output=True).returncode:
        pytest.skip("no namespace of users can be made here")
    return found
