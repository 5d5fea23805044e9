"""Parts of a result: communication, network, model, controller traffic, energy, layers, operations, servers."""

from __future__ import annotations

from typing import Literal

from repro.core.frozen import Frozen, Lenient
from repro.core.numbers import plain_sum
from repro.seams.workload import Direction


class Moved(Frozen):
    """Collectives of one operation and type on one rank."""

    operation: str
    dtype: str
    collectives: int
    payload_bytes: int
    sent_bytes: int | None
    """None: done by the inner group, which does not count bytes."""
    received_bytes: int | None


class Spent(Frozen):
    """Seconds of communication, as in `RankTraffic`."""

    busy_seconds: float
    exposed_seconds: float
    overlapped_seconds: float


class RankTraffic(Frozen):
    """The communication of one rank between `run_start` and `run_stop`."""

    lines: tuple[Moved, ...]
    busy_seconds: float
    """Time with collectives running."""
    exposed_seconds: float
    """Time in which training waited for them."""
    overlapped_seconds: float
    """Time in which they ran during training."""
    training: Spent
    """The part in training steps, without evaluations and barriers."""

    @property
    def sent_bytes(self) -> int:
        return sum(line.sent_bytes or 0 for line in self.lines)

    @property
    def received_bytes(self) -> int:
        return sum(line.received_bytes or 0 for line in self.lines)


class Formula(Frozen):
    """The traffic that the algorithm's schedules require for the collectives that ran
    (`repro.worker.report.expected_traffic`)."""

    sent_bytes: int
    """Bytes of the rank that sends most."""
    received_bytes: int
    rounds: int
    path_bytes: int
    """Sum over rounds of the largest amount that one rank sends or receives."""
    reduced_bytes: int
    assumed: tuple[str, ...] = ()
    """Operations and types whose messages were assumed to be of equal size."""


class Link(Frozen):
    """A transfer from one node to another before the first trial; bits per second."""

    sender: int
    receiver: int
    stated_bits_per_second: float
    """The lower of the rates of both ends."""
    measured_bits_per_second: float
    """Payload of one TCP stream."""


class Network(Lenient):
    """The network that a launcher set up for a trial; further details stay in the launcher's own file."""

    origin: str
    """emulated or measured."""
    frame_bytes: int | None = None
    congestion_control: str | None = None
    """Of TCP, as the kernel says."""
    node_of_rank: tuple[int, ...]
    stated_bits_per_second: tuple[float, ...]
    """By node."""
    sent_bytes: tuple[int, ...] = ()
    """By node, from the start of the processes to their end, headers included."""
    received_bytes: tuple[int, ...] = ()
    control_sent_bytes: tuple[int, ...] = ()
    """The same of the control network, as are the three below; empty: it has none."""
    control_received_bytes: tuple[int, ...] = ()
    control_sent_frames: tuple[int, ...] = ()
    control_received_frames: tuple[int, ...] = ()
    links: tuple[Link, ...] = ()

    @property
    def slowest(self) -> float:
        """Bits per second of the slowest link in use: measured if known, else as stated."""
        nodes = set(self.node_of_rank)
        measured = [link.measured_bits_per_second for link in self.links if {link.sender, link.receiver} <= nodes]
        return min(measured or [self.stated_bits_per_second[node] for node in nodes])


class Traffic(Frozen):
    """Communication of a trial; only bytes of the algorithm's own collectives are counted."""

    ranks: tuple[RankTraffic, ...]
    busiest_rank: int
    """The rank that sent most."""
    busiest_sent_bytes: int
    busiest_received_bytes: int
    collectives: int
    """Of one rank; all ranks do the same."""
    exposed_seconds: float
    """Mean over ranks, as are the two below."""
    overlapped_seconds: float
    busy_seconds: float
    uncounted: tuple[str, ...]
    """Operations that passed through to the inner group."""
    training: Spent
    """Of training steps only, mean over ranks."""
    formula: Formula | None = None
    """None: the backend's own collectives."""

    @property
    def uncounted_share(self) -> float:
        """Share of one rank's payload in operations without counted bytes, 0 to 1."""
        lines = self.ranks[self.busiest_rank].lines
        unknown = sum(line.payload_bytes for line in lines if line.sent_bytes is None)
        return unknown / total if (total := sum(line.payload_bytes for line in lines)) else 0.0


