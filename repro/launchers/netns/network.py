"""The emulated cluster's network: one namespace per node, and one for the switch, which is two bridges.

Data: every node's `fabric0` is a veth whose other end is a port of the data bridge. Both ends shape their outgoing data
with tbf. So a node's link has its rate in both directions, and several senders to one node share that node's rate, as
at a switch. Control: `control0`, built the same way without shaping, carries the rendezvous only, so that control
traffic neither takes bandwidth from the links nor appears in their counters. Ranks of one node reach each other over
the node's addresses, which the kernel keeps on that node's loopback: unshaped, unless a rate is stated for it.

Frames are 9000 bytes (jumbo), which leaves 99.3 % of the rate to a TCP stream. tbf's bucket is the amount that passes
without delay after a pause: two frames, or a millisecond's worth if that is more. A smaller bucket loses rate when a
timer is late. From 64 KiB on (0.5 Gbit/s) it also takes the kernel's large packets uncut; without them two cores cannot
fill eight links of 1 Gbit/s. The price: a message smaller than the bucket that follows a pause is not slowed. The queue
holds 0.1 s (at least 1 MiB), so that many senders to one node do not run into TCP's 0.2 s retransmission time.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

from repro.launchers.netns import namespaces

DATA, CONTROL = "fabric0", "control0"
CONTROL_NET = IPv4Network("169.254.0.0/16")
MTU = 9000
FRAME_BYTES = MTU + 14
BURST_SECONDS = 0.001
QUEUE_SECONDS = 0.1
QUEUE_BYTES = 1 << 20
SYSCTLS = "/proc/sys/net"
CONGESTION = f"{SYSCTLS}/ipv4/tcp_congestion_control"


@dataclass(frozen=True, slots=True)
class NetworkSpec:
    """Rates, delay and addresses of a network, for any number of nodes."""

    bits_per_second: float
    of_node: dict[int, float]
    """Rates of nodes that differ from it."""
    subnet: IPv4Network
    delay_seconds: float = 0.0
    within: float | None = None
    """Bits per second of each node's loopback; None: not shaped."""

    def rate(self, node: int) -> float:
        """Return the bits per second of one node's link."""
        return self.of_node.get(node, self.bits_per_second)

    def address(self, node: int) -> str:
        """Return the address of a node's data interface."""
        return str(self.subnet[node + 1])

    @property
    def control_address(self) -> str:
        """Address of the switch on the control network."""
        return str(CONTROL_NET[-2])


COUNTERS = {"sent_bytes": "rx_bytes", "received_bytes": "tx_bytes", "sent_frames": "rx_packets",
            "received_frames": "tx_packets"}
"""Counters of a node -> the kernel's of its port of a bridge: what a node sends, its port receives."""


