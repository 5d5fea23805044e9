"""Emulated cluster on this machine: one network namespace per node, every link shaped.

Results are labelled emulated: links have the stated rate, but all nodes share this machine's processors and memory.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from ipaddress import IPv4Network
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    AfterValidator,
    Field,
    PrivateAttr,
    SerializerFunctionWrapHandler,
    field_validator,
    model_serializer,
    model_validator,
)

from repro.core.files import write_json
from repro.launchers.local import Local
from repro.launchers.netns.namespaces import Placement, node_of
from repro.launchers.netns.network import CONTROL, CONTROL_NET, COUNTERS, DATA, MTU, NetworkSpec
from repro.launchers.netns.network_process import NetworkProcess
from repro.launchers.netns.probe import ability
from repro.seams.launching import LaunchRequest, LaunchResult, oversubscription
from repro.seams.plugin import SAFE, Setting


def _rate(text: str) -> str:
    bits_per_second(text)
    return text.strip().lower().replace(" ", "")


def _delay(text: str) -> str:
    delay_seconds(text)
    return text.strip().lower().replace(" ", "")


Rate = Annotated[str, AfterValidator(_rate), SAFE]
Delay = Annotated[str, AfterValidator(_delay), SAFE]
RECORD = "network.json"
COUNTED = ("sent_bytes", "received_bytes", *(f"control_{name}" for name in COUNTERS))
"""Counters of the network that are recorded."""
MOST_NODES = 64
"""Ranks that an emulated cluster may have on any machine: bytes and schedules need no core of their own."""


class Fabric(Local):
    """`nodes` computers around one switch, each on a link of `rate`; ranks are placed on them in equal blocks.

    Data travel over the links; rendezvous uses a separate network that is not shaped. Ranks cannot reach anything
    outside, so data sets must be on this machine before the run. Without root, the network is inside a user namespace.
    """

    title: ClassVar[str] = "an emulated cluster on this machine (network namespaces, shaped links)"
    origin: ClassVar[Literal["measured", "emulated", "simulated"]] = "emulated"
    preload: ClassVar[tuple[str, ...]] = ("torch", "torch._dynamo", "pyroute2")
    always_shown: ClassVar[tuple[str, ...]] = ("rate",)

    nodes: int | None = Field(default=None, ge=1)
    """None: one node per process."""
    rate: Rate = "1gbit"
    """Rate of every link, in each direction, frame headers included."""
    rates: dict[int, Rate] = Field(default_factory=dict)
    """Rates of nodes (counted from 0) that differ."""
    within: Rate | None = None
    """Rate of what the ranks of a node send to each other, together; None: as fast as the machine."""
    slowdown: dict[int, Annotated[float, Field(ge=1, le=100)]] = Field(default_factory=dict)
    """By rank: factor by which its computation takes longer."""
    delay: Delay | None = None
    """Added to every frame on its way to a node; needs a kernel with netem."""
    subnet: IPv4Network = IPv4Network("10.77.0.0/24")
    """Addresses of the nodes; not visible outside."""

    _network: NetworkProcess | None = PrivateAttr(default=None)
    _links: list[dict[str, float]] = PrivateAttr(default_factory=list)

    @field_validator("subnet")
    @classmethod
    def _is_usable(cls, value: IPv4Network) -> IPv4Network:
        if value.overlaps(CONTROL_NET):
            raise ValueError(f"overlaps {CONTROL_NET}, which the rendezvous uses")
        if value.is_loopback or value.is_multicast or value.is_reserved or value.is_unspecified:
            raise ValueError("is no subnet for nodes; use for example 10.77.0.0/24")
        return value

    @model_validator(mode="after")
    def _fits(self) -> Fabric:
        if self.nodes is None:
            return self
        if problem := self._too_many(self.nodes):
            raise ValueError(problem)
        if wrong := [node for node in self.rates if not 0 <= node < self.nodes]:
            raise ValueError(f"rates names node {wrong[0]}; {self.nodes} nodes are counted 0 to {self.nodes - 1}")
        return self

    @model_serializer(mode="wrap")
    def _without_new(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out `within` where it is not set: the names of cells in earlier records come from the other options."""
        data: dict[str, Any] = handler(self)
        return {name: value for name, value in data.items() if name != "within" or value is not None}

    def _too_many(self, nodes: int) -> str | None:
        addresses = min(max(0, self.subnet.num_addresses - 2), CONTROL_NET.num_addresses - 3, 1023)
        if nodes <= addresses:
            return None
        return f"{nodes} nodes need more addresses than {self.subnet} has ({addresses})"

    @property
    def stated_rates(self) -> tuple[float | None, float | None]:
        between = max(bits_per_second(rate) for rate in (self.rate, *self.rates.values()))
        return between, bits_per_second(self.within) if self.within else None

    def unsupported(self, setting: Setting) -> str | None:
        if problem := self._wrong_shape(setting.launched) or super().unsupported(setting):
            return problem
        if setting.on_gpu and any(factor > 1 for factor in self.slowdown.values()):
            return "slowdown stops a rank's CPU process, which does not slow its GPU"
        return setting.lacks(self._missing)

    def _missing(self) -> str | None:
        found = ability()
        return found.problem or (found.netem if self.delay else "") or None

    def note(self, setting: Setting) -> str | None:
        """Return the caution for more ranks than the cores carry."""
        return oversubscription(setting.launched, setting.cores) if setting.device == "cpu" and setting.cores else None

    def _most(self, cores: int) -> int:
        return max(MOST_NODES, super()._most(cores))

    def _wrong_shape(self, processes: int) -> str | None:
        nodes = self.nodes or processes
        if nodes > processes:
            return f"{nodes} nodes are more than {processes} processes; omit nodes to get one per process"
        if processes % nodes:
            return f"{processes} processes cannot be placed on {nodes} nodes in equal blocks"
        if wrong := [rank for rank in self.slowdown if not 0 <= rank < processes]:
            return f"slowdown names rank {wrong[0]}; {processes} ranks are counted 0 to {processes - 1}"
        if wrong := [node for node in self.rates if not 0 <= node < nodes]:
            return f"rates names node {wrong[0]}; {nodes} nodes are counted 0 to {nodes - 1}"
        return self._too_many(nodes)

    @property
    def node_count(self) -> int | None:
        return self.nodes

    def prepare(self, processes: int) -> None:
        """Build the missing part of the network for `processes` ranks (all of it if it was killed) and measure its
        links.

        Raises:
            TrialError: it cannot be built.
        """
        if self._network is not None and not self._network.alive:
            self._drop()
        try:
            if self._network is None:
                self._network = NetworkProcess(self._spec())
            self._links = self._network.grow(self.nodes or processes) or self._links
        except BaseException:
            # Interrupted in the middle of a request: the content of the pipe is unknown.
            self._drop()
            raise

    def launch(self, request: LaunchRequest) -> LaunchResult:
        """Run the entry in one new process per rank, each on its node, and count the bytes on the links."""
        self.prepare(request.processes)
        assert self._network is not None
        try:
            environment = {"MASTER_ADDR": self._spec().control_address, "MASTER_PORT": str(self._network.store())}
            before = self._network.traffic()
            outcome = self._run(request, self._placement(request), {**environment, **_SOCKETS})
            if not self._network.alive:  # the traffic on the links, and their state during the trial, are unknown
                self._drop()
                why = "the process that holds the emulated network was killed"
                return replace(outcome, ends=tuple(
                    end if end.exit_code else replace(end, exit_code=1, reason=why) for end in outcome.ends))
            return self._recorded(request, outcome, before, self._network.traffic())
        except BaseException:
            # Ctrl-C too: the counts and the store are in an unknown state, so the next launch builds a new network.
            self._drop()
            raise

    def close(self) -> None:
        """Remove the network, then the fork server."""
        self._drop()
        super().close()

    def _drop(self) -> None:
        if self._network is not None:
            network, self._network, self._links = self._network, None, []
            network.close()

    def _spec(self) -> NetworkSpec:
        return NetworkSpec(
            bits_per_second=bits_per_second(self.rate), subnet=self.subnet,
            of_node={node: bits_per_second(text) for node, text in self.rates.items()},
            delay_seconds=delay_seconds(self.delay) if self.delay else 0.0,
            within=bits_per_second(self.within) if self.within else None,
        )

    def _placement(self, request: LaunchRequest) -> Placement:
        assert self._network is not None
        nodes = self.nodes or request.processes
        dealt = [node_of(rank, request.processes, nodes) for rank in range(request.processes)]
        environment = [
            # NCCL treats ranks with one host id as neighbours; ranks on different nodes must use the network.
            {"REPRO_NODE": str(node), "REPRO_NODES": str(nodes), "NCCL_HOSTID": f"repro-node-{node}",
             "REPRO_CONTROL_INTERFACE": CONTROL, "REPRO_DATA_INTERFACE": DATA} for node in dealt
        ]
        return Placement(self._network.user, [self._network.nodes[node] for node in dealt], environment, self.slowdown)

    def _recorded(
        self, request: LaunchRequest, outcome: LaunchResult, before: Sequence[Mapping[str, int]],
        after: Sequence[Mapping[str, int]],
    ) -> LaunchResult:
        """Return the outcome with the network's figures, which are also written to the request's folder."""
        nodes, spec = self.nodes or request.processes, self._spec()
        network: dict[str, Any] = {
            "origin": self.origin,
            "frame_bytes": MTU,
            "congestion_control": self._network.congestion_control if self._network else None,
            "node_of_rank": [node_of(rank, request.processes, nodes) for rank in range(request.processes)],
            "stated_bits_per_second": [spec.rate(node) for node in range(nodes)],
            **{name: [after[node][name] - before[node][name] for node in range(nodes)] for name in COUNTED},
            "links": self._links,
        }
        write_json(request.folder / RECORD, network)
        return replace(outcome, network=network)


