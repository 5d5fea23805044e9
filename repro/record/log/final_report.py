"""Events after the clock of a trial has stopped: figures of all ranks together, hashes, checks, settings that ran."""

from __future__ import annotations

from typing import Literal

from pydantic import ConfigDict, Field

from repro.core.frozen import Frozen
from repro.record.log.event import LogEvent, Series, ValueEvent
from repro.record.result.controller import Frames
from repro.record.result.operation import Checked, Figured
from repro.record.result.protocol import Protocol
from repro.record.result.results import Formula, Model, RankTraffic


class RankSteps(LogEvent):
    """Seconds of the slowest and of the fastest rank, by step."""

    key = "x_rank_steps"
    slowest_seconds: Series
    """Without input, as is the next."""
    fastest_seconds: Series
    whole_seconds: Series
    """Of the slowest rank, with input."""


class Operations(LogEvent):
    """Seconds of the slowest and of the fastest rank, by operation of a measurement."""

    key = "x_operations"
    slowest_seconds: Series
    fastest_seconds: Series


class InputWaits(ValueEvent):
    """Seconds that a rank's timed steps waited for input, and those of the steps themselves; by rank."""

    key = "x_input"
    value: tuple[tuple[float, float], ...]


class TrafficCounted(ValueEvent):
    """Communication between `run_start` and `run_stop`, by rank; None: the rank counted none."""

    key = "x_traffic"
    value: tuple[RankTraffic | None, ...]


class FormulaTraffic(ValueEvent):
    """What the algorithm's schedules require for the collectives that ran."""

    key = "x_formula"
    value: Formula


class ControllerReading(Frozen):
    """One rank's counters at one moment: TCP payload and segments of its connections to the store, and its log."""

    connections: int
    sent_bytes: int
    received_bytes: int
    sent_segments: int
    received_segments: int
    log_bytes: int
    interfaces: dict[str, Frames]
    """Frames by network, control or data."""


class ControllerReadings(Frozen):
    """One rank's counters at `run_start` and at `run_stop`."""

    start: ControllerReading
    stop: ControllerReading


class ControllerCounted(ValueEvent):
    """Exchange with the controller, by rank."""

    key = "x_controller"
    value: tuple[ControllerReadings, ...]


class MemoryPeaks(LogEvent):
    """Largest memory of every rank, bytes; None: unknown."""

    key = "x_memory"
    kind: Literal["resident", "allocated"]
    init: tuple[int | None, ...]
    """Until `run_start`."""
    training: tuple[int | None, ...]
    """From then on; of a measurement in its operations."""


class StateMemory(ValueEvent):
    """Modelled bytes of the model's states on one rank: weights, gradients, masters, optimizer and their `total`."""

    key = "x_state_memory"
    value: dict[str, int]


class ServerProtocol(ValueEvent):
    """What servers of the weights did."""

    key = "x_protocol"
    value: Protocol


class RankWeights(Frozen):
    """Hashes of the weights that one rank holds at the end (`worker.rank_weights`)."""

    model_config = ConfigDict(extra="ignore")

    parts: str
    """Of which numbers it holds: ranks with equal parts must have equal values."""
    sha256: str
    """Of their values."""
    different: int
    """Values that differ from the trial's weights."""
    first: str
    """The first such tensor."""


class OwnEvaluation(Frozen):
    """One evaluation that the harness repeated."""

    model_config = ConfigDict(extra="ignore")

    number: int
    samples: int
    reported: float | None
    """The engine's value; None: not finite, as below."""
    own: float | None
    problem: str = ""
    """Why it could not be repeated."""


class FinalFacts(Frozen):
    """Facts about a finished trial that no engine states."""

    model_config = ConfigDict(extra="ignore")

    ranks: tuple[RankWeights | None, ...] = ()
    """None: the rank's own weights cannot be read."""
    wide_share: float = 1.0
    """Share of the master weights with more digits than the narrow type, 0 to 1."""
    moved_by_evaluation: tuple[int, ...] = ()
    """Evaluations that changed the weights."""
    evaluations: tuple[OwnEvaluation, ...] = ()
    optimizer: dict[str, str] = Field(default_factory=dict)
    """The requested optimizer, in the words of `effective`."""
    problem: str = ""
    """Why the model could not be built a second time."""


class FactsGathered(ValueEvent):
    """The facts, judged by `record.derive.final_facts`."""

    key = "x_checked"
    value: FinalFacts


class Seeded(Frozen):
    """Whether what a trial consumed follows its seed."""

    data_order: bool
    augmentation: bool = True
    """True also without augmentation."""


class Fed(LogEvent):
    """Tallies of the consumed samples and of the drawn augmentation (hexadecimal)."""

    key = "x_fed"
    samples: int
    order: str
    augmentation: str
    as_seeded: Seeded


class ModelStated(ValueEvent):
    """Size and arithmetic of the model."""

    key = "x_model"
    value: Model


class MeasurementFindings(LogEvent):
    """What a measurement found, over ranks."""

    key = "x_findings"
    checks: tuple[Checked, ...]
    figures: tuple[Figured, ...]


class ClocksCompared(LogEvent):
    """A program's clock against ours; None: nothing could be compared."""

    key = "x_clocks"
    own_share: float | None
    """Its seconds over ours."""
    steps_share: float | None
    """The same over stretches of steps alone."""
    judged_seconds: float
    """Our seconds of these stretches."""


class EffectiveSettings(ValueEvent):
    """The settings that ran, read back from the running objects; the last event of a log."""

    key = "x_effective"
    value: dict[str, str]
