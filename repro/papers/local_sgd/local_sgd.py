"""Rare communication: every rank trains by itself and all weights are averaged every few steps (Stich 2019; DiLoCo)."""

from __future__ import annotations

from typing import ClassVar

from pydantic import BaseModel, ConfigDict, Field, model_validator

from repro.core.random_streams import Streams
from repro.engines.torch_engines import PRELOAD, TorchEngine, started_group
from repro.seams.plugin import Setting
from repro.seams.training import Job, Optimizer, Session, TrainingParts


class Outer(BaseModel):
    """The rule that is applied to the mean difference of the ranks' weights (`OuterStep`)."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    lr: float = Field(1.0, gt=0, description="outer rate; 1 without momentum is the mean of the ranks' weights")
    momentum: float = Field(0.0, ge=0, lt=1)
    nesterov: bool = False

    @model_validator(mode="after")
    def _nesterov_needs_momentum(self) -> Outer:
        if self.nesterov and self.momentum == 0:
            raise ValueError("nesterov needs momentum above 0")
        return self

    @property
    def is_mean(self) -> bool:
        """The outer step sets the weights to their mean over ranks."""
        return self.lr == 1 and self.momentum == 0


class LocalSgd(TorchEngine):
    """Local SGD (Stich 2019, arXiv:1805.09767); DiLoCo with an outer momentum (Douillard et al., arXiv:2311.08105).

    The trial's optimizer is the inner rule. Its state, gradient clipping and the model's buffers are a rank's own.
    """

    title: ClassVar[str] = "Local SGD"
    ungated_clipping: ClassVar[str] = "every rank clips its own gradient, not the mean over ranks"
    preload: ClassVar[tuple[str, ...]] = (*PRELOAD, "repro.papers.local_sgd.local_session")
    always_shown: ClassVar[tuple[str, ...]] = ("every",)

    every: int = Field(ge=1, description="optimizer steps of a rank from one averaging of the weights to the next")
    outer: Outer = Field(default_factory=Outer, description="rule of the averaging: rate, momentum, nesterov")

    def unsupported(self, setting: Setting) -> str | None:
        if setting.steps and self.every > setting.steps:
            return (f"every {self.every} is more than the {setting.steps} steps of the trial, so nothing would be "
                    f"averaged in it; {setting.steps} or less would be")
        if setting.compression != "none":
            return "engine local-sgd sends weights, not gradients; compression needs ddp or deepspeed"
        if setting.overlap is not None:
            return "engine local-sgd averages weights between steps; it has no overlap with back-propagation to choose"
        if "float16" in (setting.weights, setting.autocast):
            return "under fp16 each rank of local-sgd would scale its loss by itself and skip its own steps; use bf16"
        if setting.weights != "float32" and not setting.master_weights:
            return f"engine local-sgd averages float32 weights, and {setting.precision} has none"
        if setting.averages:
            return (f"optimizer {setting.optimizer} evaluates an average over steps, local-sgd one over ranks; "
                    "which of both an evaluation should use is not defined")
        return None

    def ungated(self, processes: int, optimizer: Optimizer) -> str:
        if processes == 1 and self.outer.is_mean:
            return ""
        if self.every > 1:
            return f"ranks train {self.every} steps by themselves, which no single process does"
        if not self.outer.is_mean:
            return "the outer rate or momentum changes the mean of the ranks' weights, as no single process does"
        return "" if optimizer.linear else (
            "the optimizer's update is not linear in the gradients, so the mean of the ranks' updates is not the "
            "update by their mean gradient")

    def start(self, parts: TrainingParts | None, job: Job, streams: Streams) -> Session:
        from repro.papers.local_sgd.local_session import LocalSession

        assert parts is not None
        with started_group(job):
            return LocalSession(parts, job, self.every, (self.outer.lr, self.outer.momentum, self.outer.nesterov))
