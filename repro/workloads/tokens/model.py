"""GPT-2 (Radford et al., 2019): a decoder-only transformer with pre-normalisation and learned positions."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

SPREAD = 0.02
"""Standard deviation of GPT-2's initial weights."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Everything that determines the architecture."""

    vocabulary: int
    """Rows of the embedding, padding included."""
    context: int
    """Longest sequence, in tokens."""
    layers: int
    heads: int
    width: int
    """Channels of the residual stream; `heads` divides it."""
    dropout: float = 0.0
    """Of embeddings, attention weights and the two outputs of each block."""
    tied: bool = True
    """True: the output layer uses the weights of the token embedding."""

    @property
    def parameters(self) -> int:
        """Number of trained numbers: 12 w^2 + 13 w a block, embeddings, the last normalisation, an untied output."""
        width = self.width
        embeddings = (self.vocabulary * (1 if self.tied else 2) + self.context) * width
        return self.layers * (12 * width**2 + 13 * width) + embeddings + 2 * width


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
