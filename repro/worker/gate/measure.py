"""Measures of the parity gate: a tensor as its norm and its projection, a batch as the hash of its bytes."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from repro.seams.training import Batch
from repro.worker.gate.trace import Measure

BLOCK = 1 << 16
"""Numbers that are measured at a time: their float64 copies stay in a processor's cache."""


class Measures:
    """Series of measures by kind (gradient, weight, update) and tensor."""

    def __init__(self) -> None:
        self._series: dict[str, dict[str, list[Measure | None]]] = {}
        self._taken: dict[str, int] = {}
        self._directions: dict[str, tuple[np.ndarray, np.ndarray]] = {}

    def add(self, kind: str, tensors: Iterable[tuple[str, np.ndarray]]) -> None:
        """Append the measures of one step; tensors are taken one by one."""
        known, taken = self._series.setdefault(kind, {}), self._taken.get(kind, 0)
        for name, value in self.of(tensors).items():
            # A tensor that was missing until now has no measure in the steps before.
            series = known.setdefault(name, [])
            series += [None] * (taken - len(series))
            series.append(value)
        self._taken[kind] = taken + 1

    def skip(self, kind: str) -> None:
        """Append a step without measures."""
        self._taken[kind] = self._taken.get(kind, 0) + 1

    def series(self, kind: str) -> dict[str, Any]:
        """Return name -> measures of all steps."""
        taken = self._taken.get(kind, 0)
        return {name: tuple(values + [None] * (taken - len(values)))
                for name, values in self._series.get(kind, {}).items()}

    def of(self, tensors: Iterable[tuple[str, np.ndarray]]) -> dict[str, Measure]:
        """Return the measures of some tensors."""
        return {name: self._measure(name, array) for name, array in tensors}

    def _measure(self, name: str, array: np.ndarray) -> Measure:
        flat = array.reshape(-1)
        known = self._directions.get(name)
        if known is None or len(known[1]) != -(-flat.size // BLOCK) or len(known[0]) != min(flat.size, BLOCK):
            known = self._directions[name] = draw_direction(name, flat.size)
        direction, factors = known[0].astype(np.float64), known[1]
        squares = projection = 0.0
        for number, factor in enumerate(factors):
            block = flat[number * BLOCK:(number + 1) * BLOCK].astype(np.float64)
            squares += float(block @ block)
            projection += float(factor * (block @ direction[:block.size]))
        return squares**0.5, projection


def draw_direction(name: str, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return a random direction that depends only on the name: [at most BLOCK] float32, and a factor for each block.

    A factor is 1 for the first block and 0.5 to 1.5, of either sign, for each other one, so that blocks that are
    exchanged show. One direction for all blocks keeps memory and time independent of a tensor's size.
    """
    generator = np.random.default_rng(zlib.crc32(name.encode()))
    direction = generator.standard_normal(min(size, BLOCK), dtype=np.float32)
    blocks = -(-size // BLOCK)
    factors = (0.5 + generator.random(blocks)) * generator.choice([-1.0, 1.0], blocks)
    factors[:1] = 1.0
    return direction, factors


def batch_sha256(batch: Batch) -> str:
    """Hash a micro-batch's inputs and targets as they are on the device."""
    digest = hashlib.sha256()
    for part in batch:
        _update(digest, part)
    return digest.hexdigest()[:16]


def _update(digest: Any, value: Any) -> None:
    """Add a tensor, or every tensor of a dict, list or tuple, with its name or place."""
    if isinstance(value, Mapping):
        for key in sorted(value, key=str):
            digest.update(f"{key}:".encode())
            _update(digest, value[key])
    elif isinstance(value, list | tuple):
        for item in value:
            _update(digest, item)
    elif hasattr(value, "detach"):
        import torch

        # Bytes, because numpy has no bfloat16.
        flat = value.detach().cpu().contiguous().reshape(-1)
        digest.update(f"{value.dtype}{tuple(value.shape)}".encode())
        digest.update(flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b"")
    else:
        digest.update(repr(value).encode())
