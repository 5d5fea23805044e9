"""The abstract classes a plug-in fills in, on one page.

A plug-in is one class in one file: its fields are its validated options (pydantic, frozen, unknown keys refused), its
one or two methods do the work, and heavy imports (torch, deepspeed, mlflow) happen inside the methods. What a plug-in
cannot do under a given setting it says in `unsupported`, which becomes a skipped trial with that reason in the plan.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict

from repro.errors import CheckpointError, UsageError
from repro.streams import Streams

if TYPE_CHECKING:
    import numpy as np
    import torch

    from repro.published.store import Published
    from repro.several import Section
    from repro.store import Record

Direction = Literal["higher", "lower"]
Batch = tuple[Any, Any]
"""Inputs and targets of one micro-batch on the trial's device; first dimension: samples."""


Fed = tuple["np.ndarray", "np.ndarray | None"]
"""Of one micro-batch: sample indices [n] int64, and what augmentation drew for each [n] int64 (None: nothing drawn)."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What a trial chooses and where it is to run, as plain words: the input of `Plugin.unsupported`."""

    workload: str
    engine: str
    comm: str
    precision: str
    optimizer: str
    launcher: str
    processes: int
    accumulation: int
    device: str
    """"cpu" or "cuda"."""
    device_count: int
    """GPUs this machine offers; 0 on a CPU-only machine."""
    compression: str = "none"
    overlap: bool | None = None
    determinism: str = "seeded"


class Plugin(BaseModel):
    """What every plug-in has: frozen, validated options and a word on what it cannot do."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=(), allow_inf_nan=False)

    preload: ClassVar[tuple[str, ...]] = ()
    """Modules worth loading once in the fork server instead of once in every rank."""
    always_shown: ClassVar[tuple[str, ...]] = ()
    """Options that labels name even at their default, because a reader would ask."""

    def unsupported(self, setting: Setting) -> str | None:
        """Why this plug-in cannot run under `setting`, in one sentence; None when it can."""
        return None

    def note(self, setting: Setting) -> str | None:
        """What a reader of the plan should know about this plug-in under `setting`; None: nothing."""
        return None


@dataclass(frozen=True, slots=True)
class DataIdentity:
    """Which data a workload trains on, by its full content."""

    name: str
    version: str
    sha256: str
    train_samples: int
    eval_samples: int
    licence: str
    source: str


@dataclass(slots=True)
class Parts:
    """What a workload hands to an engine: an initialised model and the ways to feed and score it."""

    model: torch.nn.Module
    loss: Callable[[Any, Any], torch.Tensor]
    """(outputs, targets) -> mean loss over the batch, a scalar."""
    scores: Mapping[str, Callable[[Any, Any], torch.Tensor]]
    """Metric name -> (outputs, targets) -> SUM of the metric over the batch, a scalar."""
    train_batch: Callable[[int, np.ndarray], Batch]
    """(epoch, sample indices) -> augmented micro-batch; the same bytes for the same sample on every rank and engine."""
    eval_batch: Callable[[np.ndarray], Batch]
    synthetic_batch: Callable[[int], Batch]
    """A batch of n samples that contains no training data, for warm-up before the clock starts."""
    open_data: Callable[[], str]
    """Read the data onto the device and return their sha256. Called right after `run_start`: touching training data is
    on the clock (MLPerf), so nothing before it may.

    Raises:
        TrialError: the content is not what the workload declares.
    """
    fed: Callable[[], Sequence[Fed]] | None = None
    """What `train_batch` has looked up since the last call, in the order of its calls. None: the workload keeps no
    account; then what was asked of it counts."""
    draws: Callable[[int, np.ndarray], np.ndarray] | None = None
    """(epoch, sample indices [n]) -> what the seed draws for them [n] int64, computed anew; None: nothing is drawn."""


class Workload(Plugin):
    """A model, its data and the metrics it is judged by."""

    title: ClassVar[str]
    unit: ClassVar[str] = "images"
    metrics: ClassVar[Mapping[str, Direction]]
    ranges: ClassVar[Mapping[str, tuple[float, float]]] = {}
    """Least and largest value that a metric can have; none stated: any target may be asked for."""
    synthetic: ClassVar[bool] = False
    """True where the data are made up: every figure that follows is labelled so."""
    test_views: ClassVar[int | None] = None
    """How often an evaluation shows each test sample to the model: 1 is once, as it is; more are crops, flips and the
    like. None: not stated, and no report will say that there are no test-time tricks."""
    reference_samples_per_second: ClassVar[float]
    """Rough training rate of one CPU core, for the cost estimate of `repro plan` (modelled, never a result)."""

    @property
    @abstractmethod
    def train_samples(self) -> int: ...

    @property
    @abstractmethod
    def eval_samples(self) -> int: ...

    @abstractmethod
    def identity(self) -> DataIdentity:
        """Read the whole data set and return its identity.

        Raises:
            TrialError: the content is not what this workload declares.
        """

    @abstractmethod
    def build(self, streams: Streams, device: str) -> Parts:
        """The parts of one trial; initial weights come from the stream `init`, augmentation from `augmentation`."""


class Precision(Plugin):
    """A numeric format as data: what is computed in which type. Engines read it and do it."""

    title: ClassVar[str]
    autocast: ClassVar[str | None] = None
    """Type of matrix products and convolutions inside autocast; None: no autocast."""
    weights: ClassVar[str] = "float32"
    """Type of the weights and gradients that the model computes with."""
    master: ClassVar[bool] = False
    """True: the optimizer updates a float32 copy of the weights."""
    loss_scaling: ClassVar[bool] = False
    tf32: ClassVar[bool] = False


class Optimizer(Plugin):
    """An update rule; the learning rate of each step comes from the trial's schedule."""

    lr: float

    @abstractmethod
    def build(self, named_parameters: Iterable[tuple[str, torch.nn.Parameter]]) -> torch.optim.Optimizer:
        """A torch optimizer over `named_parameters`, its learning rate still to be set by the engine."""


