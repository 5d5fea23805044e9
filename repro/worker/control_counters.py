"""Kernel counters of what a rank exchanges with the controller: the store of the rendezvous, and its network.

The store is where `MASTER_ADDR` and `MASTER_PORT` point. The kernel counts the payload and the segments of every TCP
connection (TCP_INFO, Linux 4.19 or newer), and the frames of every interface of the rank's network namespace. Both are
read, not sampled, and reading them sends nothing. A launcher whose ranks have interfaces of their own names them in
`REPRO_CONTROL_INTERFACE` and `REPRO_DATA_INTERFACE`.
"""

from __future__ import annotations

import os
import socket
import struct
from pathlib import Path

from repro.record.log.schema import ControllerReading
from repro.record.result.parts import Frames

INTERFACES = {"control": "REPRO_CONTROL_INTERFACE", "data": "REPRO_DATA_INTERFACE"}
"""Name in the log, and the variable with the interface's name."""
_RECEIVED_BYTES, _SEGMENTS, _SENT_BYTES = 128, 152, 200
"""Offsets in Linux's struct tcp_info: bytes_received; data_segs_in and data_segs_out; bytes_sent and bytes_retrans."""
_LEAST = 216


def read_controller(log_bytes: int) -> ControllerReading | None:
    """Return this rank's counters so far; None if there is no store, or the kernel does not count.

    Args:
        log_bytes: what this rank has recorded in its event log.
    """
    port = os.environ.get("MASTER_PORT", "")
    if not port.isdigit() or not hasattr(socket, "TCP_INFO"):
        return None
    found = [counts for counts in map(_connection, _sockets(int(port))) if counts is not None]
    if not found:
        return None
    sent, received, sent_segments, received_segments = (sum(values) for values in zip(*found, strict=True))
    return ControllerReading(
        connections=len(found), sent_bytes=sent, received_bytes=received, sent_segments=sent_segments,
        received_segments=received_segments, log_bytes=log_bytes, interfaces=_interfaces(),
    )


def _sockets(port: int) -> list[socket.socket]:
    """Return duplicates of this process's TCP sockets whose peer is the store."""
    here = _addresses(os.environ.get("MASTER_ADDR", ""))
    found = []
    for file in list(Path("/proc/self/fd").iterdir()):
        try:
            if not str(file.readlink()).startswith("socket:"):
                continue
            opened = socket.socket(fileno=os.dup(int(file.name)))
        except OSError:
            continue
        try:
            peer = opened.getpeername()
            if opened.type == socket.SOCK_STREAM and opened.family in (socket.AF_INET, socket.AF_INET6) \
                    and peer[1] == port and peer[0].removeprefix("::ffff:") in here:
                found.append(opened)
                continue
        except OSError:
            pass
        opened.close()
    return found


def _addresses(host: str) -> set[str]:
    try:
        return {str(found[4][0]) for found in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
    except OSError:
        return {host}


def _connection(opened: socket.socket) -> tuple[int, ...] | None:
    """Return sent and received bytes, sent and received segments of one socket, and close this duplicate."""
    with opened:
        info = opened.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 512)
    if len(info) < _LEAST:
        return None
    (received,) = struct.unpack_from("=Q", info, _RECEIVED_BYTES)
    segments_in, segments_out = struct.unpack_from("=II", info, _SEGMENTS)
    sent, again = struct.unpack_from("=QQ", info, _SENT_BYTES)
    return sent - again, received, segments_out, segments_in


def _interfaces() -> dict[str, Frames]:
    wanted = {os.environ[variable]: name for name, variable in INTERFACES.items() if variable in os.environ}
    if not wanted:
        return {}
    found = {}
    for line in Path("/proc/self/net/dev").read_text().splitlines():
        name, colon, values = line.partition(":")
        if colon and name.strip() in wanted:
            fields = [int(value) for value in values.split()]
            # The kernel's columns: received bytes, packets and six more, then the same of what was sent.
            found[wanted[name.strip()]] = Frames(sent_bytes=fields[8], received_bytes=fields[0], sent_frames=fields[9],
                                                 received_frames=fields[1])
    return found
