"""The class of plug-ins that change the mean gradient before the optimizer sees it, and of their running objects."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from typing_extensions import Self

from repro.seams.plugin import Plugin

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

    def alone(self) -> Self:
        """Return the preconditioner that computes the same in one process."""
        return self


class Unchanged(Preconditioner):
    """No preconditioner: the optimizer gets the mean gradient as it is."""

    title: ClassVar[str] = "none"
    active: ClassVar[bool] = False

    def attach(self, model: torch.nn.Module, place: Place) -> None:
        return None
