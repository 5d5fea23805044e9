"""Groups of options of a training: schedule, scaling, how it runs its model, reads its input, and is gated."""

from __future__ import annotations

import json
import math
from typing import Annotated, Literal

from pydantic import ConfigDict, Field, field_validator, model_validator

from repro.core.frozen import Frozen
from repro.seams.plugin import Compilation, ModelOptions
from repro.suite.field_problem import FieldProblem, SuitePart


class _Schedule(Frozen):
    """Linear warm-up, then `decay(progress)` with progress running from 0 to 1 over the rest of the budget."""

    model_config = ConfigDict(allow_inf_nan=False)

    warmup_epochs: float = Field(0.0, ge=0, description="epochs of linear warm-up; 0: none")
    warmup_start: float = Field(0.0, ge=0, le=1, description="first rate of the warm-up, as a share of the full rate")

    def factor(self, epoch: float, epochs: float) -> float:
        """Return the share of the full rate after `epoch` of `epochs` (real numbers of passes over the data)."""
        if epoch < self.warmup_epochs:
            return self.warmup_start + (1 - self.warmup_start) * epoch / self.warmup_epochs
        rest = epochs - self.warmup_epochs
        return self.decay(min(1.0, (epoch - self.warmup_epochs) / rest) if rest > 0 else 1.0, epoch)

    def decay(self, progress: float, epoch: float) -> float:
        """Return the share of the full rate after warm-up; `progress` is in 0..1, `epoch` for milestones."""
        return 1.0


class Constant(_Schedule):
    """The full rate throughout."""

    kind: Literal["constant"] = "constant"


class Step(_Schedule):
    """The rate is multiplied by `gamma` at every milestone."""

    kind: Literal["step"] = "step"
    milestones: tuple[float, ...] = Field(..., min_length=1, description="epochs at which the rate drops, ascending")
    gamma: float = Field(0.1, gt=0, lt=1)

    @model_validator(mode="after")
    def _ascending(self) -> Step:
        if list(self.milestones) != sorted(set(self.milestones)):
            raise ValueError("milestones must ascend, each once")
        return self

    def decay(self, progress: float, epoch: float) -> float:
        return float(self.gamma ** sum(epoch >= milestone for milestone in self.milestones))


class Polynomial(_Schedule):
    """end + (1 - end) (1 - progress)^power."""

    kind: Literal["polynomial"] = "polynomial"
    power: float = Field(1.0, gt=0)
    end: float = Field(0.0, ge=0, le=1, description="last rate as a share of the full rate")

    def decay(self, progress: float, epoch: float) -> float:
        return float(self.end + (1 - self.end) * (1 - progress) ** self.power)


class Cosine(_Schedule):
    """end + (1 - end) (1 + cos(pi progress)) / 2."""

    kind: Literal["cosine"] = "cosine"
    end: float = Field(0.0, ge=0, le=1, description="last rate as a share of the full rate")

    def decay(self, progress: float, epoch: float) -> float:
        return self.end + (1 - self.end) * (1 + math.cos(math.pi * progress)) / 2


Schedule = Annotated[Constant | Step | Polynomial | Cosine, Field(discriminator="kind")]


class Scaling(SuitePart):
    """The rule by which the learning rate follows the global batch: declared, never implied."""

    rule: Literal["none", "linear", "sqrt"] = Field(
        "none", description="none: as written; linear: times batch/base (Goyal 2017); sqrt: times its square root"
    )
    base_batch: int | None = Field(None, ge=1, description="the global batch for which `optimizer.lr` was chosen")

    @model_validator(mode="after")
    def _base_given(self) -> Scaling:
        if self.rule != "none" and self.base_batch is None:
            raise ValueError(f"rule {self.rule!r} needs base_batch: the global batch that optimizer.lr was chosen for")
        return self

    def scale(self, global_batch: int) -> float:
        """Return the factor on the learning rate at `global_batch` samples."""
        if self.rule == "none" or self.base_batch is None:
            return 1.0
        ratio = global_batch / self.base_batch
        return ratio if self.rule == "linear" else math.sqrt(ratio)


def compile_phrase(value: str) -> str:
    """Return a level of the factor in words; `value` as labels write it: False, or JSON."""
    if not value.startswith("{"):
        return "not compiled"
    given, defaults = json.loads(value), Compilation()
    changed = [f"{key}={item}" for key, item in given.items() if item != getattr(defaults, key, None)]
    return f"compiled ({', '.join(changed)})" if changed else "compiled"


def requested(options: ModelOptions) -> dict[str, str]:
    """Return the options in the names and words in which sessions read them back."""
    found = {name: "on" if getattr(options, name) else "off"
             for name in ("activation_checkpointing", "channels_last", "cudnn_benchmark")}
    if options.compile is None:
        return found | {"compile": "off"}
    return found | {"compile": str(options.compile), "compile_cache": options.compile.cache}


EVAL_SAMPLES = 2048
"""Samples of an evaluation in the gate: all of a small data set, enough of a large one."""


class GateOptions(SuitePart):
    """The gate trains in fp32, and its reference on one device: a model that fits in a trial need not fit there."""

    skip: str | None = Field(None, max_length=300, description="do not gate the cell, for this reason, which the "
                                                               "plan, the report and its verdicts show")
    micro: int | None = Field(None, ge=1, description="samples per process and pass in the gate, at most the trial's; "
                                                      "null: the trial's")
    eval_samples: int = Field(EVAL_SAMPLES, ge=2, le=1 << 53, description="samples of an evaluation in the gate, over "
                                                                          "all processes")

    @field_validator("skip")
    @classmethod
    def _has_a_reason(cls, value: str | None) -> str | None:
        if value is not None and not value.strip():
            raise ValueError("needs a reason in words, because readers of the results see it")
        return None if value is None else " ".join(value.split())


AHEAD = 2
"""Micro-batches that an input worker reads ahead if the suite does not say."""


class Input(SuitePart):
    """Reading of batches on each rank, if the workload reads samples (`Workload.reads_samples`)."""

    workers: int = Field(0, ge=0, le=256, description="input worker processes per rank; 0: read inside the timed step")
    ahead: int | None = Field(None, ge=1, le=1024,
                              description=f"micro-batches that each worker reads ahead; null: {AHEAD} with workers")
    order: Literal["planned", "stream"] = Field(
        "planned", description="planned: drawn from the seed; stream: the order of the data, in which each rank reads "
                               "its shard from beginning to end; unpaired by order")

    @model_validator(mode="after")
    def _ahead_of_workers(self) -> Input:
        if self.ahead is not None and not self.workers:
            raise FieldProblem("with 0 workers nothing is read ahead: leave `ahead` out, or give workers", ("ahead",))
        return self

    @property
    def depth(self) -> int:
        """Micro-batches that each worker reads ahead; 0 without workers."""
        return (self.ahead or AHEAD) if self.workers else 0
