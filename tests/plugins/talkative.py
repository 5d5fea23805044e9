"""An engine that prints all it can read: prints its environment, then trains, crashes or hangs."""

from __future__ import annotations

import os
import sys
import time
from typing import ClassVar, Literal

from repro.core.random_streams import Streams
from repro.engines.torch_engines import Ddp
from repro.seams.training import Job, Session, TrainingParts


class Talkative(Ddp):
    """PyTorch DDP that prints what it should keep to itself."""

    title: ClassVar[str] = "DDP that prints its environment"
    preload: ClassVar[tuple[str, ...]] = ("torch", "torch._dynamo", "talkative")

    then: Literal["train", "crash", "hang"] = "train"

    def start(self, parts: TrainingParts | None, job: Job, streams: Streams) -> Session:
        told = " ".join(f"{name}={value}" for name, value in sorted(os.environ.items()))
        print(told, sys.argv, flush=True)
        print(f"connecting to {os.environ['MLFLOW_TRACKING_URI']}", file=sys.stderr, flush=True)
        if self.then == "crash":
            raise RuntimeError(f"{os.environ['MY_API_KEY']} refused by {os.environ['MLFLOW_TRACKING_URI']}: {told}")
        if self.then == "hang":
            time.sleep(3600)
        return super().start(parts, job, streams)
