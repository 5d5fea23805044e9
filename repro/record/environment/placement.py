"""Placement: the computer, cores and GPUs that one start of a run got. The next start may get others.

Code, libraries, data, variables that tune and the class of the hardware are the identity of a run
(`repro.record.environment.environment`), and must agree between its starts. The placement need not: a scheduler chooses
it for every start.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import socket
from collections.abc import Mapping
from pathlib import Path

from pydantic import Field

from repro.core.control_group import text_of
from repro.core.frozen import Frozen
from repro.core.numbers import spans

PLACING = re.compile(r"^(SLURM_.*|(CUDA|HIP|ROCR)_VISIBLE_DEVICES|GPU_DEVICE_ORDINAL|(GLOO|NCCL)_SOCKET_IFNAME"
                     r"|NCCL_IB_HCA|UCX_NET_DEVICES)$")
"""Variables that name devices of one computer, or that a scheduler sets for one job."""
PLACING_LIMITS = ("cpuset.cpus", "memory.max", "memory.limit_in_bytes", "pids.max")
"""Limits of a control group that say what a job got; those of processor time hold processes back, and are identity."""
UNLIMITED = ("max", str((1 << 63) - 4096))
"""Limits of memory that are none, in version 2 and 1 of control groups."""
JOBS = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID")
"""Variables with the number of a scheduler's job."""
MACHINE_ID = Path("/etc/machine-id")
BOOT = Path("/proc/sys/kernel/random/boot_id")


class Placement(Frozen):
    """One computer's share of a run, as one start got it."""

    host: str
    """Name of the computer in a job or a run on several; else a hash, which shows only that two starts differ."""
    cores: str
    """The cores that the process may use, in the kernel's notation: `0-3,8`."""
    gpus: tuple[str, ...] = ()
    """UUIDs of the GPUs that it may use; (): none, or all of this computer."""
    memory_bytes: int | None = None
    settings: dict[str, str] = Field(default_factory=dict)
    """Variables that `PLACING` names."""
    limits: dict[str, str] = Field(default_factory=dict)
    """Limits that `PLACING_LIMITS` names, in the kernel's notation."""

    @property
    def name(self) -> str:
        """Host and what part of it, for the ledger: `alpha, cores 0-3`; with a hash of what else chooses one:
        interfaces, numbers of GPUs, a limit of memory."""
        gpus = f", GPUs {' '.join(uuid[:12] for uuid in self.gpus)}" if self.gpus else ""
        others = {name: value for name, value in (*self.settings.items(), *self.limits.items())
                  if not name.startswith(("SLURM_", "cpuset", "pids")) and value not in UNLIMITED}
        more = f", settings {_hashed(json.dumps(others, sort_keys=True))}" if others else ""
        return f"{self.host}, cores {self.cores}{gpus}{more}"


def host_of(name: str) -> str:
    """Return the computer of a place, by its name."""
    return name.partition(", cores ")[0]


def split(found: Mapping[str, str], places: bool) -> dict[str, str]:
    """Return the variables or limits that belong to a placement, or the others."""
    return {name: value for name, value in found.items()
            if places == bool(PLACING.match(name) or name in PLACING_LIMITS)}


def host_here(named: bool, machine_id: Path = MACHINE_ID) -> str:
    """Return the name of this computer.

    Args:
        named: it takes part in a run on several, whose record names them all. Otherwise its name is given only in a
            scheduler's job: a laptop's name may be its owner's.
    """
    host = os.environ.get("REPRO_NODE") or os.environ.get("SLURMD_NODENAME") or socket.gethostname()
    if named or "REPRO_NODE" in os.environ or any(name in os.environ for name in JOBS):
        return host
    known = text_of(machine_id).strip()
    # A container has no machine id and a new name each time; the kernel tells it from those of other computers.
    return f"computer {_hashed(f'repro {known} {host}' if known else f'repro {boot_id()}')}"


def boot_id() -> str:
    """Return what tells this kernel, since it was booted, from all others; "" if it does not say."""
    return text_of(BOOT).strip()


def _hashed(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:8]


def cores_here() -> str:
    """Return the cores that this process may use: `0-3,8`."""
    cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    return spans(sorted(cores), to="-", between=",")
