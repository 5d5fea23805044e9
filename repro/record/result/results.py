"""The result of a trial: all clocks, phases, traffic; `derive` computes it from the log."""

from __future__ import annotations

import typing
from functools import reduce
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from repro.core.frozen import Frozen
from repro.record.result.parts import Controller, Energy, LayerCost, Model, Network, Operation, Protocol, Traffic
from repro.record.result.reasons import LogDamaged, Reason
from repro.record.result.remarks import joined
from repro.record.result.result_warnings import FAULTS, Resumed, Warned
from repro.record.result.status import Status, meaning
from repro.suite.metrics import METRICS, MetricSpec
from repro.suite.model import Trial

PHASES = ("train", "eval", "checkpoint", "logging", "other")
LOST = "lost"
"""A sixth phase, of trials resumed from a checkpoint only: from the checkpoint to the point of resumption."""
SMALLEST = 1e-100
"""Smallest figure above 0 that a run writes; quotients of smaller ones become 0."""


def _refuse_tiny(value: float) -> float:
    if 0 < abs(value) < SMALLEST:
        raise PydanticCustomError("tiny", "a number that no run writes (too close to 0)")
    return value


Compared = Annotated[float, AfterValidator(_refuse_tiny)]
"""A figure of which ratios are formed."""


class Point(Frozen):
    """One evaluation: its end on each clock, and its value."""

    samples: int
    epochs: float
    wall_seconds: float
    train_seconds: float
    value: float | None
    """None if the metric was not finite."""
    train_loss: float | None = None


class Bracket(Frozen):
    """The last evaluation that missed and the first that hit: the crossing is between them (interval-censored)."""

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


