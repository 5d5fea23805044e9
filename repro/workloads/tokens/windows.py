"""Windows over sequences of tokens: sample i of a language model."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from repro.seams.training import Batch, Read, SampleReader


def windows_of(tokens: int, length: int) -> int:
    """Return the number of windows of `length` tokens in a sequence; each also needs the token after its last one."""
    return max(0, (tokens - 1) // length)


class Windows:
    """Non-overlapping windows over one or more sequences, numbered through.

    Window i of a sequence has the inputs [i L, i L + L) and as targets the token after each input, so that every token
    of a sequence but its first, and a rest shorter than a window, is predicted once an epoch. No window crosses the end of a
    sequence. Sequences are arrays of unsigned integers; one that is a memory map is read window by window.
    """

    def __init__(self, sequences: Iterable[NDArray[np.unsignedinteger]], length: int) -> None:
        self.sequences, self.length = list(sequences), length
        self.ends = np.cumsum([windows_of(len(each), length) for each in self.sequences], dtype=np.int64)
        """Number of windows up to the end of each sequence."""

    def __len__(self) -> int:
        return int(self.ends[-1]) if len(self.ends) else 0

    def batch(self, indices: NDArray[np.int64]) -> Batch:
        """Return inputs [n, L] and targets [n, L], int64 on the CPU.

        Raises:
            IndexError: an index is negative or not below the number of windows.
        """
        rows = np.empty((len(indices), self.length + 1), dtype=np.int64)
        if len(indices) and not 0 <= int(indices.min()) <= int(indices.max()) < len(self):
            raise IndexError(f"windows {indices.min()} to {indices.max()} of {len(self)}")
        places = np.searchsorted(self.ends, indices, side="right")
        firsts = np.concatenate([[0], self.ends[:-1]])
        for row, index, place in zip(rows, indices.tolist(), places.tolist(), strict=True):
            start = (index - int(firsts[place])) * self.length
            row[:] = self.sequences[place][start : start + self.length + 1]
        both = torch.from_numpy(rows)
        return both[:, :-1].contiguous(), both[:, 1:].contiguous()


@dataclass(frozen=True, slots=True)
class Opened:
    """The data of a trial, checked."""

    train: Windows
    evaluation: Windows
    sha256: str


class WindowReader(SampleReader):
    """Reads windows of what `open_data` opens; copies in input workers open it again, without the check of content.

    Args:
        open_data: (check the content) -> the data; a function of a module or a partial of one, so that it can be
            pickled.
    """

    def __init__(self, open_data: Callable[[bool], Opened]) -> None:
        self._open = open_data
        self._data: Opened | None = None

    def open(self) -> str:
        self._data = self._open(True)
        return self._data.sha256

    def train(self, epoch: int, indices: NDArray[np.int64]) -> Read:
        return Read(self._opened().train.batch(indices), (indices, None))

    def evaluation(self, indices: NDArray[np.int64]) -> Batch:
        return self._opened().evaluation.batch(indices)

    def _opened(self) -> Opened:
        if self._data is None:
            self._data = self._open(False)
        return self._data

    def __getstate__(self) -> dict[str, object]:
        return {"_open": self._open, "_data": None}
