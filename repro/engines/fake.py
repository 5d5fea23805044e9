"""The fake engine: seeded figures on a virtual clock instead of a training, to test everything around an engine."""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from pydantic import Field, PrivateAttr

from repro.core.random_streams import Streams
from repro.seams.training import Batch, Engine, Job, Session, TrainingParts

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


class Fake(Engine):
    """Invented figures, exact and identical in every run; rank 0 represents all ranks.

    A step lasts `step_seconds` x exp(`spread` z) for the slowest of the ranks, z standard normal. Accuracy after n
    samples is `final` x (1 - exp(-n / s)) plus noise, with s = `samples_scale` x exp(`spread` z) drawn once a trial.
    Cells with different options draw different noise, as on a real machine.
    """

    title: ClassVar[str] = "Fake (invented figures)"
    needs_parts: ClassVar[bool] = False
    checkpoints: ClassVar[bool] = True

    step_seconds: float = Field(0.01, gt=0, description="median duration of a step")
    spread: float = Field(0.05, ge=0, description="spread (sigma of the logarithm) of step times and of learning speed")
    eval_seconds: float = Field(0.02, ge=0, description="duration of an evaluation")
    final: float = Field(0.97, gt=0, le=1, description="accuracy that is approached")
    samples_scale: float = Field(5000.0, gt=0, description="samples after which 63 % of `final` is reached")
    jitter: float = Field(0.0, ge=0, description="standard deviation of an evaluation's noise")
    miss_probability: float = Field(0.0, ge=0, le=1, description="trials that stop learning at half of `final`")
    diverge_probability: float = Field(0.0, ge=0, le=1, description="trials whose loss becomes NaN")

    _waiting: list[VirtualClock] = PrivateAttr(default_factory=list)

    def library(self) -> str:
        return "fake 1"

    def clock(self, job: Job, streams: Streams) -> Callable[[], int]:
        """Return the clock that the next started session advances."""
        self._waiting[:] = [VirtualClock()]
        return self._waiting[0]

    def start(self, parts: TrainingParts | None, job: Job, streams: Streams) -> Session:
        clock = self._waiting.pop() if self._waiting else VirtualClock()
        return FakeSession(self, job, streams, self._cell_key(job), clock)

    def _cell_key(self, job: Job) -> int:
        """Return a number that all repeats of one cell share and that differs between cells."""
        chosen = [self.model_dump(mode="json"), job.world, job.micro_batch, job.accumulation, job.gradient_clip]
        plugins = [(type(plugin).__qualname__, plugin.model_dump(mode="json"))
                   for plugin in (job.precision, job.optimizer, job.comm)]
        return zlib.crc32(json.dumps([chosen, plugins], sort_keys=True).encode())

    def accuracy(self, samples: float, scale: float, final: float) -> float:
        """Return the accuracy after `samples` without noise."""
        return final * -math.expm1(-samples / scale)


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
