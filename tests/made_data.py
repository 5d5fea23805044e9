"""Made-up data sets in the real file formats, small enough for tests; the classes can be learned."""

from __future__ import annotations

import io
import pickle
import tarfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from PIL import Image

from repro.workloads import synthetic
from repro.workloads.data import prepare
from repro.workloads.data.manifest import DataForm, Prepared


def silent(what: str, done: int, total: int) -> None:
    """Show no progress."""


def prepared(form: DataForm, folder: Path) -> Prepared:
    """Prepare a folder in the store that `REPRO_DATA` names."""
    return prepare.prepare(form, folder, silent)


def _drawn(side: int, classes: int, samples: int) -> tuple[np.ndarray, np.ndarray]:
    """Return images [n, side, side, 3] uint8 and targets [n], every class about equally often."""
    return synthetic.as_bytes(synthetic.draw(
        synthetic.Recipe(side, 3, classes, samples, 0, seed=1)))


# ---- CIFAR-10

def cifar10_records(samples: int = 320) -> np.ndarray:
    """Return records of the binary form: [n, 3073] uint8."""
    images, targets = _drawn(32, 10, samples)
    return np.column_stack([targets.astype(np.uint8), images.transpose(0, 3, 1, 2).reshape(samples, -1)])


def cifar10_contents(train: int = 256, held_out: int = 64, files: int = 2) -> dict[str, np.ndarray]:
    """Return the records of each file."""
    records = cifar10_records(train + held_out)
    parts = np.array_split(records[:train], files)
    return {**{f"data_batch_{number}.bin": part for number, part in enumerate(parts, 1)},
            "test_batch.bin": records[train:]}


def cifar10_folder(folder: Path, train: int = 256, held_out: int = 64, files: int = 2) -> Path:
    """Write the binary form."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, records in cifar10_contents(train, held_out, files).items():
        (folder / name).write_bytes(records.tobytes())
    return folder


def as_pickle(records: np.ndarray) -> bytes:
    """Return a batch of the Python form in its original form: protocol 2, numpy's module by its former name."""
    found = pickle.dumps({b"batch_label": b"made up", b"labels": records[:, 0].tolist(),
                          b"data": np.ascontiguousarray(records[:, 1:]), b"filenames": [b"x.png"] * len(records)},
                         protocol=2)
    return found.replace(b"numpy._core.multiarray", b"numpy.core.multiarray")


def archive(path: Path, members: Mapping[str, bytes]) -> Path:
    """Write a .tar.gz."""
    with tarfile.open(path, "w:gz") as tar:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


# ---- ImageNet

def image_folders(
    folder: Path, classes: int = 4, train: int = 48, held_out: int = 16, side: int = 48, val_folders: bool = True
) -> Path:
    """Write JPEGs in class folders: train/<wnid>/*.JPEG, and val likewise or with a file of labels."""
    images, targets = _drawn(side, classes, train + held_out)
    targets[:classes] = np.arange(classes)  # every class has an image
    images[:classes] = images[[np.flatnonzero(targets == label)[-1] for label in range(classes)]]
    labels = []
    for index, (image, label) in enumerate(zip(images, targets.tolist(), strict=True)):
        wnid = f"n{label:08}"
        if index < train:
            path = folder / "train" / wnid / f"{wnid}_{index}.JPEG"
        else:
            name = f"ILSVRC2012_val_{index - train + 1:08}.JPEG"
            path = folder / "val" / wnid / name if val_folders else folder / "val" / name
            labels.append(f"{name} {wnid}\n")
        path.parent.mkdir(parents=True, exist_ok=True)
        # Not square, as photographs are.
        Image.fromarray(image).resize((side + index % 9, side)).save(path, "JPEG", quality=90)
    if not val_folders:
        (folder / "val.txt").write_text("".join(labels))
    return folder
