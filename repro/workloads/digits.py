"""The handwritten digits in scikit-learn's package: 1797 real images of 8 x 8 pixels, with a fixed split; two models.

The table is read directly from scikit-learn's package data, because importing scikit-learn takes a hundred times as
long and starts a thread. The declared hash verifies the content in both cases.
"""

from __future__ import annotations

import gzip
import hashlib
import importlib.util
import time
from collections.abc import Callable, Sequence
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from repro.core.errors import TrialError
from repro.core.random_streams import Streams
from repro.seams.plugin import Setting
from repro.seams.training import Batch, DataIdentity, LayerShape, TrainingParts
from repro.workloads.reading import InMemory, Tables
from repro.workloads.selected_data import DedupWorkload, Images

if TYPE_CHECKING:
    from torch import nn


NAME = "handwritten-digits"
VERSION = "1"
SHA256 = "52fe8668f9b61f384476c6c9cb0ddeeb14643fc0f27eb7558b195d5b8aec7c78"
"""Of `content`: pixels, targets and split."""
CLASSES = 10
SIDE = 8
GREYS = 16
"""Pixels run from 0 (paper) to 16 (ink)."""
EVAL_PER_CLASS = 36
TRAIN_SAMPLES = 1437
EVAL_SAMPLES = 360


@cache
def load() -> InMemory:
    """Read and split the data set without checking it: images [n, 8, 8] and targets uint8, read-only and shared.

    Raises:
        TrialError: scikit-learn is not installed.
    """
    table = _table()
    images = table[:, :-1].reshape(-1, SIDE, SIDE)
    targets = table[:, -1]
    train, evaluation = split(targets)
    digest = hashlib.sha256(content(images, targets, train, evaluation)).hexdigest()
    return InMemory(_frozen(images[train]), _frozen(targets[train]), _frozen(images[evaluation]),
                    _frozen(targets[evaluation]), digest)


def verified(expected: str, planted: float = 0.0) -> InMemory:
    """Return the data set if its sha256 is `expected`, with near-copies of a share `planted` of the training images.

    Raises:
        TrialError: it is another one.
    """
    digits = load()
    if digits.sha256 != expected:
        raise TrialError(
            f"{NAME}: the content is not what the workload declares: sha256 expected {expected}, found "
            f"{digits.sha256}; is this scikit-learn's own copy?"
        )
    return with_copies(digits, planted) if planted else digits


def copies(planted: float) -> int:
    """Return how many near-copies are added for a share of the training images."""
    return round(planted * TRAIN_SAMPLES)


def with_copies(digits: InMemory, planted: float) -> InMemory:
    """Return the data with near-copies behind the training images: of different ones each, drawn at random, 15 %
    lighter to 15 % darker, every pixel one grey up, down or the same. Evaluation images have no copies."""
    draw = Streams(0, 0).generator("near-copies")
    chosen = draw.permutation(TRAIN_SAMPLES)[: copies(planted)]
    shade = draw.uniform(0.85, 1.15, (len(chosen), 1, 1))
    noise = draw.integers(-1, 2, (len(chosen), SIDE, SIDE))
    images = np.clip(np.rint(digits.images[chosen] * shade) + noise, 0, GREYS).astype(np.uint8)
    text = digits.sha256.encode() + images.tobytes() + chosen.astype("<i8").tobytes()
    return digits._replace(
        images=_frozen(np.concatenate([digits.images, images])),
        targets=_frozen(np.concatenate([digits.targets, digits.targets[chosen]])),
        sha256=hashlib.sha256(text).hexdigest())


def split(targets: NDArray[np.uint8]) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
    """Return the indices of the training and of the evaluation samples, ascending.

    Of each class, the 36 samples whose index has the smallest sha256 are for evaluation: as good as random, and
    independent of any library's random numbers.
    """
    keys = [hashlib.sha256(f"{NAME}/{VERSION}/{index}".encode()).digest() for index in range(len(targets))]
    chosen = np.zeros(len(targets), dtype=bool)
    for label in range(CLASSES):
        members = np.flatnonzero(targets == label).tolist()
        chosen[sorted(members, key=lambda index: keys[index])[:EVAL_PER_CLASS]] = True
    return np.flatnonzero(~chosen).astype("<u4"), np.flatnonzero(chosen).astype("<u4")


