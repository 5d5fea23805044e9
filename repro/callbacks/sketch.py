"""Norm and sketch of a tensor, or of the part of it that one rank holds: those of all parts sum to those of the whole.

A sketch is a count-sketch (Charikar, Chen, Farach-Colton 2002): element i of a tensor is added, with a random sign, to
bucket i mod `BUCKETS`. It is linear, and the squared distance of two sketches estimates that of the tensors without
bias, with a relative standard deviation of sqrt(2 / BUCKETS).
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

BUCKETS = 64
CHUNK = 1 << 16
"""Elements whose signs are drawn together, so that a part of a tensor draws little more than its own."""


@dataclass(frozen=True, slots=True)
class Place:
    """Which elements of a tensor a rank holds, as flat indices of the whole tensor: a range, or a box."""

    name: str
    size: int
    """Elements of the whole tensor."""
    start: int
    count: int
    box: tuple[tuple[int, int, int], ...] = ()
    """(first, length, size of the whole) in each dimension, if the elements are no range."""

    @property
    def key(self) -> str:
        """Return a text that parts with the same elements share."""
        return "x".join(f"{first}+{length}" for first, length, _ in self.box) or f"{self.start}+{self.count}"

    def indices(self) -> torch.Tensor:
        """Return the flat indices of a box: [count] int64."""
        whole = torch.arange(self.size).view([size for _, _, size in self.box])
        for dimension, (first, length, _) in enumerate(self.box):
            whole = whole.narrow(dimension, first, length)
        return whole.reshape(-1)


def signs(name: str, start: int, count: int) -> torch.Tensor:
    """Return the signs of a range of elements, keyed by tensor and index alone: [count] int8, -1 or 1."""
    first, last = start // CHUNK, max(start, start + count - 1) // CHUNK
    key = zlib.crc32(name.encode())
    # Of numpy's generators only the raw bits of one are the same in every version.
    raw = [np.random.PCG64([key, chunk]).random_raw(CHUNK // 64) for chunk in range(first, last + 1)]
    bits = np.unpackbits(np.concatenate(raw).astype("<u8").view(np.uint8))[start - first * CHUNK:][:count]
    return torch.from_numpy(bits.astype(np.int8) * 2 - 1)


class Sketcher:
    """Measures tensors; the signs of every place are drawn once."""

    def __init__(self) -> None:
        self._signs: dict[Place, torch.Tensor] = {}
        self._buckets: dict[Place, torch.Tensor] = {}

    def signs_of(self, place: Place, device: torch.device) -> torch.Tensor:
        """Return the signs of the elements of a place, [count] int8."""
        if place not in self._signs:
            whole = signs(place.name, 0, place.size)[place.indices()] if place.box else \
                signs(place.name, place.start, place.count)
            self._signs[place] = whole.to(device)
        return self._signs[place]

    def measure(self, parts: Iterable[tuple[Place, torch.Tensor]]) -> dict[str, dict[str, Any]]:
        """Return name -> part, sum of squares and sketch of each tensor's part; three passes over each, one copy from
        the device in total."""
        found, places = [], []
        for place, values in parts:
            flat = values.detach().reshape(-1).float()
            signed = flat * self.signs_of(place, flat.device)
            places.append(place)
            found.append(torch.cat([torch.dot(flat, flat)[None], self._fold(place, signed)]).double())
        rows = torch.stack(found).cpu().numpy() if found else ()
        # Sketches as text: base64 of float32, little-endian.
        return {place.name: {"part": place.key, "square": float(row[0]),
                             "sketch": base64.b64encode(row[1:].astype("<f4").tobytes()).decode()}
                for place, row in zip(places, rows, strict=True)}

    def _fold(self, place: Place, signed: torch.Tensor) -> torch.Tensor:
        """Return the sums of the buckets, [BUCKETS]."""
        if place.box:
            if place not in self._buckets:
                self._buckets[place] = (place.indices() % BUCKETS).to(signed.device)
            return signed.new_zeros(BUCKETS).index_add_(0, self._buckets[place], signed)
        whole = len(signed) // BUCKETS * BUCKETS
        sums = signed[:whole].view(-1, BUCKETS).sum(0)
        sums[:len(signed) - whole] += signed[whole:]
        return sums.roll(place.start % BUCKETS)
