"""ImageNet on disk, or any images in folders by class: their form, and training batches decoded from them by Pillow.

The form of ILSVRC2012 as most tools unpack it (Russakovsky et al. 2015): `train/CLASS/*.JPEG`, and for evaluation
`val/CLASS/*.JPEG`, or `val/*.JPEG` with a file that names the class of each image: `val.txt` (a line `FILE CLASS` each)
or Kaggle's `LOC_val_solution.csv`. The number of a class is its place in the sorted names of the training folders.
"""

from __future__ import annotations

import bisect
import io
import math
import os
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image, UnidentifiedImageError

from repro.core.errors import TrialError, UsageError
from repro.core.random_streams import Streams
from repro.seams.training import Batch, Read, SampleReader
from repro.workloads.data.manifest import DataForm, Facts, Prepared, Progress

MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)
"""Mean and standard deviation of ImageNet's training pixels, by channel, in [0, 1]."""
AREA = (0.08, 1.0)
"""Share of an image that a random crop keeps (Szegedy et al. 2015, section 6)."""
ASPECT = (3 / 4, 4 / 3)
TRIES = 10
CENTRE = 224 / 256
"""Share of the shorter side that an evaluation keeps."""
FORMATS = ("JPEG", "PNG")
"""Formats that are decoded, whatever a file is named: decoders of rarer ones had the most faults."""


class Undecodable(Exception):
    """The bytes are no complete image of a supported format."""