class Result(Frozen):
    """The result of one trial."""

    trial_id: str
    cell_id: str
    repeat: int
    attempt: int
    status: Status
    reasons: tuple[Reason, ...] = ()
    """Why it ended as it did; empty for a success."""
    tta_wall: Compared | None = None
    """Seconds from `run_start` to the evaluation that establishes the target, including evaluation, plus the part
    of initialisation beyond its 30 minutes. Of design contest to the last evaluation, as the two below."""
    tta_train: Compared | None = None
    """The same, minus evaluation, checkpoint and logging."""
    tta_cold: Compared | None = None
    """Seconds from the launch of the processes to the same evaluation: the waiting time of a user."""
    tta_wall_bounds: tuple[float, float] | None = None
    """Least and largest `tta_wall` that agree with when a program's statements were read; None: they were read as they
    were made."""
    startup_seconds: float | None = None
    """Of a program: seconds on `tta_wall` before its first output or step, imports and data among them; None: it says
    when its training begins."""
    run_seconds: Compared | None = None
    """From `run_start` to `run_stop`."""
    init_seconds: Compared | None = None
    compile_seconds: Compared | None = None
    """Seconds of compilation before `run_start`, of the slowest rank; part of `tta_cold`. None: nothing is compiled."""
    samples_to_target: int | None = None
    epochs_to_target: Compared | None = None
    bracket: Bracket | None = None
    samples: int | None = None
    samples_per_second: Compared | None = None
    """All samples of the run over its wall clock, evaluation included; measured outside the engine."""
    train_samples_per_second: Compared | None = None
    """Samples of the timed steps over their time, input included: no evaluation, no opening of the data."""
    tokens_per_second: Compared | None = None
    """The same in tokens; None: samples have none."""
    step_seconds: Compared | None = None
    """Median over timed steps of the slowest rank's step, its input included."""
    step_seconds_mean: Compared | None = None
    phases: dict[str, float] = Field(default_factory=dict)
    """Seconds by phase between `run_start` and `run_stop`."""
    conservation_error: float | None = None
    """|sum of phases - wall| / wall."""
    observer_effect: float | None = None
    """Logging seconds over the run's wall clock."""
    steps: Steps | None = None
    input_wait_seconds: float | None = None
    """Time that a step waited for its input, mean over steps, of the rank that waited most; None: an engine without
    input."""
    input_wait_share: float | None = None
    """The same as a share of that rank's steps, waiting included; 0 to 1."""
    peak_bytes: int | None = None
    """Largest over ranks. On a GPU in training; on a processor in the process's life. Of a measurement
    in its operations."""
    memory: Literal["", "resident", "allocated"] = ""
    """Kind of memory in the three fields below: resident memory of a process, interpreter and libraries included, or
    memory that torch allocated on a GPU."""
    training_peak_mib: float | None = None
    """MiB of the rank that needed most, from `run_start` on."""
    training_peak_mib_sum: float | None = None
    """Sum over ranks of each rank's largest; memory that processes share counts for each."""
    init_peak_mib: float | None = None
    """Of the rank that needed most until `run_start`, warm-up included."""
    model: Model | None = None
    """None: the engine trains none."""
    mfu: float | None = None
    """Model FLOPs utilisation: the model's operations a second over the stated peak of all devices, 0 to 1."""
    state_bytes: dict[str, int] = Field(default_factory=dict)
    """Memory of the model's states on one rank, modelled (`repro.engines.plain.state`); empty: no formula, or an old
    record."""
    bytes_sent: int | None = None
    """By all ranks, in collectives that are counted."""
    traffic: Traffic | None = None
    protocol: Protocol | None = None
    """None: no servers hold the weights."""
    gradient_plan: tuple[LayerCost, ...] | None = None
    """None: no layer could send sufficient factors."""
    network: Network | None = None
    """None: the launcher sets up no network."""
    controller: Controller | None = None
    """Traffic through the controller; None: not counted, a resumed trial."""
    energy: Energy | None = None
    """Energy of the whole machine while the trial's processes ran; None: not tracked."""
    operation: Operation | None = None
    """None: not of kind measurement."""
    final: float | None = None
    best: float | None = None
    curve: tuple[Point, ...] = ()
    curve_in_steps: bool = False
    """`Point.samples` are steps: a program states them, and its batch is not known. False in earlier records, too."""
    hashes: dict[str, str] = Field(default_factory=dict)
    every_rank: bool | None = None
    """Every rank's own weights were compared and agree with the hash of the final weights."""
    effective: dict[str, str] = Field(default_factory=dict)
    settings: dict[str, str] = Field(default_factory=dict)
    """Environment variables that affect training, as rank 0 read them."""
    build: dict[str, str] = Field(default_factory=dict)
    """Build of the library that trains, as read by rank 0."""
    warnings: tuple[Warned, ...] = ()

    @property
    def only_numbered(self) -> bool:
        """`Point.samples` is the number of an evaluation: a program states no position, or an early record of 1.0.0rc1
        does not say that it does."""
        return self.samples is None and self.samples_to_target is None and not self.curve_in_steps and all(
            point.samples == number for number, point in enumerate(self.curve, 1))

    @property
    def reason(self) -> str:
        """Why it ended as it did, in words."""
        return joined(self.reasons)

    def is_of(self, trial: Trial) -> bool:
        """Return whether it is the result of this trial."""
        return (self.trial_id, self.cell_id, self.repeat) == (trial.trial_id, trial.cell_id, trial.repeat)

    @property
    def log_faults(self) -> tuple[Warned, ...]:
        """Warnings that time or samples are not conserved."""
        return tuple(item for item in self.warnings if isinstance(item, FAULTS))

    @property
    def log_damaged(self) -> bool:
        """Every rank ended well, but lines of the log are damaged or missing: it is crashed, without a figure."""
        return any(isinstance(item, LogDamaged) for item in self.reasons)

    @property
    def resumed(self) -> tuple[Resumed, ...]:
        """Its resumptions, in order; its log contains the part before each."""
        return tuple(item for item in self.warnings if isinstance(item, Resumed))

    def at(self, path: str) -> Any:
        """Return the value at a metric's path: names joined by dots; None if any part of it is missing."""
        return reduce(lambda found, name: None if found is None else getattr(found, name), path.split("."), self)

    @property
    def state_mib_modelled(self) -> float | None:
        """Memory of the model's states on one rank by the engine's formula, MiB; None: no formula."""
        total = self.state_bytes.get("total")
        return None if total is None else total / (1 << 20)

    @property
    def controller_bytes(self) -> int | None:
        """Bytes between the controller's store and all ranks, from the first connection to `run_stop`."""
        return self.controller.bytes if self.controller else None

    @property
    def busiest_bytes(self) -> int | None:
        """Bytes that the rank with most of both sent and received between `run_start` and `run_stop`, in collectives
        that are counted; a server of the weights is a rank here."""
        if self.traffic is None:
            return None
        servers = self.protocol.servers if self.protocol else ()
        return max([*(rank.sent_bytes + rank.received_bytes for rank in self.traffic.ranks),
                    *(server.sent_bytes + server.received_bytes for server in servers)])

    @property
    def version_lag(self) -> float | None:
        """Mean staleness of the updates; None: no servers hold the weights."""
        return self.protocol.mean_lag if self.protocol else None

    @property
    def clock_lag(self) -> float | None:
        """Mean number of clocks that the worker of an update was ahead of the slowest; None: as above."""
        return self.protocol.mean_ahead if self.protocol else None

    @property
    def joules_per_sample(self) -> float | None:
        """Measured energy per training sample, from the launch of the processes to their end; None also if any part is
        modelled."""
        joules = self.energy_joules_measured
        return joules / self.samples if joules is not None and self.samples else None

    @property
    def gpu_joules_per_sample(self) -> float | None:
        """Measured energy of the GPUs alone per training sample, from the launch of the processes to their end; None
        without their counter. The energy of memory is always modelled, so on most machines that of all has none."""
        part = self.energy.parts.get("gpu") if self.energy else None
        return part.joules / self.samples if part and part.provenance == "measured" and self.samples else None

    @property
    def energy_joules_measured(self) -> float | None:
        """None also if any part is modelled."""
        return self.energy.joules if self.energy and self.energy.provenance == "measured" else None

    @property
    def energy_joules_modelled(self) -> float | None:
        """None also if all of it is measured: the two are separate figures."""
        return self.energy.joules if self.energy and self.energy.provenance == "modelled" else None


