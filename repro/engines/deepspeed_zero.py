"""DeepSpeed with ZeRO (Rajbhandari et al., 2020): optimizer state, gradients and weights partitioned over the ranks."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from importlib.metadata import version
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from repro.core import devices
from repro.core.random_streams import Streams
from repro.engines.torch_engines import started_group
from repro.engines.zero.config import deepspeed_config, misplaced_keys
from repro.seams.plugin import SAFE, TORCH_OPTIONS, Setting
from repro.seams.training import Engine, Job, Optimizer, Precision, Session, TrainingParts
from repro.suite.field_problem import FieldProblem


class DeepSpeedZero(Engine):
    """DeepSpeed's engine around the trial's own model and torch optimizer.

    Stage 0 partitions nothing, 1 the optimizer state, 2 also gradients, 3 also weights.
    """

    title: ClassVar[str] = "DeepSpeed ZeRO"
    model_options: ClassVar[tuple[str, ...]] = TORCH_OPTIONS
    checkpoints: ClassVar[bool] = True
    preconditions: ClassVar[bool] = True
    one_device: ClassVar[bool] = True
    preload: ClassVar[tuple[str, ...]] = ("torch", "torch._dynamo", "deepspeed", "repro.engines.zero.session",
                                          "repro.engines.zero.first_start")

    build_module: ClassVar[str] = "repro.engines.zero.extension"
    always_shown: ClassVar[tuple[str, ...]] = ("stage",)

    stage: Literal[0, 1, 2, 3] = 1
    bucket_mib: float | None = Field(None, gt=0, description="size of gradients averaged in one collective, MiB; null: "
                                                             "DeepSpeed's default")
    offload: Literal["none", "optimizer", "optimizer+weights"] = Field(
        "none", description="what lies in the host's memory; the optimizer then steps there, AdamW by DeepSpeed's own "
                            "code; optimizer: stages 1 to 3, weights: stage 3")
    hpz: int = Field(1, ge=1, description="ranks that keep a whole second copy of the weights between them, from which "
                                          "backward passes gather (ZeRO++); 1: none; stage 3")
    quantized: Literal["none", "weights", "gradients", "weights+gradients"] = Field(
        "none", description="what ZeRO++ sends in 8 (weights) or 4 bits (gradients); stage 3, CUDA only")
    config: Annotated[dict[str, Any], SAFE] = Field(
        default_factory=dict, description="further DeepSpeed JSON: numbers and switches that nothing else sets; no key "
                                          "that names a file, a program or a host")

    @field_validator("config")
    @classmethod
    def _has_only_open_keys(cls, value: dict[str, Any]) -> dict[str, Any]:
        for path, problem in misplaced_keys(value):
            raise FieldProblem(problem, path)
        return value

    @model_validator(mode="after")
    def _offloads_one_way(self) -> DeepSpeedZero:
        zero = self.config.get("zero_optimization")
        both = [key for key in zero if "offload" in key] if isinstance(zero, Mapping) else []
        if both and self.offload != "none":
            raise ValueError(f"offload and config's zero_optimization.{both[0]} set the same; remove one")
        return self

    def builds(self) -> str:
        return "DeepSpeed's Adam for CPUs" if self.offload != "none" else ""

    def unsupported(self, setting: Setting) -> str | None:
        if self.offload != "none" and self.stage == 0:
            return "offload needs stage 1 to 3: stage 0 divides nothing"
        if self.offload == "optimizer+weights" and self.stage != 3:
            return "only stage 3 divides weights; offload of weights needs it"
        if setting.autocast == "float16" and self.stage > 0:
            return (
                f"DeepSpeed 0.19 scales the loss wrongly under fp16 autocast in ZeRO {self.stage}: it clips scaled "
                "gradients, steps its scaler once per parameter group, and never lowers the scale after an overflow; "
                "use stage 0 or bf16-autocast"
            )
        if setting.master_weights and setting.weights == "float16" and self.stage == 0:
            return (
                "DeepSpeed 0.19 without ZeRO divides fp16 gradients by a loss scale that the loss was not "
                "multiplied with; use stage 1 to 3"
            )
        if setting.weights == "float16" and setting.device == "cpu":
            return "DeepSpeed refuses fp16 on CPUs without float16 matrix instructions, and nearly all are without"
        if self.stage == 3 and (compiled := setting.model.compile) and compiled.records_graphs:
            return compiled.why_not_gathered("ZeRO 3")
        return (self._no_such_hierarchy(setting) or self._no_such_optimizer(setting)
                or self._no_such_communication(setting))

    def _no_such_hierarchy(self, setting: Setting) -> str | None:
        if (self.hpz > 1 or self.quantized != "none") and self.stage != 3:
            return f"hpz and quantized are of stage 3, which divides weights; stage {self.stage} does not"
        if self.stage == 3 and setting.processes % self.hpz:
            return f"hpz {self.hpz} does not divide {setting.processes} processes into groups of equal size"
        if self.stage == 3 and self.quantized != "none" and not setting.on_gpu:
            return "DeepSpeed quantizes by CUDA kernels (its QuantizerBuilder), which a CPU has not; use hpz alone"
        if self.stage == 3 and self.quantized != "none" and (missing := setting.lacks(cuda_tools_missing)):
            return (f"DeepSpeed builds its kernels that quantize with nvcc and ninja, and {missing} is missing here: "
                    "install CUDA's toolkit and `pip install ninja`, or use hpz alone")
        return None

    def rounds_otherwise(self, precision: Precision) -> bool:
        return self.quantized != "none"

    def ungated(self, processes: int, optimizer: Optimizer) -> str:
        return f"{self.quantized} are rounded to 8 or 4 bits on the way" if self.quantized != "none" else ""

    def _no_such_optimizer(self, setting: Setting) -> str | None:
        if setting.whole_tensors and self.stage > 0:
            return (f"the rule of optimizer {setting.optimizer} looks at whole tensors, and ZeRO {self.stage} hands an "
                    "optimizer one flat part of all of them, on which it would train otherwise or fail; use stage "
                    "0, ddp or single")
        if setting.averages and (self.stage > 0 or setting.master_weights):
            held = f"ZeRO {self.stage}" if self.stage > 0 else f"{setting.precision} without ZeRO"
            return (f"optimizer {setting.optimizer} evaluates averaged weights, and under {held} DeepSpeed writes the "
                    "optimizer's weights into the model only in a step; use stage 0 with float32 weights, ddp or fsdp")
        return None

    def _no_such_communication(self, setting: Setting) -> str | None:
        if setting.compression == "powersgd":
            return "DeepSpeed averages gradients in its own buckets, which torch's PowerSGD hook does not reach"
        if setting.compression != "none" and (setting.autocast is not None or setting.weights != "float32"):
            return f"DeepSpeed sends gradients as {setting.compression} only under fp32, not {setting.precision}"
        if self.stage == 0 and self.bucket_mib is not None:
            return "DeepSpeed without ZeRO sends all gradients at once; bucket_mib needs stage 1 to 3"
        if setting.overlap and self.stage == 0:
            return "DeepSpeed without ZeRO averages gradients only after back-propagation; overlap needs stage 1 to 3"
        if setting.overlap and not setting.on_gpu:
            return "DeepSpeed overlaps by CUDA streams; on a CPU its collectives block back-propagation"
        return None

    def zero_stage(self) -> int:
        return self.stage

    def library(self) -> str:
        return f"deepspeed {version('deepspeed')}, torch {version('torch')}"

    def start(self, parts: TrainingParts | None, job: Job, streams: Streams) -> Session:
        assert parts is not None
        # DeepSpeed reads both when it is imported or initialised; nothing else depends on them.
        os.environ.setdefault("DS_ACCELERATOR", devices.kind_of(job.device))
        os.environ["LOCAL_RANK"] = job.device.partition(":")[2] or os.environ.get("LOCAL_RANK", str(job.rank))
        from repro.engines.zero.session import DeepSpeedSession, end_group

        config = deepspeed_config(self.config, self.stage, job, self.bucket_mib, self.offload, self.hpz,
                                  self.quantized)
        with started_group(job, end_group):
            return DeepSpeedSession(parts, job, config, self.offload, self.hpz)


def cuda_tools_missing() -> str:
    """Return which tool for building CUDA kernels is missing here; "" if all are present."""
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH") or "/usr/local/cuda"
    if not (shutil.which("nvcc") or os.access(f"{home}/bin/nvcc", os.X_OK)):
        return "nvcc"
    return "" if shutil.which("ninja") else "ninja"
