"""The fake engine, in no hurry: exact figures on its own clock, and real time in which something can happen."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import ClassVar

from pydantic import Field

from repro.core.random_streams import Streams
from repro.engines.fake import Fake, FakeSession, VirtualClock
from repro.seams.training import Batch, Job, Session, TrainingParts


class Slow(Fake):
    """Real processes, invented figures."""

    title: ClassVar[str] = "Fake, in real time"

    real_step_seconds: float = Field(0.02, ge=0)
    eat_at: int | None = None
    """Step at which the last rank requests more memory than available."""

    def start(self, parts: TrainingParts | None, job: Job, streams: Streams) -> Session:
        clock = self._waiting.pop() if self._waiting else VirtualClock()
        return SlowSession(self, job, streams, self._cell_key(job), clock)


class SlowSession(FakeSession):
    """Sleeps as long as it says a step lasts."""

    def backward(self, batches: Sequence[Batch]) -> float:
        options = self.options
        assert isinstance(options, Slow)
        time.sleep(options.real_step_seconds)
        if options.eat_at == self.steps and int(os.environ["RANK"]) == self.job.world - 1:
            print("about to request a lot")
            bytearray(1 << 62)
        return super().backward(batches)
