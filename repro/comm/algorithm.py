"""Base class of the communication algorithms: plug-ins whose schedules replace the backend's own collectives."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, ClassVar

from pydantic import PrivateAttr

from repro.comm.schedule import OPERATIONS, Collectives, Operation, per_chunk
from repro.seams.plugin import Setting
from repro.seams.training import CommRan

__all__ = ["OPERATIONS", "Algorithm", "Operation", "per_chunk"]


class Algorithm(Collectives):
    """A communication algorithm; a subclass gives the schedules, this class runs them in a process group."""

    preload: ClassVar[tuple[str, ...]] = ("torch", "torch.distributed", "repro.comm.runtime.group")

    _group: Any = PrivateAttr(None)
    """The `AlgorithmGroup` of this rank, once started; torch is not imported before."""

    def unsupported(self, setting: Setting) -> str | None:
        if setting.on_gpu and setting.processes > max(1, setting.device_count):
            return (f"NCCL needs one GPU per rank: {setting.processes} ranks, {setting.device_count} GPUs; use "
                    f"-o processes={max(1, setting.device_count)} or -o device=cpu")
        return None

    def note(self, setting: Setting) -> str | None:
        through = self.passes_through(setting.processes)
        inner = "NCCL" if setting.on_gpu else "gloo"
        return f"{', '.join(through)} and less common collectives pass through to {inner}" if through else None

    def start(self, rank: int, world: int, device: str, timeout_seconds: float) -> None:
        from repro.comm.runtime.group import start_group

        self._group = start_group(self, rank, world, device, timeout_seconds)

    def effective(self) -> str:
        """Return the algorithm, the inner backend and which of them ran which of the called collectives."""
        return self._group.describe() if self._group else "none"

    def ran(self) -> CommRan | None:
        return CommRan(self.title, tuple(sorted(self._group.ran))) if self._group else None

    def traffic(self) -> dict[str, Any]:
        return self._group.meter.take() if self._group else {}

    def returned(self, since: float | None = None) -> None:
        if self._group:
            self._group.meter.returned(since)

    def inline(self) -> AbstractContextManager[None]:
        return self._group.lane.inline() if self._group else super().inline()
