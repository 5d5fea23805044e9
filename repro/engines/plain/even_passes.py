"""Evaluation for engines whose forward pass is collective: all ranks run the same number of passes."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import torch
import torch.distributed as dist

from repro.engines.plain.session import TorchSession
from repro.seams.training import Batch


class EvenPasses(TorchSession):
    """Evens out the ranks of an evaluation: a rank with fewer batches repeats its last inputs at the end."""

    missing_passes = 0
    """Passes that this rank adds to the present evaluation."""
    last_inputs: Any = None

    def forward_is_collective(self) -> bool:
        """Return True if a forward pass waits for the other ranks."""
        return not self.alone

    def evaluate(self, batches: Collection[Batch], metric: str) -> tuple[float, int]:
        if self.forward_is_collective():
            # Once per evaluation: an answer from the device before every pass would keep the host from running ahead.
            most = torch.tensor(len(batches), device=self.device)
            dist.all_reduce(most, op=dist.ReduceOp.MAX)
            self.missing_passes = int(most) - len(batches)
        return super().evaluate(batches, metric)

    def each(self, batches: Collection[Batch]) -> Iterator[Batch]:
        for batch in super().each(batches):
            self.last_inputs = batch[0]
            yield batch

    def finish_evaluation(self) -> None:
        if self.missing_passes and self.last_inputs is None:  # more ranks than samples
            self.last_inputs = self.parts.synthetic_batch(1)[0]
        for _ in range(self.missing_passes):
            self.forward(self.last_inputs)
        self.last_inputs = None
