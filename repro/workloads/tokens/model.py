"""GPT-2 (Radford et al., 2019), a decoder-only transformer with pre-normalisation and learned positions; its batches,
windows over a stream of tokens, and its loss.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional

from repro.core.random_streams import Streams
from repro.seams.training import Batch, Read, SampleReader, TrainingParts
from repro.workloads.classification import initialised
from repro.workloads.reading import InProcess
from repro.workloads.tokens.shape import METRIC, Shape, TokenStreams

SPREAD = 0.02
"""Standard deviation of GPT-2's initial weights."""


class Attention(nn.Module):
    """Causal multi-head self-attention."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.query_key_value = nn.Linear(shape.width, 3 * shape.width)
        self.project = nn.Linear(shape.width, shape.width)
        self.dropout = nn.Dropout(shape.dropout)
        """Only its rate is used: the masks are drawn inside the attention kernel."""

    def forward(self, stream: torch.Tensor) -> torch.Tensor:
        samples, length, width = stream.shape
        split = self.query_key_value(stream).view(samples, length, 3, self.heads, width // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(
            query, key, value, is_causal=True, dropout_p=self.dropout.p if self.training else 0.0
        )
        projected: torch.Tensor = self.project(mixed.transpose(1, 2).reshape(samples, length, width))
        return projected


class Block(nn.Module):
    """Attention and a two-layer perceptron, each behind a normalisation and added to the residual stream."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(shape.width)
        self.attention = Attention(shape)
        self.perceptron_norm = nn.LayerNorm(shape.width)
        self.widen = nn.Linear(shape.width, 4 * shape.width)
        self.narrow = nn.Linear(4 * shape.width, shape.width)
        self.dropout = nn.Dropout(shape.dropout)

    def forward(self, stream: torch.Tensor) -> torch.Tensor:
        stream = stream + self.dropout(self.attention(self.attention_norm(stream)))
        hidden = functional.gelu(self.widen(self.perceptron_norm(stream)), approximate="tanh")
        ended: torch.Tensor = stream + self.dropout(self.narrow(hidden))
        return ended


class Gpt(nn.Module):
    """Tokens [n, t] int64 -> logits [n, t, vocabulary].

    The embeddings are parameters of the model itself, not of a child: tied weights are used at both ends of the forward
    pass, and engines that gather the weights of one module at a time (FSDP, ZeRO 3) hold the root's for all of it.
    """

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.tokens = nn.Parameter(torch.empty(shape.vocabulary, shape.width))
        self.positions = nn.Parameter(torch.empty(shape.context, shape.width))
        self.dropout = nn.Dropout(shape.dropout)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.width)
        self.output = None if shape.tied else nn.Linear(shape.width, shape.vocabulary, bias=False)
        self.initialise()

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        stream = functional.embedding(tokens, self.tokens) + self.positions[: tokens.shape[1]]
        stream = self.dropout(stream)
        for block in self.blocks:
            stream = block(stream)
        stream = self.norm(stream)
        return self.output(stream) if self.output is not None else functional.linear(stream, self.tokens)

    @torch.no_grad()
    def initialise(self) -> None:
        """Draw the weights as GPT-2 does: biases 0; the two outputs of a block scaled by 1 / sqrt(2 layers)."""
        nn.init.normal_(self.tokens, std=SPREAD)
        nn.init.normal_(self.positions, std=SPREAD)
        for name, module in self.named_modules():
            if isinstance(module, nn.Linear):
                ends_branch = name.endswith((".project", ".narrow"))
                nn.init.normal_(module.weight, std=SPREAD / math.sqrt(2 * self.shape.layers) if ends_branch else SPREAD)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)


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
        # The last window also needs the token after it, as a target.
        self.count = max(0, (min(held, held if tokens is None else tokens) - 1) // length)

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


class WindowReader(SampleReader):
    """Reads windows of what `open_data` opens; a copy in an input worker opens it again.

    Args:
        open_data: a function of a module or a partial of one, so that it can be pickled.
        length: tokens of a window.
    """

    def __init__(self, open_data: Callable[[], TokenStreams], length: int) -> None:
        self._open, self._length = open_data, length
        self._windows: tuple[Windows, Windows] | None = None
        """For training, for evaluation."""

    def open(self) -> str:
        found = self._open()
        self._windows = (Windows(found.train, self._length),
                         Windows(found.evaluation, self._length, found.eval_tokens))
        return found.sha256

    def train(self, epoch: int, indices: NDArray[np.int64]) -> Read:
        return Read(self._opened()[0].batch(indices), (indices, None))

    def evaluation(self, indices: NDArray[np.int64]) -> Batch:
        return self._opened()[1].batch(indices)

    def _opened(self) -> tuple[Windows, Windows]:
        if self._windows is None:
            self.open()
            assert self._windows is not None
        return self._windows

    def __getstate__(self) -> dict[str, object]:
        return {"_open": self._open, "_length": self._length, "_windows": None}


def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the mean cross entropy of a token in nats; outputs [n, t, vocabulary], targets [n, t]."""
    return functional.cross_entropy(outputs.float().flatten(0, 1), targets.flatten())


def summed_loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the sum over samples of their mean loss of a token: all samples have the same number of tokens."""
    return loss(outputs, targets) * len(targets)


def training_parts(
    open_data: Callable[[], TokenStreams], shape: Shape, tokens: int, streams: Streams, device: str
) -> TrainingParts:
    """Return the parts of a GPT of this shape.

    Args:
        tokens: different tokens that occur, at most `shape.vocabulary`.
    """
    return TrainingParts(
        model=initialised(partial(Gpt, shape), streams), loss=loss, scores={METRIC: summed_loss},
        synthetic_batch=partial(synthetic, shape.context, tokens, device),
        **InProcess(WindowReader(open_data, shape.context), device).functions(),
    )


def synthetic(length: int, tokens: int, device: str, samples: int) -> Batch:
    """Return random tokens, identical in every call."""
    inputs, targets = np.random.default_rng(0).integers(tokens, size=(2, samples, length))
    # Two tensors, not two views of one: torch.compile distinguishes them, and batches that are read are none.
    return torch.from_numpy(inputs).to(device), torch.from_numpy(targets).to(device)