FIGURES = (
    "tta_wall", "tta_train", "tta_cold", "run_seconds", "init_seconds", "samples_to_target", "epochs_to_target",
    "samples", "samples_per_second", "train_samples_per_second", "input_wait_seconds", "input_wait_share",
    "conservation_error", "observer_effect",
    "step_seconds", "step_seconds_mean", "tokens_per_second", "peak_bytes", "training_peak_mib",
    "training_peak_mib_sum", "init_peak_mib", "mfu", "joules_per_sample", "gpu_joules_per_sample", "bytes_sent",
    "final", "best", "energy_joules_measured", "energy_joules_modelled", "version_lag", "clock_lag",
)
"""Fields of a result that tables and tracking stores show, in this order; metrics that are not among them follow."""


class Measured(typing.Protocol):
    """An object with metrics: a result, or a mean of several."""

    @property
    def status(self) -> str: ...

    def at(self, path: str) -> Any:
        """Return the value at a metric's path; None if it is missing."""


def figure(result: Measured, spec: MetricSpec) -> float | None:
    """Return the metric of one trial; None if the trial has none, or its end says nothing of the cell.

    One that was cut short, by divergence or its time limit, has no final quality, and no time or bytes to its end.
    """
    end = meaning(result.status)
    if not end.counts or (spec.to_target and not end.reached) or (spec.of_whole_trial and not end.completed):
        return None
    value = result.at(spec.path)
    return None if value is None else float(value)


def figures_of(result: Result) -> dict[str, Any]:
    """Return all figures of a result by name, for tables and tracking stores."""
    found = {name: getattr(result, name) for name in FIGURES}
    return found | {spec.column: result.at(spec.path) for spec in METRICS.values() if spec.column not in found}
