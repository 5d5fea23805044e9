"""The classes of training plug-ins: workload, engine, session, communication algorithm, precision, optimizer.

A plug-in draws random numbers only from the streams it is given (`Streams.generator`). The worker seeds the global
generators of Python, numpy and torch for libraries that draw from them, for example in dropout.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from repro.core.errors import CheckpointError
from repro.core.events import EventLog
from repro.core.random_streams import Streams
from repro.seams.comm import BACKEND, Comm, CommRan
from repro.seams.plugin import ModelOptions, Plugin, Rows
from repro.seams.preconditioner import Preconditioner
from repro.seams.workload import (
    Batch,
    DataIdentity,
    Direction,
    Fed,
    LayerShape,
    Read,
    SampleReader,
    TokenKind,
    TrainingParts,
    WholeSet,
    Workload,
)

if TYPE_CHECKING:
    import numpy as np
    import torch


@dataclass(frozen=True, slots=True)
class ServerWork:
    """The work of one run."""

    tickets: int
    """Units of work of the whole run."""
    rate_of: Callable[[int], float]
    """Learning rate after that many updates."""
    grid: tuple[int, ...]
    """Versions of which a snapshot will be requested, ascending."""
    now: Callable[[], int]
    """Nanoseconds of the log's clock."""


@dataclass(frozen=True, slots=True)
class LossScaling:
    """Dynamic scaling of the loss, as in `torch.amp.GradScaler`; DeepSpeed's scaler has no other factors."""

    GROWTH_FACTOR: ClassVar[float] = 2.0
    """Factor of the scale after `growth_interval` steps without overflow."""
    BACKOFF_FACTOR: ClassVar[float] = 0.5
    """Factor of the scale after an overflow."""
    initial_scale_power: int = 16
    """The initial scale is 2 to this power: 65536."""
    growth_interval: int = 2000
    """Steps without overflow until the scale grows."""


__all__ = [
    "BACKEND", "Batch", "Comm", "CommRan", "DataIdentity", "Direction", "Engine", "Fed", "Job", "LayerShape",
    "Optimizer", "Precision", "Preconditioner", "Read", "SampleReader", "Session", "TokenKind", "TrainingParts",
    "WholeSet", "Workload",
]


class Precision(Plugin):
    """A numeric format as data: the types of computation, weights and optimizer. Engines carry it out."""

    title: ClassVar[str]
    """Name in tables and reports."""
    autocast: ClassVar[str | None] = None
    """Type of matrix products and convolutions inside autocast; None: no autocast."""
    weights: ClassVar[str] = "float32"
    """Type of the weights and gradients of the model."""
    master: ClassVar[bool] = False
    """True: the optimizer updates a float32 copy of the weights."""
    loss_scaling: ClassVar[LossScaling | None] = None
    """None: the loss is not scaled."""
    tf32: ClassVar[bool] = False
    """True: matrix products and convolutions on NVIDIA GPUs round their inputs to TensorFloat-32."""


class Optimizer(Plugin):
    """An update rule; the learning rate of each step comes from the trial's schedule."""

    lr: float
    """Base learning rate."""
    evaluates_other_weights: ClassVar[bool] = False
    """True: evaluations use other weights than training does (averages). The torch optimizer then has `eval()`, which
    writes them into its parameters, and `train()`, as in the package schedulefree; sessions call both
    (`Session.evaluated`)."""
    whole_tensors: ClassVar[bool] = False
    """True: the rule looks at whole tensors (norms, matrices), not at each element alone, so that an engine which
    flattens or cuts tensors would silently train differently."""
    on_rows: ClassVar[Rows] = "any"
    """Where the rule is right on tensors whose rows are divided over the ranks (torch's `DTensor`)."""
    starts_from_zero: ClassVar[bool] = True
    """False: state that a first step creates is not zero before it (copies of weights, preconditioners); after a
    warm-up it is dropped, so that the first step creates it again."""
    rounding: ClassVar[float] = 0.0
    """Largest relative difference of an update that rounding alone explains, from the rule's own arithmetic (products
    of narrow types, roots and eigenvectors of nearly singular matrices); 0: no more than of the gradient."""
    linear: ClassVar[bool] = False
    """True: all updates are linear in the gradients and the weights, so the mean of several ranks' updates is the
    update by their mean gradient."""
    writes_alike: ClassVar[bool] = False
    """True: every step writes equally often into each weight that it uses and into the state kept for it, and changes
    no option of a parameter group. The ledger of a trial then detects all other writes and changes."""
    moves_at_rate_zero: ClassVar[bool] = False
    """True: a step of learning rate 0 may change the weights, because the momentum holds earlier rates."""

    @abstractmethod
    def build(self, named_parameters: Iterable[tuple[str, torch.nn.Parameter]]) -> torch.optim.Optimizer:
        """Return a torch optimizer over `named_parameters`; the engine sets its learning rate before every step."""


