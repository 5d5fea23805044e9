"""ImageNet on disk, or any images in folders by class.

The form of ILSVRC2012 as most tools unpack it (Russakovsky et al. 2015): `train/CLASS/*.JPEG`, and for evaluation
`val/CLASS/*.JPEG`, or `val/*.JPEG` with a file that names the class of each image: `val.txt` (a line `FILE CLASS` each)
or Kaggle's `LOC_val_solution.csv`. The number of a class is its place in the sorted names of the training folders.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from repro.core.errors import UsageError
from repro.workloads.data.form import DataForm, Facts, Progress
from repro.workloads.images import decoding

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
        if not (given / TRAIN).is_dir() or not (given / EVALUATION).is_dir():
            absent = TRAIN if not (given / TRAIN).is_dir() else EVALUATION
            raise UsageError(f"{given}: has no folder {absent}; wanted: {self.wanted}")
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
        _refuse_unknown(folder, classes, labelled([*found, *val], folder, labels))
        return sorted([*found, *val, *labels])

    def examine(self, folder: Path, file: str) -> None:
        if file in LABELS:
            return
        try:
            decoding.check((folder / file).read_bytes())
        except decoding.Undecodable as error:
            raise UsageError(f"{folder / file}: cannot be decoded: {error}; restore or remove it") from error

    def facts(self, folder: Path, files: Sequence[str]) -> Facts:
        train = [name for name in files if name.startswith(f"{TRAIN}/")]
        val = sum(name.startswith(f"{EVALUATION}/") for name in files)
        return {"train_samples": len(train), "eval_samples": val, "classes": len({_folder(name) for name in train})}

    def version(self, facts: Facts) -> str:
        if dict(facts) == OFFICIAL:
            return "the numbers of ILSVRC2012"
        return "other numbers than ILSVRC2012"


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
    if path.name.endswith(".csv"):
        parts = [line.replace(",", " ").split() for line in lines[1:]]
    else:
        parts = [line.split() for line in lines]
    if bad := next((number for number, part in enumerate(parts, 1) if part and len(part) < 2), None):
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


def _refuse_unknown(folder: Path, classes: Sequence[str], evaluation: Sequence[tuple[str, str]]) -> None:
    known = set(classes)
    if stray := next((item for item in evaluation if item[1] not in known), None):
        raise UsageError(f"{folder / stray[0]}: its class {stray[1]!r} has no folder in {TRAIN}")
