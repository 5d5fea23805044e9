"""A workload and its parts: a model, its data, and the functions that feed and score it.

Plug-ins import these names from `repro.seams.training`, which has all classes of training plug-ins.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

from repro.core.devices import on_gpu
from repro.core.random_streams import Streams
from repro.seams.plugin import Plugin

if TYPE_CHECKING:
    import numpy as np
    import torch


Direction = Literal["higher", "lower"]
TokenKind = Literal["token", "byte"]
Batch = tuple[Any, Any]
"""Inputs and targets of one micro-batch; `len(targets)` is the number of samples. Inputs are a tensor, or a tuple or
dict of tensors: the model is called with positional or keyword arguments then (`repro.seams.workload.call_model`)."""

Fed = tuple["np.ndarray", "np.ndarray | None"]
"""One consumed micro-batch: sample indices [n] int64, and the augmentation's draws [n] int64 (None: nothing drawn)."""


class Read(NamedTuple):
    """A micro-batch as a `SampleReader` returns it."""

    batch: Batch
    """Tensors on the CPU."""
    fed: Fed
    """Samples of which the batch was in fact made."""


class SampleReader(ABC):
    """Reads and decodes samples on the CPU, in the rank's own process or in several input workers.

    A reader is copied into every input worker, so it holds no state that two calls share except caches, and what it
    returns depends on its arguments and on the trial's seed alone. Random augmentation is drawn by epoch and sample.
    """

    @abstractmethod
    def open(self) -> str:
        """Check the data on the clock, before the first `train`, and return their sha256; in the rank's process.

        Raises:
            TrialError: the content is not what the workload declares.
        """

    @abstractmethod
    def train(self, epoch: int, indices: np.ndarray) -> Read:
        """Return the augmented micro-batch of the samples `indices` [n] int64, in that order.

        Raises:
            TrialError: a sample cannot be read; the message names its file.
        """

    @abstractmethod
    def evaluation(self, indices: np.ndarray) -> Batch:
        """Return a batch of the evaluation samples `indices` [n] int64, without random augmentation.

        Raises:
            TrialError: a sample cannot be read; the message names its file.
        """


@dataclass(frozen=True, slots=True)
class DataIdentity:
    """The data set of a workload, identified by its full content."""

    name: str
    version: str
    sha256: str
    """Hash of the content; must equal the return value of `TrainingParts.open_data`."""
    train_samples: int
    eval_samples: int
    licence: str
    source: str


@dataclass(slots=True)
class TrainingParts:
    """A workload's initialised model, and the functions that feed and score it."""

    model: torch.nn.Module
    """On the CPU, in float32, in training mode or not; the engine moves it to the trial's device, casts and wraps it.
    An engine that divides the weights moves it piece by piece, so that no device has to hold all of them."""
    loss: Callable[[Any, Any], torch.Tensor]
    """(outputs, targets) -> MEAN loss over the micro-batch, a scalar. Outputs are float32."""
    scores: Mapping[str, Callable[[Any, Any], torch.Tensor]]
    """Metric name -> (outputs, targets) -> SUM of the metric over the batch, a scalar (for top-1: the number of correct
    samples). The worker divides the sum over all batches and ranks by the number of evaluation samples. A metric that
    is no such sum (AUC, F1, BLEU) is a `WholeSet`."""
    train_batch: Callable[[int, np.ndarray], Batch]
    """(epoch, sample indices [n] int64) -> augmented micro-batch of n samples in that order. The same sample of the
    same epoch has the same bytes on every rank and engine. Called inside the timed step."""
    eval_batch: Callable[[np.ndarray], Batch]
    """(sample indices [n] int64) -> batch of n evaluation samples, without random augmentation."""
    synthetic_batch: Callable[[int], Batch]
    """(n) -> batch of n samples of the right shapes and types without training data, for the warm-up. A tensor is a
    view of another only if those of `train_batch` and `eval_batch` are: torch.compile distinguishes them."""
    open_data: Callable[[], str]
    """Read the data onto the device and return their sha256. Called right after `run_start`, on the clock: nothing may
    touch training data before (MLPerf's rule).

    Raises:
        TrialError: the content is not what the workload declares.
    """
    fed: Callable[[], Sequence[Fed]] | None = None
    """Return the micro-batches that `train_batch` has looked up since the last call, in the order of its calls. None:
    the data audit uses the indices that were passed to `train_batch`."""
    draws: Callable[[int, np.ndarray], np.ndarray] | None = None
    """(epoch, sample indices [n]) -> what the seed draws for them [n] int64, computed again from the streams; compared
    with the second part of `fed`. None: nothing is drawn."""
    selection: Callable[[], str] | None = None
    """() -> sha256 of the numbers of those training samples that stay, once the data are open; "": all of them."""
    blocks: tuple[str, ...] = ()
    """The model's blocks, by class name or by path (`layers.3`): engines gather the weights of a block together, and
    recompute or compile it as one. Empty: every direct child of the model; of a list or dict of modules its children.
    """
    unlike_samples: bool = False
    """True: training samples of one trial differ in shape, so no one number of operations holds for all of them."""
    without_randomness: Callable[[torch.nn.Module], None] | None = None
    """(model) -> nothing; turns the model's own random layers off for the parity gate: dropout by a functional call,
    stochastic depth. Every rank draws masks of its own, so engines could not be compared. torch's dropout modules and
    attention are turned off without it. Trials train with everything on. None: there are no such layers."""
    reader: SampleReader | None = None
    """Reads the samples in input workers, if the trial has any (`input.workers`). `train_batch`, `eval_batch`, `fed`
    and `open_data` are then those of `repro.workloads.reading.InProcess`. None: batches are looked up on the device,
    and no worker could help."""


