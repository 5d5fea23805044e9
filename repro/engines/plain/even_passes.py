"""Evaluation for engines whose forward pass is collective: all ranks run the same number of passes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
import torch.distributed as dist

from repro.engines.plain.session import TorchSession
from repro.seams.training import Batch


class EvenPasses(TorchSession):
    """Evens out the ranks of an evaluation: a rank without batches repeats its last inputs until no rank has any."""

    example: Any = None
    """Inputs of this rank's last micro-batch."""

    def forward_is_collective(self) -> bool:
        """Return True if a forward pass waits for the other ranks."""
        return not self.alone

    def micro_loss(self, batch: Batch) -> torch.Tensor:
        self.example = batch[0]
        return super().micro_loss(batch)

    def evaluate(self, batches: Iterable[Batch], metric: str) -> tuple[float, int]:
        return super().evaluate(self._announce_batches(batches), metric)

    def _announce_batches(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        for batch in batches:
            self.example = batch[0]
            self._any_rank_has_batch(True)
            yield batch

    def finish_evaluation(self) -> None:
        while self._any_rank_has_batch(False):
            self.forward(self.example)

    def _any_rank_has_batch(self, own: bool) -> bool:
        if not self.forward_is_collective():
            return False
        flag = torch.tensor(float(own), device=self.device)
        dist.all_reduce(flag, op=dist.ReduceOp.MAX)
        return bool(flag)
