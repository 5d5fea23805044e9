"""The samples of every global batch: identical for every engine, and a seeded order also for every world size."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from concurrent.futures import Future, ThreadPoolExecutor
from typing import ClassVar

import numpy as np

from repro.core.random_streams import Streams
from repro.seams.training import Job, Workload
from repro.suite.model import Trial

DRAWN_AHEAD = 10_000
"""Samples of a pass from which on it is drawn by a second thread: a smaller one takes less time to draw than to hand
over."""


class DataOrder(ABC):
    """An endless chain of passes over the data, cut into global batches without a gap: every batch is full."""

    kind: ClassVar[str]
    """`input.order` of a suite."""

    def __init__(self, train_samples: int, global_batch: int) -> None:
        self.train_samples, self.batch = train_samples, global_batch

    @abstractmethod
    def samples_at(self, start: int, count: int) -> np.ndarray:
        """Return the sample indices [count] int64 at the positions `start`, `start` + 1, ... of the run; a copy."""

    @abstractmethod
    def draw(self, epoch: int) -> np.ndarray:
        """Return the sample indices [train_samples] int64 of one pass, computed again; nothing is kept."""

    def prepare(self, step: int) -> None:  # noqa: B027  # an order without a draw needs no preparation
        """Draw what step `step` needs, before it is timed."""

    def micro_batches(self, step: int, rank: int, world: int, accumulation: int) -> tuple[int, list[np.ndarray]]:
        """Return (epoch of the first sample, this rank's micro-batches) of optimizer step `step`, from 0.

        The global batch is cut into accumulation x world equal runs; micro-batch m of rank r is run m x world + r.
        """
        start, each = step * self.batch, self.batch // (accumulation * world)
        first = start + rank * each
        return start // self.train_samples, [
            self.samples_at(first + micro * world * each, each) for micro in range(accumulation)]

    def sha256(self, passes: int = 2) -> str:
        """Hash the first passes as little-endian int64, to compare two trials."""
        digest = hashlib.sha256()
        for epoch in range(passes):
            digest.update(self.draw(epoch).astype("<i8").tobytes())
        return digest.hexdigest()


class SampleOrder(DataOrder):
    """The seeded order: pass e over the data is the permutation drawn from stream `order`, key e.

    Every sample is seen exactly once a pass, and nothing here depends on rank, world size or engine. The first use of a
    pass has the next one drawn by a second thread, so that no timed step waits for it: numpy draws without the
    interpreter's lock. Up to three passes are in memory, 8 bytes a sample each.
    """

    kind: ClassVar[str] = "planned"

    def __init__(self, streams: Streams, train_samples: int, global_batch: int) -> None:
        super().__init__(train_samples, global_batch)
        self._streams = streams
        self._passes: dict[int, np.ndarray] = {}
        self._ahead: dict[int, Future[np.ndarray]] = {}
        self._drawer: ThreadPoolExecutor | None = None

    def samples_at(self, start: int, count: int) -> np.ndarray:
        epoch, first = divmod(start, self.train_samples)
        found = self._pass(epoch)[first:first + count]
        if len(found) == count:
            return found.copy()  # a caller may write into its indices, and the pass is kept for the steps to come
        parts = [found]
        while (missing := count - sum(map(len, parts))) > 0:
            epoch += 1
            parts.append(self._pass(epoch)[:missing])
        return np.concatenate(parts)

    def prepare(self, step: int) -> None:
        self._pass(step * self.batch // self.train_samples)

    def draw(self, epoch: int) -> np.ndarray:
        return self._streams.generator("order", epoch).permutation(self.train_samples)

    def _pass(self, epoch: int) -> np.ndarray:
        known = self._passes.get(epoch)
        if known is not None:
            return known
        drawn = self._ahead.pop(epoch, None)
        self._passes = {old: order for old, order in self._passes.items() if old == epoch - 1}
        self._passes[epoch] = drawn.result() if drawn is not None else self.draw(epoch)
        self._ahead = {}
        if self.train_samples >= DRAWN_AHEAD:
            self._drawer = self._drawer or ThreadPoolExecutor(1, "repro-order")
            self._ahead[epoch + 1] = self._drawer.submit(self.draw, epoch + 1)
        return self._passes[epoch]


class StreamOrder(DataOrder):
    """The data's own order: each rank reads its own shard from beginning to end, and then again.

    Shard r of W is the samples r N / W to (r + 1) N / W, rounded down. The order depends on the number of ranks and not
    on the seed, so trials with another number of ranks, or with a seeded order, are unpaired by order.
    """

    kind: ClassVar[str] = "stream"

    def __init__(self, train_samples: int, global_batch: int, world: int, accumulation: int) -> None:
        super().__init__(train_samples, global_batch)
        self._world, self._accumulation = world, accumulation
        self._begins = np.arange(world + 1, dtype=np.int64) * train_samples // world

    def samples_at(self, start: int, count: int) -> np.ndarray:
        positions = np.arange(start, start + count, dtype=np.int64)
        each = self.batch // (self._accumulation * self._world)
        step, within = np.divmod(positions, self.batch)
        run, place = np.divmod(within, each)
        micro, rank = np.divmod(run, self._world)
        read = (step * self._accumulation + micro) * each + place
        begin = self._begins[rank]
        found: np.ndarray = begin + read % (self._begins[rank + 1] - begin)
        return found

    def draw(self, epoch: int) -> np.ndarray:
        return self.samples_at(epoch * self.train_samples, self.train_samples)


def make_order(trial: Trial, job: Job) -> DataOrder:
    """Return the order that the trial's `input.order` asks for."""
    choices = trial.training
    samples, batch = choices.workload.get(Workload).train_samples, choices.batch.global_
    if choices.input.order == "stream":
        return StreamOrder(samples, batch, job.world, job.accumulation)
    return SampleOrder(Streams(trial.master_seed, trial.repeat), samples, batch)