class Model(Lenient):
    """Size and arithmetic of a trial's model (event `x_model`)."""

    parameters: int
    forward_flops: float | None
    """Floating-point operations of the forward pass of one sample; None: they could not be counted."""
    tokens_per_sample: int | None
    """None: its samples have no tokens."""
    device: str
    """Name of the device that every rank ran on."""
    peak_flops: float | None
    """Stated peak of one device in the format of the trial's matrix products; None: unknown."""
    peak_source: str
    why: str
    """Reason for a missing MFU; "" if there is one."""


class Exchange(Frozen):
    """The TCP payload, without headers, that all ranks together sent to the store and received from it."""

    sent_bytes: int
    received_bytes: int
    sent_messages: int
    """TCP segments with payload: a request or an answer of the store fits in one."""
    received_messages: int

    @property
    def bytes(self) -> int:
        """Bytes in both directions."""
        return self.sent_bytes + self.received_bytes

    @property
    def messages(self) -> int:
        """Messages in both directions."""
        return self.sent_messages + self.received_messages


class Frames(Frozen):
    """Frames of all nodes' interfaces to one network, headers and acknowledgements included."""

    sent_bytes: int
    received_bytes: int
    sent_frames: int
    received_frames: int

    @property
    def bytes(self) -> int:
        """Bytes in both directions."""
        return self.sent_bytes + self.received_bytes


class Controller(Frozen):
    """Traffic of a trial through its controller, which moves no model data, beside the frames between its nodes."""

    ranks: int
    startup: Exchange
    """From the first connection to `run_start`."""
    training: Exchange
    """From `run_start` to `run_stop`."""
    control_frames: Frames | None = None
    """Of the control network from `run_start` to `run_stop`; None: the launcher has no separate control network."""
    data_frames: Frames | None = None
    """Of the data network in the same time."""
    log_startup_bytes: int
    """Event log before `run_start`; rank 0 alone writes it."""
    log_training_bytes: int
    """From `run_start` to `run_stop`."""

    @property
    def bytes(self) -> int:
        """Bytes between the store and all ranks from the first connection to `run_stop`."""
        return self.startup.bytes + self.training.bytes


Provenance = Literal["measured", "modelled"]


class Part(Frozen):
    """One kind of hardware."""

    joules: float
    provenance: Provenance
    how: str
    """For example `RAPL counters`, `load x 85 W (thermal design power)`."""


class Energy(Frozen):
    """Energy of the whole machine, from the launch of a trial's processes to their end; other work on it is included.

    Energy is measured by CodeCarbon in a separate process. Without a counter it is a model: a share of the processor's
    nominal power by its load, and a constant for memory by its size. Such a figure can at best compare runs on one
    machine.
    """

    joules: float
    provenance: Provenance
    """measured only if every part is."""
    parts: dict[str, Part]
    """By hardware: cpu, gpu, ram."""
    seconds: float
    tool: str
    observer_seconds: float
    """Processor time of the tracker itself meanwhile."""

    @property
    def watts(self) -> float | None:
        """Mean over the interval."""
        return self.joules / self.seconds if self.seconds > 0 else None

    @property
    def observer_share(self) -> float | None:
        """Of one core."""
        return self.observer_seconds / self.seconds if self.seconds > 0 else None


