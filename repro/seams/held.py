"""The part of a model's weights that one rank holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True, slots=True)
class Held:
    """A parameter, or a part of one, as one rank computes with it."""

    name: str
    values: np.ndarray
    """Flat, float32."""
    start: int = 0
    """Place of the first value in the flattened parameter."""
