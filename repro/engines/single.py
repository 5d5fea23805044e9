"""A plain PyTorch loop in one process, without any wrapper: the reference of the parity gate."""

from __future__ import annotations

from typing import ClassVar

from repro.core.random_streams import Streams
from repro.seams.plugin import TORCH_OPTIONS, Setting
from repro.seams.training import Engine, Job, Session, TrainingParts


class Single(Engine):
    """One process, no process group, no wrapper."""

    title: ClassVar[str] = "PyTorch, one process"
    model_options: ClassVar[tuple[str, ...]] = TORCH_OPTIONS
    checkpoints: ClassVar[bool] = True
    preconditions: ClassVar[bool] = True
    preload: ClassVar[tuple[str, ...]] = ("torch", "torch._dynamo", "repro.engines.plain.loop")

    def unsupported(self, setting: Setting) -> str | None:
        if setting.processes != 1:
            return f"engine single trains in one process, not {setting.processes}"
        if setting.own_algorithm:
            return f"engine single does not communicate, so comm {setting.comm!r} would have no effect"
        if setting.compression != "none" or setting.overlap is not None:
            return "engine single does not communicate, so compression and overlap would have no effect"
        return None

    def library(self) -> str:
        import torch

        return f"torch {torch.__version__}"

    def start(self, parts: TrainingParts | None, job: Job, streams: Streams) -> Session:
        import torch

        from repro.engines.plain.loop import LoopSession

        assert parts is not None and job.world == 1
        if job.device.startswith("cuda"):
            torch.cuda.set_device(job.device)
        return LoopSession(parts, job, wrap=lambda model: model)
