"""Options by which an engine runs the model: compiled, with recomputed activations, memory layout."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

TORCH_OPTIONS = ("compile", "activation_checkpointing", "channels_last", "cudnn_benchmark")
"""The fields of `ModelOptions`: what engines on torch carry out."""
CacheState = Literal["cold", "warm"]


@dataclass(frozen=True, slots=True)
class Compilation:
    """torch.compile as a trial requests it."""

    mode: str = "default"
    """`mode` of torch.compile."""
    dynamic: bool | None = None
    """True: shapes are symbols from the first; False: every shape is compiled; None: symbols from the second on."""
    cache: CacheState = "cold"
    """cold: the trial compiles everything; warm: it finds everything compiled by the same trial before."""

    def __str__(self) -> str:
        """Return it as sessions read it back."""
        shapes = "auto" if self.dynamic is None else str(self.dynamic).lower()
        return f"{self.mode}, dynamic {shapes}"


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """The same choices for every engine; the names of its fields are those of a trial."""

    compile: Compilation | None = None
    activation_checkpointing: bool = False
    """Activations inside a block are computed again in the backward pass instead of kept."""
    channels_last: bool = False
    """Images, and the weights of convolutions where the engine leaves them their shape, lie channel by channel."""
    cudnn_benchmark: bool = False
    """cuDNN times its kernels for every new shape and takes the fastest."""

    def chosen(self) -> Iterator[str]:
        """Yield the names of the options that differ from plain training."""
        yield from (name for name in TORCH_OPTIONS if getattr(self, name))
