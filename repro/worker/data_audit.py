"""What a run really fed to its model: which sample, and how augmented, stood where; against what the seed says.

Every rank knows only its share, and a run is cut differently on one process and on four. So what is compared is a sum:
over all samples of the run, of a 128-bit mix of (position in the run, value), modulo 2^128 (Bellare and Micciancio,
1997, call it an incremental hash by addition). Shares add up to the same number however the run was cut, and another
sample, or the same ones in another order, give another number. It guards against mistakes, not against forgery.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from repro.seams.training import Fed, TrainingParts
from repro.worker.data_order import SampleOrder

LANES = (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F)
"""Two independent sums of 64 bits each."""
MASK = (1 << 64) - 1


class Tally:
    """The sum over (position, value) pairs seen so far."""

    __slots__ = ("lanes",)

    def __init__(self, lanes: Sequence[int] = (0, 0)) -> None:
        self.lanes = list(lanes)

    def add(self, positions: np.ndarray, values: np.ndarray) -> None:
        """Take in `values` [n] int64 at `positions` [n] int64."""
        where, what = positions.astype(np.uint64), values.astype(np.int64).view(np.uint64)
        for lane, key in enumerate(LANES):
            mixed = _mix(_mix(where ^ np.uint64(key)) + what)
            self.lanes[lane] = (self.lanes[lane] + int(np.add.reduce(mixed, initial=np.uint64(0)))) & MASK

    def hex(self) -> str:
        """sha256 of the sum."""
        return hashlib.sha256(b"".join(lane.to_bytes(8, "little") for lane in self.lanes)).hexdigest()


def total(shares: Sequence[Sequence[int]]) -> Tally:
    """The tally of all ranks together."""
    return Tally([sum(lanes) & MASK for lanes in zip(*shares, strict=True)])


def _mix(values: np.ndarray) -> np.ndarray:
    """splitmix64's finalizer (Steele, Lea and Flood, 2014): every bit of the input moves every bit of the output."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    found: np.ndarray = values ^ (values >> np.uint64(31))
    return found


class Account:
    """One rank's account of what it was fed, kept between blocks of steps and closed after the run."""

    def __init__(
        self, parts: TrainingParts, order: SampleOrder, rank: int, world: int, accumulation: int, global_batch: int,
        train_samples: int,
    ) -> None:
        self.parts, self.order = parts, order
        self.rank, self.world, self.accumulation = rank, world, accumulation
        self.batch, self.train_samples = global_batch, train_samples
        self.calls = 0
        self.fed, self.drawn = Tally(), Tally()
        self.asked: list[np.ndarray] = []
        """What was asked of a workload that keeps no account itself."""

    def state(self) -> dict[str, Any]:
        """What was counted so far (JSON-like); between blocks, when everything is settled."""
        return {"calls": self.calls, "fed": self.fed.lanes, "drawn": self.drawn.lanes}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from `state`; what was looked up until now does not count."""
        if self.parts.fed is not None:
            self.parts.fed()
        self.asked, self.calls = [], int(state["calls"])
        self.fed, self.drawn = Tally(state["fed"]), Tally(state["drawn"])

    def asks(self, shares: Sequence[np.ndarray]) -> None:
        """A step asks for these micro-batches; inside the timed step, so only references are kept."""
        if self.parts.fed is None:
            self.asked += shares

    def settle(self) -> None:
        """Take in what was looked up since the last time; called outside every timed step."""
        looked_up: Sequence[Fed] = self.parts.fed() if self.parts.fed else [(item, None) for item in self.asked]
        self.asked = []
        if not looked_up:
            return
        positions = np.concatenate([self._positions(len(indices)) for indices, _ in looked_up])
        self.fed.add(positions, np.concatenate([indices for indices, _ in looked_up]))
        drawn = [draws for _, draws in looked_up if draws is not None]
        if len(drawn) == len(looked_up):
            self.drawn.add(positions, np.concatenate(drawn))

    def _positions(self, count: int) -> np.ndarray:
        """Where in the run the samples of this rank's next micro-batch stand."""
        step, micro = divmod(self.calls, self.accumulation)
        self.calls += 1
        each = self.batch // (self.accumulation * self.world)
        return np.arange(count, dtype=np.int64) + (step * self.batch + (micro * self.world + self.rank) * each)

    def expected(self, samples: int) -> tuple[Tally, Tally]:
        """This rank's part of what the seed says of a run of so many samples: order and draws.

        Passes over the data are dealt to the ranks in turn, whoever was fed them: only the sum counts.
        """
        order, draws = Tally(), Tally()
        for epoch in range(self.rank, -(-samples // self.train_samples), self.world):
            start = epoch * self.train_samples
            positions = np.arange(start, min(start + self.train_samples, samples), dtype=np.int64)
            indices = self.order.whole(epoch)[:len(positions)]
            order.add(positions, indices)
            if self.parts.draws is not None:
                self._expect_draws(draws, positions, indices, self.parts.draws)
        return order, draws

    def _expect_draws(
        self, draws: Tally, positions: np.ndarray, indices: np.ndarray, seeded: Callable[[int, np.ndarray], np.ndarray]
    ) -> None:
        """A batch is augmented for the pass in which it begins."""
        epochs = positions // self.batch * self.batch // self.train_samples
        for epoch in np.unique(epochs).tolist():
            here = epochs == epoch
            draws.add(positions[here], seeded(epoch, indices[here]))

    def sums(self, samples: int) -> list[list[int]]:
        """This rank's tallies (JSON-like): fed, expected, drawn, expected."""
        order, draws = self.expected(samples)
        return [self.fed.lanes, order.lanes, self.drawn.lanes, draws.lanes]


def draws_sha256(draws: Callable[[int, np.ndarray], np.ndarray], train_samples: int, passes: int = 2) -> str:
    """Hash of what the seed draws for all samples in the first passes, as little-endian int64."""
    digest = hashlib.sha256()
    for epoch in range(passes):
        digest.update(draws(epoch, np.arange(train_samples)).astype("<i8").tobytes())
    return digest.hexdigest()
