"""Launcher for the nodes of a Slurm job: this process is on one of them, srun starts the agents on the others."""

from __future__ import annotations

import os
import re
import secrets
import shutil
from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field, PrivateAttr

from repro.core.errors import UsageError
from repro.launchers.nodes import slurm_job
from repro.launchers.nodes.hosts import SECRET, agent_command
from repro.launchers.nodes.slurm_job import JOB, hosts, in_job
from repro.launchers.torchrun import Torchrun


class Slurm(Torchrun):
    """`nodes` nodes of the Slurm job that this process is part of. Outside of a job `repro run` submits one."""

    title: ClassVar[str] = "torch elastic on the nodes of a Slurm job"
    nodes: int = Field(default=1, ge=1, le=1024)
    """Nodes of the job, all of which have equal numbers of ranks."""

    _allocation: Mapping[str, Any] | None = PrivateAttr(default=None)

    @property
    def allocation(self) -> Mapping[str, Any]:
        if self._allocation is None:  # asked once: before every trial a run asks whether its nodes are the same
            self._allocation = slurm_job.allocation()
        return self._allocation

    def _address(self) -> tuple[str, int]:
        return "", 0  # any port: several jobs may run on one node

    def _make_secret(self) -> str:
        """Return a new secret; agents get it in the environment of srun."""
        return secrets.token_hex(32)

    def _start_agents(self, port: int, text: str) -> None:
        """Start the agents of the other nodes, each by a step of the job."""
        if not in_job():
            raise UsageError("this process is in no Slurm job; `repro run SUITE --launcher slurm -- --partition NAME` "
                             "submits one, or start it with sbatch")
        names, own = hosts(), os.environ.get("SLURMD_NODENAME", "")
        if len(names) < self.nodes:
            raise UsageError(f"Slurm job {os.environ[JOB]} has {len(names)} nodes, launcher.nodes is {self.nodes}; "
                             f"submit it with --nodes={self.nodes}")
        if own not in names:
            raise UsageError(f"this process is on no node of Slurm job {os.environ[JOB]} ({', '.join(names)}); start "
                             "it there by sbatch or srun")
        others = [name for name in names if name != own][: self.nodes - 1]
        address = f"{slurm_job.address_of(own)}:{port}"
        if others and shutil.which("srun") is None:
            raise UsageError(f"no srun on PATH, as in a container, to start agents on {', '.join(others)}; use "
                             "launcher torchrun, and outside of the container: srun --overlap --ntasks-per-node=1 "
                             f"--nodelist={','.join(others)} CONTAINER repro agent --join {own}:29410")
        # srun takes what its own options do not say from variables of the job, which are about another step.
        environment = {key: value for key, value in os.environ.items()
                       if not re.fullmatch(r"SLURM_(NTASKS.*|NPROCS|TASKS_PER_NODE|(CPUS|TRES|GPUS)_PER_TASK|GPU_BIND|"
                                           r"GPUS_PER_SOCKET)", key)}
        for name in others:  # one each: a lost one ends its srun, and is started again
            command = ["srun", "--overlap", "--nodes=1", "--ntasks=1", f"--nodelist={name}",
                       f"--cpus-per-task={os.environ.get('SLURM_CPUS_ON_NODE', '1')}",
                       *agent_command(address, self.join_seconds, name)]
            self._starts.start(name, f"srun {name}", command, {**environment, SECRET: text})
