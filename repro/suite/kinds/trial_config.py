"""The base class of all kinds of trial: what planning, running, recording and reporting need of any trial.

A new kind is one subclass of `TrialConfig` and one row in `repro.suite.kinds.kinds.KINDS`; a kind of a paper is a row
`kind` and a row `derivation` in `repro.core.registry.PARTS`:

1. Write the class in a separate file, next to `repro.suite.kinds.training`. It declares its fields (the four below
   among them), `kind: Literal["<name>"]` without `exclude=True`, and every abstract member.
2. Add the row. A suite that says `kind: <name>` in `trial:` is then parsed as that class.
3. Add the class to the union `AnyTrialConfig`, unless it is of a paper. mypy then lists every place that uses fields
   of training.
4. Write the worker that `entry` names. It logs the events that `repro.record.derive.derive` reads.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import GetJsonSchemaHandler, ValidationInfo, field_validator, model_validator
from typing_extensions import Self

from repro.core.devices import on_gpu
from repro.core.frozen import digest
from repro.core.machine import Machine
from repro.core.source_code import PLACE_DIGITS
from repro.seams.launching import Launcher
from repro.seams.plugin import Setting
from repro.suite.choice import Choice, parse_choice
from repro.suite.field_problem import SuitePart
from repro.suite.kinds.program_files import ProgramFiles
from repro.suite.quality import Quality


@dataclass(frozen=True, slots=True)
class LogSize:
    """Size of a trial's log if it uses its whole budget."""

    budget: str
    """The budget as people read it, for example `8 epochs`."""
    steps: int
    evaluations: int
    fewer_steps: str
    """The change of a suite for fewer steps."""
    fewer_evaluations: str


@dataclass(frozen=True, slots=True, order=True)
class CarriedCode:
    """A class or a command that is not installed here but comes with a record."""

    what: str
    """`workload net.py:Net`, or a command as it is started."""
    sha256: str
    """Of names and contents of all its files; "" for a folder, which is not hashed."""
    place: str
    """Path of its source, relative to the record."""

    def text(self) -> str:
        return f"{self.what} ({self.place})"


class BatchSize(SuitePart):
    """Samples per optimizer step; a plain number is the same as `{global: number}`."""

    @model_validator(mode="before")
    @classmethod
    def _by_number(cls, data: Any) -> Any:
        return {"global": data} if isinstance(data, int) else data

    @classmethod
    def __get_pydantic_json_schema__(cls, core: Any, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"anyOf": [{"type": "integer", "minimum": 1}, handler(core)]}