class Comm(Plugin):
    """The collective algorithm that every engine's communication goes through."""

    @abstractmethod
    def start(self, rank: int, world: int, device: str, timeout_seconds: float) -> None:
        """Create the default process group of this rank (environment: MASTER_ADDR, MASTER_PORT)."""

    @abstractmethod
    def effective(self) -> str:
        """What really runs, read back from the process group."""

    def traffic(self) -> dict[str, Any]:
        """What this rank moved since the last call (JSON-like, `repro.comm.meter`); empty where nothing counts."""
        return {}

    def state(self) -> dict[str, Any]:
        """What it found out by itself and sums depend on (JSON-like); a trial that goes on is given it again."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from `state`."""

    def returned(self, since: float | None = None) -> None:
        """Told by an engine that waits for collectives out of this object's sight, when it goes on.

        Args:
            since: when it had nothing left to compute (`time.perf_counter`); None: at its last collective.
        """

    def inline(self) -> AbstractContextManager[None]:
        """Inside, a collective that this thread asks for has ended when the call returns."""
        return nullcontext()


@dataclass(frozen=True, slots=True)
class Job:
    """What one rank of one trial has to do, as an engine sees it."""

    rank: int
    world: int
    device: str
    """"cpu" or "cuda:<index>"."""
    micro_batch: int
    """Samples a rank takes per forward pass."""
    accumulation: int
    """Forward and backward passes per optimizer step; global batch = micro_batch x accumulation x world."""
    gradient_clip: float | None
    """Largest global L2 norm of the mean gradient; None: no clipping."""
    precision: Precision
    optimizer: Optimizer
    comm: Comm
    timeout_seconds: float = 1800.0
    compression: str = "none"
    """What gradients are sent as: none (their own type), fp16, bf16 or powersgd."""
    compression_rank: int = 1
    """Rank of PowerSGD's factors."""
    overlap: bool | None = None
    """Gradients are averaged while back-propagation still runs, or only after it; None: as the engine does it."""
    details: Mapping[str, Any] = field(default_factory=dict)


