"""Commands that start agents on other nodes (ssh, srun) and run as long as those."""

from __future__ import annotations

import os
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from repro.core.errors import UsageError

HOSTS, SSH = "REPRO_HOSTS", "REPRO_SSH"
"""Variables: hosts with commas between, and the command before a host's name."""
DEFAULT_SSH = "ssh -o BatchMode=yes -o ConnectTimeout=10"


@dataclass(slots=True)
class Starts:
    """The commands that were started for one run."""

    _started: list[tuple[str, subprocess.Popen[str], float]] = field(default_factory=list)
    _problem: str = ""

    def start(
        self, name: str, command: Sequence[str], environment: Mapping[str, str] | None = None, stdin: str = ""
    ) -> None:
        """Start a command.

        Args:
            name: for messages.
            stdin: what it can read, because everybody can read its arguments.

        Raises:
            UsageError: there is no such command.
        """
        try:
            process = subprocess.Popen(command, env=environment, text=True, stdin=subprocess.PIPE,
                                       stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        except OSError as error:
            raise UsageError(f"{command[0]}: {error.strerror}") from error
        assert process.stdin is not None
        with process.stdin:
            process.stdin.write(stdin)
        process.stdin = None  # `communicate` would flush it
        self._started.append((name, process, time.monotonic()))

    def problem(self) -> str:
        """Return why a command has ended although the run goes on; "" if none has."""
        for name, process, begin in self._started:
            if not self._problem and process.poll() is not None:
                told = process.communicate()[1].strip().splitlines()
                self._problem = (f"{name} ended with exit code {process.returncode} after "
                                 f"{time.monotonic() - begin:.0f} s{': ' + told[-1] if told else ''}")
        return self._problem

    def close(self, seconds: float) -> None:
        """Wait for the commands, whose agents have been told that the run is over; end those that do not end."""
        for _, process, _ in self._started:
            if process.stderr is None or process.stderr.closed:
                continue
            try:
                process.communicate(timeout=seconds)
            except subprocess.TimeoutExpired:
                process.terminate()
                process.communicate()
        self._started.clear()


def hosts(wanted: int) -> list[str]:
    """Return the hosts on which agents are to be started by ssh; none: the user starts them.

    Args:
        wanted: nodes beside this one.

    Raises:
        UsageError: the list has a host twice, or too few.
    """
    found = [host.strip() for host in os.environ.get(HOSTS, "").split(",") if host.strip()]
    if twice := [host for host in found if found.count(host) > 1]:
        raise UsageError(f"{HOSTS} names {twice[0]} twice; each node has one agent")
    if found and len(found) < wanted:
        raise UsageError(f"{HOSTS} names {len(found)} hosts, and {wanted} nodes beside this one are needed; leave this "
                         "one out and name the others")
    if wrong := [host for host in found if host.startswith("-")]:
        raise UsageError(f"{HOSTS}: {wrong[0]!r} is no host")
    return found[:wanted]


def ssh(host: str, port: int, wait_seconds: float) -> list[str]:
    """Return the command that starts an agent on a host; it reads the secret from its standard input."""
    agent = [sys.executable, "-m", "repro", "agent", "--join", f"{_own_address(host)}:{port}", "--wait",
             f"{wait_seconds:g}", "--secret-stdin"]
    return [*shlex.split(os.environ.get(SSH) or DEFAULT_SSH), host, shlex.join(agent)]


def _own_address(host: str) -> str:
    """Return the address of this computer on the way to a host."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(host.rpartition("@")[2], 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as way:
            way.connect(address)  # sends nothing
            return str(way.getsockname()[0])
    except OSError as error:
        raise UsageError(f"{HOSTS}: {host} cannot be found: {error.strerror}") from error
