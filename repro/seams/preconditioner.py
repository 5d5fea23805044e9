"""The class of plug-ins that change the mean gradient before the optimizer sees it, and of their running objects."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from typing_extensions import Self

from repro.seams.plugin import Plugin
from repro.seams.workload import LayerShape

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class Place:
    """The rank on which a preconditioner runs."""

    rank: int
    world: int
    device: str
    accumulation: int
    """Forward and backward passes of this rank per step."""


CORE_FLOPS, BYTES_A_SECOND, MESSAGE_SECONDS = 2.5e9, 2e8, 5e-4
"""Rough rates of one CPU core on matrices of tens to hundreds of rows, and of messages inside one machine. Only
modelled costs use them. Together they give the 8 ms that K-FAC adds to a step in docs/kfac.md, on a busy machine."""


@dataclass(frozen=True, slots=True)
class Work:
    """Work of a preconditioner in a mean step, beyond the engine's own (modelled)."""

    flops: float = 0.0
    """Of all ranks together."""
    sent_bytes: float = 0.0
    """Payload of its messages: of an all-reduce or a broadcast the tensor's own size, once."""
    messages: float = 0.0

    def seconds(self, cores: int) -> float:
        """Return its time with `cores` CPU cores at work, from rough rates."""
        return self.flops / (CORE_FLOPS * cores) + self.sent_bytes / BYTES_A_SECOND + self.messages * MESSAGE_SECONDS


class Preconditioning(ABC):
    """A preconditioner of one model in training, on one rank. All ranks call `apply` in the same order."""

    name: ClassVar[str]
    """Its name as read back, equal to the plug-in's `title`."""

    @abstractmethod
    def observing(self) -> AbstractContextManager[None]:
        """Return the context of a forward pass in training, the only one in which it may look at the model.

        Evaluations and forward passes that are repeated during back-propagation run outside.
        """

    @abstractmethod
    def apply(self, gradients: Mapping[str, torch.Tensor | None], rate: float, scale: float) -> None:
        """Precondition the mean gradients in place; once a step, after they were averaged and before any clipping.

        Args:
            gradients: by parameter name; None: the step gave the parameter none.
            rate: learning rate of the step; may be 0.
            scale: factor by which the loss, and so the gradients, are multiplied.

        Raises:
            TrialError: it needs a gradient that is missing.
        """

    @abstractmethod
    def shared_tensors(self) -> dict[str, torch.Tensor]:
        """Return the state that is identical on all ranks; not copies. Names and shapes never change."""

    @abstractmethod
    def own_tensors(self) -> dict[str, torch.Tensor]:
        """Return the state that differs between ranks; not copies. Names and shapes never change."""

    @abstractmethod
    def counts(self) -> dict[str, int]:
        """Return the rest of the state."""

    @abstractmethod
    def set_counts(self, counts: Mapping[str, int]) -> None:
        """Take over what `counts` returned."""

    @abstractmethod
    def effective(self) -> dict[str, str]:
        """Return what is preconditioned and how, read back from this object."""


class Preconditioner(Plugin):
    """A map of the mean gradient, between its average over the ranks and the optimizer."""

    title: ClassVar[str]
    """Name in tables and reports; `Preconditioning.name` of what runs, "none" without."""
    active: ClassVar[bool] = True
    """False: it changes nothing."""

    @abstractmethod
    def attach(self, model: torch.nn.Module, place: Place) -> Preconditioning | None:
        """Return the preconditioner of `model`; None: it changes nothing.

        Args:
            model: before an engine wraps it. The process group has been started.
        """

    def work(self, layers: Sequence[LayerShape] | None, batch: int, world: int) -> Work | None:
        """Return its work in a mean step; None: it cannot be known.

        Args:
            layers: of the model; None: the workload does not state them.
            batch: samples of a step, over all ranks.
            world: ranks.
        """
        return None if self.active else Work()

    def alone(self) -> Self:
        """Return the preconditioner that computes the same in one process."""
        return self


class Unchanged(Preconditioner):
    """No preconditioner: the optimizer gets the mean gradient as it is."""

    title: ClassVar[str] = "none"
    active: ClassVar[bool] = False

    def attach(self, model: torch.nn.Module, place: Place) -> None:
        return None