class Session(ABC):
    """A model in training on one rank. `step` is all that happens inside the timed step."""

    def step(self, batches: Sequence[Batch], rate: float) -> Any:
        """One optimizer step on `accumulation` micro-batches; the mean loss of this rank, not yet synchronised."""
        loss = self.backward(batches)
        self.update(rate)
        return loss

    @abstractmethod
    def backward(self, batches: Sequence[Batch]) -> Any:
        """Forward and backward of all micro-batches, gradients averaged over micro-batches and ranks."""

    @abstractmethod
    def update(self, rate: float) -> None:
        """Clip, apply the optimizer with learning rate `rate`, clear the gradients."""

    @abstractmethod
    def evaluate(self, batches: Iterable[Batch], metric: str) -> tuple[float, int]:
        """Sum of `metric` over this rank's samples, and their number."""

    @abstractmethod
    def total(self, values: Sequence[float]) -> list[float]:
        """Element-wise sum over ranks; also a barrier."""

    @abstractmethod
    def gather(self, value: Any) -> list[Any]:
        """`value` of every rank (JSON-like), in rank order, on every rank."""

    @abstractmethod
    def synchronize(self) -> None:
        """Wait for this rank's device; then a barrier over ranks."""

    @abstractmethod
    def gradients(self) -> dict[str, np.ndarray]:
        """Between `backward` and `update`: the full mean gradient by parameter name, float32, before clipping."""

    @abstractmethod
    def weights(self) -> dict[str, np.ndarray]:
        """Full (master) weights by parameter name, float32, the same on every rank."""

    @abstractmethod
    def buffers(self) -> dict[str, np.ndarray]:
        """This rank's own model buffers by name."""

    @abstractmethod
    def warm_up(self, batches: Sequence[Batch]) -> None:
        """Run two steps on made-up data and put weights, optimizer, scaler, buffers and random state back."""

    @abstractmethod
    def effective(self) -> dict[str, str]:
        """What happened, read back from what ran: dtypes, stage, optimizer class, process group."""

    def traffic(self) -> dict[str, Any]:
        """What this rank's communication moved since the last call (`Comm.traffic`); empty where nothing counts."""
        return {}

    def save(self, folder: Path) -> dict[str, Any]:
        """Write what a later session of the same trial needs to go on from here; all ranks take part.

        Args:
            folder: empty, the same for all ranks.

        Returns:
            What is this rank's own (JSON-like).

        Raises:
            CheckpointError: it cannot be written, or the engine keeps none (`Engine.checkpoints`). Raised when this
                rank has done all that others wait for: the trial goes on without this checkpoint.
        """
        raise CheckpointError(f"{type(self).__name__} keeps no checkpoints")

    def load(self, folder: Path, own: Mapping[str, Any]) -> None:
        """Become what `save` wrote: weights, optimizer, scaler, random states; all ranks take part.

        Nothing is unpickled that could run code. Called after a warm-up, so that all memory is there.

        Raises:
            CheckpointRefused: `folder` is damaged, holds something else, or more than tensors and plain values.
        """
        raise CheckpointError(f"{type(self).__name__} keeps no checkpoints")

    def state_bytes(self) -> int:
        """About what `save` writes on all ranks together, bytes."""
        return 0

    @abstractmethod
    def peak_bytes(self) -> int | None:
        """Largest memory in use on this rank so far, bytes; None where it cannot be known."""

    @abstractmethod
    def close(self) -> None: ...


class Engine(Plugin):
    """A way to train data-parallel."""

    title: ClassVar[str]
    needs_parts: ClassVar[bool] = True
    """False: the engine invents its figures and wants no model (the fake)."""
    checkpoints: ClassVar[bool] = False
    """True: its sessions can `save` and `load`."""

    def library(self) -> str:
        """Name and version of what trains, for example `torch 2.13.0`."""
        return ""

    @abstractmethod
    def start(self, parts: Parts | None, job: Job, streams: Streams) -> Session: ...

    def clock(self, job: Job, streams: Streams) -> Callable[[], int] | None:
        """A monotonic clock in nanoseconds to be used instead of the machine's; None: the machine's."""
        return None


