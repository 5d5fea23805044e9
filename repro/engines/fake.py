"""An engine that does not train: seeded figures on a virtual clock, to test everything around an engine."""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Callable
from typing import ClassVar

from pydantic import Field, PrivateAttr

from repro.core.random_streams import Streams
from repro.engines.fake_session import FakeSession, VirtualClock
from repro.seams.training import Engine, Job, Session, TrainingParts


class Fake(Engine):
    """Invented figures, exact and identical in every run; rank 0 stands for all ranks.

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