def check(raw: bytes) -> None:
    """Decode an image, a JPEG at an eighth of its size: that reads all of its bytes.

    Raises:
        Undecodable: it is no image, or truncated.
    """
    image = _opened(raw)
    image.draft("RGB", (max(1, image.width // 8), max(1, image.height // 8)))
    _loaded(image)


def random_crop(raw: bytes, side: int, draw: int) -> np.ndarray:
    """Return a random part of an image, resized and perhaps mirrored: [side, side, 3] uint8.

    As torchvision's RandomResizedCrop with its defaults and a flip with probability 1/2.

    Args:
        draw: the sample's random number; everything random follows from it.

    Raises:
        Undecodable: it is no image, or truncated.
    """
    image = _rgb(raw)
    generator = np.random.default_rng(draw)
    box = _box(image.width, image.height, generator)
    found = np.asarray(image.resize((side, side), Image.Resampling.BILINEAR, box=box))
    return found[:, ::-1] if generator.random() < 0.5 else found


def centre_crop(raw: bytes, side: int) -> np.ndarray:
    """Return the middle of an image whose shorter side has side / 0.875 pixels: [side, side, 3] uint8.

    Raises:
        Undecodable: it is no image, or truncated.
    """
    image = _rgb(raw)
    shorter = min(image.width, image.height) * side / round(side / CENTRE)
    left, top = (image.width - shorter) / 2, (image.height - shorter) / 2
    box = (left, top, left + shorter, top + shorter)
    return np.asarray(image.resize((side, side), Image.Resampling.BILINEAR, box=box))


def scaled(pixels: np.ndarray) -> np.ndarray:
    """Return pixels [n, side, side, 3] uint8 as [n, 3, side, side] float32 of mean 0 and deviation 1."""
    scale = 1 / (255 * np.array(STD, np.float32))
    shift = np.array(MEAN, np.float32) / np.array(STD, np.float32)
    found = np.empty((len(pixels), 3, *pixels.shape[1:3]), np.float32)
    for channel in range(3):
        np.multiply(pixels[..., channel], scale[channel], out=found[:, channel])
        found[:, channel] -= shift[channel]
    return found


def _box(width: int, height: int, generator: np.random.Generator) -> tuple[float, float, float, float]:
    """Return (left, top, right, bottom) of a random part; the middle if none of ten fits."""
    area = width * height
    for _ in range(TRIES):
        wanted = area * generator.uniform(*AREA)
        aspect = math.exp(generator.uniform(math.log(ASPECT[0]), math.log(ASPECT[1])))
        wide, high = round(math.sqrt(wanted * aspect)), round(math.sqrt(wanted / aspect))
        if 0 < wide <= width and 0 < high <= height:
            left, top = int(generator.integers(width - wide + 1)), int(generator.integers(height - high + 1))
            return left, top, left + wide, top + high
    wide, high = min(width, round(height * ASPECT[1])), min(height, round(width / ASPECT[0]))
    left, top = (width - wide) // 2, (height - high) // 2
    return left, top, left + wide, top + high


def _rgb(raw: bytes) -> Image.Image:
    image = _opened(raw)
    _loaded(image)
    return image.convert("RGB")


def _opened(raw: bytes) -> Image.Image:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            return Image.open(io.BytesIO(raw), formats=FORMATS)
    except (UnidentifiedImageError, OSError, SyntaxError, ValueError, Image.DecompressionBombWarning,
            Image.DecompressionBombError) as error:
        raise Undecodable(_said(error)) from error


def _loaded(image: Image.Image) -> None:
    try:
        image.load()
    except (OSError, SyntaxError, ValueError, EOFError) as error:
        raise Undecodable(_said(error)) from error


def _said(error: BaseException) -> str:
    """Return Pillow's words; those about a file in memory would name an address."""
    return f"no {' or '.join(FORMATS)} image" if isinstance(error, UnidentifiedImageError) else str(error)


SUFFIXES = (".jpeg", ".jpg", ".png")
LABELS = ("val.txt", "LOC_val_solution.csv")
TRAIN, EVALUATION = "train", "val"
OFFICIAL = {"train_samples": 1_281_167, "eval_samples": 50_000, "classes": 1000}
"""Counts of ILSVRC2012's classification data."""


class ImageNetForm(DataForm):
    """Images in folders by class; numbers of classes and images are those that are found."""

    name = "imagenet"
    title = "ImageNet (ILSVRC2012) or other images in class folders"
    wanted = ("a folder with train/CLASS/*.JPEG and val/CLASS/*.JPEG (or val/*.JPEG and val.txt with lines `FILE "
              "CLASS`, or LOC_val_solution.csv), as ILSVRC2012 is unpacked")
    twin = "imagenet-synthetic"
    target = "0.759 top-1 (MLPerf Training, ResNet-50); 0.93 top-5 (DAWNBench)"
    licence = "non-commercial research and education (image-net.org), images belong to their owners"
    source = "Russakovsky et al. 2015, https://image-net.org; or the user's own images in this form"

    def source_folder(self, given: Path, own: Path, progress: Progress) -> Path:
        for name in (TRAIN, EVALUATION):
            if not (given / name).is_dir():
                raise UsageError(f"{given}: has no folder {name}; wanted: {self.wanted}")
        return given

    def files(self, folder: Path) -> Sequence[str]:
        found = sorted(_images(folder, TRAIN))
        classes = sorted(item.name for item in os.scandir(folder / TRAIN) if item.is_dir())
        _refuse_empty(folder, TRAIN, classes, found)
        val = sorted(_images(folder, EVALUATION))
        folders = sorted(item.name for item in os.scandir(folder / EVALUATION) if item.is_dir())
        if folders:
            _refuse_empty(folder, EVALUATION, folders, val)
        if not found or not val:
            raise UsageError(f"{folder / (EVALUATION if found else TRAIN)}: too few samples: no images "
                             f"({', '.join(SUFFIXES)}); wanted: {self.wanted}")
        labels = [] if folders else [next((name for name in LABELS if (folder / name).is_file()), "")]
        if labels == [""]:
            raise UsageError(f"{folder}: the images in {EVALUATION} are not in class folders, and there is neither "
                             f"{' nor '.join(LABELS)} with their classes")
        known = set(classes)
        if stray := next((item for item in labelled(val, folder, labels) if item[1] not in known), None):
            raise UsageError(f"{folder / stray[0]}: its class {stray[1]!r} has no folder in {TRAIN}")
        return sorted([*found, *val, *labels])

    def examine(self, folder: Path, file: str) -> None:
        if file in LABELS:
            return
        try:
            check((folder / file).read_bytes())
        except Undecodable as error:
            raise UsageError(f"{folder / file}: cannot be decoded: {error}; restore or remove it") from error

    def facts(self, folder: Path, files: Sequence[str]) -> Facts:
        train = [name for name in files if name.startswith(f"{TRAIN}/")]
        val = sum(name.startswith(f"{EVALUATION}/") for name in files)
        return {"train_samples": len(train), "eval_samples": val, "classes": len({_folder(name) for name in train})}

    def version(self, facts: Facts) -> str:
        return "the numbers of ILSVRC2012" if dict(facts) == OFFICIAL else "other numbers than ILSVRC2012"


def labelled(files: Iterable[str], folder: Path, labels: Sequence[str]) -> list[tuple[str, str]]:
    """Return (file, class) of every evaluation image.

    Args:
        labels: the file with classes, if images are not in class folders.

    Raises:
        UsageError: an image has no class in that file.
    """
    val = [name for name in files if name.startswith(f"{EVALUATION}/")]
    if not labels:
        return [(name, _folder(name)) for name in val]
    known = _read_labels(folder / labels[0])
    found = []
    for name in val:
        stem = name.rpartition("/")[2]
        label = known.get(stem) or known.get(stem.partition(".")[0])
        if label is None:
            raise UsageError(f"{folder / labels[0]}: has no class for {stem}")
        found.append((name, label))
    return found


def _read_labels(path: Path) -> Mapping[str, str]:
    """Return file name (or its stem) -> class."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: cannot be read: {error}") from error
    header = 1 if path.name.endswith(".csv") else 0
    parts = [line.replace(",", " ").split() if header else line.split() for line in lines[header:]]
    if bad := next((number for number, part in enumerate(parts, 1 + header) if part and len(part) < 2), None):
        raise UsageError(f"{path}: line {bad}: not a file and its class")
    return {part[0].rpartition("/")[2]: part[1] for part in parts if part}


def _images(folder: Path, side: str) -> Iterable[str]:
    for place, _, names in os.walk(folder / side, followlinks=True):
        below = Path(place).relative_to(folder).as_posix()
        yield from (f"{below}/{name}" for name in names if name.lower().endswith(SUFFIXES))


def _folder(name: str) -> str:
    return name.split("/")[1]


def _refuse_empty(folder: Path, side: str, classes: Sequence[str], files: Sequence[str]) -> None:
    used = {_folder(name) for name in files if name.count("/") > 1}
    if empty := [name for name in classes if name not in used]:
        more = f" (and {len(empty) - 1} other folders)" if len(empty) > 1 else ""
        raise UsageError(f"{folder / side / empty[0]}: a class without an image ({', '.join(SUFFIXES)}){more}")
    loose = next((name for name in files if name.count("/") == 1), None)
    if loose and classes:
        raise UsageError(f"{folder / loose}: is in no class folder, others are")


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
        pixels = np.stack([self._decoded(samples, index, partial(random_crop, side=side, draw=draw))
                           for index, draw in zip(indices.tolist(), draws.tolist(), strict=True)])
        return Read(_batch(pixels, samples.targets[indices]), (indices, draws))

    def evaluation(self, indices: np.ndarray) -> Batch:
        """Return images [n, 3, side, side] float32 and targets [n] int64."""
        samples = self._samples[1]
        decode = partial(centre_crop, side=self.eval_side)
        pixels = np.stack([self._decoded(samples, index, decode) for index in indices.tolist()])
        return _batch(pixels, samples.targets[indices])

    @cached_property
    def _samples(self) -> tuple[Samples, Samples]:
        """Training and evaluation samples, sorted by path."""
        sizes = {item.path: item.size for item in self.data.entries}
        self.data.drop_entries()  # ten times as large as what is kept
        train = [name for name in sizes if name.startswith(f"{TRAIN}/")]
        numbers = {name: number for number, name in enumerate(sorted({_folder(name) for name in train}))}
        labels = [name for name in LABELS if name in sizes]
        try:
            val = labelled(sizes, self.data.folder, labels)
        except UsageError as error:
            raise TrialError(str(error)) from error
        return (_as_samples(train, [numbers[_folder(name)] for name in train], sizes),
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
        except Undecodable as error:
            raise TrialError(f"{self.data.name}: {path} cannot be decoded: {error}; an image is never left out: "
                             f"restore it, or remove it and {self.data.again}") from error


def _as_samples(paths: Sequence[str], targets: Sequence[int], sizes: Mapping[str, int]) -> Samples:
    return Samples(np.array([path.encode() for path in paths]), np.array([sizes[path] for path in paths], np.int64),
                   np.array(targets, np.int64))


def _batch(pixels: np.ndarray, targets: np.ndarray) -> Batch:
    import torch

    return torch.from_numpy(scaled(pixels)), torch.from_numpy(targets)
