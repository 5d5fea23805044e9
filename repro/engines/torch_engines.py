"""The engines of PyTorch itself: one process, DistributedDataParallel, FSDP2."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from repro.core import devices, registry
from repro.core.random_streams import Streams
from repro.seams.plugin import TORCH_OPTIONS, Setting, TextOption
from repro.seams.training import Comm, Engine, Job, LayerShape, Precision, Session, TrainingParts

PRELOAD = ("torch", "torch._dynamo")
BUCKET_MIB = 25.0
ONE_TENSOR_MIB = 1e-6
"""Limit of a bucket that any tensor fills."""
ClassName = Annotated[TextOption, Field(pattern=r"^[A-Za-z_]\w*$")]


@contextmanager
def started_group(job: Job, end: Callable[[], None] | None = None) -> Iterator[None]:
    """Start the process group for the session that the block builds; it outlives the block.

    Args:
        end: ends the group if the block fails: with launcher inline the next trial runs in this process; None: by
            torch.
    """
    import torch.distributed as dist

    job.comm.start(job.rank, job.world, job.device, job.timeout_seconds)
    try:
        yield
    except BaseException:  # Ctrl-C too
        (end or dist.destroy_process_group)()
        raise


class TorchEngine(Engine):
    """An engine whose sessions are those of the plain loop."""

    model_options: ClassVar[tuple[str, ...]] = TORCH_OPTIONS
    checkpoints: ClassVar[bool] = True

    def library(self) -> str:
        import torch

        return f"torch {torch.__version__}"


class Single(TorchEngine):
    """One process, no process group, no wrapper: the reference of the parity gate."""

    title: ClassVar[str] = "PyTorch, one process"
    preconditions: ClassVar[bool] = True
    preload: ClassVar[tuple[str, ...]] = (*PRELOAD, "repro.engines.plain.loop")

    def unsupported(self, setting: Setting) -> str | None:
        if setting.processes != 1:
            return f"engine single trains in one process, not {setting.processes}"
        if setting.own_algorithm:
            return f"engine single does not communicate, so comm {setting.comm!r} would have no effect"
        if setting.compression != "none" or setting.overlap is not None:
            return "engine single does not communicate, so compression and overlap would have no effect"
        return None

    def start(self, parts: TrainingParts | None, job: Job, streams: Streams) -> Session:
        from repro.engines.plain.loop import LoopSession

        assert parts is not None and job.world == 1
        devices.use(job.device)
        return LoopSession(parts, job)


class Ddp(TorchEngine):
    """DistributedDataParallel (Li et al., 2020): gradients averaged in buckets during the backward pass.

    Around the plain loop, with one process or more.
    """

    title: ClassVar[str] = "PyTorch DDP"
    preconditions: ClassVar[bool] = True
    preload: ClassVar[tuple[str, ...]] = (*PRELOAD, "repro.engines.plain.ddp_session")

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
        if self.sufficient_factors != "none":
            reason: str | None = registry.part("sufficient factors", "unsupported")(self, setting)
            return reason
        return None

    def remark(self, layers: Sequence[LayerShape] | None, samples: int, processes: int, comm: Comm) -> str:
        if self.sufficient_factors == "none":
            return ""
        told: str = registry.part("sufficient factors", "remark")(self, layers, samples, processes, comm)
        return told

    def rounds_otherwise(self, precision: Precision) -> bool:
        # The product of factors is float32; autocast rounds a gradient to its type.
        return self.sufficient_factors != "none" and precision.autocast is not None

    def start(self, parts: TrainingParts | None, job: Job, streams: Streams) -> Session:
        from repro.engines.plain.ddp_session import DdpSession

        assert parts is not None
        kind, more = DdpSession, {}
        if self.sufficient_factors != "none":
            kind, more = registry.part("sufficient factors", "session"), {"force": self.sufficient_factors == "all"}
        with started_group(job):
            return kind(parts, job, self.broadcast_buffers, send=self.send, **more,
                        bucket_cap_mb=self.bucket_mib if self.send == "bucketed" else ONE_TENSOR_MIB,
                        static_graph=self.static_graph, find_unused_parameters=self.find_unused)


class Fsdp(TorchEngine):
    """FSDP2 (`fully_shard`; Zhao et al., 2023): weights, gradients and optimizer state divided over the ranks.

    Gradients of all micro-batches are added before they are sent, so between them a rank keeps complete gradients.
    """

    title: ClassVar[str] = "PyTorch FSDP2"
    preload: ClassVar[tuple[str, ...]] = (*PRELOAD, "repro.engines.plain.fsdp_session")

    reshard_after_forward: bool | None = Field(
        None, description="free gathered weights after the forward pass and gather them again for back-propagation; "
                          "null: torch's default, true for all modules but the root")
    wrap: Literal["model", "blocks"] | Annotated[tuple[ClassName, ...], Field(min_length=1)] = Field(
        "blocks", description="modules whose weights are gathered one after the other: model (all at once), blocks "
                              "(every direct child of the model), or a list of class names of modules")

    def unsupported(self, setting: Setting) -> str | None:
        if (compiled := setting.model.compile) and compiled.records_graphs:
            return compiled.why_not_gathered("FSDP")
        return self._no_such_optimizer(setting) or self._no_such_communication(setting)

    def _no_such_optimizer(self, setting: Setting) -> str | None:
        if setting.on_rows == "none":
            return (f"the rule of optimizer {setting.optimizer} needs complete matrices, and FSDP divides their rows "
                    "over the ranks; use ddp, single or DeepSpeed's stage 0")
        if setting.on_rows == "backend" and setting.own_algorithm:
            return (f"optimizer {setting.optimizer} multiplies matrices whose rows FSDP divides by torch's operators, "
                    f"whose collectives only comm 'backend' carries out, not {setting.comm!r}")
        return None

    def _no_such_communication(self, setting: Setting) -> str | None:
        if setting.compression == "powersgd":
            return "FSDP sends gradients by a reduce-scatter, which torch's PowerSGD hook does not reach"
        if setting.compression != "none" and setting.weights != "float32":
            return f"under {setting.precision} gradients already have 16 bits; compression needs fp32 gradients"
        if setting.compression != "none" and setting.accumulation > 1:
            return "FSDP also adds micro-batches in the type in which it sends; compression needs accumulation 1"
        if setting.overlap and not setting.on_gpu:
            return "FSDP overlaps by CUDA streams; on a CPU its collectives block back-propagation"
        if setting.overlap and self.wrap == "model":
            return "with wrap: model FSDP reduces all gradients at once, after back-propagation; use wrap: blocks"
        if setting.overlap is False and setting.on_gpu and self.wrap != "model":
            return "FSDP reduces the gradients of a block while those of the next are computed; use wrap: model"
        left = [name for name in ("all_gather", "reduce_scatter") if name in setting.passed_through]
        if setting.processes > 1 and left:
            return (f"FSDP sends weights by all-gather and gradients by reduce-scatter; on {setting.processes} "
                    f"processes comm {setting.comm!r} leaves {' and '.join(left)} to the backend")
        return None

    def zero_stage(self) -> int:
        """Return 3 if weights are freed after the forward pass, at least of inner modules, else 2.

        FSDP always keeps the weights divided from one step to the next. Stage 2 here means that a step gathers them
        once, as ZeRO 2 does after its update.
        """
        if self.reshard_after_forward is None:
            return 2 if self.wrap == "model" else 3
        return 3 if self.reshard_after_forward else 2

    def start(self, parts: TrainingParts | None, job: Job, streams: Streams) -> Session:
        from repro.engines.plain.fsdp_session import FsdpSession

        assert parts is not None
        with started_group(job):
            return FsdpSession(parts, job, self.wrap, self.reshard_after_forward)
