"""Dynamic scaling of the loss as data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, slots=True)
class LossScaling:
    """Dynamic scaling of the loss, as in `torch.amp.GradScaler`; DeepSpeed's scaler has no other factors."""

    GROWTH_FACTOR: ClassVar[float] = 2.0
    """Factor of the scale after `growth_interval` steps without overflow."""
    BACKOFF_FACTOR: ClassVar[float] = 0.5
    """Factor of the scale after an overflow."""
    initial_scale_power: int = 16
    """The initial scale is 2 to this power: 65536."""
    growth_interval: int = 2000
    """Steps without overflow until the scale grows."""

    @property
    def initial_scale(self) -> float:
        return float(2 ** self.initial_scale_power)
