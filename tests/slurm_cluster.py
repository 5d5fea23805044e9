"""A real Slurm on this machine: munge, slurmctld and two slurmd on free ports, from the distribution's packages."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from repro.record.environment.placement import BOOT
from tests.commands import free_port

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "squeue", "scancel")
PATH = f"{os.environ.get('PATH', '')}:/usr/sbin"
needs_slurm = pytest.mark.skipif(
    os.geteuid() != 0 or not all(shutil.which(name, path=PATH) for name in PROGRAMS),
    reason="needs root and Slurm: apt-get install slurmctld slurmd slurm-client munge")
CONFIGURATION = """\
ClusterName=tests
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={control}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket,cred_expire=20
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/control.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/control.log
SlurmdLogFile={folder}/%n.log
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
KillWait=30
SlurmdParameters=config_overrides
JobRequeue=1
SchedulerType=sched/builtin
SchedulerParameters=sched_interval=5
SlurmdTimeout={slurmd_timeout}
GresTypes=gpu
NodeName=alpha NodeHostname=localhost NodeAddr=127.0.0.1 Port={alpha} CPUs=4 State=UNKNOWN
NodeName=beta NodeHostname=localhost NodeAddr=127.0.0.1 Port={beta} CPUs=4 State=UNKNOWN
NodeName=gamma NodeHostname=localhost NodeAddr=127.0.0.1 Port={gamma} CPUs=16 Gres=gpu:tesla:4 State=DOWN
PartitionName=tests Nodes=alpha,beta Default=YES MaxTime=INFINITE State=UP
PartitionName=gpus Nodes=gamma MaxTime=INFINITE State=UP
"""


@dataclass
class Cluster:
    """The daemons of a Slurm, by name: munged, slurmctld, alpha and beta."""

    folder: Path
    daemons: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def variables(self) -> dict[str, str]:
        """Return the variables of its users."""
        return {"SLURM_CONF": str(self.folder / "slurm.conf")}

    def start(self, name: str) -> None:
        """Start a daemon, in the foreground, so that the test ends what it started."""
        files = [f"--{item}={self.folder}/munge/{item}"
                 for item in ("key-file", "socket", "pid-file", "log-file", "seed-file")]
        command = {"munged": ["munged", "--foreground", "--force", *files], "slurmctld": ["slurmctld", "-D"]}.get(
            name, self._computer(name))
        self.daemons[name] = subprocess.Popen(command, env={**os.environ, **self.variables, "PATH": PATH},
                                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(0.7)

    def _computer(self, name: str) -> list[str]:
        """Return the command of a slurmd whose jobs see a computer of their own: another name, another boot."""
        boot = self.folder / f"{name}.boot"
        if not boot.exists():
            boot.write_text(f"{uuid.uuid4()}\n")
        return ["unshare", "--mount", "--uts", "sh", "-c",
                f"hostname {name} && mount --bind '{boot}' {BOOT} && exec slurmd -D -N {name}"]

    def lose(self, name: str) -> None:
        """Kill all that runs on a node at once, as when its power fails; it will start with another boot."""
        space = _mount_space(self.daemons[name].pid)
        while found := [process for process in psutil.process_iter() if _mount_space(process.pid) == space]:
            for process in found:
                process.kill()
            psutil.wait_procs(found, 1)
        self.daemons[name].wait(60)
        (self.folder / f"{name}.boot").unlink()

    def end(self, name: str, number: signal.Signals = signal.SIGTERM) -> None:
        self.daemons[name].send_signal(number)
        self.daemons[name].wait(60)

    def wait_until_idle(self, seconds: float = 60) -> None:
        until = time.monotonic() + seconds
        while self.told("sinfo", "--noheader", "--states=idle", "--partition=tests", "--format=%D").strip() != "2":
            assert time.monotonic() < until, (self.folder / "control.log").read_text()
            time.sleep(0.2)

    def told(self, *words: str) -> str:
        """Return what a command of Slurm prints; "" if it fails."""
        return subprocess.run(words, env={**os.environ, **self.variables}, text=True, capture_output=True, check=False,
                              timeout=120).stdout


@contextmanager
def slurm(folder: Path, slurmd_timeout: int = 300) -> Iterator[Cluster]:
    """Start Slurm with the nodes alpha and beta in partition tests; node gamma, with GPUs, is always down.

    Args:
        slurmd_timeout: seconds after which a node without slurmd is down.
    """
    ports = {name: free_port() for name in ("control", "alpha", "beta", "gamma")}
    for name in ("state", "munge"):
        (folder / name).mkdir(mode=0o755)
    folder.chmod(0o755)
    key = folder / "munge" / "key-file"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o400)
    (folder / "slurm.conf").write_text(CONFIGURATION.format(folder=folder, slurmd_timeout=slurmd_timeout, **ports))
    (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\nIgnoreSystemd=yes\n")
    (folder / "gres.conf").write_text("NodeName=gamma Name=gpu Type=tesla Count=4\n")
    cluster = Cluster(folder)
    try:
        for name in ("munged", "slurmctld", "alpha", "beta"):
            cluster.start(name)
        cluster.wait_until_idle()
        yield cluster
    finally:
        cluster.told("scancel", "--user=root")
        for process in reversed(cluster.daemons.values()):
            process.terminate()
        for process in cluster.daemons.values():
            process.wait(60)


def _mount_space(pid: int) -> str:
    try:
        return str(Path(f"/proc/{pid}/ns/mnt").readlink())
    except OSError:  # it has ended
        return ""