@dataclass(frozen=True, slots=True)
class Order:
    """One start of one entry point on all ranks."""

    entry: str
    """ "module:function", called as function(rank_folder, payload) in every rank."""
    payload: Mapping[str, Any]
    processes: int
    device: str
    folder: Path
    """Where each rank's printed output goes, as rank<N>.log."""
    timeout_seconds: float
    environment: Mapping[str, str] = field(default_factory=dict)
    stall_seconds: float | None = None
    """Ended as hung when `progress` has not changed for so long; None: not watched."""
    progress: Path | None = None
    """The file that grows while the entry gets on."""


AFTER = "after rank "
"""How the reason of a rank begins that was ended because another one failed."""


@dataclass(frozen=True, slots=True)
class RankEnd:
    """How one rank ended."""

    rank: int
    exit_code: int
    """0 fine; negative: killed by that signal."""
    reason: str = ""
    tail: str = ""
    """What it printed last, in one line; filled in for the rank that failed first."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a launch ended."""

    ends: tuple[RankEnd, ...]
    seconds: float
    timed_out: bool = False
    hung: bool = False
    """Ended because nothing got on for `stall_seconds`."""
    network: Mapping[str, Any] | None = None
    """What a launcher with a network of its own knows of it: rates stated and measured, bytes by node (JSON-like, at
    least the fields of `repro.results.Network` that have no default)."""

    @property
    def ok(self) -> bool:
        return not self.timed_out and not self.hung and all(end.exit_code == 0 for end in self.ends)

    @property
    def cause(self) -> RankEnd | None:
        """The rank that failed first, not one that was ended because of it; None when none failed."""
        failed = [end for end in self.ends if end.exit_code != 0]
        return next((end for end in failed if not end.reason.startswith(AFTER)), failed[0] if failed else None)


class Launcher(Plugin):
    """Starts the ranks and reports how each ended. Opened once a run, used for every trial."""

    title: ClassVar[str]
    origin: ClassVar[Literal["measured", "emulated", "simulated"]] = "measured"
    """What figures are that were taken under it: every report says so."""

    @property
    def preload_seconds(self) -> float | None:
        """What loading modules ahead cost in `open`; None where nothing is loaded ahead."""
        return None

    def open(self, preload: Sequence[str], device: str) -> None:
        """Prepare (a fork server, namespaces); called once before the first launch."""

    def prepare(self, processes: int) -> None:
        """Get ready for launches of so many ranks, off every clock; called after `open`, once for each number."""

    @abstractmethod
    def launch(self, order: Order) -> Outcome: ...

    def close(self) -> None:
        """Undo `open`; called once, also after a failure."""


class Reporter(Plugin):
    """Writes a record somewhere else, as often as asked, with the same result each time."""

    title: ClassVar[str]
    unpublishable: ClassVar[str] = ""
    """Why it writes no published results; "": it does, where it has `write_published`."""

    @abstractmethod
    def write(self, record: Record, out: Path) -> list[str]:
        """Write what there is; the paths or URLs written.

        Raises:
            OutputError: `out` cannot be written.
            TrackingError: a server did not take it; the record is complete all the same.
        """

    def write_published(self, imports: Sequence[Published], own: Sequence[Record], out: Path) -> list[str]:
        """Write results of others, and runs of one's own apart from them.

        Raises:
            UsageError: this reporter does not.
            OutputError: `out` cannot be written.
        """
        raise UsageError(f"{type(self).__name__} writes no published results; --to html does")

    def write_sections(self, sections: Sequence[Section], out: Path) -> list[str]:
        """Write runs that do not stand in one record as one document with a section each, where the format has such a
        thing; each run's own report stands beside it in any case.

        Raises:
            OutputError: `out` cannot be written.
        """
        return []
