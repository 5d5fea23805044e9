"""What a TCP stream gets over a link: measured from node to node before a run, so that results have a true bound."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from dataclasses import dataclass

from repro.launchers.netns import namespaces
from repro.launchers.netns.network import FRAME_BYTES, Network

SECONDS = 0.12
FRAMES = 40
"""At least so many frames: a slow link needs longer for a figure of the same precision."""
LONGEST = 2.0
TRIES, ENOUGH = 3, 0.97
"""A transfer below this share of the stated rate was held up by the machine, not by the link: repeated, best one kept.
Nothing can make a link faster than it is shaped to be."""


@dataclass(frozen=True, slots=True)
class Link:
    """A transfer from one node to another."""

    sender: int
    receiver: int
    stated_bits_per_second: float
    """The lower of both ends' rates."""
    measured_bits_per_second: float
    """Payload of one TCP stream, without its start."""


def measure(network: Network) -> list[Link]:
    """Every node to the next, the last to the first, one after the other: each link in both directions."""
    count = len(network.nodes)
    return [_best(network, node, (node + 1) % count) for node in range(count)] if count > 1 else []


def _best(network: Network, sender: int, receiver: int) -> Link:
    best = _measure(network, sender, receiver)
    for _ in range(TRIES - 1):
        if best.measured_bits_per_second < ENOUGH * best.stated_bits_per_second:
            again = _measure(network, sender, receiver)
            best = max(best, again, key=lambda link: link.measured_bits_per_second)
    return best


def _measure(network: Network, sender: int, receiver: int) -> Link:
    stated = min(network.wiring.rate(sender), network.wiring.rate(receiver))
    seconds = min(LONGEST, max(SECONDS, FRAMES * FRAME_BYTES * 8 / stated))
    source, sink = _connection(network, sender, receiver)
    thread = threading.Thread(target=_send, args=(source,), name="repro-link-test", daemon=True)
    thread.start()
    try:
        bits = _receive(sink, seconds)
    finally:
        sink.close()
        # Wakes the sender out of a send that nobody reads any more.
        with contextlib.suppress(OSError):
            source.shutdown(socket.SHUT_RDWR)
        thread.join()
        source.close()
    return Link(sender, receiver, stated, bits)


def _connection(network: Network, sender: int, receiver: int) -> tuple[socket.socket, socket.socket]:
    with namespaces.inside(network.nodes[receiver]):
        server = socket.create_server((network.wiring.address(receiver), 0))
    with server:
        server.settimeout(10)
        with namespaces.inside(network.nodes[sender]):
            # A connection is established by the kernels alone: nobody need have accepted it yet.
            source = socket.create_connection(server.getsockname(), timeout=10)
        sink, _ = server.accept()
    sink.settimeout(10)
    source.settimeout(None)
    return source, sink


def _send(source: socket.socket) -> None:
    block = bytes(1 << 18)
    with contextlib.suppress(OSError):
        while True:
            source.sendall(block)


def _receive(sink: socket.socket, seconds: float) -> float:
    """Bits per second, from the first arrival after a quarter of the time to the last one."""
    buffer, begin = bytearray(1 << 20), time.perf_counter()
    first, last, received = 0.0, 0.0, 0
    while last < begin + 1.25 * seconds:
        count = sink.recv_into(buffer)
        last = time.perf_counter()
        if first:
            received += count
        elif last > begin + 0.25 * seconds:
            first = last
    return received * 8 / (last - first)