@dataclass(frozen=True, slots=True)
class Job:
    """The task of one rank of one trial, in the terms of an engine."""

    rank: int
    world: int
    device: str
    """"cpu" or "cuda:<index>"."""
    micro_batch: int
    """Samples of one rank per forward pass."""
    accumulation: int
    """Forward and backward passes per optimizer step; global batch = micro_batch x accumulation x world."""
    gradient_clip: float | None
    """Largest global L2 norm of the mean gradient; None: no clipping."""
    precision: Precision
    optimizer: Optimizer
    comm: Comm
    timeout_seconds: float = 1800.0
    """Time limit of one collective."""
    compression: str = "none"
    """Compression of gradients on the wire: none (their own type), fp16, bf16 or powersgd."""
    compression_rank: int = 1
    """Rank of PowerSGD's factors."""
    eval_batch: int = 512
    """Samples of one rank per forward pass of an evaluation."""
    overlap: bool | None = None
    """True: gradients are averaged during back-propagation; False: only after it; None: the engine's default."""
    model: ModelOptions = ModelOptions()  # noqa: RUF009  # frozen
    label: str = "trial"
    """Short name of the trial's cell, for names of files."""
    cache: Path | None = None
    """Folder of the run for what is compiled; None: temporary folders."""
    preconditioner: Preconditioner | None = None
    """None: as one that changes nothing."""


