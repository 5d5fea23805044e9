"""PyTorch's FSDP2 (`fully_shard`; Zhao et al., 2023): weights, gradients and optimizer state divided over the ranks."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from repro.core.random_streams import Streams
from repro.seams.plugin import TORCH_OPTIONS, Setting, TextOption
from repro.seams.training import Engine, Job, Session, TrainingParts

ClassName = Annotated[TextOption, Field(pattern=r"^[A-Za-z_]\w*$")]


class Fsdp(Engine):
    """The plain loop around a model divided by `fully_shard`.

    Gradients of all micro-batches are added before they are sent, so between them a rank keeps complete gradients.
    """

    title: ClassVar[str] = "PyTorch FSDP2"
    model_options: ClassVar[tuple[str, ...]] = TORCH_OPTIONS
    checkpoints: ClassVar[bool] = True
    preload: ClassVar[tuple[str, ...]] = ("torch", "torch._dynamo", "repro.engines.plain.fsdp_session")

    reshard_after_forward: bool | None = Field(
        None, description="free gathered weights after the forward pass and gather them again for back-propagation; "
                          "null: torch's default, true for all modules but the root")
    wrap: Literal["model", "blocks"] | Annotated[tuple[ClassName, ...], Field(min_length=1)] = Field(
        "blocks", description="modules whose weights are gathered one after the other: model (all at once), blocks "
                              "(every direct child of the model), or a list of class names of modules")

    def unsupported(self, setting: Setting) -> str | None:
        return (self._no_such_optimizer(setting) or self._no_such_compression(setting) or self._no_such_overlap(setting)
                or self._no_such_algorithm(setting))

    def _no_such_optimizer(self, setting: Setting) -> str | None:
        if setting.on_rows == "none":
            return (f"the rule of optimizer {setting.optimizer} needs complete matrices, and FSDP divides their rows "
                    "over the ranks; use ddp, single or DeepSpeed's stage 0")
        if setting.on_rows == "backend" and setting.own_algorithm:
            return (f"optimizer {setting.optimizer} multiplies matrices whose rows FSDP divides by torch's operators, "
                    f"whose collectives only comm 'backend' carries out, not {setting.comm!r}")
        return None

    def _no_such_compression(self, setting: Setting) -> str | None:
        if setting.compression == "none":
            return None
        if setting.compression == "powersgd":
            return "FSDP sends gradients by a reduce-scatter, which torch's PowerSGD hook does not reach"
        if setting.weights != "float32":
            return f"under {setting.precision} gradients already have 16 bits; compression needs fp32 gradients"
        if setting.accumulation > 1:
            return "FSDP also adds micro-batches in the type in which it sends; compression needs accumulation 1"
        return None

    def _no_such_overlap(self, setting: Setting) -> str | None:
        if setting.overlap is None:
            return None
        if setting.device != "cuda":
            return ("FSDP overlaps by CUDA streams; on a CPU its collectives block back-propagation"
                    if setting.overlap else None)
        if setting.overlap and self.wrap == "model":
            return "with wrap: model FSDP reduces all gradients at once, after back-propagation; use wrap: blocks"
        if not setting.overlap and self.wrap != "model":
            return "FSDP reduces the gradients of a block while those of the next are computed; use wrap: model"
        return None

    def _no_such_algorithm(self, setting: Setting) -> str | None:
        left = [name for name in ("all_gather", "reduce_scatter") if name in setting.passed_through]
        if setting.processes == 1 or not left:
            return None
        return (f"FSDP sends weights by all-gather and gradients by reduce-scatter; on {setting.processes} processes "
                f"comm {setting.comm!r} leaves {' and '.join(left)} to the backend")

    def zero_stage(self) -> int:
        """Return 3 if weights are freed after the forward pass, at least of inner modules, else 2.

        FSDP always keeps the weights divided from one step to the next. Stage 2 here means that a step gathers them
        once, as ZeRO 2 does after its update.
        """
        if self.reshard_after_forward is None:
            return 2 if self.wrap == "model" else 3
        return 3 if self.reshard_after_forward else 2

    def library(self) -> str:
        import torch

        return f"torch {torch.__version__}"

    def start(self, parts: TrainingParts | None, job: Job, streams: Streams) -> Session:
        from repro.engines.plain.fsdp_session import FsdpSession
        from repro.engines.plain.process_group import started_group

        assert parts is not None
        with started_group(job):
            return FsdpSession(parts, job, self.wrap, self.reshard_after_forward)
