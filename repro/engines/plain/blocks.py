"""The blocks of a model: the modules that engines shard, recompute and compile as one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import nn

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
