"""Submitting a run to Slurm: the job's script, and the machine that the job will get."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path

from repro.core.devices import CPU, GPU
from repro.core.errors import UsageError
from repro.core.machine import Machine
from repro.launchers.nodes.hosts import RUN_SETUP, SETUP
from repro.launchers.nodes.slurm_job import COMMAND_SECONDS, ask_slurm

TERM_SECONDS = 60
"""Seconds before the time limit at which Slurm sends SIGTERM, so that the record is sealed."""
SHARES = r"-s$|--oversubscribe|--exclusive=|-c|--cpus-per-task|--mincpus"
"""Options of sbatch with which a user asks for a part of each node."""
MEMORY = r"--mem(=|$|-per-)"
MANY = 1 << 20
"""Cores, or GPUs, of a machine of which nothing is known."""
UNKNOWN = (Machine(GPU, MANY, MANY), Machine(CPU, 0, MANY))


NO_ANSWER = (r"timed out|Unable to contact|Zero Bytes|Connection (refused|reset)|endpoint is not connected|"
             r"Communication |(send|receive|authentication) (failure|error)|Unexpected message")
"""Words of sbatch where the controller's answer does not reach it; the job may be submitted all the same."""
SHOWN = "`squeue --name {}` shows whether the job is submitted all the same"


class RefusedError(UsageError):
    """sbatch does not accept a job."""


class UnansweredError(UsageError):
    """sbatch has no answer from the controller: the job may be submitted or not."""


def submit(
    name: str, nodes: int, first: Sequence[str], again: Sequence[str], plans: Sequence[Path], out: Path,
    options: Sequence[str],
) -> str:
    """Submit a job that runs a suite, and resumes it when Slurm starts the job again; return the job's number.

    Args:
        first: arguments of `repro` for a run folder that does not exist yet.
        again: arguments for one that does.
        plans: files of which a run folder has one as soon as it can be resumed.
        out: the run folder; the job's output goes beside it.
        options: of sbatch.

    Raises:
        UsageError: there is no sbatch here, or it refuses.
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    return submit_script(f"repro-{name}", nodes, f"""\
if {' || '.join(f'[ -f {shlex.quote(str(path.absolute()))} ]' for path in plans)}; then
  exec {shlex.join([sys.executable, '-m', 'repro', *again])}
fi
exec {shlex.join([sys.executable, '-m', 'repro', *first])}""", Path(f"{out}.slurm.log"), options)


def submit_script(
    name: str, nodes: int, body: str, output: Path, options: Sequence[str], last: Sequence[str] = ()
) -> str:
    """Submit a job of whole nodes that Slurm may start again, and return its number.

    Args:
        name: of the job.
        body: shell commands, after the set-up that the user declares.
        options: of sbatch.
        last: further ones, after those of the user and of the environment, which they win against.

    Raises:
        UsageError: there is no sbatch here.
        RefusedError: it refuses.
        UnansweredError: it has no answer.
    """
    if shutil.which("sbatch") is None:
        raise UsageError("no sbatch on PATH: Slurm is not installed here, or its module is not loaded")
    if taken := [item for item in options if re.match(r"(-N|--nodes(=|$))", item)]:
        raise UsageError(f"{taken[0]}: the number of nodes is launcher.nodes, {nodes} here")
    setup = os.environ.get(SETUP, "")
    script = f"""#!{'/bin/bash -l' if setup else '/bin/sh'}
