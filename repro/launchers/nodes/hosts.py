"""Hosts on which agents are started: from the user's list, or from the allocation of a scheduler."""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import shlex
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from repro.core.errors import Exit, UsageError
from repro.core.machine import user_folder

SECRET = "REPRO_SECRET"
SHORTEST = 16
"""Characters."""


def secret_file() -> Path:
    """Return the file of the secret; where the home folder is shared, all nodes have it."""
    return user_folder("XDG_CONFIG_HOME", ".config") / "repro" / "secret"


def read_secret(make: bool = False) -> str:
    """Return the secret.

    Args:
        make: write a new secret if there is none.

    Raises:
        UsageError: there is none, it is too short, or others can read its file.
    """
    text = os.environ.get(SECRET) or _of_file(secret_file(), make)
    if len(text) < SHORTEST:
        raise UsageError(f"{SECRET} has fewer than {SHORTEST} characters; a process that guesses it can run code "
                         "here: use `openssl rand -hex 32`")
    return text


def key_of(text: str) -> bytes:
    """Return the key that proofs are made with."""
    return hashlib.sha256(b"repro nodes\n" + text.encode()).digest()


def _of_file(path: Path, make: bool) -> str:
    if make and not path.exists():
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with suppress(FileExistsError):  # another run has just made it
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(handle, "w") as out:
                out.write(secrets.token_hex(32) + "\n")
    try:
        if path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise UsageError(f"{path}: others can read it; chmod 600 {path}")
        return path.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise UsageError(f"no secret here: start `repro run` first, which makes {path}; on another computer copy that "
                         f"file, or set {SECRET} on both") from error


HOSTS, SSH = "REPRO_HOSTS", "REPRO_SSH"
"""Variables: hosts with commas between or @FILE, and the command before a host's name."""
DEFAULT_SSH = "ssh -o BatchMode=yes -o ConnectTimeout=10"
SCHEDULERS = {"PBS_NODEFILE": DEFAULT_SSH, "LSB_DJOB_HOSTFILE": "blaunch"}
"""Variable that names the file of a job's hosts, a line for each slot, and the command that starts something on one:
PBS (and its relatives), LSF."""


@dataclass(frozen=True, slots=True)
class Hosts:
    """Hosts beside this one, and how something is started on them."""

    names: tuple[str, ...]
    source: str
    """The variable that they are from."""
    command: tuple[str, ...]

    def agent(self, host: str, port: int, wait_seconds: float) -> list[str]:
        """Return the command that starts an agent on a host; it reads the secret from its standard input.

        Raises:
            UsageError: the host cannot be found.
        """
        own = _own_address(host, self.source)
        join = f"[{own}]:{port}" if ":" in own else f"{own}:{port}"
        return [*self.command, host, shlex.join([*agent_command(join, wait_seconds, host), "--secret-stdin"])]


SETUP = "REPRO_SETUP"
"""Variable: a shell line that runs before `repro` in a job and before each agent that a run starts."""
RUN_SETUP = (f'eval "${SETUP}" </dev/null || {{ echo "error: {SETUP} failed with exit code $?: ${SETUP}" >&2; '
             f'exit {int(Exit.USAGE)}; }}')
"""It reads nothing: the secret comes on standard input."""


def agent_command(address: str, wait_seconds: float, host: str) -> list[str]:
    """Return the command of an agent that a run starts on a host, in a login shell after the line of `REPRO_SETUP`, if
    there is one: `module` is a function that only login shells have.
    """
    command = [sys.executable, "-m", "repro", "agent", "--join", address, "--wait", f"{wait_seconds:g}", "--as", host]
    if line := os.environ.get(SETUP, ""):
        return ["bash", "-lc", f"export {SETUP}={shlex.quote(line)}; {RUN_SETUP}; exec {shlex.join(command)}"]
    return command


def find(wanted: int) -> Hosts | None:
    """Return the hosts on which agents are to be started, `REPRO_HOSTS` first; None: the user starts them.

    Args:
        wanted: nodes beside this one.

    Raises:
        UsageError: a list that cannot be read, has a host twice, or too few.
    """
    given = os.environ.get(HOSTS, "").strip()
    if given:
        source, command = HOSTS, DEFAULT_SSH
        named = _from_file(given[1:], HOSTS) if given.startswith("@") else [host.strip() for host in given.split(",")]
    else:
        source, command = next(((name, start) for name, start in SCHEDULERS.items() if os.environ.get(name)), ("", ""))
        if not source:
            return None
        named = list(dict.fromkeys(_from_file(os.environ[source], source)))
    names = [host for host in named if host]
    if twice := [host for host in names if names.count(host) > 1]:
        raise UsageError(f"{source} names {twice[0]} twice; each node has one agent")
    if len(names) < wanted:
        raise UsageError(f"{source} names {len(names)} host{'s' * (len(names) != 1)} beside this one, and {wanted} are "
                         "needed: name more, or ask for fewer nodes")
    if wrong := [host for host in names if not re.fullmatch(r"[\w@.:%\[\]-]+", host) or host.startswith("-")]:
        raise UsageError(f"{source}: {wrong[0]!r} is no host")
    return Hosts(tuple(names[:wanted]), source, tuple(shlex.split(os.environ.get(SSH) or command)))


def _from_file(path: str, source: str) -> Sequence[str]:
    """Return the hosts of a file but this one: the first word of each line (what follows are slots), no comments."""
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{source}: {path} cannot be read: {getattr(error, 'strerror', None) or error}") from error
    found = [words[0] for line in lines if (words := line.partition("#")[0].split())]
    own = socket.gethostname().partition(".")[0]  # schedulers write names with or without a domain
    return [host for host in found if host.partition(".")[0] != own]


