"""PyTorch's DistributedDataParallel (Li et al., 2020): gradients averaged in buckets during the backward pass."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from repro.core.random_streams import Streams
from repro.seams.plugin import Setting
from repro.seams.training import Engine, Job, Session, TrainingParts


class Ddp(Engine):
    """DDP around the plain loop, with one process or more."""

    title: ClassVar[str] = "PyTorch DDP"
    checkpoints: ClassVar[bool] = True
    preload: ClassVar[tuple[str, ...]] = ("torch", "torch._dynamo", "repro.engines.plain.ddp_session")

    bucket_mib: float = Field(25.0, gt=0, description="size of gradients averaged in one all-reduce, MiB")

    def unsupported(self, setting: Setting) -> str | None:
        if setting.compression != "none" and setting.weights != "float32":
            return f"under {setting.precision} gradients already have 16 bits; compression needs fp32 gradients"
        return None

    def library(self) -> str:
        import torch

        return f"torch {torch.__version__}"

    def start(self, parts: TrainingParts | None, job: Job, streams: Streams) -> Session:
        import torch.distributed

        from repro.engines.plain.ddp_session import DdpSession

        assert parts is not None
        job.comm.start(job.rank, job.world, job.device, job.timeout_seconds)
        try:
            return DdpSession(parts, job, self.bucket_mib)
        except BaseException:
            torch.distributed.destroy_process_group()  # with launcher inline the next trial runs in this process
            raise
