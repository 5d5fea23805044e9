"""Launcher for the nodes of a Slurm job: this process is on one of them, srun starts the agents on the others."""

from __future__ import annotations

import os
import re
import secrets
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from repro.core.errors import UsageError
from repro.launchers.nodes.hosts import SECRET
from repro.launchers.torchrun import Torchrun

JOB = "SLURM_JOB_ID"
COMMAND_SECONDS = 60
TERM_SECONDS = 60
"""Seconds before the time limit at which Slurm sends SIGTERM, so that the record is sealed."""


class Slurm(Torchrun):
    """`nodes` nodes of the Slurm job that this process is part of. Outside of a job `repro run` submits one."""

    title: ClassVar[str] = "torch elastic on the nodes of a Slurm job"
    nodes: int = Field(default=1, ge=1, le=1024)
    """Nodes of the job, all of which have equal numbers of ranks."""

    @property
    def awaited(self) -> str:
        return ""

    @property
    def allocation(self) -> Mapping[str, Any]:
        return {"scheduler": "slurm", "job": os.environ[JOB], "nodes": _hosts(),
                "queued_seconds": queued_seconds(os.environ[JOB])}

    def _address(self) -> tuple[str, int]:
        return "", 0  # any port: several jobs may run on one node

    def _make_secret(self) -> str:
        """Return a new secret; agents get it in the environment of srun."""
        return secrets.token_hex(32)

    def _start_agents(self, port: int, text: str) -> None:
        """Start the agents of the other nodes by one step of the job.

        Raises:
            UsageError: this process is not in a job, or the job has too few nodes.
        """
        if JOB not in os.environ:
            raise UsageError("this process is in no Slurm job; `repro run SUITE --launcher slurm -- --partition NAME` "
                             "submits one, or start it with sbatch")
        hosts, own = _hosts(), os.environ.get("SLURMD_NODENAME", "")
        if len(hosts) < self.nodes:
            raise UsageError(f"Slurm job {os.environ[JOB]} has {len(hosts)} nodes, launcher.nodes is {self.nodes}; "
                             f"submit it with --nodes={self.nodes}")
        if own not in hosts:
            raise UsageError(f"this process is on no node of Slurm job {os.environ[JOB]} ({', '.join(hosts)}); start "
                             "it there by sbatch or srun")
        others = [host for host in hosts if host != own][: self.nodes - 1]
        if not others:
            return
        command = ["srun", "--overlap", f"--nodes={len(others)}", f"--ntasks={len(others)}", "--ntasks-per-node=1",
                   f"--nodelist={','.join(others)}", "--kill-on-bad-exit=0", "--wait=0",
                   f"--cpus-per-task={os.environ.get('SLURM_CPUS_ON_NODE', '1')}", sys.executable, "-m", "repro",
                   "agent", "--join", f"{_address_of(own)}:{port}", "--wait", f"{self.join_seconds:g}"]
        # srun takes what its own options do not say from variables of the job, which are about another step.
        environment = {key: value for key, value in os.environ.items()
                       if not re.fullmatch(r"SLURM_(NTASKS.*|NPROCS|TASKS_PER_NODE|CPUS_PER_TASK|TRES_PER_TASK)", key)}
        self._starts.start("srun", command, {**environment, SECRET: text})


def in_job() -> bool:
    return JOB in os.environ


def submit(name: str, nodes: int, first: Sequence[str], again: Sequence[str], out: Path, options: Sequence[str]) -> str:
    """Submit a job that runs a suite, and resumes it when Slurm starts the job again; return the job's number.

    Args:
        first: arguments of `repro` for a run folder that does not exist yet.
        again: arguments for one that does.
        out: the run folder; the job's output goes beside it.
        options: of sbatch.

    Raises:
        UsageError: there is no sbatch here, or it refuses.
    """
    if shutil.which("sbatch") is None:
        raise UsageError("no sbatch on PATH: Slurm is not installed here, or its module is not loaded")
    if taken := [item for item in options if re.match(r"(-N|--nodes(=|$))", item)]:
        raise UsageError(f"{taken[0]}: the number of nodes is launcher.nodes, {nodes} here")
    out.parent.mkdir(parents=True, exist_ok=True)
    script = f"""#!/bin/sh
#SBATCH --job-name=repro-{name}
#SBATCH --nodes={nodes}
#SBATCH --ntasks-per-node=1
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=B:TERM@{TERM_SECONDS}
if [ -f {shlex.quote(str(out.absolute() / 'plan.json'))} ]; then
  exec {shlex.join([sys.executable, '-m', 'repro', *again])}
fi
exec {shlex.join([sys.executable, '-m', 'repro', *first])}
"""
    done = subprocess.run(["sbatch", "--parsable", f"--output={out}.slurm.log", *options], input=script, text=True,
                          capture_output=True, timeout=COMMAND_SECONDS, check=False)
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if line.strip()]
        raise UsageError(f"sbatch refuses: {said[-1] if said else f'exit code {done.returncode}'}")
    return done.stdout.strip().partition(";")[0]


def queued_seconds(job: str) -> float | None:
    """Return how long a job waited for its nodes; None: Slurm does not say."""
    text = _said("scontrol", "show", "job", job)
    found = [re.search(rf"\b{name}Time=(\S+)", text) for name in ("Submit", "Start")]
    try:
        submitted, started = (datetime.fromisoformat(match[1]) for match in found if match)
    except ValueError:
        return None
    return (started - submitted).total_seconds()


def _hosts() -> list[str]:
    """Return the names of the job's nodes."""
    return _said("scontrol", "show", "hostnames", os.environ["SLURM_JOB_NODELIST"]).split()


def _address_of(node: str) -> str:
    """Return the address at which Slurm reaches a node."""
    match = re.search(r"\bNodeAddr=(\S+)", _said("scontrol", "show", "node", node))
    return match[1] if match else node


def _said(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_SECONDS, check=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise UsageError(f"{' '.join(command[:2])} failed: {error}") from error
