"""PyTorch's DistributedDataParallel (Li et al., 2020): gradients averaged in buckets during the backward pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

from pydantic import Field

from repro.core.random_streams import Streams
from repro.engines.gradient_plan import in_words, plan_layers, shapes_of
from repro.seams.plugin import TORCH_OPTIONS, Setting
from repro.seams.training import Comm, Engine, Job, LayerShape, Session, TrainingParts

BUCKET_MIB = 25.0
ONE_TENSOR_MIB = 1e-6
"""Limit of a bucket that any tensor fills."""


class Ddp(Engine):
    """DDP around the plain loop, with one process or more."""

    title: ClassVar[str] = "PyTorch DDP"
    model_options: ClassVar[tuple[str, ...]] = TORCH_OPTIONS
    checkpoints: ClassVar[bool] = True
    preconditions: ClassVar[bool] = True
    preload: ClassVar[tuple[str, ...]] = ("torch", "torch._dynamo", "repro.engines.plain.ddp_session")

    bucket_mib: float = Field(BUCKET_MIB, gt=0, description="size of gradients averaged in one all-reduce, MiB")
    broadcast_buffers: bool = Field(True, description="copy rank 0's buffers to every rank before each forward pass; "
                                    "without, only before an evaluation, as under DeepSpeed")
    static_graph: bool = Field(False, description="promise that every step uses the same parameters in the same order")
    find_unused: bool = Field(False, description="look in every step for parameters that got no gradient")
    send: Literal["bucketed", "layerwise", "blocking"] = Field(
        "bucketed", description="bucketed: in buckets of bucket_mib; layerwise: every gradient alone, "
        "as soon as it is ready; blocking: every gradient alone, after back-propagation")
    sufficient_factors: Literal["none", "planned", "all"] = Field(
        "none", description="fully connected layers that gather factors in place of averaging their gradient: none, "
        "those that then send fewer bytes, or all")

    def unsupported(self, setting: Setting) -> str | None:
        if setting.compression != "none" and setting.weights != "float32":
            return f"under {setting.precision} gradients already have 16 bits; compression needs fp32 gradients"
        if self.static_graph and setting.accumulation > 1:
            return "torch's static graph fails with micro-batches whose gradients are not averaged (accumulation)"
        if self.send != "bucketed" and setting.overlap is not None:
            return f"send: {self.send} already says when gradients leave; remove overlap, or use send: bucketed"
        if self.send != "bucketed" and self.bucket_mib != BUCKET_MIB:
            return f"bucket_mib has no effect with send: {self.send}; remove it, or use send: bucketed"
        return self._no_such_factors(setting) if self.sufficient_factors != "none" else None

    def _no_such_factors(self, setting: Setting) -> str | None:
        """Return why sufficient factors cannot be sent; None if they can."""
        if self.send != "layerwise":
            return f"sufficient_factors leave layer by layer as they are ready; use send: layerwise, not {self.send}"
        if setting.compression != "none":
            return "compression works on DDP's buckets, and sufficient_factors are in none; use one of the two"
        if setting.processes == 1:
            return "one process sends nothing, so sufficient_factors would have no effect"
        if self.static_graph or self.find_unused:
            return "sufficient_factors need every layer in every step; remove static_graph and find_unused"
        if setting.linear_layers is False:
            return ("sufficient_factors would have no effect: all layers of the model are convolutions; remove them, "
                    "or use a model with fully connected layers")
        if setting.model.compile is not None:
            return "sufficient_factors are read by hooks of layers, which compiled code does not call; remove compile"
        if setting.model.activation_checkpointing:
            return "recomputation repeats calls that sufficient_factors count; remove activation_checkpointing"
        return None

    def remark(self, layers: Sequence[LayerShape] | None, samples: int, processes: int, comm: Comm) -> str:
        if self.sufficient_factors == "none":
            return ""
        if layers is None:
            return ("the workload does not state its layers, so the cost table of sufficient_factors is made at the "
                    "start of each trial; it stands in the log, in the result and on the page")
        table = plan_layers(shapes_of(layers, samples), processes, comm, self.sufficient_factors == "all")
        return (f"gradients by layer (modelled, in float32), batch {samples} a process, {processes} processes: "
                f"{in_words(table)}")

    def library(self) -> str:
        import torch

        return f"torch {torch.__version__}"

    def start(self, parts: TrainingParts | None, job: Job, streams: Streams) -> Session:
        from repro.engines.plain.ddp_session import DdpSession
        from repro.engines.plain.process_group import started_group

        assert parts is not None
        with started_group(job):
            return DdpSession(parts, job, self.broadcast_buffers, send=self.send, factors=self.sufficient_factors,
                              bucket_cap_mb=self.bucket_mib if self.send == "bucketed" else ONE_TENSOR_MIB,
                              static_graph=self.static_graph, find_unused_parameters=self.find_unused)