class Session(ABC):
    """A model in training on one rank; `step` is the timed step and must contain nothing else.

    Every rank calls `total`, `gather`, `synchronize`, `weights`, `gradients`, `save` and `load` in the same order.
    """

    writes_alike: ClassVar[bool] = False
    """True: every step writes into the weights equally often. False: some steps also write other values, such as means
    over the ranks or weights received from a server."""

    def step(self, batches: Sequence[Batch], rate: float) -> Any:
        """Train one optimizer step on `Job.accumulation` micro-batches; none if the engine needs no parts.

        Returns:
            The mean loss of this rank (a number or scalar tensor), not yet read from the device.
        """
        loss = self.backward(batches)
        self.update(rate)
        return loss

    @abstractmethod
    def backward(self, batches: Sequence[Batch]) -> Any:
        """Run forward and backward on all micro-batches and average the gradients over micro-batches and ranks."""

    @abstractmethod
    def update(self, rate: float) -> None:
        """Precondition, clip, apply the optimizer with learning rate `rate`, clear the gradients."""

    def evaluated(self) -> AbstractContextManager[None]:
        """Return a context in which `weights` and `held` are those that `evaluate` uses; on leaving it training goes
        on from the same bits. Other weights than those of training only under an optimizer that
        `evaluates_other_weights`, or in an engine whose ranks differ, which averages them: all ranks take part.
        """
        return nullcontext()

    @abstractmethod
    def evaluate(self, batches: Collection[Batch], metric: str) -> tuple[float, int]:
        """Return the SUM of `metric` over this rank's samples, and their number.

        Args:
            batches: this rank's share, each batch made when it is reached; ranks may have one more or less.
        """

    @abstractmethod
    def total(self, values: Sequence[float]) -> list[float]:
        """Return the element-wise sum over ranks in float64; also a barrier."""

    @abstractmethod
    def gather(self, value: Any) -> list[Any]:
        """Return the `value` (JSON-like) of every rank, in rank order, on every rank."""

    @abstractmethod
    def synchronize(self) -> None:
        """Wait for this rank's device, then for all ranks."""

    @abstractmethod
    def gradients(self) -> dict[str, np.ndarray]:
        """Return the full mean gradient by parameter name, float32, unclipped; between `backward` and `update`."""

    @abstractmethod
    def weights(self) -> dict[str, np.ndarray]:
        """Return the full (master) weights by parameter name, float32, identical on every rank.

        In an engine whose ranks differ between two synchronisations they are this rank's own, but in `evaluated`.
        """

    def held(self) -> list[Held] | None:
        """Return what this rank itself holds of every parameter, without communication; None: it cannot be read.

        After a trial the worker compares it with `weights` and, for ranks that hold the same parts, with one another.
        """
        return None

    def held_gradients(self) -> list[Held] | None:
        """Return this rank's part of the mean gradient, unclipped, without communication; between `backward` and
        `update`. None: it cannot be read.
        """
        return None

    def stepped_gradients(self) -> list[Held] | None:
        """Return this rank's part of the gradient that the optimizer steps with; inside its `step`, which an engine may
        call for one part after the other. None: it cannot be read.
        """
        return None

    @abstractmethod
    def buffers(self) -> dict[str, np.ndarray]:
        """Return this rank's model buffers by name."""

    @abstractmethod
    def warm_up(self, batches: Sequence[Batch]) -> None:
        """Run two steps on synthetic data and restore weights, optimizer, scaler, buffers and random states."""

    def forget_optimizer(self) -> bool:
        """Reset the optimizer's state to that after `warm_up`; return False if it cannot. Called after the trial."""
        return False

    @abstractmethod
    def effective(self) -> dict[str, str]:
        """Return the effective configuration: dtypes, stage, optimizer class, process group.

        Read it back from the running objects and never repeat the requested one: the record compares the two.
        """

    def traffic(self) -> dict[str, Any]:
        """Return this rank's traffic since the last call (`Comm.traffic`); empty if it is not counted."""
        return {}

    def protocol(self) -> dict[str, Any]:
        """Return what servers of the weights did (JSON-like, `record.protocol.Protocol`); all ranks take part."""
        return {}

    def save(self, folder: Path) -> dict[str, Any]:
        """Write the state that a later session of the same trial needs to continue; all ranks take part.

        Args:
            folder: empty; the same for all ranks.

        Returns:
            The state of this rank alone (JSON-like).

        Raises:
            CheckpointError: it cannot be written, or the engine keeps no checkpoints (`Engine.checkpoints`). Raise it
                only after everything that other ranks wait for: the trial continues without this checkpoint.
        """
        raise CheckpointError(f"{type(self).__name__} keeps no checkpoints")

    def load(self, folder: Path, own: Mapping[str, Any]) -> None:
        """Load what `save` wrote: weights, optimizer, scaler, random states; all ranks take part.

        The next step must then give the same bits as without the interruption. An implementation must not unpickle
        anything that could run code. Called after a warm-up, so that all memory is allocated.

        Args:
            own: the return value of `save` on this rank.

        Raises:
            CheckpointRefused: `folder` is damaged, or holds something else or more than tensors and plain values.
        """
        raise CheckpointError(f"{type(self).__name__} keeps no checkpoints")

    def state_bytes(self) -> int:
        """Estimate the bytes that `save` writes on all ranks together."""
        return 0

    def compilation(self) -> dict[str, Any]:
        """Return what was compiled since the last call (JSON-like, `engines.plain.modules`); empty if nothing can be.
        """
        return {}

    def forget_compiled(self) -> bool:
        """Forget compiled code if a warm cache is requested and this session had to fill it; True: it has forgotten."""
        return False

    def gradient_plan(self) -> list[dict[str, Any]]:
        """Return how each layer's gradient travels and what each way would cost (JSON-like,
        `record.layer_cost.LayerCost`); empty: nothing was planned.
        """
        return []

    def state_memory(self) -> dict[str, int]:
        """Predict the bytes of weights, gradients, masters and optimizer on this rank, and their `total` (modelled);
        empty: the engine states no formula.
        """
        return {}

    @abstractmethod
    def peak_bytes(self) -> int | None:
        """Return the largest memory in use on this rank since `reset_peak`, bytes; None if unknown."""

    def reset_peak(self) -> None:  # noqa: B027  # a device that cannot leaves it out
        """Forget the largest memory so far: what initialisation or the harness itself needed."""

    @abstractmethod
    def close(self) -> None:
        """End the process group and release everything: the next trial may run in this process."""


