"""The state of a running preconditioner: undone after a warm-up, written to checkpoints and read from them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from repro.engines.plain.tensor_files import copy_tensors, load_tensors, save_tensors
from repro.seams.preconditioner import Preconditioning

KEY = "preconditioner"
"""Subfolder of a checkpoint, and the key of the counts."""


class PreconditionerState:
    """The state of a preconditioner at one moment; without one nothing is kept."""

    def __init__(self, running: Preconditioning | None) -> None:
        self.running, self.counts = running, running.counts() if running else {}
        tensors = [*running.shared_tensors().values(), *running.own_tensors().values()] if running else []
        self.pairs = [(tensor, tensor.clone()) for tensor in tensors]

    def restore(self) -> None:
        """Write the old values into the same tensors."""
        for tensor, before in self.pairs:
            tensor.copy_(before)
        if self.running:
            self.running.set_counts(self.counts)


def save(running: Preconditioning | None, folder: Path, rank: int, alone: bool) -> dict[str, Any]:
    """Write its tensors; return the rest of its state (JSON-like); nothing without a preconditioner."""
    if running is None:
        return {}
    save_tensors(folder / KEY, running.shared_tensors(), running.own_tensors(), rank, alone)
    return {KEY: running.counts()}


def load(running: Preconditioning | None, folder: Path, own: Mapping[str, Any], rank: int) -> None:
    """Load what `save` wrote.

    Raises:
        CheckpointRefused: the files are damaged, or of another preconditioner.
    """
    if running is None:
        return
    shared, mine = load_tensors(folder / KEY, rank)
    copy_tensors(running.shared_tensors(), shared, folder.name)
    copy_tensors(running.own_tensors(), mine, folder.name)
    running.set_counts(own[KEY])


def checkpoint_bytes(running: Preconditioning | None, world: int) -> int:
    """Return the bytes that `save` writes on all ranks together."""
    if running is None:
        return 0
    shared, own = ([tensor.nbytes for tensor in found.values()]
                   for found in (running.shared_tensors(), running.own_tensors()))
    return sum(shared) + world * sum(own)
