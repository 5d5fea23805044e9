"""Defective engines, one defect each, that the parity gate or a trial's own checks must find."""

from __future__ import annotations

from typing import ClassVar

from repro.core.random_streams import Streams
from repro.engines.deepspeed_zero import DeepSpeedZero
from repro.engines.torch_engines import Ddp, Fsdp
from repro.seams.training import Job, Session, TrainingParts


class Planted(Ddp):
    """PyTorch DDP with one defect."""

    title: ClassVar[str] = "DDP with a planted defect"
    preload: ClassVar[tuple[str, ...]] = ("torch", "torch._dynamo", "planted_sessions", "defects")

    defect: str
    """A name of `defects.DEFECTS` or, for DDP alone, of `planted_sessions.SESSIONS`."""

    def start(self, parts: TrainingParts | None, job: Job, streams: Streams) -> Session:
        from planted_sessions import SESSIONS

        if self.defect not in SESSIONS:
            return _planted(self.defect, super().start, parts, job, streams)
        assert parts is not None
        job.comm.start(job.rank, job.world, job.device, job.timeout_seconds)
        return SESSIONS[self.defect](parts, job, self.bucket_mib)


class PlantedZero(DeepSpeedZero):
    """DeepSpeed ZeRO with one defect."""

    title: ClassVar[str] = "DeepSpeed ZeRO with a planted defect"
    preload: ClassVar[tuple[str, ...]] = (*DeepSpeedZero.preload, "defects")

    defect: str

    def start(self, parts: TrainingParts | None, job: Job, streams: Streams) -> Session:
        return _planted(self.defect, super().start, parts, job, streams)


class PlantedFsdp(Fsdp):
    """FSDP2 with one defect."""

    title: ClassVar[str] = "FSDP with a planted defect"
    preload: ClassVar[tuple[str, ...]] = (*Fsdp.preload, "defects")

    defect: str

    def start(self, parts: TrainingParts | None, job: Job, streams: Streams) -> Session:
        return _planted(self.defect, super().start, parts, job, streams)


def _planted(name: str, start, parts, job, streams):  # type: ignore[no-untyped-def]
    """Start the real engine and plant the defect before or after it."""
    from defects import DEFECTS, Plant

    found = DEFECTS[name]
    if found.before:
        return start(parts, found.plant(parts, job), streams)
    session = start(parts, job, streams)
    found.plant(Plant(session, job))
    return session
