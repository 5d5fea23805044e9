"""The blocks of a model: the modules that engines shard, recompute and compile as one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from repro.core.errors import TrialError

CONTAINERS = (nn.ModuleList, nn.ModuleDict)
"""Modules without a forward pass; their children stand for them."""


def blocks_of(model: nn.Module, names: Sequence[str] = ()) -> list[nn.Module]:
    """Return the blocks that have parameters, a block inside another one before it.

    Args:
        names: class names or paths of modules; none: the direct children.

    Raises:
        TrialError: the model has no module of one of the names.
    """
    if not names:
        return list(_children(model))
    below = [(path, module) for path, module in model.named_modules() if module is not model]
    known = {name for path, module in below for name in (path, type(module).__name__)}
    if missing := [name for name in names if name not in known]:
        classes = sorted({type(module).__name__ for _, module in below})
        raise TrialError(f"no block {missing[0]!r}: the model has no module of that class or path; its classes are "
                         f"{', '.join(classes)}")
    chosen = [module for path, module in below
              if (path in names or type(module).__name__ in names) and has_parameters(module)]
    return chosen[::-1]  # `named_modules` lists a module before those inside it


def _children(model: nn.Module) -> Iterator[nn.Module]:
    for child in model.children():
        if isinstance(child, CONTAINERS):
            yield from _children(child)
        elif has_parameters(child):
            yield child


def has_parameters(module: nn.Module) -> bool:
    """Return True if the module or one below it has a parameter."""
    return next(module.parameters(), None) is not None


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
