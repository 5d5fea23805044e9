"""The damped inverse of G (x) A: by eigendecomposition, or by inverses of both factors."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch


class Inverse(ABC):
    """Decomposition kept of a factor, and its product with a gradient."""

    def __init__(self, damping: float) -> None:
        self.damping = damping

    @abstractmethod
    def numbers(self, rows: int) -> int:
        """Return how many numbers are kept of a factor."""

    @abstractmethod
    def decompose(self, factor: torch.Tensor, kept: torch.Tensor) -> None:
        """Write what is kept of `factor` [n, n] into `kept` [numbers(n)]."""

    @abstractmethod
    def product(self, a: torch.Tensor, g: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
        """Return the preconditioned gradient [outputs, inputs].

        Args:
            a: what is kept of A [inputs, inputs].
            g: what is kept of G [outputs, outputs].
        """


class Eigen(Inverse):
    """(G (x) A + damping I)^-1 dW = Q_G ((Q_G^T dW Q_A) / (l_G l_A^T + damping)) Q_A^T."""

    def numbers(self, rows: int) -> int:
        return rows**2 + rows

    def decompose(self, factor: torch.Tensor, kept: torch.Tensor) -> None:
        values, vectors = torch.linalg.eigh(factor)
        kept[:-len(factor)].copy_(vectors.reshape(-1))
        # Rounding makes eigenvalues of a singular matrix negative.
        kept[-len(factor):].copy_(values.clamp_(min=0))

    def product(self, a: torch.Tensor, g: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
        outputs, inputs = gradient.shape
        q_a, q_g = a[:-inputs].view(inputs, inputs), g[:-outputs].view(outputs, outputs)
        rotated = q_g.T @ gradient @ q_a
        rotated /= torch.outer(g[-outputs:], a[-inputs:]) + self.damping
        return q_g @ rotated @ q_a.T


class Direct(Inverse):
    """(G + damping I)^-1 dW (A + damping I)^-1."""

    def numbers(self, rows: int) -> int:
        return rows**2

    def decompose(self, factor: torch.Tensor, kept: torch.Tensor) -> None:
        damped = factor + self.damping * torch.eye(len(factor), device=factor.device)
        kept.copy_(torch.linalg.inv(damped).reshape(-1))

    def product(self, a: torch.Tensor, g: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
        outputs, inputs = gradient.shape
        return g.view(outputs, outputs) @ gradient @ a.view(inputs, inputs)


INVERSES: dict[str, type[Inverse]] = {"eigen": Eigen, "direct": Direct}
