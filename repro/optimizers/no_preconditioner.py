"""No preconditioner: the optimizer gets the mean gradient."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from repro.seams.preconditioner import Place, Preconditioner

if TYPE_CHECKING:
    import torch


class Unchanged(Preconditioner):
    """The mean gradient as it is."""

    title: ClassVar[str] = "none"
    active: ClassVar[bool] = False

    def attach(self, model: torch.nn.Module, place: Place) -> None:
        return None
