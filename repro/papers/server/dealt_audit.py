"""The audit of data whose micro-batches are dealt to whichever worker is free."""

from __future__ import annotations

import numpy as np

from repro.seams.training import Fed, TrainingParts
from repro.worker.input.data_audit import BatchSplit, DataAudit, Tally
from repro.worker.input.data_order import DataOrder


class DealtAudit(DataAudit):
    """Compares what this worker consumed with what the seed has at the places that it was dealt."""

    def __init__(self, parts: TrainingParts, order: DataOrder, split: BatchSplit, train_samples: int) -> None:
        super().__init__(parts, order, split, train_samples)
        self._dealt: list[np.ndarray] = []

    def count_dealt(self, step: int, rank: int, consumed: list[Fed]) -> None:
        """Add the micro-batches of one ticket to the tallies.

        Args:
            step: global batch in the seeded order.
            rank: whose micro-batches of it were dealt.
        """
        split = self.split
        self.split = BatchSplit(rank, split.world, split.accumulation, split.global_batch)
        self.calls = step * split.accumulation
        self._dealt.extend(self._next_positions(len(indices)) for indices, _ in consumed)
        self.calls = step * split.accumulation
        self.count(consumed)

    def expected_tallies(self, samples: int) -> tuple[Tally, Tally]:
        """Return the tallies (order, draws) that the seed gives for the places that this worker was dealt."""
        order, draws = Tally(), Tally()
        if not self._dealt:
            return order, draws
        positions = np.sort(np.concatenate(self._dealt))
        epochs = positions // self.train_samples
        for epoch in np.unique(epochs).tolist():
            here = positions[epochs == epoch]
            indices = self.order.draw(epoch)[here - epoch * self.train_samples]
            order.add(here, indices)
            if self.parts.draws is not None:
                self._add_expected_draws(draws, here, indices, self.parts.draws)
        return order, draws
