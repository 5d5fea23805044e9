"""What a trial came to: all clocks, phases, traffic; `derive` makes it from the log."""

from __future__ import annotations

from typing import Literal

from pydantic import ConfigDict, Field

from repro.core.frozen import Frozen
from repro.record.energy import Energy

Status = Literal["ok", "missed", "diverged", "out_of_memory", "timed_out", "hung", "crashed", "invalid"]
RERUN = ("crashed", "hung")
"""Ends that say something of the machine and nothing of the cell; only these are ever run again."""
LogFault = Literal["steps_missing", "clock_backwards"]
"""Step records do not cover the evaluations' samples; an evaluation is before its predecessor."""
PHASES = ("train", "eval", "checkpoint", "logging", "other")
LOST = "lost"
"""A sixth phase, of trials that went on from a checkpoint only: from the checkpoint to where they went on."""
OTHER_SHARE = 0.1
"""Largest share of the wall clock that may go to neither training, evaluation, checkpoints nor logging."""
CONSERVATION_TOLERANCE = 0.01
"""Largest share of the wall clock that the phases may leave unexplained (method.md 1.2)."""


class Point(Frozen):
    """One evaluation: where on each clock it ended, and what it found."""

    samples: int
    epochs: float
    wall_seconds: float
    train_seconds: float
    value: float | None
    """None where the metric was not finite."""
    train_loss: float | None = None


class Bracket(Frozen):
    """The last evaluation that missed and the first that hit: the crossing lies between (interval-censored)."""

    miss_samples: int
    hit_samples: int
    miss_wall_seconds: float
    hit_wall_seconds: float


class Steps(Frozen):
    """Step times of one trial, seconds; a step's time is the MAX over ranks."""

    count: int
    median_seconds: float
    p95_seconds: float
    straggler_seconds: float
    """Sum over steps of slowest minus fastest rank."""


class Moved(Frozen):
    """Collectives of one operation and type on one rank."""

    operation: str
    dtype: str
    collectives: int
    payload_bytes: int
    sent_bytes: int | None
    """None: done by the inner group, which does not count."""
    received_bytes: int | None


class Spent(Frozen):
    """Seconds of communication, as in `RankTraffic`."""

    busy_seconds: float
    exposed_seconds: float
    overlapped_seconds: float


class RankTraffic(Frozen):
    """What one rank's communication came to between `run_start` and `run_stop`."""

    lines: tuple[Moved, ...]
    busy_seconds: float
    """Collectives ran."""
    exposed_seconds: float
    """Training stood still for them."""
    overlapped_seconds: float
    """They ran while it did not."""
    training: Spent | None = None
    """Of it during training steps: evaluations and barriers left out. None: a record from before they were apart."""

    @property
    def sent_bytes(self) -> int:
        return sum(line.sent_bytes or 0 for line in self.lines)

    @property
    def received_bytes(self) -> int:
        return sum(line.received_bytes or 0 for line in self.lines)


class Formula(Frozen):
    """What the algorithm's schedules ask for, for the very collectives that ran (`repro.worker.expected_traffic`)."""

    sent_bytes: int
    """Of the rank that sends most."""
    received_bytes: int
    rounds: int
    path_bytes: int
    """Sum over rounds of the most that one rank sends or receives in it."""
    reduced_bytes: int
    assumed: tuple[str, ...] = ()
    """Operations and types whose messages were taken as of one size."""


class Link(Frozen):
    """A transfer from one node to another before the first trial; bits per second."""

    sender: int
    receiver: int
    stated_bits_per_second: float
    """The lower of both ends' rates."""
    measured_bits_per_second: float
    """Payload of one TCP stream."""


class Network(Frozen):
    """The network that a launcher made for a trial; what else the launcher says of it stays in its own file."""

    model_config = ConfigDict(extra="ignore")

    origin: str
    """emulated or measured."""
    frame_bytes: int | None = None
    node_of_rank: tuple[int, ...]
    stated_bits_per_second: tuple[float, ...]
    """By node."""
    sent_bytes: tuple[int, ...] = ()
    """By node, from the start of the processes to their end, headers included."""
    received_bytes: tuple[int, ...] = ()
    links: tuple[Link, ...] = ()

    @property
    def slowest(self) -> float:
        """Bits per second of the slowest link in use: measured where it was, else as stated."""
        nodes = set(self.node_of_rank)
        measured = [link.measured_bits_per_second for link in self.links if {link.sender, link.receiver} <= nodes]
        return min(measured or [self.stated_bits_per_second[node] for node in nodes])


