"""MNIST-1D: 5000 noisy signals of 40 points in ten classes, after pen strokes of digits, and its authors' small CNN.

Source: Greydanus & Kobak, "Scaling down deep learning with MNIST-1D", ICML 2024 (arXiv:2011.14439). The data are made
here by the published procedure and seed, so they are those of `make_dataset` in the authors' package `mnist1d` 0.0.2
(Apache-2.0), rounded to four decimals: machines differ in the last bits of a float64. Numbers are drawn in the
procedure's order from numpy's MT19937 with seed 42, not from a stream of the trial: like a file, the data set is the
same for every trial.
"""

from __future__ import annotations

import hashlib
from functools import cache, partial
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from repro.core.errors import TrialError
from repro.core.random_streams import Streams
from repro.seams.training import DataIdentity, LayerShape, TrainingParts
from repro.workloads.reading import Classifier, InMemory, Tables

if TYPE_CHECKING:
    from torch import nn


NAME = "mnist1d"
VERSION = "1"
SHA256 = "fb9a958d9dea39ce33baa5c3639688747d41ffe953f550b774dacb95be479025"
"""Of `content`."""
SEED = 42
CLASSES = 10
LENGTH = 40
"""Points of a signal."""
SAMPLES = 5000
TRAIN_SAMPLES = 4000
EVAL_SAMPLES = 1000
DECIMALS = 4
TEMPLATES = (
    (5, 6, 6.5, 6.75, 7, 7, 7, 7, 6.75, 6.5, 6, 5),
    (5, 3, 3, 3.4, 3.8, 4.2, 4.6, 5, 5.4, 5.8, 5, 5),
    (5, 6, 6.5, 6.5, 6, 5.25, 4.75, 4, 3.5, 3.5, 4, 5),
    (5, 6, 6.5, 6.5, 6, 5, 5, 6, 6.5, 6.5, 6, 5),
    (5, 4.4, 3.8, 3.2, 2.6, 2.6, 5, 5, 5, 5, 5, 5),
    (5, 3, 3, 3, 3, 5, 6, 6.5, 6.5, 6, 4.5, 5),
    (5, 4, 3.5, 3.25, 3, 3, 3, 3, 3.25, 3.5, 4, 5),
    (5, 7, 7, 6.6, 6.2, 5.8, 5.4, 5, 4.6, 4.2, 5, 5),
    (5, 4, 3.5, 3.5, 4, 5, 5, 4, 3.5, 3.5, 4, 5),
    (5, 4, 3.5, 3.5, 4, 5, 5, 5, 5, 4.7, 4.3, 5),
)
"""A pen stroke of each digit, from top to bottom."""
PADDING = (36, 60)
MOVES = 48
SCALE, CORRELATED_NOISE, NOISE, SHEAR = 0.4, 0.25, 2e-2, 0.75
SMOOTHING = 2
"""Standard deviation of the Gaussian filter of the correlated noise, in points."""


def verified(expected: str) -> InMemory:
    """Return the data set if its sha256 is `expected`.

    Raises:
        TrialError: numpy or scipy here compute something else.
    """
    found = make()
    if found.sha256 != expected:
        raise TrialError(f"the signals of {NAME} have sha256 {found.sha256}, not {expected}: numpy or scipy of this "
                         "installation draw or filter differently")
    return found


@cache
def make() -> InMemory:
    """Make the data set: signals [n, 40] of mean 0 and standard deviation 1 over all of them; read-only and shared."""
    drawn = np.random.RandomState(SEED)
    each = SAMPLES // CLASSES
    signals = np.stack([_signal(template, drawn) for template in _templates() for _ in range(each)])
    targets = np.repeat(np.arange(CLASSES), each)
    shuffled = drawn.permutation(SAMPLES)
    signals, targets = signals[shuffled], targets[shuffled]
    steps = np.rint((signals - signals.mean()) / signals.std() * 10**DECIMALS).astype("<i4")
    digest = hashlib.sha256(steps.tobytes() + targets.astype("u1").tobytes()).hexdigest()
    rounded = (steps / 10**DECIMALS).astype(np.float32)
    for array in (rounded, targets):
        array.setflags(write=False)
    return InMemory(rounded[:TRAIN_SAMPLES], targets[:TRAIN_SAMPLES], rounded[TRAIN_SAMPLES:], targets[TRAIN_SAMPLES:],
                   digest)