class RankLoop(Protocol):
    """One rank of a trial, ready to run."""

    log: EventLog

    def run(self) -> None:
        """Train to the end of the trial and log the final report."""
        ...

    def close(self) -> None:
        """Close the log and the session."""
        ...


class Engine(Plugin):
    """A way to train data-parallel."""

    title: ClassVar[str]
    """Name in tables and reports."""
    needs_parts: ClassVar[bool] = True
    """False: the engine invents its figures and needs no model (the fake)."""
    model_options: ClassVar[tuple[str, ...]] = ()
    """Fields of `Job.model` that its sessions carry out; a plan refuses the others."""
    build_module: ClassVar[str] = ""
    """Module that builds what `builds` names, run once before a run."""
    checkpoints: ClassVar[bool] = False
    """True: its sessions implement `save` and `load`."""
    preconditions: ClassVar[bool] = False
    """True: its sessions carry out `Job.preconditioner`; a plan refuses one under other engines."""
    ungated_clipping: ClassVar[str] = ""
    """Why the parity gate cannot judge it on several processes with gradient clipping; "": it can."""

    def zero_stage(self) -> int | None:
        """Return how much the engine divides over the ranks, as a stage of ZeRO (0 to 3); None: it has no stages."""
        return None

    def lockstep(self, processes: int) -> bool:
        """Return whether all ranks take every step together; if not, `rank_loop` gives the loop that runs them."""
        return True

    def rank_loop(self, context: Any) -> RankLoop | None:
        """Return the loop of one rank that does not train in lock step; None: the worker's own loop.

        Args:
            context: the rank's `repro.worker.setup.TrialContext`.
        """
        return None

    def expendable(self, processes: int) -> tuple[int, ...]:
        """Return the ranks without which a trial goes on if they are killed."""
        return ()

    def server_processes(self, processes: int) -> int:
        """Return how many processes run beside those that train; they are the last ranks and call `serve`."""
        return 0

    def serve(self, parts: TrainingParts, job: Job, work_of: Callable[[int], ServerWork] | None) -> None:
        """Serve the trial's workers until they have ended, on a rank that trains nothing.

        Args:
            job: its rank is `world` or larger: `world` counts those that train.
            work_of: the work of the run, by the samples of one update; None: in lock step.
        """
        raise NotImplementedError(f"{type(self).__name__} has no servers")

    def role(self, rank: int, processes: int) -> str:
        """Return what a rank holds that the others need, for the reason of a trial that its death ends; "": nothing."""
        return ""

    def ungated(self, processes: int, optimizer: Optimizer) -> str:
        """Return why the parity gate cannot judge this engine: with these options, on this many processes and under
        this update rule it does other mathematics than one process at the same global batch. "": it can.
        """
        return ""

    def rounds_otherwise(self, precision: Precision) -> bool:
        """Return whether gradients are rounded otherwise than a plain loop's: they travel in fewer bits than they are
        held in, beyond the declared compression, or are products of another type."""
        return False

    def remark(self, layers: Sequence[LayerShape] | None, samples: int, processes: int, comm: Comm) -> str:
        """Return what a plan tells about these options; "": nothing.

        Args:
            layers: of the model; None: the workload does not state them.
            samples: of one process in one step.
        """
        return ""

    def builds(self) -> str:
        """Return what has to be built by a C++ compiler before it can start; "": nothing."""
        return ""

    def library(self) -> str:
        """Return name and version of the training library, for example `torch 2.13.0`."""
        return ""

    @abstractmethod
    def start(self, parts: TrainingParts | None, job: Job, streams: Streams) -> Session:
        """Start the session of one rank, its process group included (`job.comm.start`).

        Args:
            parts: None if `needs_parts` is False.
            streams: for an engine that draws random numbers itself.
        """

    def clock(self, job: Job, streams: Streams) -> Callable[[], int] | None:
        """Return a monotonic clock in nanoseconds that replaces the machine's; None: the machine's, as for every engine
        that trains a model (`needs_parts`)."""
        return None


@dataclass(frozen=True, slots=True)
class Held:
    """A parameter, or a part of one, as one rank computes with it."""

    name: str
    values: np.ndarray
    """Flat, float32."""
    start: int = 0
    """Place of the first value in the flattened parameter."""