class LayerCost(Frozen):
    """A line of the cost table of sufficient factors (event `x_gradient_plan`), made in `papers.wait_free`."""

    name: str
    """Of the weight."""
    outputs: int
    """M."""
    inputs: int
    """N; of a convolution all weights of one output."""
    linear: bool
    """A fully connected layer; only these can send factors."""
    rows: int
    """K: rows that the layer sees in a step on one worker, samples times positions."""
    itemsize: int
    """Bytes of a number of the gradient."""
    factor_itemsize: int
    """Bytes of a number of the factors."""
    reduce_bytes: int
    """Sent in a step by the busiest rank if the gradient is averaged."""
    factor_bytes: int
    """The same if factors are gathered."""
    reduce_seconds: float
    """Modelled."""
    factor_seconds: float
    """Modelled."""
    paper: bool
    """The paper's rule chooses factors."""
    factors: bool
    """The layer sent factors."""


class Checked(Frozen):
    """One check of the answers."""

    name: str
    error: float | None
    """Largest over ranks; None: not finite, so wrong."""
    limit: float

    @property
    def passed(self) -> bool:
        return self.error is not None and self.error <= self.limit


class Figured(Frozen):
    """One further figure, with its words, so that a reader needs no plug-in."""

    name: str
    value: float | None
    """Over ranks as its kind says; None: not finite."""
    title: str
    unit: str
    direction: Direction
    label: Literal["counted", "measured", "modelled"]
    """As in `repro.seams.measurement.FigureKind`."""


class Operation(Lenient):
    """Operations of one trial; the time of one is the MAX over ranks, seconds."""

    items: str
    """Plural noun of what an operation processes."""
    items_each: int
    """Items of one operation of all ranks."""
    count: int
    median_seconds: float
    mean_seconds: float
    p95_seconds: float
    straggler_seconds: float
    """Sum over operations of slowest minus fastest rank."""
    items_per_second: float
    checks: tuple[Checked, ...]
    figures: tuple[Figured, ...] = ()
    sent_bytes: float | None = None
    """By all ranks in one operation, as counted; None: not counted."""
    busiest_sent_bytes: float | None = None
    """The same of the rank that sends most."""


class GroupLag(Frozen):
    """One synchronous group of workers, or one worker."""

    updates: int
    mean_lag: float | None
    """Mean version lag of its own updates."""


class ServerTraffic(Frozen):
    """Traffic between a shard in a separate process and all workers of the run."""

    sent_bytes: int
    received_bytes: int


class Protocol(Lenient):
    """The protocol of a parameter server.

    The version lag (staleness) of an update is the version that it was applied to, minus the version that its gradient
    was computed with. The clock lag is how many clocks its worker had finished more than the slowest worker.
    """

    mode: str
    workers: int
    group: int
    staleness: int
    """Bound on the clock lag in mode ssp."""
    shards: int
    updates: int
    """Of the first shard, in the whole run."""
    weight_bytes: int
    """|W|: what a worker pushes, and what it pulls, for an update."""
    lag: dict[int, int]
    """Version lag -> updates, of all shards."""
    expected_lag: float | None
    """p / g - 1, the mean with equal workers but for the end terms; None: the mode only bounds it."""
    ahead: dict[int, int]
    """Clock lag -> updates, of the first shard."""
    by_group: tuple[GroupLag, ...]
    computed_seconds: tuple[float, ...]
    """By worker."""
    waited_seconds: tuple[float, ...]
    lost: tuple[int, ...] = ()
    """Workers that ended before the run did."""
    servers: tuple[ServerTraffic, ...] = ()
    """Of shards in processes of their own; empty: shards are in the processes of workers."""
    evaluations: int = 0
    """Of snapshots, which no worker waited for; 0: evaluations stop all workers, as under other engines."""
    evaluation_seconds: float = 0.0
    """Of all of them together; on the machine that the workers share."""
    evaluation_delay_seconds: float = 0.0
    """From a snapshot's last update until its value was known, mean."""
    evaluated_updates: int | None = None
    """Updates in the last evaluated snapshot; later ones belong to no figure. None: in lock step."""

    @property
    def mean_lag(self) -> float | None:
        return _mean(self.lag)

    @property
    def mean_ahead(self) -> float | None:
        return _mean(self.ahead)


def _mean(counts: dict[int, int]) -> float | None:
    total = sum(counts.values())
    return plain_sum(value * times for value, times in counts.items()) / total if total else None
