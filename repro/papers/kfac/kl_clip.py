"""The KL clip: a bound of the change of the model's predictions, to second order."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def kl_factor(
    results: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor], kappa: float, rate: float
) -> torch.Tensor:
    """Return nu = min(1, sqrt(kappa / |sum v dW rate^2|)), a scalar tensor (papers: Ba et al., 2017; SC 2020).

    At rate 0 the bound holds for anything, and nu is 1.

    Args:
        results: v, the preconditioned gradients.
        gradients: dW, not multiplied by a loss scale; of the shapes of `results`.
    """
    change = torch.stack([(v * dw).sum() for v, dw in zip(results, gradients, strict=True)]).sum().abs() * rate**2
    return (kappa / change).sqrt().clamp(max=1.0)
