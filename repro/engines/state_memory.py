"""Memory of a model's states on a rank, modelled: weights, gradients, optimizer (Rajbhandari et al., 2020, section 3).

P parameters over N ranks; a weight or gradient has w bytes (4, or 2 under the *-master formats), the optimizer keeps m
numbers for each parameter in float32, in the mean over the model and read back from its state (AdamW 2, SGD with
momentum 1; docs/optimizers.md), master weights have 4 bytes. Bytes a parameter after a backward pass, when gradients
are complete and before the update:

| engine | weights | gradients | masters | optimizer |
|---|---|---|---|---|
| single, ddp, ZeRO 0 | w | w | 4 under *-master | 4 m |
| ZeRO 1, 2 | w | w / N | 4 / N | 4 m / N |
| ZeRO 3 | w / N | w / N | 4 / N | 4 m / N |
| fsdp | 4 / N | 4 / N | (the weights) | 4 m / N |
| local-sgd | w | w | 4 under *-master | 4 m + 4 for the synchronised weights, 4 more for an outer momentum |

It differs from the paper in three points, each a property of the libraries (DeepSpeed 0.19, torch 2.13):

- DeepSpeed keeps a float32 copy of a rank's own weights also where they are float32 already.
- ZeRO 1 keeps only the gradients of a rank's own part once they are reduced; the paper counts all of them. While the
  backward pass runs it needs up to all of them, ZeRO 2 and 3 a bucket.
- FSDP's parts are float32 in every format, and so are their gradients.

What is not in it: activations; buckets (DeepSpeed's default holds 5e8 elements: set `bucket_mib` where that matters);
weights and gradients of the blocks that ZeRO 3 and FSDP have gathered; small tensors that ZeRO 3 keeps on every rank
(`stage3_param_persistence_threshold`); float32 gradients of the masters during an update; the padding of parts.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace

FULL = 4
"""Bytes of a float32."""


@dataclass(frozen=True, slots=True)
class StateMemory:
    """Bytes on one rank."""

    weights: float
    gradients: float
    masters: float
    optimizer: float

    @property
    def total(self) -> float:
        return self.weights + self.gradients + self.masters + self.optimizer

    def plain(self) -> dict[str, int]:
        """Return all parts and their sum, as whole bytes (JSON-like)."""
        return {name: round(value) for name, value in (asdict(self) | {"total": self.total}).items()}


@dataclass(frozen=True, slots=True)
class States:
    """A model and its optimizer, in the terms of the formula."""

    parameters: int
    ranks: int
    weight_bytes: int
    master: bool
    """The optimizer updates a float32 copy of the weights."""
    moments: float
    """Numbers that the optimizer keeps for a parameter, in the mean over the model."""

    def whole(self) -> StateMemory:
        """Everything on every rank: single, ddp, ZeRO 0."""
        return self._bytes(self.weight_bytes, self.weight_bytes, FULL * self.master, 1)

    def rare(self, outer: int) -> StateMemory:
        """Everything on every rank, and `outer` float32 numbers a parameter for the outer step: local-sgd."""
        whole = self.whole()
        return replace(whole, optimizer=whole.optimizer + FULL * outer * self.parameters)

    def deepspeed(self, stage: int) -> StateMemory:
        """ZeRO in DeepSpeed."""
        if stage == 0:
            return self.whole()
        part = 1 / self.ranks
        weights = self.weight_bytes * (part if stage == 3 else 1)
        return self._bytes(weights, self.weight_bytes * part, FULL * part, part)

    def fsdp(self) -> StateMemory:
        """FSDP2."""
        part = 1 / self.ranks
        return self._bytes(FULL * part, FULL * part, 0, part)

    def _bytes(self, weights: float, gradients: float, masters: float, optimizer_share: float) -> StateMemory:
        count = self.parameters
        return StateMemory(weights * count, gradients * count, masters * count,
                           FULL * self.moments * optimizer_share * count)
