"""Windows over a stream of tokens: the samples of a language model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from repro.seams.training import Batch, Read, SampleReader


def windows_of(tokens: int, length: int) -> int:
    """Return the number of windows of `length` tokens; the last one also needs the token after it, as a target."""
    return max(0, (tokens - 1) // length)


class Windows:
    """Non-overlapping windows over a stream of tokens.

    Window i has the inputs [i L, i L + L) and as targets the token after each input, so an epoch predicts every token
    once, but for the first and a rest shorter than a window.

    Args:
        parts: the stream, in arrays of unsigned integers one after the other; memory maps are read window by window.
        length: L.
        tokens: length of the stream if less than all of it counts.
    """

    def __init__(self, parts: Sequence[NDArray[np.unsignedinteger]], length: int, tokens: int | None = None) -> None:
        self.parts, self.length = list(parts), length
        self.ends = np.cumsum([len(each) for each in self.parts], dtype=np.int64)
        """Tokens up to the end of each part."""
        held = int(self.ends[-1])
        self.count = windows_of(held if tokens is None else min(tokens, held), length)

    def __len__(self) -> int:
        return self.count

    def batch(self, indices: NDArray[np.int64]) -> Batch:
        """Return inputs [n, L] and targets [n, L], int64 on the CPU.

        Raises:
            IndexError: an index is negative or not below the number of windows.
        """
        rows = np.empty((len(indices), self.length + 1), dtype=np.int64)
        for row, index in zip(rows, indices.tolist(), strict=True):
            if not 0 <= index < self.count:
                raise IndexError(f"window {index} of {self.count}")
            self._read(index * self.length, row)
        both = torch.from_numpy(rows)
        return both[:, :-1].contiguous(), both[:, 1:].contiguous()

    def _read(self, start: int, row: NDArray[np.int64]) -> None:
        """Fill `row` with the tokens from `start` on, from as many parts as they lie in."""
        place = int(np.searchsorted(self.ends, start, side="right"))
        filled = 0
        while filled < len(row):
            part = self.parts[place]
            inside = start + filled - int(self.ends[place]) + len(part)
            piece = part[inside : inside + len(row) - filled]
            row[filled : filled + len(piece)] = piece
            filled += len(piece)
            place += 1


@dataclass(frozen=True, slots=True)
class Opened:
    """The data of a trial, checked."""

    train: Windows
    evaluation: Windows
    sha256: str


class WindowReader(SampleReader):
    """Reads windows of what `open_data` opens; a copy in an input worker opens it again.

    Args:
        open_data: a function of a module or a partial of one, so that it can be pickled.
    """

    def __init__(self, open_data: Callable[[], Opened]) -> None:
        self._open = open_data
        self._data: Opened | None = None

    def open(self) -> str:
        self._data = self._open()
        return self._data.sha256

    def train(self, epoch: int, indices: NDArray[np.int64]) -> Read:
        return Read(self._opened().train.batch(indices), (indices, None))

    def evaluation(self, indices: NDArray[np.int64]) -> Batch:
        return self._opened().evaluation.batch(indices)

    def _opened(self) -> Opened:
        if self._data is None:
            self._data = self._open()
        return self._data

    def __getstate__(self) -> dict[str, object]:
        return {"_open": self._open, "_data": None}