def _templates() -> NDArray[np.float64]:
    found = np.array(TEMPLATES, dtype=np.float64)
    found -= found.mean(1, keepdims=True)
    found /= found.std(1, keepdims=True)
    found -= found[:, :1]  # signals start and end at 0
    return found / 6.0


def _signal(template: NDArray[np.float64], drawn: np.random.RandomState) -> NDArray[np.float64]:
    """Pad, stretch, scale, move, add noise, shear and sample the stroke, in the order of the published code."""
    from scipy.ndimage import gaussian_filter

    low, high = PADDING
    zeros = low + int(drawn.rand() * (high - low + 1))
    signal = _resampled(np.concatenate([template + 1e-8, np.zeros(zeros)]), len(template) + high)
    signal *= 1 + SCALE * (drawn.rand() - 0.5)
    signal = np.roll(signal, drawn.choice(MOVES))
    smooth = gaussian_filter(CORRELATED_NOISE * drawn.randn(*signal.shape), SMOOTHING)
    signal = np.where(signal != 0, signal, smooth)
    signal += NOISE * drawn.randn(*signal.shape)
    signal -= SHEAR * (drawn.rand() - 0.5) * np.linspace(-0.5, 0.5, len(signal))
    return _resampled(signal, LENGTH)


def _resampled(signal: NDArray[np.float64], points: int) -> NDArray[np.float64]:
    return np.interp(np.linspace(0, 1, points), np.linspace(0, 1, len(signal)), signal)


class SignalBatches(Tables):
    """Signals [n, 1, 40], the same in every epoch."""

    shape = (1, LENGTH)
    classes = CLASSES

    def table(self, images: np.ndarray) -> np.ndarray:
        return images[:, None].copy()


class Mnist1d(Classifier):
    """Three convolutions over 40 points, as in the paper, which reports about 94 % for this network and 68 % for an
    MLP."""

    title: ClassVar[str] = "MNIST-1D, small CNN"
    unit: ClassVar[str] = "signals"
    reference_samples_per_second: ClassVar[float] = 20000.0
    preload: ClassVar[tuple[str, ...]] = ("scipy.ndimage",)
    sha256: ClassVar[str] = SHA256

    channels: int = Field(default=25, ge=1, le=1024, description="of each convolution")
    label_smoothing: float = Field(default=0.0, ge=0, lt=1)
    """Share of a target that is spread over all classes, in the training loss."""

    @property
    def train_samples(self) -> int:
        return TRAIN_SAMPLES

    @property
    def eval_samples(self) -> int:
        return EVAL_SAMPLES

    @property
    def layer_shapes(self) -> tuple[LayerShape, ...]:
        wide = self.channels
        convolutions = ((5 + 1, 19), (3 * wide + 1, 10), (3 * wide + 1, 5))  # of 40 points each halves them
        return (*(LayerShape(inputs, wide, points, kernel=True, bias=True) for inputs, points in convolutions),
                LayerShape(5 * wide + 1, CLASSES, bias=True))

    @property
    def tensor_count(self) -> int:
        return 8

    def identity(self) -> DataIdentity:
        return DataIdentity(
            name=NAME, version=VERSION, sha256=verified(self.sha256).sha256, train_samples=TRAIN_SAMPLES,
            eval_samples=EVAL_SAMPLES, licence="Apache-2.0 (the procedure)",
            source="MNIST-1D by its published procedure and seed (Greydanus & Kobak, 2024), rounded to four decimals",
        )

    def build(self, streams: Streams, device: str) -> TrainingParts:
        batches = SignalBatches(partial(verified, self.sha256), TRAIN_SAMPLES, streams, device)
        return batches.parts(self._network, self.label_smoothing)

    def _network(self) -> nn.Module:
        from torch import nn

        wide = self.channels
        halvings = [
            nn.Conv1d(1, wide, 5, stride=2, padding=1), nn.ReLU(),
            nn.Conv1d(wide, wide, 3, stride=2, padding=1), nn.ReLU(),
            nn.Conv1d(wide, wide, 3, stride=2, padding=1), nn.ReLU(),
        ]
        return nn.Sequential(*halvings, nn.Flatten(), nn.Linear(5 * wide, CLASSES))
