"""Measure the rate of a TCP stream over each link before a run, so that results have a measured bound."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from dataclasses import dataclass

from repro.launchers.netns import namespaces
from repro.launchers.netns.network import FRAME_BYTES, EmulatedNetwork

SECONDS = 0.12
FRAMES = 40
"""Fewest frames of a transfer: a slow link needs longer for the same precision."""
LONGEST = 2.0
TRIES, ENOUGH = 3, 0.97
"""A transfer below this share of the stated rate was slowed by the machine, not by the link: it is repeated and the
best is kept. A link cannot be faster than its shaped rate."""


@dataclass(frozen=True, slots=True)
class LinkMeasurement:
    """Measured transfer from one node to another."""

    sender: int
    receiver: int
    stated_bits_per_second: float
    """Lower of the rates of both ends."""
    measured_bits_per_second: float
    """Payload rate of one TCP stream, without its start."""


def measure(network: EmulatedNetwork) -> list[LinkMeasurement]:
    """Measure from every node to the next, and from the last to the first, one at a time: each link in both directions.
    """
    count = len(network.nodes)
    return [_best(network, node, (node + 1) % count) for node in range(count)] if count > 1 else []


def _best(network: EmulatedNetwork, sender: int, receiver: int) -> LinkMeasurement:
    best = _measure(network, sender, receiver)
    for _ in range(TRIES - 1):
        if best.measured_bits_per_second < ENOUGH * best.stated_bits_per_second:
            again = _measure(network, sender, receiver)
            best = max(best, again, key=lambda link: link.measured_bits_per_second)
    return best


def _measure(network: EmulatedNetwork, sender: int, receiver: int) -> LinkMeasurement:
    stated = min(network.spec.rate(sender), network.spec.rate(receiver))
    seconds = min(LONGEST, max(SECONDS, FRAMES * FRAME_BYTES * 8 / stated))
    source, sink = _connection(network, sender, receiver)
    thread = threading.Thread(target=_send, args=(source,), name="repro-link-test", daemon=True)
    thread.start()
    try:
        bits = _receive(sink, seconds)
    finally:
        sink.close()
        # Ends a send that is not read any more.
        with contextlib.suppress(OSError):
            source.shutdown(socket.SHUT_RDWR)
        thread.join()
        source.close()
    return LinkMeasurement(sender, receiver, stated, bits)


def _connection(network: EmulatedNetwork, sender: int, receiver: int) -> tuple[socket.socket, socket.socket]:
    with namespaces.inside(network.nodes[receiver]):
        server = socket.create_server((network.spec.address(receiver), 0))
    with server:
        server.settimeout(10)
        with namespaces.inside(network.nodes[sender]):
            # The kernel establishes a connection before it is accepted.
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
    """Return bits per second, from the first arrival after a quarter of the time to the last arrival."""
    buffer, begin = bytearray(1 << 20), time.perf_counter()
    first, last, received = 0.0, 0.0, 0
    while last < begin + 1.25 * seconds or not received:  # on a busy machine the first arrival may come after that
        count = sink.recv_into(buffer)
        last = time.perf_counter()
        if first:
            received += count
        elif last > begin + 0.25 * seconds:
            first = last
    return received * 8 / (last - first)
