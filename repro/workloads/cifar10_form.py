"""CIFAR-10 on disk: the official binary files, the binary archive, or the Python archive, which is converted.

Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009; https://www.cs.toronto.edu/~kriz/cifar.html.
A record of the binary form is one byte label and 3072 bytes of pixels: red, green, blue, each row by row.
"""

from __future__ import annotations

import hashlib
import io
import pickle
import re
import tarfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from repro.core.errors import UsageError
from repro.workloads.data.manifest import DataForm, Facts, Progress

SIDE, CHANNELS, CLASSES = 32, 3, 10
RECORD = 1 + CHANNELS * SIDE * SIDE
"""Bytes of one labelled image."""
EVALUATION = "test_batch.bin"
OFFICIAL = {
    "data_batch_1.bin": "5dd7e06a14cb22eb9f671a540d1b7c25",
    "data_batch_2.bin": "5ea93a67294ea407fff1d09f752e9692",
    "data_batch_3.bin": "942cd6a4bcdd0dd3c604fbe906cb4421",
    "data_batch_4.bin": "ae636b3ba5c66a11e91e8cb52e771fcb",
    "data_batch_5.bin": "53f37980c15c3d472c316c40844f3f0d",
    "test_batch.bin": "803d5f7f4d78ea53de84dbe85f74fb6d",
}
"""md5 of each file of the official binary archive, whose own md5 on the data set's page is
c32a1d4ab5d03f1284b67883e8d87530. The page has no sums of single files: these are the ones by which public C++ and Go
loaders of that archive check what they have unpacked. Records converted from the Python archive must have the same."""
_BINARY = re.compile(r"^(data_batch_[1-9][0-9]?|test_batch)\.bin$")
_PICKLE = re.compile(r"^(data_batch_[1-9][0-9]?|test_batch)$")
ARCHIVES = ("cifar-10-binary.tar.gz", "cifar-10-python.tar.gz")
LARGEST = 1 << 30
"""Most bytes of one file in an archive."""


