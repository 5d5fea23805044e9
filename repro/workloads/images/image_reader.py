"""Images of class folders as training batches: read and decoded in the rank's process or in input workers."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import NamedTuple

import numpy as np

from repro.core.errors import TrialError, UsageError
from repro.core.random_streams import Streams
from repro.seams.training import Batch, Read, SampleReader
from repro.workloads.data.manifest import Prepared
from repro.workloads.images import decoding, imagenet_form

DRAWS = 1 << 62
"""A sample's random number of an epoch is below it."""
Stages = Sequence[tuple[int, int]]
"""(first epoch, pixels a side), epochs ascending from 0."""


def side_in(stages: Stages, epoch: int) -> int:
    """Return the pixels a side of training images in an epoch."""
    return stages[bisect.bisect_right([first for first, _ in stages], epoch) - 1][1]


def drawn(streams: Streams, epoch: int, samples: int) -> np.ndarray:
    """Return the random number of every sample in an epoch [n] int64."""
    found: np.ndarray = streams.generator("augmentation", epoch).integers(DRAWS, size=samples)
    return found


class Samples(NamedTuple):
    """The files of one side as arrays: a million take 70 MB, and go to an input worker as they are."""

    paths: np.ndarray
    """[n] bytes, UTF-8."""
    sizes: np.ndarray
    """[n] int64, of the manifest."""
    targets: np.ndarray
    """[n] int64."""


class ImageReader(SampleReader):
    """Random crops and flips for training, centre crops for evaluation.

    A file is opened when its sample is read, and must have the manifest's size.
    """

    def __init__(self, data: Prepared, streams: Streams, stages: Stages, eval_side: int) -> None:
        self.data, self.streams, self.stages, self.eval_side = data, streams, tuple(stages), eval_side
        self._epoch, self._draws = -1, np.zeros(0, np.int64)

    def open(self) -> str:
        """Read the list of files and return the identity of the data."""
        _ = self._samples
        return self.data.sha256

    def train(self, epoch: int, indices: np.ndarray) -> Read:
        """Return images [n, 3, side, side] float32 and targets [n] int64."""
        samples = self._samples[0]
        if epoch != self._epoch:
            self._draws, self._epoch = drawn(self.streams, epoch, len(samples.targets)), epoch
        draws, side = self._draws[indices], side_in(self.stages, epoch)
        pixels = np.stack([self._decoded(samples, index, partial(decoding.random_crop, side=side, draw=draw))
                           for index, draw in zip(indices.tolist(), draws.tolist(), strict=True)])
        return Read(_batch(pixels, samples.targets[indices]), (indices, draws))

    def evaluation(self, indices: np.ndarray) -> Batch:
        """Return images [n, 3, side, side] float32 and targets [n] int64."""
        samples = self._samples[1]
        decode = partial(decoding.centre_crop, side=self.eval_side)
        pixels = np.stack([self._decoded(samples, index, decode) for index in indices.tolist()])
        return _batch(pixels, samples.targets[indices])

    @cached_property
    def _samples(self) -> tuple[Samples, Samples]:
        """Training and evaluation samples, sorted by path.

        Raises:
            TrialError: the list of files or that of classes cannot be read.
        """
        sizes = {item.path: item.size for item in self.data.entries}
        self.data.drop_entries()  # ten times as large as what is kept
        train = [name for name in sizes if name.startswith(f"{imagenet_form.TRAIN}/")]
        numbers = {name: number for number, name in enumerate(sorted({name.split("/")[1] for name in train}))}
        labels = [name for name in imagenet_form.LABELS if name in sizes]
        try:
            val = imagenet_form.labelled(sizes, self.data.folder, labels)
        except UsageError as error:
            raise TrialError(str(error)) from error
        return (_as_samples(train, [numbers[name.split("/")[1]] for name in train], sizes),
                _as_samples([name for name, _ in val], [numbers[label] for _, label in val], sizes))

    def _decoded(self, samples: Samples, index: int, decode: Callable[[bytes], np.ndarray]) -> np.ndarray:
        path, size = samples.paths[index].decode(), int(samples.sizes[index])
        try:
            raw = (self.data.folder / path).read_bytes()
        except OSError as error:
            raise TrialError(f"{self.data.name}: {path} cannot be read: {error.strerror}") from error
        if len(raw) != size:
            raise TrialError(f"{self.data.name}: {path} has changed since the manifest was made: it has "
                             f"{len(raw)} bytes, the manifest {size}; {self.data.again}")
        try:
            return decode(raw)
        except decoding.Undecodable as error:
            raise TrialError(f"{self.data.name}: {path} cannot be decoded: {error}; an image is never left out: "
                             f"restore it, or remove it and {self.data.again}") from error


def _as_samples(paths: Sequence[str], targets: Sequence[int], sizes: Mapping[str, int]) -> Samples:
    return Samples(np.array([path.encode() for path in paths]), np.array([sizes[path] for path in paths], np.int64),
                   np.array(targets, np.int64))


def _batch(pixels: np.ndarray, targets: np.ndarray) -> Batch:
    import torch

    return torch.from_numpy(decoding.scaled(pixels)), torch.from_numpy(targets)
