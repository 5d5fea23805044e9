"""Emulated computation: a forward pass that sleeps, as long as its samples would take on a device of their own."""

from __future__ import annotations

import time
from typing import Any


class Sleep:
    """A hook before the forward pass of a model in training mode; others, as in an evaluation, do not sleep."""

    def __init__(self, seconds_per_sample: float) -> None:
        self._seconds = seconds_per_sample

    def __call__(self, model: Any, inputs: tuple[Any, ...]) -> None:
        if model.training and self._seconds:
            time.sleep(self._seconds * len(inputs[0]))

    def end(self) -> None:
        """Sleep no more: the parity gate compares values, not times."""
        self._seconds = 0.0