class WholeSet:
    """A score of all evaluation samples together, for `TrainingParts.scores`: AUC, F1, mAP, BLEU.

    It keeps outputs and targets of each batch on the CPU; at the end of an evaluation all ranks exchange them, and each
    computes the value. All of it is on the clock, as evaluation.
    """

    def __init__(self, score: Callable[[Any, Any], float]) -> None:
        """
        Args:
            score: (outputs, targets) of all evaluation samples, in their order -> the metric. Both have the structure
                that model and `eval_batch` give them; every tensor has the samples as its first dimension.
        """
        self.score = score
        self.counts = True
        """False: while an engine warms up, on samples that no score may fit."""
        self._kept: list[tuple[Any, Any]] = []

    def __call__(self, outputs: Any, targets: Any) -> torch.Tensor:
        """Keep a batch; return 0, its share of a sum."""
        import torch

        self._kept.append(map_tensors((outputs, targets), lambda tensor: tensor.detach().cpu()))
        return torch.zeros(())

    def forget(self) -> None:
        """Forget the batches that an evaluation which did not end has left."""
        self._kept = []

    def value(self, gather: Callable[[Any], list[Any]] | None = None) -> float:
        """Return the metric of the batches since the last call, and forget them.

        Args:
            gather: returns the values of all ranks, of which each has every world-th sample; None: this rank has all.
        """
        import torch

        kept, self._kept = self._kept, []
        own = _joined(kept) if kept else None
        ranks = gather(own) if gather is not None else [own]
        if not self.counts or all(part is None for part in ranks):
            return 0.0
        places = torch.cat([torch.arange(len(next(tensors_in(part[1])))) * len(ranks) + rank
                            for rank, part in enumerate(ranks) if part is not None])
        order = torch.argsort(places)
        known = [part for part in ranks if part is not None]
        outputs, targets = map_tensors(_joined(known), lambda tensor: tensor[order])
        return float(self.score(outputs, targets))


def _joined(parts: Sequence[Any]) -> Any:
    """Return values of one structure as one, their tensors joined along the first dimension."""
    import torch

    columns: list[list[torch.Tensor]] = []
    for part in parts:
        found: list[torch.Tensor] = []
        map_tensors(part, lambda tensor, found=found: found.append(tensor) or tensor)  # type: ignore[misc]
        columns.append(found)
    whole = iter([torch.cat(tensors) for tensors in zip(*columns, strict=True)])
    return map_tensors(parts[0], lambda tensor: next(whole))


def not_additive(score: Callable[[Any, Any], Any], outputs: Any, targets: Any) -> str:
    """Return why a score of a batch cannot be a sum over its samples: two halves give another one; "" if it can."""
    count = len(targets)
    if isinstance(score, WholeSet) or count < 2 or any(
            not tensor.ndim or len(tensor) != count for tensor in tensors_in((outputs, targets))):
        return ""
    half = count // 2
    whole = float(score(outputs, targets))
    parts = float(score(*map_tensors((outputs, targets), lambda tensor: tensor[:half]))) + float(
        score(*map_tensors((outputs, targets), lambda tensor: tensor[half:])))
    if not abs(whole - parts) > ADDITIVE * max(abs(whole), abs(parts), 1e-6 * count):  # nan is judged elsewhere
        return ""
    return (f"this score is not additive: {count} samples have {whole:.6g}, and evaluated {half} at a time "
            f"{parts:.6g}; a score is a sum over samples, and a metric of all of them together is a WholeSet")


ADDITIVE = 1e-3
"""Relative difference of two sums that may be rounding, also of half precision."""


@dataclass(frozen=True, slots=True)
class LayerShape:
    """A linear or convolutional layer of a model, as modelled costs need it."""

    inputs: int
    """Weights of one output, and one more for a bias."""
    outputs: int
    positions: int = 1
    """Places at which one sample applies it: points of a convolution's output, tokens."""
    kernel: bool = False
    """True: a convolution, whose weights have more than two dimensions."""
    bias: bool = False
    """One of the inputs is for a bias."""


