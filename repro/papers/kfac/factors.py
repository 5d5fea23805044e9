"""The Kronecker factors of all layers: sums over one step, their mean over the ranks, and the running averages."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from repro.papers.kfac.layers import Layer


class Factors:
    """A and G of every layer in float32, in one piece of memory, so that one collective carries all of them.

    With n samples in a step and loss l the mean of the samples' losses l_i, A is the mean of a a^T over samples and
    positions, G the mean over samples of the sum over positions of g g^T, g the gradient of l_i by the layer's output.
    Each is independent of how the samples are divided over ranks and micro-batches. G (x) A is then the layer's block
    of the empirical Fisher matrix of one sample, positions taken as independent (Grosse and Martens, 2016).

    Args:
        accumulation: forward passes of a step on this rank.
    """

    def __init__(self, layers: Sequence[Layer], device: torch.device, accumulation: int) -> None:
        self.layers, self.accumulation = layers, accumulation
        self.sizes = [rows for layer in layers for rows in layer.sizes]
        total = sum(rows**2 for rows in self.sizes)
        self.averages = torch.zeros(total, device=device)
        """Running averages, A and G of the first layer first."""
        self.updates = 0
        """Steps that are part of the averages."""
        self._sums = torch.zeros_like(self.averages)
        self._parts = self._views(self._sums)
        self._calls = [0] * len(layers)

    def _views(self, flat: torch.Tensor) -> list[torch.Tensor]:
        pieces = torch.split(flat, [rows**2 for rows in self.sizes])
        return [piece.view(rows, rows) for piece, rows in zip(pieces, self.sizes, strict=True)]

    def matrices(self) -> list[torch.Tensor]:
        """Return views of the running averages: A and G of the first layer, then of the second."""
        return self._views(self.averages)

    def add_inputs(self, place: int, inputs: torch.Tensor) -> None:
        """Add the inputs of one call of layer number `place`."""
        rows = self.layers[place].input_rows(inputs)
        self._parts[2 * place].addmm_(rows.T, rows, alpha=1 / len(rows))
        self._calls[place] += 1

    def add_gradient(self, place: int, gradient: torch.Tensor) -> None:
        """Add the gradient of the step's loss by the output of one call.

        The step's loss on this rank is the mean over micro-batches of the mean over samples.
        """
        rows, samples = self.layers[place].output_rows(gradient), len(gradient)
        # g = samples x accumulation x gradient, and the mean of g g^T divides by samples x accumulation.
        self._parts[2 * place + 1].addmm_(rows.T, rows, alpha=samples * self.accumulation)

    def update(self, average: Callable[[torch.Tensor], None], decay: float, scale: float) -> None:
        """Take the sums of the step into the running averages, and clear them.

        The k-th update weighs the past by min(1 - 1/k, decay) (Martens and Grosse, 2015): the first one sets the
        averages. A step whose loss scale was too large, or that diverged, leaves them as they are, on all ranks alike.

        Args:
            average: replaces its argument by the mean over the ranks.
            scale: factor of the loss.
        """
        for place, calls in enumerate(self._calls):
            self._parts[2 * place].div_(max(calls, 1))
            self._parts[2 * place + 1].div_(scale**2)
        average(self._sums)
        if bool(torch.isfinite(self._sums).all()):
            self.updates += 1
            self.averages.lerp_(self._sums, 1 - min(1 - 1 / self.updates, decay))
        self._sums.zero_()
        self._calls = [0] * len(self.layers)
