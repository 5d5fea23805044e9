"""The session of the fake engine: invented figures on a virtual clock."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from repro.core.random_streams import Streams
from repro.seams.training import Batch, Job, Session

if TYPE_CHECKING:
    from repro.engines.fake import Fake

SHAPES = {"layer.weight": (8, 4), "layer.bias": (4,)}
"""Names and shapes of the invented parameters."""


class VirtualClock:
    """A clock that only `advance` moves; called like `time.monotonic_ns`."""

    def __init__(self) -> None:
        self.now_ns = 1_000_000_000

    def __call__(self) -> int:
        return self.now_ns

    def advance(self, seconds: float) -> None:
        self.now_ns += round(seconds * 1e9)


class FakeSession(Session):
    """One trial's invented course.

    Args:
        cell: key of the random streams; cells with different keys draw different figures.
    """

    def __init__(self, options: Fake, job: Job, streams: Streams, cell: int, clock: VirtualClock) -> None:
        self.options, self.job, self.streams, self.cell, self.clock = options, job, streams, cell, clock
        self.steps, self.evaluations = 0, 0
        fate = streams.generator("fake-fate", cell)
        self.scale = options.samples_scale * math.exp(options.spread * fate.standard_normal())
        self.final = options.final * (0.5 if fate.random() < options.miss_probability else 1.0)
        diverges, when = fate.random() < options.diverge_probability, fate.random()
        self.last_finite_sample = when * options.samples_scale if diverges else math.inf

    @property
    def samples(self) -> int:
        return self.steps * self.job.micro_batch * self.job.accumulation * self.job.world

    def step_seconds(self) -> float:
        """Return the duration of the next step: that of the slowest rank."""
        draws = self.streams.generator("fake-step", self.cell, self.steps).standard_normal(self.job.world)
        return float(self.options.step_seconds * math.exp(self.options.spread * draws.max()))

    def backward(self, batches: Sequence[Batch]) -> float:
        self.clock.advance(self.step_seconds())
        if self.samples >= self.last_finite_sample:
            return math.nan
        return -math.log(max(1e-3, self.options.accuracy(self.samples + 1, self.scale, self.final)))

    def update(self, rate: float) -> None:
        self.steps += 1

    def evaluate(self, batches: Iterable[Batch], metric: str) -> tuple[float, int]:
        """Evaluate the whole set as one sample: the sum is the value, the number is 1."""
        self.clock.advance(self.options.eval_seconds)
        noise = self.streams.generator("fake-evaluation", self.cell, self.evaluations).standard_normal()
        self.evaluations += 1
        value = self.options.accuracy(self.samples, self.scale, self.final) + self.options.jitter * float(noise)
        value = min(1.0, max(0.0, value))
        return (1.0 - value if metric in ("error", "loss") else value), 1

    def total(self, values: Sequence[float]) -> list[float]:
        """Every rank has the values of rank 0."""
        return [float(value) * self.job.world for value in values]

    def gather(self, value: Any) -> list[Any]:
        return [value] * self.job.world

    def synchronize(self) -> None:
        """Do nothing: nothing runs."""

    def gradients(self) -> dict[str, np.ndarray]:
        return {name: self._array("fake-gradient", index, self.steps) for index, name in enumerate(SHAPES)}

    def weights(self) -> dict[str, np.ndarray]:
        """Return the initial weights of the repeat plus a fixed amount per step: identical in every cell."""
        moved = np.float32(self.steps * 1e-3)
        return {name: self._array("init", index) + moved for index, name in enumerate(SHAPES)}

    def _array(self, stream: str, index: int, *keys: int) -> np.ndarray:
        shape = list(SHAPES.values())[index]
        return self.streams.generator(stream, index, *keys).standard_normal(shape, dtype=np.float32)

    def buffers(self) -> dict[str, np.ndarray]:
        return {}

    def warm_up(self, batches: Sequence[Batch]) -> None:
        """Advance the clock by two steps and change nothing else."""
        self.clock.advance(2 * self.options.step_seconds)

    def effective(self) -> dict[str, str]:
        return {"engine": "fake", "comm": "none", "ranks_simulated": str(self.job.world)}

    def save(self, folder: Path) -> dict[str, Any]:
        return {"steps": self.steps, "evaluations": self.evaluations, "now_ns": self.clock.now_ns}

    def load(self, folder: Path, own: Mapping[str, Any]) -> None:
        """Load the state; on the virtual clock no time is lost."""
        self.steps, self.evaluations, self.clock.now_ns = own["steps"], own["evaluations"], own["now_ns"]

    def peak_bytes(self) -> int | None:
        return None

    def close(self) -> None:
        """Do nothing: nothing was opened."""
