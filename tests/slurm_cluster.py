"""A real Slurm on this machine: munge, slurmctld and two slurmd on free ports, from the distribution's packages."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

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
AuthInfo=socket={folder}/munge/socket
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
NodeName=alpha NodeHostname=localhost NodeAddr=127.0.0.1 Port={alpha} CPUs=4 State=UNKNOWN
NodeName=beta NodeHostname=localhost NodeAddr=127.0.0.1 Port={beta} CPUs=4 State=UNKNOWN
PartitionName=tests Nodes=alpha,beta Default=YES MaxTime=INFINITE State=UP
"""


@contextmanager
def slurm(folder: Path) -> Iterator[dict[str, str]]:
    """Start Slurm with the nodes alpha and beta and one partition, tests; yield the variables of its users."""
    ports = dict(zip(("control", "alpha", "beta"), _free_ports(3), strict=True))
    for name in ("state", "munge"):
        (folder / name).mkdir(mode=0o755)
    folder.chmod(0o755)
    key = folder / "munge" / "key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o400)
    (folder / "slurm.conf").write_text(CONFIGURATION.format(folder=folder, **ports))
    (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\nIgnoreSystemd=yes\n")
    variables = {"SLURM_CONF": str(folder / "slurm.conf")}
    environment = {**os.environ, **variables, "PATH": PATH}
    # -D and -F keep each in the foreground, so that the test ends what it started.
    munge = [f"--{name}={folder}/munge/{name}" for name in ("socket", "pid-file", "log-file", "seed-file")]
    started = []
    try:
        for command in (["munged", "--foreground", "--force", f"--key-file={key}", *munge], ["slurmctld", "-D", "-c"],
                        ["slurmd", "-D", "-N", "alpha"], ["slurmd", "-D", "-N", "beta"]):
            started.append(subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL,
                                            stderr=subprocess.DEVNULL))
            time.sleep(0.7)
        until = time.monotonic() + 60
        while subprocess.run(["sinfo", "--noheader", "--states=idle", "--format=%D"], env=environment, text=True,
                             capture_output=True, check=False).stdout.strip() != "2":
            assert time.monotonic() < until, (folder / "control.log").read_text()
            time.sleep(0.2)
        yield variables
    finally:
        subprocess.run(["scancel", "--user=root"], env=environment, capture_output=True, check=False)
        for process in reversed(started):
            process.terminate()
        for process in started:
            process.wait(60)


def _free_ports(count: int) -> list[int]:
    opened = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    found = [each.getsockname()[1] for each in opened]
    for each in opened:
        each.close()
    return found
