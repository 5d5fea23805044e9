"""The backend's own collectives, unchanged: the baseline of every other algorithm."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import ClassVar, Literal

from pydantic import Field

from repro.core import devices
from repro.core.errors import TrialError
from repro.seams.plugin import Setting
from repro.seams.training import BACKEND, Comm, CommRan

NcclAlgorithm = Literal["Ring", "Tree", "CollnetDirect", "CollnetChain", "NVLS", "NVLSTree", "PAT"]
PARTS = ("AllGather", "ReduceScatter")
HAS = {"PAT": PARTS, "NVLS": ("AllReduce", *PARTS), "CollnetDirect": ("AllReduce", *PARTS)}
"""NCCL's algorithm -> its collectives. Ring has all, every other one has AllReduce alone."""


def choice(algorithm: NcclAlgorithm) -> str:
    """Return the algorithm as the value of NCCL_ALGO, which leaves to NCCL the collectives that it does not have: since
    NCCL 2.24 one that no allowed algorithm has is an error (ncclInvalidUsage), such as Tree's all-gather.
    """
    if algorithm == "Ring":
        return algorithm
    return ";".join(f"{name}:{algorithm}" for name in HAS.get(algorithm, ("AllReduce",)))


class Backend(Comm):
    """gloo on CPU, NCCL on CUDA."""

    nccl_algorithm: NcclAlgorithm | None = Field(None, description="NCCL's own choice of algorithm; null: NCCL decides")

    own_algorithm: ClassVar[bool] = False
    preload: ClassVar[tuple[str, ...]] = ("torch", "torch.distributed")

    def unsupported(self, setting: Setting) -> str | None:
        if self.nccl_algorithm and not setting.on_gpu:
            return f"nccl_algorithm {self.nccl_algorithm} has no effect: on a CPU the backend is gloo"
        return None

    def note(self, setting: Setting) -> str | None:
        """Return which collectives the chosen algorithm of NCCL is for."""
        if self.nccl_algorithm in (None, "Ring"):
            return None
        names = " and ".join(HAS.get(self.nccl_algorithm, ("AllReduce",)))
        return f"nccl_algorithm {self.nccl_algorithm}: NCCL has it for {names} only, and chooses in all others"

    def start(self, rank: int, world: int, device: str, timeout_seconds: float) -> None:
        import torch.distributed as dist

        for name in ("MASTER_ADDR", "MASTER_PORT"):
            if not os.environ.get(name):
                raise TrialError(f"{name} is not set: the launcher must give every rank the address of rank 0")
        if self.nccl_algorithm:
            # NCCL reads it when the first communicator is created.
            os.environ["NCCL_ALGO"] = choice(self.nccl_algorithm)
        devices.use(device)
        dist.init_process_group(
            dist.get_default_backend_for_device(device),
            rank=rank, world_size=world, timeout=timedelta(seconds=timeout_seconds),
        )

    def ran(self) -> CommRan | None:
        """The backend's own collectives, once there is a process group."""
        import torch.distributed as dist

        return CommRan(BACKEND) if dist.is_initialized() else None

    def effective(self) -> str:
        """Return the name of the default group's backend and, for NCCL, its version."""
        import torch.distributed as dist

        if not dist.is_initialized():
            return "none"
        name = str(dist.get_backend())
        if name == "nccl":
            return f"nccl {devices.nccl_version()}{f' {choice(self.nccl_algorithm)}' if self.nccl_algorithm else ''}"
        return name
