"""A small transformer on synthetic tokens, with dropout by functional calls and stochastic depth; inputs in a dict."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from repro.core.random_streams import Streams
from repro.seams.training import Batch, DataIdentity, Direction, TrainingParts, Workload

if TYPE_CHECKING:
    import torch

VOCABULARY = 97
PADDING = -100
TRAIN, HELD_OUT = 512, 64


class RandomLayers(Workload):
    """Predicts each token from those before it."""

    title: ClassVar[str] = "synthetic tokens, transformer with random layers"
    unit: ClassVar[str] = "sequences"
    metrics: ClassVar[Mapping[str, Direction]] = {"loss": "lower"}
    synthetic: ClassVar[bool] = True
    reference_samples_per_second: ClassVar[float] = 1000.0
    eval_batch_size: ClassVar[int] = 16

    width: int = 32
    layers: int = 2
    tokens: int = 16
    drop: float = 0.2
    greedy_at: int = 0
    """Forward pass of training at which rank 1 asks for more memory than there is; 0: never."""
    odd: bool = False
    """A head tied to the embedding, a frozen parameter, one that no loss depends on, and one of a single number."""
    hook: bool = True
    """Whether the workload can turn its random layers off."""
    ragged: bool = False
    """Whether sequences end anywhere: every sequence counts alike in the loss, however few tokens it has."""

    @property
    def train_samples(self) -> int:
        return TRAIN

    @property
    def eval_samples(self) -> int:
        return HELD_OUT

    def _tokens(self) -> np.ndarray:
        starts = np.random.default_rng(0).integers(VOCABULARY, size=(TRAIN + HELD_OUT, 2))
        return (starts[:, :1] + (1 + starts[:, 1:] % 5) * np.arange(self.tokens + 1)) % VOCABULARY

    def identity(self) -> DataIdentity:
        digest = hashlib.sha256(self._tokens().tobytes()).hexdigest()
        return DataIdentity("steps", "1", digest, TRAIN, HELD_OUT, "none: no data", "computed")

    def build(self, streams: Streams, device: str) -> TrainingParts:
        import torch
        from torch.nn import functional

        from repro.workloads import classification

        data: list[torch.Tensor] = []

        def open_data() -> str:
            found = self._tokens()
            data[:] = [torch.from_numpy(found).to(device)]
            return hashlib.sha256(found.tobytes()).hexdigest()

        def batch(rows: torch.Tensor) -> Batch:
            targets = rows[:, 1:]
            if self.ragged:
                ends = (1 + rows[:, :1] * rows[:, 1:2] % self.tokens) > torch.arange(self.tokens, device=rows.device)
                targets = targets.where(ends, PADDING)
            return {"tokens": rows[:, :-1], "shift": torch.full((len(rows), 1), 0.5, device=rows.device)}, targets

        def of(indices: np.ndarray) -> Batch:
            return batch(data[0][torch.from_numpy(np.asarray(indices)).to(device)])

        def each(outputs: dict[str, Any], targets: torch.Tensor) -> torch.Tensor:
            found = functional.cross_entropy(outputs["logits"].transpose(1, 2), targets, ignore_index=PADDING,
                                             reduction="none")
            return found.sum(1) / (targets != PADDING).sum(1)

        return TrainingParts(
            model=classification.initialised(lambda: network(self), streams),
            loss=lambda outputs, targets: each(outputs, targets).mean(),
            scores={"loss": lambda outputs, targets: each(outputs, targets).sum()},
            train_batch=lambda epoch, indices: of(indices),
            eval_batch=lambda indices: of(indices + TRAIN),
            synthetic_batch=lambda n: batch(torch.zeros(n, self.tokens + 1, dtype=torch.long, device=device)),
            open_data=open_data,
            without_randomness=quiet if self.hook else None,
        )


def quiet(model: Any) -> None:
    for module in model.modules():
        if hasattr(module, "drop"):
            module.drop = 0.0


def network(options: RandomLayers) -> torch.nn.Module:
    import torch
    from torch import nn
    from torch.nn import functional

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            width = options.width
            self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
            self.mix, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
            self.drop = options.drop

        def forward(self, hidden: torch.Tensor) -> torch.Tensor:
            before = hidden
            query, key, value = self.mix(self.norms[0](hidden)).chunk(3, -1)
            mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
            hidden = hidden + functional.dropout(self.out(mixed), self.drop, self.training)
            hidden = hidden + self.down(functional.gelu(self.up(self.norms[1](hidden))))
            if not self.training or not self.drop:
                return hidden
            kept = (torch.rand(len(hidden), 1, 1, device=hidden.device) >= self.drop).to(hidden.dtype)
            return before + kept * (hidden - before)  # stochastic depth

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(VOCABULARY, options.width)
            self.place = nn.Parameter(0.02 * torch.randn(options.tokens, options.width))
            self.blocks = nn.ModuleList(Block() for _ in range(options.layers))
            self.head = nn.Linear(options.width, VOCABULARY)
            if options.odd:
                self.gain = nn.Parameter(torch.ones(1))
                self.head.weight = self.embedding.weight
                self.head.bias.requires_grad_(False)
                self.spare = nn.Linear(options.width, 3)
            self.passes = 0

        def forward(self, tokens: torch.Tensor, shift: torch.Tensor) -> dict[str, torch.Tensor]:
            self.passes += self.training
            if options.greedy_at and self.passes == options.greedy_at and os.environ["RANK"] == "1":
                torch.empty(1 << 47, dtype=torch.uint8)
            hidden = self.embedding(tokens) + self.place + shift[:, None]
            for block in self.blocks:
                hidden = block(hidden)
            return {"logits": self.head(hidden * self.gain if options.odd else hidden)}

    return Network()
