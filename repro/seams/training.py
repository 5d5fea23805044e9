"""The classes of training plug-ins: workload, engine, session, communication algorithm, precision, optimizer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from repro.core.errors import CheckpointError
from repro.core.random_streams import Streams
from repro.seams.plugin import Plugin

if TYPE_CHECKING:
    import numpy as np
    import torch

Direction = Literal["higher", "lower"]
Batch = tuple[Any, Any]
"""Inputs and targets of one micro-batch on the trial's device; first dimension: samples."""


Fed = tuple["np.ndarray", "np.ndarray | None"]
"""Of one micro-batch: sample indices [n] int64, and what augmentation drew for each [n] int64 (None: nothing drawn)."""


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
class TrainingParts:
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
    def build(self, streams: Streams, device: str) -> TrainingParts:
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


BACKEND = "backend"
"""What ran if no algorithm of ours did: the collectives of gloo or NCCL."""


@dataclass(frozen=True, slots=True)
class CommRan:
    """What communication ran on one rank."""

    algorithm: str
    """`Comm.title` of the algorithm, or `BACKEND`."""
    collectives: tuple[str, ...] = ()
    """Collectives that ran by the algorithm's own schedules."""

    def as_effective(self) -> dict[str, str]:
        """Return the fields that a session reads back in `effective`."""
        found = {"comm_algorithm": self.algorithm}
        return found | ({"comm_collectives": ",".join(self.collectives)} if self.collectives else {})


class Comm(Plugin):
    """The collective algorithm that every engine's communication goes through."""

    title: ClassVar[str] = ""
    """Name of the algorithm as it reads back what ran; "": the name that it is registered by."""
    own_algorithm: ClassVar[bool] = True
    """False: the collectives are the backend's own, which nothing counts."""

    @abstractmethod
    def start(self, rank: int, world: int, device: str, timeout_seconds: float) -> None:
        """Create the default process group of this rank (environment: MASTER_ADDR, MASTER_PORT)."""

    @abstractmethod
    def effective(self) -> str:
        """What really runs, read back from the process group, for people."""

    def ran(self) -> CommRan | None:
        """What really ran, to be compared with what is requested; None: the algorithm does not tell."""
        return None

    def traffic(self) -> dict[str, Any]:
        """What this rank moved since the last call (JSON-like, `comm.runtime.meter`); empty where nothing counts."""
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

    def zero_stage(self) -> int | None:
        """Return how much the engine divides over the ranks, as a stage of ZeRO (0 to 3); None: it has no stages."""
        return None

    def library(self) -> str:
        """Name and version of what trains, for example `torch 2.13.0`."""
        return ""

    @abstractmethod
    def start(self, parts: TrainingParts | None, job: Job, streams: Streams) -> Session: ...

    def clock(self, job: Job, streams: Streams) -> Callable[[], int] | None:
        """A monotonic clock in nanoseconds to be used instead of the machine's; None: the machine's."""
        return None
