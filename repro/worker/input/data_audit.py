"""Verify the consumed samples, their order and their augmentation against the seed, or a stream's own order.

Every rank has only its share, and a run is cut differently on one process and on four. The compared value is
therefore a sum over all samples of the run: of a 128-bit mix of (position in the run, value), modulo 2^128 (an
incremental hash by addition; Bellare and Micciancio, 1997). The shares add up to the same number however the run was
cut. Another sample, or the same samples in another order, give another number. The sum detects mistakes, not forgery.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from repro.seams.training import Fed, Job, TrainingParts
from repro.worker.input.data_order import DataOrder

LANES = (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F)
"""Two independent sums of 64 bits each."""
MASK = (1 << 64) - 1


class Tally:
    """The sum over all (position, value) pairs so far."""

    __slots__ = ("lanes",)

    def __init__(self, lanes: Sequence[int] = (0, 0)) -> None:
        self.lanes = list(lanes)

    def add(self, positions: np.ndarray, values: np.ndarray) -> None:
        """Add `values` [n] int64 at `positions` [n] int64."""
        places, contents = positions.astype(np.uint64), values.astype(np.int64).view(np.uint64)
        for lane, key in enumerate(LANES):
            mixed = _mix(_mix(places ^ np.uint64(key)) + contents)
            self.lanes[lane] = (self.lanes[lane] + int(np.add.reduce(mixed, initial=np.uint64(0)))) & MASK

    def hex(self) -> str:
        """Return the sha256 of the sum."""
        return hashlib.sha256(b"".join(lane.to_bytes(8, "little") for lane in self.lanes)).hexdigest()


def add_tallies(shares: Sequence[Sequence[int]]) -> Tally:
    """Return the tally of all ranks together."""
    return Tally([sum(lanes) & MASK for lanes in zip(*shares, strict=True)])


def _mix(values: np.ndarray) -> np.ndarray:
    """splitmix64's finalizer (Steele, Lea and Flood, 2014): every bit of the input moves every bit of the output."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: np.ndarray = values ^ (values >> np.uint64(31))
    return mixed


MOST_WAITING = 1 << 18
"""Samples whose numbers are kept, 2 MiB, before they are added."""


class DataAudit:
    """One rank's tallies of the samples and draws that it consumed, updated between blocks of steps."""

    def __init__(self, parts: TrainingParts, order: DataOrder, job: Job) -> None:
        self.parts, self.order, self.job, self.train_samples = parts, order, job, order.train_samples
        self.calls = 0
        """Micro-batches counted so far."""
        self.fed, self.drawn = Tally(), Tally()
        self._waiting: list[tuple[int, Fed]] = []
        """Micro-batches of this rank that are not in the tallies yet, with the positions where they begin."""
        self._samples_waiting = 0

    def state(self) -> dict[str, Any]:
        """Return the tallies (JSON-like); between blocks."""
        self._add_waiting()
        return {"calls": self.calls, "fed": self.fed.lanes, "drawn": self.drawn.lanes}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from `state`."""
        self.calls = int(state["calls"])
        self.fed, self.drawn = Tally(state["fed"]), Tally(state["drawn"])

    def count(self, consumed: Sequence[Fed]) -> None:
        """Take the micro-batches of this rank's next steps, in their order; outside every timed step. Many are added to
        the tallies at a time: a mix of few samples takes as long, and the clock of the trial runs."""
        self._waiting += [(self._next_start(), fed) for fed in consumed]
        self._samples_waiting += sum(len(indices) for indices, _ in consumed)
        if self._samples_waiting >= MOST_WAITING:
            self._add_waiting()

    def _add_waiting(self) -> None:
        waiting, self._waiting, self._samples_waiting = self._waiting, [], 0
        if not waiting:
            return
        positions = np.concatenate([np.arange(start, start + len(indices)) for start, (indices, _) in waiting])
        self.fed.add(positions, np.concatenate([indices for _, (indices, _) in waiting]))
        drawn = [draws for _, (_, draws) in waiting if draws is not None]
        if len(drawn) == len(waiting):
            self.drawn.add(positions, np.concatenate(drawn))

    def _next_start(self) -> int:
        """Return the position in the run of the first sample of this rank's next micro-batch."""
        job, batch = self.job, self.order.batch
        step, micro = divmod(self.calls, job.accumulation)
        self.calls += 1
        each = batch // (job.accumulation * job.world)
        return step * batch + (micro * job.world + job.rank) * each

    def expected_tallies(self, samples: int) -> tuple[Tally, Tally]:
        """Return this rank's part of the tallies (order, draws) that the seed gives for a run of `samples` samples.

        Passes over the data are dealt to the ranks in turn, also those that other ranks consumed: only the sum counts.
        """
        order, draws = Tally(), Tally()
        for epoch in range(self.job.rank, -(-samples // self.train_samples), self.job.world):
            start = epoch * self.train_samples
            positions = np.arange(start, min(start + self.train_samples, samples), dtype=np.int64)
            indices = self.order.draw(epoch)[:len(positions)]
            order.add(positions, indices)
            self._add_expected_draws(draws, positions, indices)
        return order, draws

    def _add_expected_draws(self, draws: Tally, positions: np.ndarray, indices: np.ndarray) -> None:
        """Add the draws of the seed, if there are any; a batch is augmented for the pass in which it begins."""
        if self.parts.draws is None:
            return
        batch = self.order.batch
        epochs = positions // batch * batch // self.train_samples
        for epoch in np.unique(epochs).tolist():
            here = epochs == epoch
            draws.add(positions[here], self.parts.draws(epoch, indices[here]))

    def tallies(self, samples: int) -> list[list[int]]:
        """Return this rank's tallies (JSON-like): consumed order, expected order, consumed draws, expected draws."""
        self._add_waiting()
        order, draws = self.expected_tallies(samples)
        return [self.fed.lanes, order.lanes, self.drawn.lanes, draws.lanes]


def draws_sha256(draws: Callable[[int, np.ndarray], np.ndarray], train_samples: int, passes: int = 2) -> str:
    """Hash the seed's draws for all samples in the first passes, as little-endian int64."""
    digest = hashlib.sha256()
    for epoch in range(passes):
        digest.update(draws(epoch, np.arange(train_samples)).astype("<i8").tobytes())
    return digest.hexdigest()