#SBATCH --job-name={name}
#SBATCH --nodes={nodes}
#SBATCH --ntasks-per-node=1
{_whole_nodes(options)}#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=B:TERM@{TERM_SECONDS}
{f'export {SETUP}={shlex.quote(setup)}; {RUN_SETUP}' if setup else ''}
{body}
"""
    try:
        done = subprocess.run(["sbatch", "--parsable", f"--output={output}", *options, *last], input=script, text=True,
                              capture_output=True, check=False, timeout=COMMAND_SECONDS)
    except subprocess.TimeoutExpired:
        raise UnansweredError(f"sbatch did not answer in {COMMAND_SECONDS} s; {SHOWN.format(name)}") from None
    if done.returncode:
        if done.returncode < 0 or re.search(NO_ANSWER, done.stderr):
            said = " ".join(done.stderr.split()) or f"sbatch was ended by signal {-done.returncode}"
            raise UnansweredError(f"{said}; {SHOWN.format(name)}")
        lines = [line.removeprefix("sbatch: error: ") for line in done.stderr.splitlines() if line.strip()]
        full = " (`squeue --me` shows the jobs that count; another --account or --qos after -- may have room)"
        raise RefusedError(f"sbatch refuses: {'; '.join(lines) or f'exit code {done.returncode}'}"
                           f"{full if 'SubmitJob' in done.stderr else ''}")
    return done.stdout.strip().partition(";")[0]


def _whole_nodes(options: Sequence[str]) -> str:
    """Return the lines of a job that asks for all cores and memory of its nodes, unless the user asks for less."""
    if any(re.match(SHARES, item) for item in options):
        return ""
    memory = any(re.match(MEMORY, item) for item in options)
    return "#SBATCH --exclusive\n" + "#SBATCH --mem=0\n" * (not memory)


def job_machines(options: Sequence[str], nodes: int) -> tuple[tuple[Machine, ...], str]:
    """Return the machines that each node of a job may be, the largest of its partition or, where Slurm does not tell,
    some that can do everything; and the option that asks for GPUs of the partition, "" if it has none or is given.

    Args:
        options: of sbatch.
    """
    partition = _value(options, "partition", "p") or os.environ.get("SBATCH_PARTITION")
    found = _groups(partition)
    if not found:
        return UNKNOWN, ""
    asked, there = _gpus_asked(options, nodes), max(gpus for _, gpus in found)
    stated = _value(options, "cpus-per-task", "c") or ""  # sbatch refuses what is no number
    cores = int(stated) if stated.isdecimal() else max(cores for cores, _ in found)
    hint = f"--gpus-per-node={there}" if there and not asked else ""
    return (Machine(GPU if asked else CPU, asked, cores),), hint


def _groups(partition: str | None) -> list[tuple[int, int]]:
    """Return cores and GPUs of the kinds of nodes in a partition (None: the default one); [] if Slurm is silent."""
    named = [f"--partition={partition}"] if partition else []
    told = ask_slurm("sinfo", "--noheader", "--exact", "--format=%P|%c|%G", *named)
    rows = [line.strip().split("|") for line in (told or "").splitlines()]
    return [(int(row[1]), sum(map(int, re.findall(r"\bgpu:(?:[^:,()]+:)?(\d+)", row[2])))) for row in rows
            if len(row) == 3 and row[1].isdecimal() and (partition or row[0].endswith("*"))]


def _gpus_asked(options: Sequence[str], nodes: int) -> int:
    """Return how many GPUs of each node the options of sbatch ask for."""
    generic = [item.removeprefix("gres:") for item in (_value(options, "gres") or "").split(",")]
    counts = [_count(item) for item in generic if re.match(r"gpu(:|$)", item)]
    for name in ("gpus-per-node", "gpus-per-task"):
        counts += [_count(item) for item in (_value(options, name) or "").split(",") if item]
    counts += [-(-_count(item) // max(nodes, 1)) for item in (_value(options, "gpus", "G") or "").split(",") if item]
    return sum(counts)


def _count(item: str) -> int:
    """Return the number at the end of `gpu:4`, `a100:4` or `4`; one if there is none."""
    last = item.rpartition(":")[2]
    return int(last) if last.isdecimal() else 1


def _value(options: Sequence[str], long: str, short: str = "") -> str | None:
    """Return the value of an option of sbatch, in any of its forms; None: it is not given."""
    found = None
    for item, following in zip_longest(options, options[1:]):
        if item in (f"--{long}", f"-{short}"):
            found = following
        elif item.startswith(f"--{long}="):
            found = item.partition("=")[2]
        elif short and re.match(rf"-{short}[^-]", item):
            found = item[2:].removeprefix("=")
    return found