class Cifar10Form(DataForm):
    """Files of labelled images of 32 x 32 pixels; made-up ones of any number are accepted and called that."""

    name = "cifar10"
    title = "CIFAR-10: 50,000 + 10,000 labelled colour images of 32 x 32 pixels"
    wanted = ("a folder with data_batch_1.bin to data_batch_5.bin and test_batch.bin, or cifar-10-binary.tar.gz or "
              "cifar-10-python.tar.gz from https://www.cs.toronto.edu/~kriz/cifar.html")
    twin = "cifar10-synthetic"
    target = "0.94 top-1 (DAWNBench; also the CIFAR-10 speed-runs)"
    licence = "none stated by its authors"
    source = "Krizhevsky 2009, https://www.cs.toronto.edu/~kriz/cifar.html"

    def source_folder(self, given: Path, own: Path, progress: Progress) -> Path:
        if given.is_file():
            return _unpacked(given, own, progress)
        for folder in (given, given / "cifar-10-batches-bin"):
            if (folder / EVALUATION).is_file() or any(folder.glob("data_batch_*.bin")):
                return folder
        for folder in (given, given / "cifar-10-batches-py"):
            if (folder / "test_batch").is_file():
                return _converted(folder, own, progress)
        for name in ARCHIVES:
            if (given / name).is_file():
                return _unpacked(given / name, own, progress)
        raise UsageError(f"{given}: holds no CIFAR-10 files; wanted: {self.wanted}")

    def files(self, folder: Path) -> Sequence[str]:
        found = sorted((item.name for item in folder.iterdir() if _BINARY.match(item.name)), key=_number)
        if EVALUATION not in found:
            raise UsageError(f"{folder}: has no {EVALUATION}; wanted: {self.wanted}")
        if len(found) == 1:
            raise UsageError(f"{folder}: has no data_batch_1.bin; wanted: {self.wanted}")
        return found

    def examine(self, folder: Path, file: str) -> None:
        size = (folder / file).stat().st_size
        if size == 0 or size % RECORD:
            raise UsageError(f"{folder / file}: has {size:,} bytes, which is no number of records of {RECORD} bytes: "
                             f"truncated, or no CIFAR-10; an official file has 10,000 records, {10_000 * RECORD:,} "
                             "bytes")
        labels = np.fromfile(folder / file, np.uint8).reshape(-1, RECORD)[:, 0]
        if (worst := int(labels.max())) >= CLASSES:
            at = int(np.flatnonzero(labels >= CLASSES)[0])
            raise UsageError(f"{folder / file}: record {at} has label {worst}, labels are 0 to {CLASSES - 1}")

    def facts(self, folder: Path, files: Sequence[str]) -> Facts:
        counts = {name: (folder / name).stat().st_size // RECORD for name in files}
        official = set(files) == set(OFFICIAL) and all(
            hashlib.md5((folder / name).read_bytes(), usedforsecurity=False).hexdigest() == OFFICIAL[name]
            for name in files)
        return {"train_samples": sum(counts.values()) - counts[EVALUATION], "eval_samples": counts[EVALUATION],
                "official": official}

    def version(self, facts: Facts) -> str:
        return "official files" if facts["official"] else "not the official files"


def read(contents: Mapping[str, bytes]) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return training images [n, 32, 32, 3] uint8 and labels [n] int64, then the same for evaluation.

    Args:
        contents: the bytes of every file; training files count in the order of their numbers.
    """
    train = b"".join(contents[name] for name in sorted(contents, key=_number) if name != EVALUATION)
    return (*_split(train), *_split(contents[EVALUATION]))


def _split(raw: bytes) -> tuple[np.ndarray, np.ndarray]:
    records = np.frombuffer(raw, np.uint8).reshape(-1, RECORD)
    images = records[:, 1:].reshape(-1, CHANNELS, SIDE, SIDE).transpose(0, 2, 3, 1)
    return np.ascontiguousarray(images), records[:, 0].astype(np.int64)


def _number(name: str) -> tuple[bool, int, str]:
    """Sort data_batch_10 after data_batch_2, and the evaluation file last."""
    digits = re.search(r"[0-9]+", name)
    return digits is None, int(digits.group()) if digits else 0, name


def _converted(folder: Path, own: Path, progress: Progress) -> Path:
    names = [item.name for item in folder.iterdir() if _PICKLE.match(item.name)]
    for done, name in enumerate(sorted(names)):
        progress("convert", done, len(names))
        (own / f"{name}.bin").write_bytes(as_records((folder / name).read_bytes(), str(folder / name)))
    progress("convert", len(names), len(names))
    return own


def _unpacked(archive: Path, own: Path, progress: Progress) -> Path:
    """Unpack the batches of an archive, converted if they are pickles; nothing else in it is written."""
    count = 0
    try:
        with tarfile.open(archive) as tar:
            for member in tar:
                name = PurePosixPath(member.name).name
                plain, pickled = _BINARY.match(name), _PICKLE.match(name)
                if not (plain or pickled) or not member.isfile() or member.size > LARGEST:
                    continue
                stream = tar.extractfile(member)
                assert stream is not None, "a file"
                progress("unpack", count, len(OFFICIAL))
                raw = stream.read()
                (own / (name if plain else f"{name}.bin")).write_bytes(
                    raw if plain else as_records(raw, f"{archive}: {member.name}"))
                count += 1
    except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
        if isinstance(error, OSError) and error.strerror:
            raise UsageError(f"{archive}: cannot be unpacked: {error.strerror}") from error
        raise UsageError(f"{archive}: is truncated, or no archive; the official cifar-10-binary.tar.gz has 170,052,171 "
                         "bytes") from error
    if not count:
        raise UsageError(f"{archive}: holds no CIFAR-10 batches")
    return own


PIXELS = 3072
ADVICE = "take the binary version (cifar-10-binary.tar.gz), which needs no pickle"


def _encode(text: str, encoding: str = "utf-8") -> bytes:
    """Stand in for `_codecs.encode`, by which pickles of protocol 2 write bytes."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"encoding {encoding!r}")
    return text.encode("latin1")


def _reconstruct(kind: object, shape: object, code: object) -> np.ndarray:
    """Stand in for numpy's function of this name: an empty array, whose content `__setstate__` fills in."""
    if kind is not np.ndarray or shape != (0,):
        raise pickle.UnpicklingError("an array of another kind")
    return np.ndarray((0,), np.uint8)


def _dtype(code: object, *_: object) -> np.dtype[Any]:
    if code not in ("u1", b"u1", "|u1", b"|u1"):
        raise pickle.UnpicklingError(f"an array of {code!r}")
    return np.dtype(np.uint8)


_ALLOWED: dict[tuple[str, str], Callable[..., Any]] = {
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): _dtype,
    ("_codecs", "encode"): _encode,
}
"""What a pickle of such data names. numpy's own functions have stand-ins that accept nothing but bytes."""


class _Plain(pickle.Unpickler):
    """Refuses everything that is neither plain data nor an array of bytes."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"it names {module}.{name}")
        return _ALLOWED[module, name]

    def persistent_load(self, pid: Any) -> Any:
        raise pickle.UnpicklingError("it refers to something outside")


def as_records(raw: bytes, place: str) -> bytes:
    """Return a batch of the Python form as records of the binary form, in the same order.

    Args:
        raw: a pickled dict with `data`, uint8 [n, 3072], and `labels`, n numbers from 0 to 9.
        place: the file, for errors.

    Raises:
        UsageError: it is no such dict, or names code.
    """
    try:
        found = _Plain(io.BytesIO(raw), encoding="bytes").load()
    except Exception as error:  # of any kind: the bytes are a stranger's
        raise UsageError(f"{place}: is no plain CIFAR-10 batch: {type(error).__name__}: {error}; {ADVICE}") from error
    if not isinstance(found, dict):
        raise UsageError(f"{place}: is no plain CIFAR-10 batch: a {type(found).__name__}, not a dict; {ADVICE}")
    data, labels = (found.get(key, found.get(key.decode())) for key in (b"data", b"labels"))
    if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.ndim != 2 or data.shape[1] != PIXELS:
        raise UsageError(f"{place}: its `data` are no bytes [n, {PIXELS}]; {ADVICE}")
    if not isinstance(labels, list) or len(labels) != len(data) or not all(
            type(item) is int and 0 <= item <= 9 for item in labels):
        raise UsageError(f"{place}: its `labels` are not {len(data)} numbers from 0 to 9; {ADVICE}")
    return np.column_stack([np.array(labels, np.uint8), data]).tobytes()
