"""Batches of a trial: looked up in the device's memory, or read by a `SampleReader` in the rank's own process.

torch is imported when the first batch is made: workloads are planned without it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from repro.core.random_streams import Streams
from repro.seams.training import Batch, Direction, Fed, SampleReader, TrainingParts, Workload
from repro.seams.workload import to_device

if TYPE_CHECKING:
    import torch
    from torch import nn


class InProcess:
    """The functions of `TrainingParts` around a reader; what was fed is what the reader says it read."""

    def __init__(self, reader: SampleReader, device: str) -> None:
        self.reader, self.device = reader, device
        self._fed: list[Fed] = []

    def train_batch(self, epoch: int, indices: np.ndarray) -> Batch:
        """Read one training micro-batch and copy it to the device."""
        read = self.reader.train(epoch, indices)
        self._fed.append(read.fed)
        return self._moved(read.batch)

    def eval_batch(self, indices: np.ndarray) -> Batch:
        """Read one evaluation batch and copy it to the device."""
        return self._moved(self.reader.evaluation(indices))

    def fed(self) -> list[Fed]:
        """Return what was read for training since the last call."""
        fed, self._fed = self._fed, []
        return fed

    def functions(self) -> dict[str, Any]:
        """Return the fields of `TrainingParts` that this class and its reader give."""
        return {"train_batch": self.train_batch, "eval_batch": self.eval_batch, "fed": self.fed,
                "open_data": self.reader.open, "reader": self.reader}

    def _moved(self, batch: Batch) -> Batch:
        inputs, targets = batch
        return to_device(inputs, self.device), to_device(targets, self.device)


def put(array: np.ndarray, device: str) -> torch.Tensor:
    """Return an array as a tensor on the device."""
    import torch

    return torch.from_numpy(np.ascontiguousarray(array)).to(device)


def noise(device: str, shape: tuple[int, ...], classes: int, samples: int) -> Batch:
    """Return normal noise [samples, *shape] and random targets on the device, identical in every call."""
    generator = np.random.default_rng(0)
    inputs = generator.standard_normal((samples, *shape), dtype=np.float32)
    return put(inputs, device), put(generator.integers(classes, size=samples), device)


class InMemory(NamedTuple):
    """A labelled data set in memory, as read."""

    images: np.ndarray
    """[n, ...], for training."""
    targets: np.ndarray
    """[n]."""
    eval_images: np.ndarray
    eval_targets: np.ndarray
    sha256: str
    """Identity of the data."""
    selection: str = ""
    """sha256 of the numbers of those training images that stay; "": all."""


class Classifier(Workload):
    """Base of workloads that are judged by the share of samples whose class is right."""

    metrics: ClassVar[Mapping[str, Direction]] = {"top1": "higher"}
    ranges: ClassVar[Mapping[str, tuple[float, float]]] = {"top1": (0.0, 1.0)}
    test_views: ClassVar[int | None] = 1


class Batches(ABC):
    """Batches made on the trial's device, for a classifier; the same bytes for the same sample on every rank.

    A random change of training samples follows from one number a sample, below `outcomes`. The numbers of an epoch are
    drawn for all samples at once from the stream `augmentation`, so they do not depend on the rank, the order or the
    size of the batches.
    """

    shape: tuple[int, ...]
    """Of the inputs of a sample."""
    classes: int
    outcomes: int = 0
    """0: training samples are shown as they are."""
    selection: Callable[[], str] | None = None

    def __init__(self, samples: int, streams: Streams, device: str) -> None:
        self.samples, self.streams, self.device = samples, streams, device
        self._epoch, self._draws = -1, np.zeros(0, np.int64)
        self._fed: list[Fed] = []

    @abstractmethod
    def open(self) -> str:
        """Put the data on the device and return their sha256. Must be called first.

        Raises:
            TrialError: the content has another hash than expected.
        """

    @abstractmethod
    def evaluation(self, indices: np.ndarray) -> Batch:
        """Return unchanged inputs [n, *shape] float32 and targets [n]."""

    @abstractmethod
    def looked_up(self, epoch: int, indices: np.ndarray, draws: np.ndarray | None) -> Batch:
        """Return training inputs [n, *shape] float32, changed as `draws` [n] say, and targets [n]."""

    def train(self, epoch: int, indices: np.ndarray) -> Batch:
        """Return training inputs [n, *shape] float32, as they are in this epoch, and targets [n]."""
        draws = None
        if self.outcomes:
            if epoch != self._epoch:
                self._draws, self._epoch = self._drawn(epoch), epoch
            draws = self._draws[indices]
        self._fed.append((indices, draws))
        return self.looked_up(epoch, indices, draws)

    def fed(self) -> list[Fed]:
        """Return the samples and draws that `train` has looked up since the last call."""
        fed, self._fed = self._fed, []
        return fed

    def draws(self, epoch: int, indices: np.ndarray) -> np.ndarray:
        """Return the number that the seed draws for each sample."""
        found: np.ndarray = self._drawn(epoch)[indices]
        return found

    def synthetic(self, samples: int) -> Batch:
        """Return noise of the same shape on the same device, identical in every call."""
        return noise(self.device, self.shape, self.classes, samples)

    def functions(self) -> dict[str, Any]:
        """Return the fields of `TrainingParts` that this class gives."""
        return {"train_batch": self.train, "eval_batch": self.evaluation, "synthetic_batch": self.synthetic,
                "open_data": self.open, "fed": self.fed, "selection": self.selection,
                "draws": self.draws if self.outcomes else None}

    def parts(self, make: Callable[[], nn.Module], label_smoothing: float = 0.0) -> TrainingParts:
        """Return the parts of a trial around the classifier that `make` builds."""
        from repro.workloads import classification

        return TrainingParts(
            model=classification.initialised(make, self.streams),
            loss=partial(classification.loss, label_smoothing=label_smoothing), scores={"top1": classification.top1},
            **self.functions())

    def put(self, array: np.ndarray) -> torch.Tensor:
        """Return an array as a tensor on the trial's device: a table, once."""
        return put(array, self.device)

    def send(self, array: np.ndarray) -> torch.Tensor:
        """Return an array as a tensor on the trial's device; in every step, so the host does not wait for the copy."""
        import torch

        found: torch.Tensor = to_device(torch.from_numpy(np.ascontiguousarray(array)), self.device)
        return found

    def _drawn(self, epoch: int) -> NDArray[np.int64]:
        return self.streams.generator("augmentation", epoch).integers(self.outcomes, size=self.samples)