class TrialConfig(SuitePart):
    """Everything that defines a cell: what its trials have in common."""

    plugin_fields: ClassVar[tuple[str, ...]]
    """Fields that hold a plug-in; each has the name of its seam."""

    trains: ClassVar[bool] = True
    """False: its trials are measured by operations, and share a suite with no other kind."""
    default_metric: ClassVar[str] = ""
    """Metric of the declared contrast where a suite names none; "": that of the design."""

    if TYPE_CHECKING:  # declared by every kind itself, so that its fields stay in the order in which people read them
        kind: Any
        processes: int
        device: Any
        timeout_seconds: float
        stall_seconds: float | None
        stop: Any
        launcher: Choice

    @field_validator("*", mode="before")
    @classmethod
    def _chosen(cls, value: Any, info: ValidationInfo) -> Any:
        seam = info.field_name or ""
        return parse_choice(seam, value) if seam in cls.plugin_fields else value

    # ---- names

    @property
    @abstractmethod
    def slug(self) -> str:
        """The readable part of the cell's name."""

    @property
    @abstractmethod
    def title(self) -> str:
        """The cell's label in a suite in which nothing varies."""

    @property
    def task(self) -> str:
        """Return the task of its trials, as people read it: cells of one task share a panel of curves."""
        return self.title

    @property
    @abstractmethod
    def quality(self) -> Quality:
        """Words and derived figures of the metric by which its trials are judged."""

    @property
    def global_batch(self) -> int | None:
        """Samples of one optimizer step over all processes; None: not declared."""
        return None

    @property
    def train_samples(self) -> int | None:
        """Samples of one pass over the training data; None: not declared."""
        return None

    @property
    def settings(self) -> dict[str, str]:
        """Settings that follow from the fields, by name."""
        return {}

    def stated(self) -> dict[str, Any]:
        """Return the fields as JSON data, as suites name their levels: also one that is left out for its default."""
        return self.model_dump(mode="json", by_alias=True)

    @property
    def repeatability(self) -> str:
        """The declared level of determinism."""
        return "unknown"

    @property
    def ranks(self) -> int:
        """Processes that the launcher starts for a trial."""
        return self.processes

    @property
    def unverified(self) -> str:
        """Return the unchecked statements about its trials, for every verdict on them; "" if all are checked."""
        return ""

    def located(self: Self, files: ProgramFiles) -> Self:
        """Return these choices with the hashes of the user's files that they name.

        Raises:
            FieldProblem: they are not there.
        """
        return self

    @classmethod
    def phrase(cls, field: str, value: str) -> str:
        """Return one factor of a label, for example `2 processes`."""
        if field == "processes":
            return f"{value} process{'es' if value != '1' else ''}"
        return value if field in cls.plugin_fields else f"{field.split('.')[-1].replace('_', ' ')} {value}"

    @cached_property
    def cell_id(self) -> str:
        """The slug and 8 hex digits of the canonical JSON."""
        return f"{re.sub('[^a-z0-9-]+', '-', self.slug.lower())}-{digest(self)[:8]}"

    @property
    @abstractmethod
    def work(self) -> str:
        """Return the work of one trial, as a plan shows it: how a batch is cut, a command, operations."""

    # ---- what may run where

    def absent(self) -> str:
        """Return which data, service or room on disk is missing here, and how to get it; "" if nothing is."""
        return ""

    @property
    def origin(self) -> str:
        """The label of a trial's figures: measured, emulated or simulated."""
        return self.launcher.get(Launcher).origin

    def lacks(self, metric: str) -> str:
        """Return why no trial can have a figure of a metric, and which it has; "" if one can."""
        return ""

    @abstractmethod
    def why_no_checkpoints(self) -> str:
        """Return why a trial writes no checkpoints, for example `engine single keeps no checkpoints`; "" if it does."""

    def setting(self, device: str, device_count: int) -> Setting:
        """Return these choices as plain words, on a machine with `device_count` devices of kind `device`."""
        return Setting(workload=self.task, engine=self.kind, comm="", precision="", optimizer="",
                       launcher=self.launcher.kind, processes=self.ranks, accumulation=1, device=device,
                       device_count=device_count)

    def on(self: Self, device: str) -> Self:
        """Return these choices with a device in place of `auto`."""
        return self.model_copy(update={"device": device}) if self.device == "auto" else self

    def plugins(self) -> tuple[Choice, ...]:
        """Return every plug-in chosen."""
        return tuple(getattr(self, name) for name in self.plugin_fields)

    def carried_code(self) -> tuple[CarriedCode, ...]:
        """Return the code that a trial executes and that no installed package brings: a record that is run again needs
        the user's consent to it. A kind that starts a command adds the command.
        """
        return tuple(CarriedCode(f"{item.seam} {item.kind}", item.code,
                                 f"code/{item.code[:PLACE_DIGITS]}/{item.kind.partition(':')[0]}")
                     for item in self.plugins() if item.code)

    def preload(self) -> list[str]:
        """Return modules that the ranks of a trial import, worth loading once for all trials."""
        return [*self.plugin_modules(), *(name for choice in self.plugins() for name in choice.plugin.preload)]

    def plugin_modules(self) -> list[str]:
        """Return this project's modules with the classes of the plug-ins, which every rank imports to read its trial.
        Other packages name in `preload` what may be imported before a rank starts.
        """
        return [module for choice in self.plugins() if (module := type(choice.plugin).__module__).startswith("repro.")]

    def unsupported(self, machine: Machine, installed: bool | None = None) -> str:
        """Return why `machine` cannot run these choices, in one sentence; "" if it can.

        Args:
            installed: as in `Setting`.
        """
        if on_gpu(self.device) and self.device != "auto" and not on_gpu(machine.device):
            return "device cuda is requested, and this machine has no usable GPU; use -o device=cpu"
        device = machine.device if self.device == "auto" else self.device
        count = machine.device_count * self.launcher.get(Launcher).nodes_of(self.ranks) if on_gpu(device) else 0
        setting = replace(self.setting(device, count), cores=machine.cores, installed=installed)
        for choice in self.plugins():
            if reason := choice.plugin.unsupported(setting):
                return f"{choice.seam} {choice.kind}: {reason}"
        return ""

    def notes(self, machine: Machine) -> list[str]:
        """Return the notes on these choices."""
        setting = replace(self.setting(self.device, machine.device_count), cores=machine.cores)
        return [f"{choice.seam} {choice.label}: {text}" for choice in self.plugins()
                if (text := choice.plugin.note(setting))]

    # ---- what a trial takes

    @property
    def always_runs_full_budget(self) -> bool:
        """A trial uses its whole budget, even if it reaches its target."""
        return bool(self.stop.design != "stop_at_target")

    @abstractmethod
    def full_budget_seconds(self, cores: int) -> float | None:
        """Return roughly how long a trial takes with its whole budget on `cores` CPU cores (modelled); None: nothing
        tells."""

    @abstractmethod
    def log_size(self) -> LogSize:
        """Return the size of a trial's log for its whole budget."""

    def rank_logs(self) -> int:
        """Return how many files with the output of ranks a trial leaves."""
        return self.launcher.get(Launcher).rank_logs(self.ranks)

    def gate_starts(self) -> int:
        """Return how often the parity gate starts a cell of these choices: once for each of its comparisons."""
        return 0