class EmulatedNetwork:
    """Network built by the calling process, which stays in the switch's namespace; removed when the process
    ends.

    Raises:
        OSError, NetlinkError: the kernel refuses; `step` names the failed step.
    """

    def __init__(self, spec: NetworkSpec) -> None:
        self.spec, self.step = spec, ""
        self.nodes: list[int] = []
        """An open file of each node's network namespace."""
        self.congestion_control = ""
        """Of the nodes' TCP."""

    def build(self) -> None:
        """Build the switch, without nodes."""
        self.step = "make a network namespace"
        self.user = namespaces.leave()
        self.step = "make a bridge"
        self._links = _links()
        _set_sysctls()
        self._up(self._links, "lo")
        self._bridges: dict[str, int] = {}
        for name in ("data", "control"):
            self._links.link("add", ifname=name, kind="bridge", mtu=MTU)
            self._up(self._links, name)
            self._bridges[name] = _index(self._links, name)
        self._links.addr("add", index=self._bridges["control"], address=self.spec.control_address,
                         prefixlen=CONTROL_NET.prefixlen)
        self._ports: list[tuple[int, int]] = []
        self._hardware: list[str] = []
        """Hardware address of each node's data interface."""

    def grow(self, count: int) -> None:
        """Add nodes until there are `count`."""
        before = len(self.nodes)
        while len(self.nodes) < count:
            self._add(len(self.nodes))
        self._introduce(before)

    def traffic(self) -> list[dict[str, int]]:
        """Return the frames of every node since the network was built, and their bytes, headers included: `COUNTERS` of
        its data link, and of its control link as `control_...`.
        """
        found = {link["index"]: link.get_attr("IFLA_STATS64") for link in self._links.get_links()}
        return [{f"{prefix}{name}": found[port][theirs] for prefix, port in (("", data), ("control_", control))
                 for name, theirs in COUNTERS.items()} for data, control in self._ports]

    def _add(self, node: int) -> None:
        self.step = "make a network namespace"
        net = namespaces.another()
        self.nodes.append(net)
        with namespaces.inside(net):
            inner = _links()
            _set_sysctls()
            self.congestion_control = Path(CONGESTION).read_text().strip()
        with contextlib.closing(inner):
            self._up(inner, "lo")
            if self.spec.within:
                self.step = "shape a loopback with tbf"
                inner.link("set", index=_index(inner, "lo"), mtu=MTU)
                shape(inner, _index(inner, "lo"), self.spec.within)
            self.step = "make a veth pair"
            port = self._plug(node, net, DATA, "data")
            control = self._plug(node, net, CONTROL, "control")
            for name, address, width in (
                (DATA, self.spec.address(node), self.spec.subnet.prefixlen),
                (CONTROL, str(CONTROL_NET[node + 1]), CONTROL_NET.prefixlen),
            ):
                inner.addr("add", index=_index(inner, name), address=address, prefixlen=width)
                self._up(inner, name)
            self.step = "shape a link with tbf"
            shape(inner, _index(inner, DATA), self.spec.rate(node))
            self._hardware.append(inner.get_links(_index(inner, DATA))[0].get_attr("IFLA_ADDRESS"))
        if self.spec.delay_seconds:
            self.step = "delay a link with netem"
        shape(self._links, port, self.spec.rate(node), self.spec.delay_seconds)
        self._ports.append((port, control))

    def _introduce(self, known: int) -> None:
        """Write the addresses of all nodes into every node; the first `known` nodes know each other.

        Entries found by ARP share a table of 1024 with all namespaces of the machine, which 32 nodes overflow ("No
        route to host"), and only root outside may enlarge it. Permanent entries do not count.
        """
        self.step = "write a neighbour's address"
        for node, net in enumerate(self.nodes):
            with namespaces.inside(net):
                inner = _links()
            with contextlib.closing(inner):
                index = _index(inner, DATA)
                for other in range(known if node < known else 0, len(self.nodes)):
                    if other != node:
                        inner.neigh("add", dst=self.spec.address(other), lladdr=self._hardware[other], ifindex=index,
                                    state="permanent")

    def _plug(self, node: int, net: int, inner: str, bridge: str) -> int:
        """Connect the node's interface `inner` to a bridge; return the index of the port."""
        name = f"{bridge}{node}"
        self._links.link("add", ifname=name, kind="veth", mtu=MTU, peer={"ifname": inner, "net_ns_fd": net, "mtu": MTU})
        port = _index(self._links, name)
        self._links.link("set", index=port, master=self._bridges[bridge], state="up")
        return port

    def _up(self, links: Any, name: str) -> None:
        links.link("set", index=_index(links, name), state="up")


def shape(links: Any, index: int, bits: float, delay_seconds: float = 0.0) -> None:
    """Limit an interface to `bits` per second and delay each frame by `delay_seconds`."""
    bytes_per_second = bits / 8
    how = {
        "rate": round(bytes_per_second),
        "burst": max(2 * FRAME_BYTES, round(bytes_per_second * BURST_SECONDS)),
        "limit": max(QUEUE_BYTES, round(bytes_per_second * QUEUE_SECONDS)),
    }
    if not delay_seconds:
        links.tc("add", "tbf", index, 0x10000, **how)
        return
    # tc-netem(8): the delay outside, the rate inside.
    frames = round(bytes_per_second * delay_seconds / FRAME_BYTES)
    links.tc("add", "netem", index, 0x10000, delay=round(delay_seconds * 1e6), limit=1000 + frames)
    links.tc("add", "tbf", index, 0x100000, parent=0x10001, **how)


def _links() -> Any:
    """Open the kernel's interface to the links of this thread's namespace; it stays bound to that namespace."""
    from pyroute2 import IPRoute

    return IPRoute()


def _index(links: Any, name: str) -> int:
    return int(links.link_lookup(ifname=name)[0])


def _set_sysctls() -> None:
    """Set this thread's namespace up for equal trials; skipped if /proc/sys is read-only."""
    for name, value in (
        # Keeps router solicitations and the like out of the counters.
        ("ipv6/conf/default/disable_ipv6", "1"),
        # Keeps what TCP learnt about a path in one trial from changing the next.
        ("ipv4/tcp_no_metrics_save", "1"),
        # Most unsent data in a socket. Otherwise megabytes wait inside a slow link's sockets, and a message for one
        # rank shares the link with the rest of another whose receiver is gone.
        ("ipv4/tcp_notsent_lowat", "131072"),
        # The host's default may be another (bbr probes and drains its queue, which costs a ring 3 % and more, at
        # random). Every kernel has reno, and every user may choose it.
        ("ipv4/tcp_congestion_control", "reno"),
        # Otherwise a pause, such as a computation, makes the next message start slowly.
        ("ipv4/tcp_slow_start_after_idle", "0"),
    ):
        with contextlib.suppress(OSError):
            Path(f"{SYSCTLS}/{name}").write_text(value)