class Traffic(Frozen):
    """Communication of a trial; only collectives that the algorithm did itself have their bytes counted."""

    ranks: tuple[RankTraffic, ...]
    busiest_rank: int
    """The one that sent most."""
    busiest_sent_bytes: int
    busiest_received_bytes: int
    collectives: int
    """Of one rank; all do the same."""
    exposed_seconds: float
    """Mean over ranks, as the two below."""
    overlapped_seconds: float
    busy_seconds: float
    uncounted: tuple[str, ...]
    """Operations that passed through to the inner group."""
    training: Spent | None = None
    """Of training steps alone, mean over ranks; None: a record from before they were apart."""
    formula: Formula | None = None
    """None: the backend's own collectives, or a record from before it was kept."""

    @property
    def uncounted_share(self) -> float:
        """Of one rank's payload: what went through operations whose bytes nobody counted, 0 to 1."""
        lines = self.ranks[self.busiest_rank].lines
        unknown = sum(line.payload_bytes for line in lines if line.sent_bytes is None)
        return unknown / total if (total := sum(line.payload_bytes for line in lines)) else 0.0

    @property
    def steps(self) -> Spent:
        """What training steps spent; in old records evaluations and barriers are in it."""
        return self.training or Spent(busy_seconds=self.busy_seconds, exposed_seconds=self.exposed_seconds,
                                      overlapped_seconds=self.overlapped_seconds)


class Resumed(Frozen):
    """A trial went on from a checkpoint of an earlier attempt."""

    attempt: int
    """The one that wrote it."""
    step: int
    samples: int
    lost_seconds: float
    """From the checkpoint to where it went on: what was computed and lost, the failure, the new start. On every
    clock."""
    clock: Literal["monotonic", "wall"]
    """By which the loss is known: the wall clock, where the machine was started anew in between."""


class Result(Frozen):
    """What one trial came to."""

    schema_: Literal[1] = Field(default=1, alias="schema")
    trial_id: str
    cell_id: str
    repeat: int
    attempt: int
    status: Status
    reason: str = ""
    tta_wall: float | None = None
    """Seconds from `run_start` to the evaluation that establishes the target, evaluation on the clock, plus what
    initialisation took beyond its 30 minutes."""
    tta_train: float | None = None
    """The same, minus evaluation, checkpoint and logging."""
    tta_cold: float | None = None
    """Seconds from the launch of the processes to the same evaluation: what a user waits."""
    run_seconds: float | None = None
    """From `run_start` to `run_stop`."""
    init_seconds: float | None = None
    samples_to_target: int | None = None
    epochs_to_target: float | None = None
    bracket: Bracket | None = None
    samples: int | None = None
    samples_per_second: float | None = None
    """All samples of the run over its wall clock, evaluation included; measured outside the engine."""
    train_samples_per_second: float | None = None
    phases: dict[str, float] = Field(default_factory=dict)
    """Seconds by phase between `run_start` and `run_stop`."""
    conservation_error: float | None = None
    """|sum of phases - wall| / wall."""
    observer_effect: float | None = None
    """Logging seconds over the run's wall clock."""
    steps: Steps | None = None
    peak_bytes: int | None = None
    """Largest over ranks."""
    bytes_sent: int | None = None
    """By all ranks, in collectives that are counted."""
    traffic: Traffic | None = None
    network: Network | None = None
    """None: the launcher has none of its own, or a record from before it was kept."""
    energy: Energy | None = None
    """Of the whole machine while the trial's processes ran; None: not tracked."""
    final: float | None = None
    best: float | None = None
    curve: tuple[Point, ...] = ()
    hashes: dict[str, str] = Field(default_factory=dict)
    effective: dict[str, str] = Field(default_factory=dict)
    settings: dict[str, str] = Field(default_factory=dict)
    """Environment variables that bear on training, as rank 0 saw them."""
    build: dict[str, str] = Field(default_factory=dict)
    """How the library that trains was built, as rank 0 found it; empty in records from before it was kept."""
    warnings: tuple[str, ...] = ()
    """For readers; no code reads them."""
    log_faults: tuple[LogFault, ...] = ()
    """Faults that an unmodified log never has; empty in results of version 0.1.0, which only warn of them."""
    resumed: tuple[Resumed, ...] = ()
    """Where it went on from, in order; its log holds what came before."""

    @property
    def energy_joules_measured(self) -> float | None:
        """None too where any part of it is modelled."""
        return self.energy.joules if self.energy and self.energy.provenance == "measured" else None

    @property
    def energy_joules_modelled(self) -> float | None:
        """None too where all of it is measured: the two are never one figure."""
        return self.energy.joules if self.energy and self.energy.provenance == "modelled" else None
