"""The handwritten digits in scikit-learn's package: 1797 real images of 8 x 8 pixels, with a fixed split; no torch.

The table is read directly from scikit-learn's package data, because importing scikit-learn takes a hundred times as
long and starts a thread. The declared hash verifies the content in both cases.
"""

from __future__ import annotations

import gzip
import hashlib
import importlib.util
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from repro.core.errors import TrialError
from repro.core.random_streams import Streams
from repro.seams.training import DataIdentity

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


@dataclass(frozen=True, slots=True)
class Split:
    """One side of the split; arrays are read-only and shared."""

    images: NDArray[np.uint8]
    """[n, 8, 8], 0 to 16."""
    targets: NDArray[np.uint8]
    """[n], 0 to 9."""


class DigitsData(NamedTuple):
    """The data set with its split, as read; `verified` checks its hash."""

    train: Split
    evaluation: Split
    sha256: str
    selection: str = ""
    """sha256 of the numbers of those training images that stay; "": all."""


@cache
def load() -> DigitsData:
    """Read and split the data set without checking it.

    Raises:
        TrialError: scikit-learn is not installed.
    """
    table = _table()
    images = table[:, :-1].reshape(-1, SIDE, SIDE)
    targets = table[:, -1]
    train, evaluation = split(targets)
    return DigitsData(
        Split(_frozen(images[train]), _frozen(targets[train])),
        Split(_frozen(images[evaluation]), _frozen(targets[evaluation])),
        hashlib.sha256(content(images, targets, train, evaluation)).hexdigest(),
    )


def verified(expected: str, planted: float = 0.0) -> DigitsData:
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


def with_copies(digits: DigitsData, planted: float) -> DigitsData:
    """Return the data with near-copies behind the training images: of different ones each, drawn at random, 15 %
    lighter to 15 % darker, every pixel one grey up, down or the same. Evaluation images have no copies."""
    draw = Streams(0, 0).generator("near-copies")
    chosen = draw.permutation(TRAIN_SAMPLES)[: copies(planted)]
    shade = draw.uniform(0.85, 1.15, (len(chosen), 1, 1))
    noise = draw.integers(-1, 2, (len(chosen), SIDE, SIDE))
    images = np.clip(np.rint(digits.train.images[chosen] * shade) + noise, 0, GREYS).astype(np.uint8)
    train = Split(_frozen(np.concatenate([digits.train.images, images])),
                  _frozen(np.concatenate([digits.train.targets, digits.train.targets[chosen]])))
    text = digits.sha256.encode() + images.tobytes() + chosen.astype("<i8").tobytes()
    return DigitsData(train, digits.evaluation, hashlib.sha256(text).hexdigest())


def identity(expected: str, planted: float, train_samples: int) -> DataIdentity:
    """Read, verify and describe the data set.

    Raises:
        TrialError: the content is not `expected`.
    """
    added = f", with {copies(planted)} near-copies planted by the workload" if planted else ""
    return DataIdentity(
        name=NAME,
        version=VERSION,
        sha256=verified(expected, planted).sha256,
        train_samples=train_samples,
        eval_samples=EVAL_SAMPLES,
        licence="CC-BY-4.0",
        source=f"UCI Optical Recognition of Handwritten Digits (test set), as bundled with scikit-learn{added}",
    )


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
    if not path.exists():
        return _through_sklearn()
    with gzip.open(path, "rt", encoding="ascii") as lines:
        return np.loadtxt(lines, delimiter=",", dtype=np.uint8)


def _through_sklearn() -> NDArray[np.uint8]:
    from sklearn.datasets import load_digits

    bunch = load_digits()
    return np.column_stack([bunch.data, bunch.target]).astype(np.uint8)


def _frozen(array: NDArray[np.uint8]) -> NDArray[np.uint8]:
    array = np.ascontiguousarray(array)
    array.setflags(write=False)
    return array
