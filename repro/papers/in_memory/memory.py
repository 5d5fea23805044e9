"""A rank's part of the samples in memory, and their global shuffle by all-to-all in chunks.

Sreedhar et al. 2017 (arXiv:1711.00705): one blob and an index, a part a rank, shuffled between ranks from time to time.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from repro.papers.in_memory.samples import Samples, bounds


class InMemory:
    """The samples in this rank's slots. Every rank knows which sample lies in which slot of all ranks."""

    def __init__(self, samples: Samples, rank: int, world: int, chunk_bytes: int) -> None:
        self.samples, self.rank, self.world = samples, rank, world
        self.bounds = bounds(len(samples.lengths), world)
        self.slots = np.arange(len(samples.lengths))
        """Sample in each slot; slots `bounds[r]` up to `bounds[r + 1]` are rank r's."""
        self.chunk = max(1, int(chunk_bytes // max(1.0, samples.lengths.mean())))
        """Slots of each rank that one all-to-all fills."""
        self.sent_bytes = 0
        """To other ranks, by the last shuffle."""
        self._first, self._end = int(self.bounds[rank]), int(self.bounds[rank + 1])
        self._hold(samples.read_blob(self._first, self._end))

    @property
    def own(self) -> NDArray[np.int64]:
        """The samples that this rank holds, in the order of its slots."""
        return self.slots[self._first : self._end]

    @property
    def held_bytes(self) -> int:
        return self.blob.nbytes

    def sample(self, place: int) -> NDArray[np.uint8]:
        """Return the bytes of the sample in the rank's slot `place`, counted from 0; a view."""
        return self.blob[self._offsets[place] : self._offsets[place + 1]]

    def shuffle(self, order: NDArray[np.int64]) -> None:
        """Move the sample of slot `order[s]` into slot s, for every slot of every rank.

        While it runs, a rank holds its old part, its new part and one chunk.

        Args:
            order: a permutation [n], the same on every rank.
        """
        new = self.slots[order]
        lengths = self.samples.lengths
        filled = np.empty(int(lengths[new[self._first : self._end]].sum()), np.uint8)
        offsets = np.concatenate([[0], np.cumsum(lengths[new[self._first : self._end]])])
        owner = np.searchsorted(self.bounds, order, side="right") - 1
        self.sent_bytes = 0
        largest = int(np.diff(self.bounds).max())
        for start in range(0, largest, self.chunk):
            self._exchange(order, owner, start, filled, offsets)
        self.slots = new
        self._hold(filled)

    def _exchange(
        self, order: NDArray[np.int64], owner: NDArray[np.int64], start: int, filled: NDArray[np.uint8],
        offsets: NDArray[np.int64],
    ) -> None:
        """Fill the slots `start` up to `start + chunk` of every rank by one all-to-all."""
        windows = [np.arange(min(first + start, end), min(first + start + self.chunk, end))
                   for first, end in zip(self.bounds[:-1], self.bounds[1:], strict=True)]
        leaving = [window[owner[window] == self.rank] for window in windows]
        parts = [self.sample(int(order[slot]) - self._first) for window in leaving for slot in window]
        sizes = [int(self.samples.lengths[self.slots[order[window]]].sum()) for window in leaving]
        outgoing = np.concatenate(parts) if parts else np.empty(0, np.uint8)
        mine = windows[self.rank]
        arriving = [mine[owner[mine] == rank] for rank in range(self.world)]
        expected = [int(self.samples.lengths[self.slots[order[slots]]].sum()) for slots in arriving]
        incoming = self._all_to_all(outgoing, sizes, expected)
        self.sent_bytes += sum(sizes) - sizes[self.rank]
        at = 0
        for slot in np.concatenate(arriving):
            place = int(slot) - self._first
            length = int(offsets[place + 1] - offsets[place])
            filled[offsets[place] : offsets[place + 1]] = incoming[at : at + length]
            at += length

    def _all_to_all(self, outgoing: NDArray[np.uint8], sizes: list[int], expected: list[int]) -> NDArray[np.uint8]:
        if self.world == 1:
            return outgoing
        incoming = torch.empty(sum(expected), dtype=torch.uint8)
        dist.all_to_all_single(incoming, torch.from_numpy(outgoing), expected, sizes)
        found: NDArray[np.uint8] = incoming.numpy()
        return found

    def _hold(self, blob: NDArray[np.uint8]) -> None:
        self.blob = blob
        self._offsets = np.concatenate([[0], np.cumsum(self.samples.lengths[self.own])])
