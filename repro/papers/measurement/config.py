"""The kind of trial that measures something smaller than a training: a layer, a pipeline, an exchange."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Literal

from pydantic import Field

from repro.core.machine import Machine
from repro.seams.measurement import Measurement
from repro.seams.plugin import Setting
from repro.seams.training import Comm
from repro.suite.choice import Choice
from repro.suite.kinds.stop import Repeats
from repro.suite.kinds.training import LAUNCH_SECONDS
from repro.suite.kinds.trial_config import LogSize, TrialConfig
from repro.suite.metrics import DEFAULT_OF_A_MEASUREMENT
from repro.suite.quality import Quality


class MeasurementConfig(TrialConfig):
    """Everything that defines a cell whose trials measure operations."""

    trains: ClassVar[bool] = False
    default_metric: ClassVar[str] = DEFAULT_OF_A_MEASUREMENT
    plugin_fields: ClassVar[tuple[str, ...]] = ("measurement", "comm", "launcher")

    kind: Literal["measurement"] = Field("measurement", description="what a trial is; measurement: a layer, a pipeline")
    measurement: Choice
    processes: int = Field(1, ge=1, le=65536, description="ranks")
    stop: Repeats
    comm: Choice = Field("backend", validate_default=True)
    launcher: Choice = Field("local", validate_default=True)
    timeout_seconds: float = Field(3600.0, gt=0, le=1e7, description="longest a trial may take, start to end")
    stall_seconds: float | None = Field(
        None, gt=0, le=1e7, description="a trial is ended as hung after this long without an event; must be longer "
                                        "than its start and than an operation; null: only timeout_seconds")
    device: Literal["auto", "cpu", "cuda"] = "auto"

    # ---- as a kind of trial

    @property
    def slug(self) -> str:
        return f"{self.measurement.kind}-p{self.processes}"

    @property
    def title(self) -> str:
        return self.measurement.label

    @property
    def task(self) -> str:
        return self.measurement.kind

    @property
    def quality(self) -> Quality:
        return Quality("", "quality", "higher", self.measurement.get(Measurement).items, None, None)

    @property
    def items_per_operation(self) -> int:
        """Items that one operation of all ranks processes."""
        return self.measurement.get(Measurement).items_per_operation(self.processes)

    @property
    def work(self) -> str:
        return (f"{self.stop.repeats} operations of {self.items_per_operation:,} {self.quality.unit}, "
                f"{self.processes} process{'es' if self.processes > 1 else ''}")

    def absent(self) -> str:
        return self.measurement.get(Measurement).absent()

    @property
    def repeatability(self) -> str:
        return "seeded"

    @property
    def origin(self) -> str:
        own = self.measurement.get(Measurement).origin
        return own if own != "measured" else super().origin

    def why_no_checkpoints(self) -> str:
        return "a measurement keeps no checkpoints"

    def setting(self, device: str, device_count: int) -> Setting:
        comm = self.comm.get(Comm)
        return replace(super().setting(device, device_count), comm=self.comm.kind, own_algorithm=comm.own_algorithm,
                       passed_through=tuple(comm.passes_through(self.processes)))

    def notes(self, machine: Machine) -> list[str]:
        counted = self.processes == 1 or self.comm.get(Comm).own_algorithm
        silent = "" if counted else (f"{self.comm.label}: the bytes of its collectives are not counted; another comm, "
                                     "for example ring, counts them")
        return [*([silent] if silent else []), *super().notes(machine)]

    def full_budget_seconds(self, cores: int) -> float:
        operations = self.stop.repeats + self.stop.warmup
        return LAUNCH_SECONDS + operations * self.measurement.get(Measurement).expected_seconds(self.processes)

    def log_size(self) -> LogSize:
        return LogSize(budget=f"{self.stop.repeats} operations", steps=self.stop.repeats, evaluations=0,
                       fewer_steps="fewer repeats", fewer_evaluations="")
