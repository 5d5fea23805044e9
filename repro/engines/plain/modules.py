"""What is done to a model's blocks: named, recomputed and compiled by torch.compile, and how long that took."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from repro.core.errors import TrialError
from repro.seams.plugin import Compilation

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


def recompute(block: nn.Module, compiled: bool) -> None:
    """Let a block recompute its activations in the backward pass instead of keeping them.

    Args:
        compiled: it is compiled. The compiler then recomputes by itself and changes buffers once only.
    """
    inner = block.forward
    # The forward method, not the module: hooks that engines put on a module must run once.
    if compiled:
        def forward(*args: Any, **kwargs: Any) -> Any:
            return checkpoint(inner, *args, use_reentrant=False, **kwargs)
    else:
        def contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
            return nullcontext(), _again(block)

        def forward(*args: Any, **kwargs: Any) -> Any:
            if not torch.is_grad_enabled():
                return inner(*args, **kwargs)
            return checkpoint(inner, *args, use_reentrant=False, context_fn=contexts, **kwargs)
    block.forward = forward


@contextmanager
def _again(block: nn.Module) -> Iterator[None]:
    """Repeat a forward pass without changing buffers: batch norm would count the same samples twice."""
    kept = [(buffer, buffer.detach().clone()) for buffer in block.buffers()]
    try:
        yield
    finally:  # torch ends the pass by an exception as soon as it has what it needs
        for buffer, value in kept:
            buffer.data.copy_(value)  # through `data`: autograd has saved the buffer and would refuse


FOLDER = "TORCHINDUCTOR_CACHE_DIR"
RECOMPILATIONS = 64
"""Largest number of variants of one function; at more torch would continue without compiling, which is an error here.
"""
COUNTED = {"graphs": ("stats", "unique_graphs"), "cache_hits": ("inductor", "fxgraph_cache_hit"),
           "cache_misses": ("inductor", "fxgraph_cache_miss"), "uncached": ("inductor", "fxgraph_cache_bypass")}


class Compiler:
    """Compiles the forward methods of modules; torch does it at their first call with each shape.

    Everything happens in this process: torch's pool of compiling processes would stay and disturb what is timed.

    Args:
        cache: folder of the run; None: a temporary one.
    """

    def __init__(self, options: Compilation, cache: Path | None, name: str) -> None:
        import torch._inductor.config
        from torch._dynamo import config
        from torch._dynamo.utils import counters

        self.options, self.counters = options, counters
        torch._inductor.config.compile_threads = 1
        config.recompile_limit = RECOMPILATIONS
        config.fail_on_recompile_limit_hit = True
        self._before = os.environ.get(FOLDER)
        self.folder = self._prepare(cache, name)
        self.was_filled = any(self.folder.iterdir())
        """The cache had content when this session started, or when it last forgot what it had compiled."""
        os.environ[FOLDER] = str(self.folder)
        torch._dynamo.reset()  # an earlier trial in this process
        self._register()
        self.seconds = 0.0
        self._since: float | None = None
        self._start = self._last = self._counts()

    def _prepare(self, cache: Path | None, name: str) -> Path:
        if cache is not None:
            cache.mkdir(parents=True, exist_ok=True)
        if self.options.cache == "warm" and cache is not None:
            folder = cache / name
            folder.mkdir(exist_ok=True)
            return folder
        return Path(tempfile.mkdtemp(prefix="compile-", dir=cache))

    def apply(self, modules: Sequence[nn.Module]) -> None:
        """Compile the modules' forward methods; hooks that engines put on a module stay outside."""
        self.modules = len(modules)
        for module in modules:
            module.forward = torch.compile(
                module.forward, mode=None if self.options.mode == "default" else self.options.mode,
                dynamic=self.options.dynamic)

    # ---- what was compiled

    def _register(self) -> None:
        from torch._dynamo.callback import callback_handler

        callback_handler.register_start_callback(self._begin)
        callback_handler.register_end_callback(self._end)

    def _begin(self, _: Any) -> None:
        self._since = time.perf_counter()

    def _end(self, _: Any) -> None:
        if self._since is not None:
            self.seconds += time.perf_counter() - self._since
        self._since = None

    def _counts(self) -> dict[str, float]:
        found = {name: int(self.counters[group][key]) for name, (group, key) in COUNTED.items()}
        breaks = sum(int(count) for count in self.counters["graph_break"].values())
        return {"seconds": self.seconds, **found, "graph_breaks": breaks}

    def _since_start(self) -> dict[str, int]:
        return {name: int(value - self._start[name]) for name, value in self._counts().items()}

    def take(self) -> dict[str, float]:
        """Return seconds, graphs, graph breaks, cache hits and misses since the last call."""
        last, self._last = self._last, self._counts()
        return {name: value - last[name] for name, value in self._last.items()}

    def must_fill(self) -> bool:
        """Return True if the cache should have been warm, and something had to be compiled."""
        return self.options.cache == "warm" and self._since_start()["cache_misses"] > 0

    def forget(self) -> None:
        """Forget compiled code, so that it is looked for in the cache again, and what was counted."""
        torch._dynamo.reset()
        self._register()
        self._start = self._last = self._counts()
        self.was_filled = True

    def effective(self) -> dict[str, str]:
        """Return what was compiled, read back from torch's counters.

        Raises:
            TrialError: nothing was compiled.
        """
        found = self._since_start()
        if not found["graphs"]:
            raise TrialError("compile was asked for, but torch compiled nothing")
        hits, missed = found["cache_hits"], found["cache_misses"] + found["uncached"]
        return {
            "compile": str(self.options), "compile_cache": "warm" if self.was_filled and not missed else "cold",
            "compiled_modules": str(self.modules), "compiled_graphs": str(found["graphs"]),
            "graph_breaks": str(found["graph_breaks"]), "compile_cache_hits": f"{hits} of {hits + missed}",
        }

    def close(self) -> None:
        """Forget compiled code and remove a cache that no other trial uses."""
        torch._dynamo.reset()
        if self._before is None:
            os.environ.pop(FOLDER, None)
        else:
            os.environ[FOLDER] = self._before
        if self.folder.name.startswith("compile-"):
            shutil.rmtree(self.folder, ignore_errors=True)