def content(
    images: NDArray[np.uint8],
    targets: NDArray[np.uint8],
    train: NDArray[np.uint32],
    evaluation: NDArray[np.uint32],
) -> bytes:
    """Return the whole data set as canonical bytes: pixels and targets one byte each, indices little-endian 32 bit."""
    arrays = (images.astype("u1"), targets.astype("u1"), train.astype("<u4"), evaluation.astype("<u4"))
    shapes = ";".join(",".join(map(str, each.shape)) for each in arrays)
    return b"\n".join([shapes.encode(), *(np.ascontiguousarray(each).tobytes() for each in arrays)])


def _table() -> NDArray[np.uint8]:
    """Return one row per image: 64 pixels and the target."""
    package = importlib.util.find_spec("sklearn")
    if package is None or not package.submodule_search_locations:
        raise TrialError("the digits need scikit-learn, which contains the data; install it: pip install scikit-learn")
    path = Path(package.submodule_search_locations[0]) / "datasets" / "data" / "digits.csv.gz"
    if path.exists():
        with gzip.open(path, "rt", encoding="ascii") as lines:
            return np.loadtxt(lines, delimiter=",", dtype=np.uint8)
    from sklearn.datasets import load_digits

    bunch = load_digits()
    return np.column_stack([bunch.data, bunch.target]).astype(np.uint8)


def _frozen(array: NDArray[np.uint8]) -> NDArray[np.uint8]:
    array = np.ascontiguousarray(array)
    array.setflags(write=False)
    return array


SHIFTS = tuple((down, right) for down in (-1, 0, 1) for right in (-1, 0, 1))
"""Augmentation moves an image by at most one pixel and fills the edge with paper."""


class DigitBatches(Tables):
    """Images [n, 1, 8, 8] from -1 (paper) to 1 (ink); all nine shifts of all training images are computed once."""

    shape = (1, SIDE, SIDE)
    classes = CLASSES

    def table(self, images: np.ndarray, shifts: Sequence[tuple[int, int]] = ((0, 0),)) -> np.ndarray:
        scaled = (images.astype(np.float32) / (GREYS / 2) - 1)[:, None]
        padded = np.pad(scaled, ((0, 0), (0, 0), (1, 1), (1, 1)), constant_values=-1)
        return np.concatenate([padded[:, :, 1 - down : 1 - down + SIDE, 1 - right : 1 - right + SIDE]
                               for down, right in shifts])

    def train_table(self, images: np.ndarray) -> np.ndarray:
        return self.table(images, SHIFTS if self.outcomes else ((0, 0),))

    def looked_up(self, epoch: int, indices: np.ndarray, draws: np.ndarray | None) -> Batch:
        chosen = self.send(indices)
        rows = chosen if draws is None else self.send(draws * self.samples + indices)
        return self._train[rows], self._train_targets[chosen]

    def synthetic(self, samples: int) -> Batch:
        generator = np.random.default_rng(0)
        images = generator.uniform(-1, 1, (samples, *self.shape)).astype(np.float32)
        return self.put(images), self.put(generator.integers(CLASSES, size=samples))


class DigitsWorkload(DedupWorkload):
    """Images of 8 x 8 grey pixels in ten classes; the model is the subclass's matter."""

    sha256: ClassVar[str] = SHA256

    augment: bool
    label_smoothing: float = Field(default=0.0, ge=0, lt=1)
    """Share of a target that is spread over all classes, in the training loss."""
    planted: float = Field(default=0.0, ge=0, le=1)
    """Near-copies of random training images that are added to them, as a share of these: what is looked for is known.
    """

    @property
    def train_samples(self) -> int:
        if self.dedup is None:
            return TRAIN_SAMPLES + copies(self.planted)
        return self.selection.kept

    @property
    def eval_samples(self) -> int:
        return EVAL_SAMPLES

    def identity(self) -> DataIdentity:
        added = f", with {copies(self.planted)} near-copies planted by the workload" if self.planted else ""
        return DataIdentity(
            name=NAME, version=VERSION, sha256=self.whole().sha256, train_samples=self.train_samples,
            eval_samples=EVAL_SAMPLES, licence="CC-BY-4.0",
            source=f"UCI Optical Recognition of Handwritten Digits (test set), as bundled with scikit-learn{added}",
        )

    def parts(self, make: Callable[[], nn.Module], streams: Streams, device: str) -> TrainingParts:
        """Return the parts of a trial around the model that `make` builds."""
        batches = DigitBatches(self.loaded, self.train_samples, streams, device)
        batches.outcomes = len(SHIFTS) if self.augment else 0
        return batches.parts(make, self.label_smoothing)

    def whole(self) -> InMemory:
        return verified(self.sha256, self.planted)

    def images(self, found: InMemory) -> Images:
        white = 255 // GREYS
        return Images(found.images * white, found.eval_images * white, found.sha256, copies(self.planted))