class Workload(Plugin):
    """A model, its data and the metrics it is judged by."""

    title: ClassVar[str]
    """Name in tables and reports."""
    unit: ClassVar[str] = "images"
    """Plural noun for its samples, for example in throughputs (images/s)."""
    metrics: ClassVar[Mapping[str, Direction]]
    """Metrics that a trial may stop by, each with its better direction; the names of `TrainingParts.scores`."""
    ranges: ClassVar[Mapping[str, tuple[float, float]]] = {}
    """Smallest and largest possible value of a metric; a metric without an entry accepts any target."""
    synthetic: ClassVar[bool] = False
    """True for generated data: every figure from them is labelled synthetic."""
    reads_samples: ClassVar[bool] = False
    """True: `build` gives a `SampleReader`, so a trial may have input workers."""
    repeatable: ClassVar[bool] = True
    """Loss and gradient follow from weights, buffers, batch and random numbers alone. False: model or loss keep other
    state (a counter, a teacher, a running mean in Python), and the steps after a trial are left out."""
    test_views: ClassVar[int | None] = None
    """Times that an evaluation shows each test sample: 1 means once, unchanged; None: not stated."""
    eval_batch_size: ClassVar[int] = 512
    """Samples of one rank per forward pass of an evaluation, unless a trial chooses (`eval_batch`). The metric does not
    depend on it beyond rounding."""
    reference_samples_per_second: ClassVar[float] = 1000.0
    """Rough training rate of one CPU core, for the cost estimate of `repro plan` (modelled, never a result)."""

    @property
    @abstractmethod
    def train_samples(self) -> int:
        """Number of training samples, known without reading the data."""

    @property
    @abstractmethod
    def eval_samples(self) -> int:
        """Number of evaluation samples, known without reading the data."""

    @property
    def tokens_per_sample(self) -> int | None:
        """Tokens of one sample of a language model, for tokens/s; None: samples have no tokens."""
        return None

    @property
    def token_losses(self) -> Mapping[str, TokenKind]:
        """Metrics that are the mean cross entropy of a token in nats, each with what a token is.

        Readers are also shown the perplexity exp(loss), and for bytes the bits per byte.
        """
        return {}

    @property
    def layer_shapes(self) -> tuple[LayerShape, ...] | None:
        """Linear and convolutional layers of the model in its order, known without building it.

        For modelled costs, and for rules that need matrices. None: the workload does not state them.
        """
        return None

    @property
    def tensor_count(self) -> int | None:
        """Tensors of the model that are trained, known without building it; None: the workload does not state them."""
        return None

    @property
    def unrepeatable(self) -> str:
        """Layers of the model that torch cannot compute on GPUs so that every run gives the same bits; "": none.

        torch names them at `torch.use_deterministic_algorithms`, and raises when one of them runs.
        """
        return ""

    @property
    def selection_sha256(self) -> str:
        """The sha256 that `TrainingParts.selection` must return. Trials with different ones pair by seed, not by data
        order."""
        return ""

    def absent(self) -> str:
        """Return what data are missing on this machine and how to get them, in one line; "" if nothing is."""
        return ""

    @abstractmethod
    def identity(self) -> DataIdentity:
        """Read the whole data set and return its identity.

        Raises:
            TrialError: the content is not what this workload declares.
        """

    @abstractmethod
    def build(self, streams: Streams, device: str) -> TrainingParts:
        """Build the model and the functions of one trial; must not touch training data.

        Args:
            streams: draw initial weights from stream `init` only and augmentation from stream `augmentation` only.
            device: "cpu" or "cuda:<index>".
        """


def call_model(model: Callable[..., Any], inputs: Any) -> Any:
    """Call the model: a dict is passed by keyword, a tuple or list by position, anything else as the one argument."""
    if isinstance(inputs, Mapping):
        return model(**inputs)
    if isinstance(inputs, tuple | list):
        return model(*inputs)
    return model(inputs)


def map_tensors(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Return `value` with every tensor in it replaced by `change(tensor)`; what else it holds stays."""
    if isinstance(value, Mapping):
        return {key: map_tensors(item, change) for key, item in value.items()}
    if isinstance(value, tuple | list):
        items = [map_tensors(item, change) for item in value]
        # A named tuple takes its fields one by one.
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    return change(value) if hasattr(value, "untyped_storage") else value


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Yield every tensor in `value`, dicts in the order of their keys as text."""
    if isinstance(value, Mapping):
        for key in sorted(value, key=str):
            yield from tensors_in(value[key])
    elif isinstance(value, tuple | list):
        for item in value:
            yield from tensors_in(item)
    elif hasattr(value, "untyped_storage"):
        yield value


def to_device(batch: Any, device: str) -> Any:
    """Return the batch on `device`; on CUDA by way of pinned memory, from which a copy does not hold up the host."""
    if not on_gpu(device):
        return batch
    return map_tensors(batch, lambda tensor: (tensor if on_gpu(tensor.device) else tensor.pin_memory()).to(
        device, non_blocking=True))
