"""Named tensors in files of torch.distributed.checkpoint, read without unpickling anything else.

torch reads tensors with `weights_only`, but the index of a checkpoint with plain pickle, and other entries with a
`torch.load` that can run code. Here the index may contain only the classes listed below, and other entries are refused.
"""

from __future__ import annotations

import io
import math
import pickle
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta, TensorStorageMetadata
from torch.distributed.checkpoint.planner import ReadItem
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from repro.core.errors import CheckpointError, CheckpointRefused
from repro.seams.preconditioner import Preconditioning

INDEX_CLASSES = {
    "torch.distributed.checkpoint.metadata": {
        "Metadata", "TensorStorageMetadata", "ChunkStorageMetadata", "TensorProperties", "MetadataIndex", "StorageMeta",
        "_MEM_FORMAT_ENCODING",
    },
    "torch.distributed.checkpoint.filesystem": {"_StorageInfo"},
    "torch": {"Size", "float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool"},
    "torch.serialization": {"_get_layout"},
    "collections": {"OrderedDict"},
}
"""The classes in an index of tensors."""
OWN = "rank{rank}/"
"""Prefix of the names of tensors of one rank."""


class IndexUnpickler(pickle.Unpickler):
    """Loads only the classes of an index: nothing that runs code."""

    def find_class(self, module: str, name: str) -> Any:
        if name in INDEX_CLASSES.get(module, ()):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"it contains {module}.{name}, which no checkpoint contains")


class SafeReader(FileSystemReader):
    """torch's reader with a safe way to read the index."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        raw = (Path(self.path) / ".metadata").read_bytes()
        found = IndexUnpickler(io.BytesIO(raw)).load()
        if not isinstance(found, Metadata):
            raise pickle.UnpicklingError("its index is of another type")
        present = {path.name for path in Path(self.path).iterdir()}
        if other := next((item for item in found.storage_data.values()
                          if item.relative_path not in present or item.transform_descriptors), None):
            raise pickle.UnpicklingError(f"its index names {str(other.relative_path)[:80]!r}, which is no file of it")
        return found


class PlacelessWriter(FileSystemWriter):
    """torch's writer, without the path on this machine in the index."""

    def storage_meta(self) -> StorageMeta | None:
        return StorageMeta(save_id=self.save_id)


class TensorsOnly(DefaultLoadPlanner):
    """Refuses entries that are not tensors: torch would unpickle them."""

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        raise pickle.UnpicklingError(f"{read_item.dest_index.fqn} is not a tensor")


def save_tensors(folder: Path, shared: Mapping[str, torch.Tensor], own: Mapping[str, torch.Tensor], rank: int,
                 alone: bool) -> None:
    """Write tensors that are identical on all ranks, and those of this rank; all ranks take part.

    Raises:
        CheckpointError: a rank could not write.
    """
    mine = {OWN.format(rank=rank) + name: tensor for name, tensor in own.items()}
    tensors = {name: tensor.detach() for name, tensor in {**shared, **mine}.items()}
    with _checkpoint_errors(folder, "written"):
        save(tensors, storage_writer=PlacelessWriter(folder, sync_files=False), no_dist=alone)


