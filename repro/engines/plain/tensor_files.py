"""Named tensors in files of torch.distributed.checkpoint, read back without unpickling anything else.

torch reads the tensors themselves with `weights_only`, but the index of a checkpoint with plain pickle, and entries
that are no tensors with a `torch.load` that runs code. Here the index may name its own few classes only, and there are
no other entries.
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
"""All that an index of tensors is made of."""
OWN = "rank{rank}/"
"""How the names of tensors begin that are one rank's own."""


class IndexUnpickler(pickle.Unpickler):
    """Knows the classes of an index and nothing that runs code."""

    def find_class(self, module: str, name: str) -> Any:
        if name in INDEX_CLASSES.get(module, ()):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no checkpoint holds")


class SafeReader(FileSystemReader):
    """torch's reader, but for how it reads the index."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        raw = (Path(self.path) / ".metadata").read_bytes()
        found = IndexUnpickler(io.BytesIO(raw)).load()
        if not isinstance(found, Metadata):
            raise pickle.UnpicklingError("its index is none")
        return found


class PlacelessWriter(FileSystemWriter):
    """torch's writer, whose index does not say where on this machine it was written."""

    def storage_meta(self) -> StorageMeta | None:
        return StorageMeta(save_id=self.save_id)


class TensorsOnly(DefaultLoadPlanner):
    """Refuses entries that are no tensors: torch would unpickle them."""

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        raise pickle.UnpicklingError(f"{read_item.dest_index.fqn} is no tensor")


def save_tensors(folder: Path, shared: Mapping[str, torch.Tensor], own: Mapping[str, torch.Tensor], rank: int,
                 alone: bool) -> None:
    """Write tensors that are the same on all ranks, and this rank's own; all ranks take part.

    Raises:
        CheckpointError: a rank could not write.
    """
    mine = {OWN.format(rank=rank) + name: tensor for name, tensor in own.items()}
    tensors = {name: tensor.detach() for name, tensor in {**shared, **mine}.items()}
    with _told(folder, "written"):
        save(tensors, storage_writer=PlacelessWriter(folder, sync_files=False), no_dist=alone)


def load_tensors(folder: Path, rank: int) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """(shared tensors, this rank's own) in the host's memory; no rank waits for another.

    Raises:
        CheckpointRefused: `folder` is damaged or holds more than tensors.
    """
    prefix = OWN.format(rank=rank)
    with _told(folder, "read"):
        index = SafeReader(folder).read_metadata().state_dict_metadata
        wanted = {name: item for name, item in index.items()
                  if name.startswith(prefix) or not name.startswith(OWN.split("{")[0])}
        found = {name: _empty(name, item) for name, item in _bounded(wanted, folder).items()}
        load(found, storage_reader=SafeReader(folder), planner=TensorsOnly(), no_dist=True)
    shared = {name: tensor for name, tensor in found.items() if not name.startswith(prefix)}
    return shared, {name.removeprefix(prefix): found[name] for name in found.keys() - shared.keys()}


def _bounded(wanted: dict[str, Any], folder: Path) -> dict[str, Any]:
    """An index may not promise more than its files can hold."""
    promised = sum(math.prod(item.size) * item.properties.dtype.itemsize for item in wanted.values()
                   if isinstance(item, TensorStorageMetadata))
    if promised > sum(path.stat().st_size for path in folder.iterdir()):
        raise pickle.UnpicklingError("its index promises more than its files hold")
    return wanted


def _empty(name: str, item: Any) -> torch.Tensor:
    if not isinstance(item, TensorStorageMetadata):
        raise pickle.UnpicklingError(f"{name} is no tensor")
    return torch.empty(item.size, dtype=item.properties.dtype)


@contextmanager
def _told(folder: Path, done: str) -> Iterator[None]:
    """Whatever torch raises inside, as one line that names the checkpoint."""
    try:
        with warnings.catch_warnings():
            # Of a `no_dist` that was asked for, and of storages that DTensor will one day not have.
            warnings.simplefilter("ignore")
            yield
    except CheckpointException as error:
        first = next((item[0] for item in error.failures.values()), error)
        raise refused(folder, first, done) from error
    except UNFIT as error:
        raise refused(folder, error, done) from error


UNFIT = (OSError, pickle.UnpicklingError, RuntimeError, ValueError, TypeError, KeyError, AttributeError, EOFError,
         AssertionError, IndexError, ImportError, OverflowError)
"""What reading a stranger's file raises."""


def refused(folder: Path, error: BaseException, done: str = "read") -> CheckpointError:
    """The one line that says it, whatever torch said."""
    lines = str(error).strip().splitlines()
    why = lines[0][:200] if lines else type(error).__name__
    if isinstance(error, pickle.UnpicklingError):
        unsafe = next((line.strip() for line in lines if "Unsupported global" in line or "GLOBAL" in line), "")
        why = f"it holds more than tensors and plain values ({(unsafe or why)[:200]}); nothing of that was loaded"
    kind = CheckpointRefused if done == "read" else CheckpointError
    return kind(f"checkpoint {folder.parent.name}: {folder.name} cannot be {done}: {why}")