def _own_address(host: str, source: str) -> str:
    """Return the address of this computer on the way to a host."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(host.rpartition("@")[2], 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as way:
            way.connect(address)  # sends nothing
            return str(way.getsockname()[0])
    except OSError as error:
        raise UsageError(f"{source}: {host} cannot be found: {error.strerror}") from error


LISTEN, MASTER = "REPRO_LISTEN", "MASTER_ADDR"
PORT = 29410


def listen() -> tuple[str, int]:
    """Return host ("" for all addresses) and port that agents join.

    Raises:
        UsageError: `REPRO_LISTEN` has another form.
    """
    host, _, port = os.environ.get(LISTEN, f":{PORT}").rpartition(":")
    if not port.isdecimal() or int(port) > 65_535:
        raise UsageError(f"{LISTEN}={os.environ[LISTEN]}: must be HOST:PORT or :PORT")
    return host.removeprefix("[").removesuffix("]"), int(port)


def master() -> str | None:
    """Return HOST:PORT of node 0 as torchrun, MLPerf's scripts and `mpirun -x` name it; None: they do not."""
    host = os.environ.get(MASTER, "").strip()
    return f"{host}:{listen()[1] or PORT}" if host else None


MOST_STARTS = 3
"""Starts of the agent of one host without a trial that ended between them."""


@dataclass(slots=True)
class _Start:
    """The command that has started the agent of one host."""

    name: str
    command: Sequence[str]
    environment: Mapping[str, str] | None
    stdin: str
    process: subprocess.Popen[str]
    begin: float
    count: int = 1


@dataclass(slots=True)
class Starts:
    """The commands that start agents, one for each host; one that ends is started again."""

    _started: dict[str, _Start] = field(default_factory=dict)
    """By host."""
    problem: str = ""
    """Why an agent is not started again; "": all run."""

    @property
    def any(self) -> bool:
        return bool(self._started)

    def start(
        self, host: str, name: str, command: Sequence[str], environment: Mapping[str, str] | None = None,
        stdin: str = "",
    ) -> None:
        """Start the agent of a host.

        Args:
            name: for messages.
            stdin: what it can read, because everybody can read its arguments.

        Raises:
            UsageError: there is no such command.
        """
        self._started[host] = _Start(name, command, environment, stdin, _open(command, environment, stdin),
                                     time.monotonic())

    def start_named(self, wanted: int, port: int, text: str, wait_seconds: float) -> None:
        """Start the agents of the hosts that are named, with the secret `text`; others are started by the user.

        Args:
            wanted: agents that are needed.

        Raises:
            UsageError: a host cannot be found, or there are too few.
        """
        if not wanted or (named := find(wanted)) is None:
            return
        for host in named.names:
            self.start(host, f"{Path(named.command[0]).name} {host}", named.agent(host, port, wait_seconds),
                       stdin=f"{text}\n")

    def revive(self, there: Collection[str], tell: Callable[[str], None]) -> bool:
        """Start the agents again whose command has ended; return False if one has ended too often (`problem`).

        One that has refused its set-up, or was refused, is not started again: it would be refused in the same way.

        Args:
            there: hosts whose agents are here, however their command has ended.
            tell: is given lines for the user.

        Raises:
            UsageError: there is no such command any more.
        """
        for host, item in self._started.items():
            if host in there or item.process.poll() is None or self.problem:
                continue
            told = item.process.communicate()[1].strip().splitlines()
            # Last, srun states the exit code again.
            why = next((line for line in reversed(told) if line.startswith("error: ")), told[-1] if told else "")
            ended = (f"{item.name} ended with exit code {item.process.returncode} after "
                     f"{time.monotonic() - item.begin:.0f} s{f': {why}' * bool(why)}")
            if item.count == MOST_STARTS or item.process.returncode == Exit.USAGE:
                self.problem = f"{ended}{f', at start {MOST_STARTS} of {MOST_STARTS}' * (item.count == MOST_STARTS)}"
                continue
            item.count += 1
            tell(f"{ended}; it is started again ({item.count} of {MOST_STARTS})")
            item.process, item.begin = _open(item.command, item.environment, item.stdin), time.monotonic()
        return not self.problem

    def forgive(self) -> None:
        """Forget how often agents were started: a trial has ended with all of them."""
        for item in self._started.values():
            item.count = 1

    def close(self, seconds: float) -> None:
        """Wait for the commands, whose agents have been told that the run is over; end those that do not end."""
        for item in self._started.values():
            if item.process.stderr is None or item.process.stderr.closed:
                continue
            try:
                item.process.communicate(timeout=seconds)
            except subprocess.TimeoutExpired:
                item.process.terminate()
                item.process.communicate()
        self._started.clear()


def _open(command: Sequence[str], environment: Mapping[str, str] | None, stdin: str) -> subprocess.Popen[str]:
    """Start a command that reads `stdin`."""
    try:
        process = subprocess.Popen(command, env=environment, text=True, stdin=subprocess.PIPE,
                                   stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    except OSError as error:
        raise UsageError(f"{command[0]}: {error.strerror}") from error
    assert process.stdin is not None
    with suppress(BrokenPipeError), process.stdin:  # a command that failed at once: `revive` tells why
        process.stdin.write(stdin)
    process.stdin = None  # `communicate` would flush it
    return process
