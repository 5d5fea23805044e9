"""Messages between two computers that hold one secret. Both prove it before anything is read, and every message has a
proof that it came from there, in this order, once. Nothing is encrypted.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import secrets
import socket
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from repro.core import door

GREETING = b"repro-nodes-1\n"
NONCE = TAG = 32
HANDSHAKE_SECONDS = 10.0
LARGEST = 64 << 20
"""Bytes of a message."""
PART = 1 << 20
"""Bytes of a file in one message."""


class LinkLost(Exception):
    """The other side is gone, does not answer, or does not hold the secret."""


class WrongSecret(LinkLost):
    """The other side has answered, and its answer is no proof of the secret."""

    def __init__(self, peer: str) -> None:
        super().__init__("it does not hold the secret of this run")
        self.peer = peer
        """Its address."""


@dataclass(frozen=True, slots=True)
class Message:
    """A message that was received."""

    kind: str
    content: dict[str, Any]
    body: bytes = b""


class Channel:
    """One end of a connection after both ends have proved that they hold the secret."""

    def __init__(self, link: socket.socket, key: bytes, ours: bytes, theirs: bytes) -> None:
        self._link, self._key, self._ours, self._theirs = link, key, ours, theirs
        self._sent = self._received = 0
        self._sending = threading.Lock()

    @property
    def own_address(self) -> str:
        return _plain(self._link.getsockname()[0])

    @property
    def peer_address(self) -> str:
        return _plain(self._link.getpeername()[0])

    def patience(self, seconds: float) -> None:
        """Set the longest silence of the other side, and the longest time that a message may take to be sent."""
        self._link.settimeout(seconds)

    def send(self, kind: str, content: Mapping[str, Any] | None = None, body: bytes = b"") -> None:
        """Send a message; from any thread.

        Raises:
            LinkLost: it cannot be sent.
        """
        payload = json.dumps([kind, content or {}]).encode() + b"\n" + body
        with self._sending:
            tag = self._tag(self._ours, self._sent, payload)
            self._sent += 1
            _send(self._link, len(payload).to_bytes(4, "big") + tag + payload)

    def receive(self) -> Message:
        """Wait for the next message; in one thread only.

        Raises:
            LinkLost: the connection was closed or silent for too long, or a message is not from the other side.
        """
        size = int.from_bytes(_exactly(self._link, 4), "big")
        if size > LARGEST:
            raise LinkLost(f"a message of {size} bytes")
        tag, payload = _exactly(self._link, TAG), _exactly(self._link, size)
        if not hmac.compare_digest(tag, self._tag(self._theirs, self._received, payload)):
            raise LinkLost("a message that is not from the other side")
        self._received += 1
        head, _, body = payload.partition(b"\n")
        try:
            kind, content = json.loads(head)
        except ValueError as error:
            raise LinkLost("a message that cannot be read") from error
        return Message(kind, content, body)

    def close(self) -> None:
        """Close the connection; a thread that waits in `receive` gets `LinkLost`."""
        with contextlib.suppress(OSError):
            self._link.shutdown(socket.SHUT_RDWR)
        self._link.close()

    def _tag(self, side: bytes, number: int, payload: bytes) -> bytes:
        return hmac.digest(self._key, side + number.to_bytes(8, "big") + payload, "sha256")


def _plain(address: str) -> str:
    """Return an IPv4 address as such, also if it came over a socket for both versions."""
    return address.removeprefix("::ffff:")


def _peer(link: socket.socket) -> str:
    try:
        return _plain(link.getpeername()[0])
    except OSError:  # it has gone
        return "an unknown address"


def accept(link: socket.socket, secret: bytes) -> Channel:
    """Return the channel to a peer that has just connected, after it has proved that it holds the secret.

    Raises:
        LinkLost: it does not hold it, or has not proved it in `HANDSHAKE_SECONDS`.
    """
    until = time.monotonic() + HANDSHAKE_SECONDS
    link.settimeout(HANDSHAKE_SECONDS)
    mine = secrets.token_bytes(NONCE)
    _send(link, GREETING + mine)
    answer = _exactly(link, NONCE + TAG, until)
    both = mine + answer[:NONCE]
    if not hmac.compare_digest(answer[NONCE:], _proof(secret, b"agent", both)):
        raise WrongSecret(_peer(link))
    _send(link, _proof(secret, b"head", both))
    return Channel(link, _proof(secret, b"key", both), b"head", b"agent")


def connect(host: str, port: int, secret: bytes, seconds: float = HANDSHAKE_SECONDS) -> Channel:
    """Connect to the computer where the run is.

    Raises:
        LinkLost: it cannot be reached, or one of both does not hold the secret of the other.
    """
    try:
        link = socket.create_connection((host, port), timeout=seconds)
    except OSError as error:
        raise LinkLost(error.strerror or str(error)) from error
    try:
        greeting = _exactly(link, len(GREETING) + NONCE)
        if not greeting.startswith(GREETING):
            raise LinkLost("something else listens there")
        mine = secrets.token_bytes(NONCE)
        both = greeting[len(GREETING) :] + mine
        _send(link, mine + _proof(secret, b"agent", both))
        try:
            proof = _exactly(link, TAG)
        except LinkLost as error:
            raise LinkLost("it refused this agent: the secrets differ") from error
        if not hmac.compare_digest(proof, _proof(secret, b"head", both)):
            raise LinkLost("it does not hold the secret of this agent")
    except LinkLost:
        link.close()
        raise
    return Channel(link, _proof(secret, b"key", both), b"agent", b"head")


def _proof(secret: bytes, role: bytes, both: bytes) -> bytes:
    """Return what only a holder of the secret can compute for these two nonces; a role's proof is no other's."""
    return hmac.digest(secret, role + both, "sha256")


def _send(link: socket.socket, content: bytes) -> None:
    try:
        link.sendall(content)
    except OSError as error:
        raise LinkLost(str(error)) from error


def _exactly(link: socket.socket, size: int, until: float | None = None) -> bytes:
    """Return the next `size` bytes.

    Args:
        until: time of the monotonic clock after which nothing is waited for; None: each silence counts by itself.
    """
    found = bytearray()
    while len(found) < size:
        if until is not None:
            link.settimeout(max(1e-3, until - time.monotonic()))
        try:
            part = link.recv(min(size - len(found), 1 << 20))
        except TimeoutError as error:
            raise LinkLost("no word in time") from error
        except OSError as error:
            raise LinkLost(error.strerror or str(error)) from error
        if not part:
            raise LinkLost("it closed the connection")
        found += part
    return bytes(found)


State = dict[str, tuple[int, int]]
"""Size and time of every file below a folder."""


def file_state(root: Path) -> State:
    return {path.relative_to(root).as_posix(): (path.stat().st_size, path.stat().st_mtime_ns)
            for path in root.rglob("*") if path.is_file() and not path.is_symlink()}


def changed_files(root: Path, before: State) -> list[str]:
    """Return the files below `root` that are new or other than `before`."""
    now = file_state(root)
    return [name for name in sorted(now) if before.get(name) != now[name]]


def send_files(channel: Channel, number: int, root: Path, names: Iterable[str]) -> None:
    """Send files below `root`, which belong to the launch `number`.

    Raises:
        LinkLost: the other side is gone.
    """
    for name in names:
        data = (root / name).read_bytes()
        channel.send("file", {"number": number, "name": name, "size": len(data),
                              "sha256": hashlib.sha256(data).hexdigest()})
        for at in range(0, len(data), PART):
            channel.send("part", {"number": number}, data[at : at + PART])


def files_below(root: Path) -> list[str]:
    """Return the names of all files below `root`; none if there is no such folder."""
    return sorted(file_state(root))


class Arrivals:
    """Files that come from another node, written below a folder of this one."""

    def __init__(self, root: Path, added: str = "") -> None:
        """
        Args:
            added: pattern of files whose content is added to what is there; others are replaced.
        """
        self._added = added
        self._root, self._name, self._sha256, self._size = root, "", "", 0
        self._data = bytearray()

    def take(self, message: Message) -> None:
        """Take a message of kind `file` or `part`; write the file with its last part.

        Raises:
            LinkLost: the file is damaged, or its name leads out of the folder.
        """
        if message.kind == "file":
            self._name, self._size = str(message.content["name"]), int(message.content["size"])
            self._sha256, self._data = str(message.content["sha256"]), bytearray()
        else:
            self._data += message.body
        if len(self._data) != self._size:
            return
        inside = PurePosixPath(self._name)
        if inside.is_absolute() or ".." in inside.parts or hashlib.sha256(self._data).hexdigest() != self._sha256:
            raise LinkLost(f"file {self._name!r} is damaged, or leads out of its folder")
        target = self._root / inside
        target.parent.mkdir(parents=True, exist_ok=True)
        with door.open_plain(target, "ab" if self._added and inside.match(self._added) else "wb") as stream:
            stream.write(self._data)