def load_tensors(folder: Path, rank: int) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Return (shared tensors, those of this rank) in the host's memory; no rank waits for another.

    Raises:
        CheckpointRefused: `folder` is damaged or holds more than tensors.
    """
    prefix = OWN.format(rank=rank)
    with _checkpoint_errors(folder, "read"):
        index = SafeReader(folder).read_metadata().state_dict_metadata
        wanted = {name: item for name, item in index.items()
                  if name.startswith(prefix) or not name.startswith(OWN.split("{")[0])}
        tensors = {name: item for name, item in wanted.items() if isinstance(item, TensorStorageMetadata)}
        # torch would allocate as much as the index claims.
        claimed = sum(math.prod(item.size) * item.properties.dtype.itemsize for item in tensors.values())
        if claimed > sum(path.stat().st_size for path in folder.iterdir()):
            raise pickle.UnpicklingError("its index claims more data than its files hold")
        if odd := next((name for name in wanted if name not in tensors), None):
            raise pickle.UnpicklingError(f"{odd} is not a tensor")
        found = {name: torch.empty(item.size, dtype=item.properties.dtype) for name, item in tensors.items()}
        load(found, storage_reader=SafeReader(folder), planner=TensorsOnly(), no_dist=True)
    shared = {name: tensor for name, tensor in found.items() if not name.startswith(prefix)}
    return shared, {name.removeprefix(prefix): found[name] for name in found.keys() - shared.keys()}


def copy_tensors(there: Mapping[str, torch.Tensor], found: Mapping[str, torch.Tensor], checkpoint: str) -> None:
    """Copy what was `found` in a checkpoint into the tensors of this trial.

    Raises:
        CheckpointRefused: a name is missing on either side, or a shape or type differs; nothing was copied.
    """
    if wrong := sorted(name for name in {*there, *found}
                       if name not in there or name not in found or there[name].shape != found[name].shape
                       or there[name].dtype != found[name].dtype):
        raise CheckpointRefused(f"checkpoint {checkpoint}: {wrong[0]} is missing or has another shape or type "
                                "than in this trial")
    with torch.no_grad():
        for name, tensor in there.items():
            tensor.copy_(found[name])


@contextmanager
def _checkpoint_errors(folder: Path, done: str) -> Iterator[None]:
    """Turn every error of torch inside into one line that names the checkpoint."""
    try:
        with warnings.catch_warnings():
            # About the intended `no_dist`, and about a deprecation inside DTensor.
            warnings.simplefilter("ignore")
            yield
    except CheckpointException as error:
        first = next((item[0] for item in error.failures.values()), error)
        raise as_checkpoint_error(folder, first, done) from error
    except UNFIT as error:
        raise as_checkpoint_error(folder, error, done) from error


UNFIT = (OSError, pickle.UnpicklingError, RuntimeError, ValueError, TypeError, KeyError, AttributeError, EOFError,
         AssertionError, IndexError, ImportError, OverflowError)
"""Errors of reading an untrusted file."""


def as_checkpoint_error(folder: Path, error: BaseException, done: str = "read") -> CheckpointError:
    """Return the error with a message of one line, however long torch's message is."""
    lines = str(error).strip().splitlines()
    cause = lines[0][:200] if lines else type(error).__name__
    if isinstance(error, pickle.UnpicklingError):
        unsafe = next((line.strip() for line in lines if "Unsupported global" in line or "GLOBAL" in line), "")
        cause = f"it holds more than tensors and plain values ({(unsafe or cause)[:200]}); none of that was loaded"
    kind = CheckpointRefused if done == "read" else CheckpointError
    return kind(f"checkpoint {folder.parent.name}: {folder.name} cannot be {done}: {cause}")


KEY = "preconditioner"
"""Subfolder of a checkpoint, and the key of the counts."""


def save_preconditioner(running: Preconditioning | None, folder: Path, rank: int, alone: bool) -> dict[str, Any]:
    """Write its tensors; return the rest of its state (JSON-like); nothing without a preconditioner."""
    if running is None:
        return {}
    save_tensors(folder / KEY, running.shared_tensors(), running.own_tensors(), rank, alone)
    return {KEY: running.counts()}


def load_preconditioner(running: Preconditioning | None, folder: Path, own: Mapping[str, Any], rank: int) -> None:
    """Load what `save_preconditioner` wrote.

    Raises:
        CheckpointRefused: the files are damaged, or of another preconditioner.
    """
    if running is None:
        return
    shared, mine = load_tensors(folder / KEY, rank)
    copy_tensors(running.shared_tensors(), shared, folder.name)
    copy_tensors(running.own_tensors(), mine, folder.name)
    running.set_counts(own[KEY])


def preconditioner_bytes(running: Preconditioning | None, world: int) -> int:
    """Return the bytes that `save_preconditioner` writes on all ranks together."""
    if running is None:
        return 0
    shared, own = ([tensor.nbytes for tensor in found.values()]
                   for found in (running.shared_tensors(), running.own_tensors()))
    return sum(shared) + world * sum(own)