_SOCKETS = {
    "GLOO_SOCKET_IFNAME": DATA,
    "NCCL_SOCKET_IFNAME": f"={DATA}",
    # InfiniBand would bypass the emulated links.
    "NCCL_IB_DISABLE": "1",
}


BITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
LEAST, MOST = 1e5, 3e10
"""Bits per second. Below, one frame takes most of a second; above, bytes per second exceed tbf's 32 bits."""


def bits_per_second(text: str) -> float:
    """Parse a rate.

    Raises:
        ValueError: `text` is not a rate, or outside what a link can be shaped to.
    """
    value = _number(text, BITS, f"{text!r} is not a rate; write a number and kbit, mbit or gbit, for example 100mbit")
    if not LEAST <= value <= MOST:
        raise ValueError(f"rate {text} is outside the supported range, 100kbit to 30gbit")
    return value


def delay_seconds(text: str) -> float:
    """Parse a delay.

    Raises:
        ValueError: `text` is not a delay, or outside the supported range.
    """
    value = _number(text, SECONDS, f"{text!r} is not a delay; write a number and us, ms or s, for example 500us")
    if not 0 < value <= 10:
        raise ValueError(f"delay {text} is outside the supported range, 1us to 10s")
    return value


def _number(text: str, units: dict[str, float], wrong: str) -> float:
    found = re.fullmatch(rf"(\d+(?:\.\d+)?) ?({'|'.join(units)})", text.strip().lower())
    if found is None:
        raise ValueError(wrong)
    return float(found.group(1)) * units[found.group(2)]
