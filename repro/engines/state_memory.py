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

from dataclasses import dataclass

FULL = 4
"""Bytes of a float32."""


@dataclass(frozen=True, slots=True)
class States:
    """A model and its optimizer, in the terms of the formula; every method returns the bytes on one rank, by part."""

    parameters: int
    ranks: int
    weight_bytes: int
    master: bool
    """The optimizer updates a float32 copy of the weights."""
    moments: float
    """Numbers that the optimizer keeps for a parameter, in the mean over the model."""

    def whole(self, outer: int = 0) -> dict[str, int]:
        """Everything on every rank, and `outer` float32 numbers a parameter for an outer step: local-sgd."""
        return self._bytes(self.weight_bytes, self.weight_bytes, FULL * self.master, self.moments + outer)

    def deepspeed(self, stage: int) -> dict[str, int]:
        """ZeRO in DeepSpeed."""
        if stage == 0:
            return self.whole()
        part = 1 / self.ranks
        weights = self.weight_bytes * (part if stage == 3 else 1)
        return self._bytes(weights, self.weight_bytes * part, FULL * part, self.moments * part)

    def fsdp(self) -> dict[str, int]:
        """FSDP2."""
        part = 1 / self.ranks
        return self._bytes(FULL * part, FULL * part, 0, self.moments * part)

    def _bytes(self, weights: float, gradients: float, masters: float, kept: float) -> dict[str, int]:
        """Return whole bytes of all parts, and their sum, from bytes a parameter; `kept`: numbers of the optimizer."""
        parts = {"weights": weights, "gradients": gradients, "masters": masters, "optimizer": FULL * kept}
        found = {name: size * self.parameters for name, size in parts.items()}
        return {name: round(size) for name, size in (found | {"total": sum(found.values())}).items()}
