"""Check that this kernel and user can build an emulated cluster, by building one in a short-lived process.

Run as `python -m repro.launchers.netns.probe`: prints {"problem", "netem"} as JSON. Needs no torch.
"""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass
from functools import cache
from ipaddress import IPv4Network
from pathlib import Path

import repro
from repro.launchers.netns.network import EmulatedNetwork, NetworkSpec

SYSCTLS = "user.max_user_namespaces, kernel.unprivileged_userns_clone, kernel.apparmor_restrict_unprivileged_userns"


@dataclass(frozen=True, slots=True)
class Ability:
    """Ability of this machine to run an emulated cluster."""

    problem: str = ""
    """Reason why it cannot; empty if it can."""
    netem: str = ""
    """Reason why links cannot be delayed; empty if they can."""


@cache
def ability() -> Ability:
    """Return the ability of this machine and user; probed once per process."""
    if sys.platform != "linux":
        return Ability(f"network namespaces need Linux; this is {sys.platform}")
    root = str(Path(repro.__file__).resolve().parents[1])
    path = os.pathsep.join(part for part in (root, os.environ.get("PYTHONPATH", "")) if part)
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONSAFEPATH": "1"}
    try:
        done = subprocess.run([sys.executable, "-m", __name__], capture_output=True, text=True, timeout=30,
                              check=False, env=environment)
    except subprocess.TimeoutExpired:
        return Ability("building an emulated network for a test took longer than 30 s")
    if done.returncode:
        return Ability((done.stderr.strip().splitlines() or ["the probe ended without a message"])[-1])
    return Ability(**json.loads(done.stdout))


def attempt() -> Ability:
    """Build a network of one node in this process, which must end afterwards."""
    try:
        from pyroute2.netlink.exceptions import NetlinkError
    except ImportError as error:
        return Ability(f"needs pyroute2 ({error}): pip install -c constraints.txt pyroute2")
    network = EmulatedNetwork(NetworkSpec(1e9, {}, IPv4Network("10.77.0.0/24")))
    try:
        network.build()
        network.grow(1)
    except (OSError, NetlinkError) as error:
        refused = [errno.EPERM, errno.EACCES]
        if network.step == "make a network namespace":
            refused += [errno.ENOSPC, errno.EINVAL]
        if _number(error) in refused:
            return Ability(f"cannot {network.step} ({_said(error)}): run as root, or allow user namespaces to users "
                           f"(sysctl: {SYSCTLS})")
        return Ability(f"this kernel cannot {network.step} ({_said(error)})")
    try:
        network.spec = NetworkSpec(1e9, {}, network.spec.subnet, delay_seconds=0.001)
        network.grow(2)
    except (OSError, NetlinkError) as error:
        return Ability(netem=f"this kernel cannot {network.step} ({_said(error)}), so delay cannot be added")
    return Ability()


def _said(error: Exception) -> str:
    number = _number(error)
    return str(error) if number is None else os.strerror(number)


def _number(error: Exception) -> int | None:
    """Return the error number, which pyroute2 calls `code`."""
    number = getattr(error, "errno", None) or getattr(error, "code", None)
    return number if isinstance(number, int) else None


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asdict(attempt())))
