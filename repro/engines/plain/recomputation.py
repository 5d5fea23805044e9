"""Activation checkpointing (Chen et al., 2016): activations inside a block are computed again in the backward pass."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


class Recomputation:
    """The blocks of a model whose activations are not kept.

    Args:
        compiled: the blocks are compiled. The compiler then recomputes by itself and changes buffers once only.
    """

    def __init__(self, blocks: Sequence[nn.Module], compiled: bool) -> None:
        self.blocks, self.compiled = len(blocks), compiled
        self.passes = 0
        """Forward passes that were repeated; not counted in compiled blocks."""
        for block in blocks:
            self._wrap(block)

    def _wrap(self, block: nn.Module) -> None:
        inner = block.forward
        # The forward method, not the module: hooks that engines put on a module must run once.
        if self.compiled:
            def forward(*args: Any, **kwargs: Any) -> Any:
                return checkpoint(inner, *args, use_reentrant=False, **kwargs)
        else:
            def contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
                return nullcontext(), self._again(block)

            def forward(*args: Any, **kwargs: Any) -> Any:
                if not torch.is_grad_enabled():
                    return inner(*args, **kwargs)
                return checkpoint(inner, *args, use_reentrant=False, context_fn=contexts, **kwargs)
        block.forward = forward

    @contextmanager
    def _again(self, block: nn.Module) -> Iterator[None]:
        """Repeat a forward pass without changing buffers: batch norm would count the same samples twice."""
        self.passes += 1
        kept = [(buffer, buffer.detach().clone()) for buffer in block.buffers()]
        try:
            yield
        finally:  # torch ends the pass by an exception as soon as it has what it needs
            for buffer, value in kept:
                buffer.data.copy_(value)  # through `data`: autograd has saved the buffer and would refuse
