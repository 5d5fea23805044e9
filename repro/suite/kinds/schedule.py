"""Learning-rate schedules and batch-size scaling rules as data: the rate is a pure function of the samples seen."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator


class _Schedule(BaseModel):
    """Linear warm-up, then `decay(progress)` with progress running from 0 to 1 over the rest of the budget."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

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


class Scaling(BaseModel):
    """The rule by which the learning rate follows the global batch: declared, never implied."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

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
