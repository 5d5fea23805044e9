"""PyTorch's DistributedDataParallel (Li et al., 2020): gradients averaged in buckets during the backward pass."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from repro.core.random_streams import Streams
from repro.seams.model_options import TORCH_OPTIONS
from repro.seams.plugin import Setting
from repro.seams.training import Engine, Job, Session, TrainingParts


class Ddp(Engine):
    """DDP around the plain loop, with one process or more."""

    title: ClassVar[str] = "PyTorch DDP"
    model_options: ClassVar[tuple[str, ...]] = TORCH_OPTIONS
    checkpoints: ClassVar[bool] = True
    preconditions: ClassVar[bool] = True
    preload: ClassVar[tuple[str, ...]] = ("torch", "torch._dynamo", "repro.engines.plain.ddp_session")

    bucket_mib: float = Field(25.0, gt=0, description="size of gradients averaged in one all-reduce, MiB")
    broadcast_buffers: bool = Field(True, description="copy rank 0's buffers to every rank before each forward pass; "
                                    "without, only before an evaluation, as under DeepSpeed")
    static_graph: bool = Field(False, description="promise that every step uses the same parameters in the same order")
    find_unused: bool = Field(False, description="look in every step for parameters that got no gradient")

    def unsupported(self, setting: Setting) -> str | None:
        if setting.compression != "none" and setting.weights != "float32":
            return f"under {setting.precision} gradients already have 16 bits; compression needs fp32 gradients"
        if self.static_graph and setting.accumulation > 1:
            return "torch's static graph fails with micro-batches whose gradients are not averaged (accumulation)"
        return None

    def library(self) -> str:
        import torch

        return f"torch {torch.__version__}"

    def start(self, parts: TrainingParts | None, job: Job, streams: Streams) -> Session:
        from repro.engines.plain.ddp_session import DdpSession
        from repro.engines.plain.process_group import started_group

        assert parts is not None
        with started_group(job):
            return DdpSession(parts, job, self.broadcast_buffers, bucket_cap_mb=self.bucket_mib,
                              static_graph=self.static_graph, find_unused_parameters=self.find_unused)