WIDTHS = (32, 64, 128)
"""Channels of the three convolutions."""


class Digits(DigitsWorkload):
    """Three convolutions over 8 x 8 grey pixels; compute-heavy, with few weights to communicate."""

    title: ClassVar[str] = "handwritten digits, small CNN"
    reference_samples_per_second: ClassVar[float] = 10000.0

    norm: Literal["group", "batch"] = "group"
    """"batch" depends on how many samples a rank sees: its mathematics changes with the world size."""
    augment: bool = True
    """Move each training image by at most one pixel, drawn again in every epoch."""

    @property
    def layer_shapes(self) -> tuple[LayerShape, ...]:
        sides = enumerate(zip((1, *WIDTHS[:-1]), WIDTHS, strict=True))
        return (*(LayerShape(9 * before, width, (SIDE >> stage)**2, kernel=True)
                  for stage, (before, width) in sides),
                LayerShape(WIDTHS[-1] + 1, CLASSES, bias=True))

    @property
    def tensor_count(self) -> int:
        return 3 * len(WIDTHS) + 2

    def build(self, streams: Streams, device: str) -> TrainingParts:
        from repro.workloads.nets import conv_net

        return self.parts(partial(conv_net, 1, WIDTHS, CLASSES, self.norm), streams, device)


class DigitsMlp(DigitsWorkload):
    """64 pixels through `depth` hidden layers of `hidden` units: by default 2.2 million weights, 8.7 MB of gradient."""

    title: ClassVar[str] = "handwritten digits, wide MLP"
    reference_samples_per_second: ClassVar[float] = 3400.0

    hidden: int = Field(default=1024, ge=8, le=16384)
    depth: int = Field(default=3, ge=1, le=16)
    augment: bool = False
    """Move each training image by at most one pixel, drawn again in every epoch; this model then needs four times as
    long."""
    sleep_ms: float = Field(default=0.0, ge=0, le=1000)
    """Milliseconds a sample that every forward pass of training sleeps: computation that needs no processor, so that
    ranks that share one speed up. Emulated clusters only; the gate does not sleep."""

    def unsupported(self, setting: Setting) -> str | None:
        if self.sleep_ms and not setting.emulated:
            return "sleep_ms emulates computation, which only launcher fabric labels so; leave it out"
        return super().unsupported(setting)

    @property
    def layer_shapes(self) -> tuple[LayerShape, ...]:
        widths = (SIDE**2, *[self.hidden] * self.depth, CLASSES)
        return tuple(LayerShape(before + 1, after, bias=True) for before, after in pairwise(widths))

    @property
    def tensor_count(self) -> int:
        return 2 * (self.depth + 1)

    def build(self, streams: Streams, device: str) -> TrainingParts:
        parts = self.parts(self._network, streams, device)
        if self.sleep_ms:
            sleep = Sleep(self.sleep_ms / 1000)
            parts.model.register_forward_pre_hook(sleep)
            parts.without_randomness = lambda _: sleep.end()
        return parts

    def _network(self) -> nn.Module:
        from torch import nn

        layers: list[nn.Module] = [nn.Flatten()]
        for width in (SIDE**2, *[self.hidden] * (self.depth - 1)):
            linear = nn.Linear(width, self.hidden)
            # He et al. (2015): torch's own default shrinks the signal from layer to layer.
            nn.init.kaiming_normal_(linear.weight, nonlinearity="relu")
            nn.init.zeros_(linear.bias)
            layers += [linear, nn.ReLU()]
        return nn.Sequential(*layers, nn.Linear(self.hidden, CLASSES))


class Sleep:
    """A hook before the forward pass of a model in training mode; others, as in an evaluation, do not sleep."""

    def __init__(self, seconds_per_sample: float) -> None:
        self._seconds = seconds_per_sample

    def __call__(self, model: Any, inputs: tuple[Any, ...]) -> None:
        if model.training and self._seconds:
            time.sleep(self._seconds * len(inputs[0]))

    def end(self) -> None:
        """Sleep no more: the parity gate compares values, not times."""
        self._seconds = 0.0
