"""Defective DDP engines, one defect each, that the parity gate must find."""

from __future__ import annotations

from typing import ClassVar, Literal

from repro.core.random_streams import Streams
from repro.engines.ddp import Ddp
from repro.seams.training import Job, Session, TrainingParts

Defect = Literal[
    "sum", "decay", "augmentation", "data", "bucket", "buffers", "clip-micro", "clip-late", "unscaled", "bf16", "nan",
    "precision", "wire",
]


class Planted(Ddp):
    """PyTorch DDP with one defect."""

    title: ClassVar[str] = "DDP with a planted defect"
    preload: ClassVar[tuple[str, ...]] = ("torch", "torch._dynamo", "planted_sessions")

    defect: Defect

    def start(self, parts: TrainingParts | None, job: Job, streams: Streams) -> Session:
        from planted_sessions import SESSIONS

        assert parts is not None
        job.comm.start(job.rank, job.world, job.device, job.timeout_seconds)
        return SESSIONS[self.defect](parts, job, self.bucket_mib)