class Tables(Batches):
    """Batches of an `InMemory` data set."""

    def __init__(self, load: Callable[[], InMemory], samples: int, streams: Streams, device: str) -> None:
        super().__init__(samples, streams, device)
        self._load = load

    def open(self) -> str:
        found = self._load()
        self._selection = found.selection
        self._train, self._train_targets = self.put(self.train_table(found.images)), self._labels(found.targets)
        self._eval, self._eval_targets = self.put(self.table(found.eval_images)), self._labels(found.eval_targets)
        return found.sha256

    def selection(self) -> str:
        """Return the sha256 of the numbers of those training samples that stay, once open; "": all."""
        return self._selection

    def table(self, images: np.ndarray) -> np.ndarray:
        """Return the images as they are kept on the device."""
        return images

    def train_table(self, images: np.ndarray) -> np.ndarray:
        """Return what is kept of the images for training."""
        return self.table(images)

    def _labels(self, targets: np.ndarray) -> torch.Tensor:
        return self.put(targets.astype(np.int64))

    def looked_up(self, epoch: int, indices: np.ndarray, draws: np.ndarray | None) -> Batch:
        rows = self.send(indices)
        return self._train[rows], self._train_targets[rows]

    def evaluation(self, indices: np.ndarray) -> Batch:
        rows = self.send(indices)
        return self._eval[rows], self._eval_targets[rows]
