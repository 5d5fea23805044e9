"""The Slurm job that this process is in: its nodes, their addresses, and what Slurm has allocated to it."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from datetime import datetime
from itertools import product
from typing import Any

from repro.core.errors import UsageError

JOB = "SLURM_JOB_ID"
NODES = "SLURM_JOB_NODELIST"
COMMAND_SECONDS = 60


def in_job() -> bool:
    return JOB in os.environ


def hosts() -> list[str]:
    """Return the names of the job's nodes."""
    return expand(os.environ[NODES])


def expand(names: str) -> list[str]:
    """Return the names in a list as Slurm writes it: `node[01-03,07],gpu1`. In a container there is no `scontrol`.

    Raises:
        UsageError: it has another form.
    """
    items = re.findall(r"(?:[^,\[\]]|\[[^\[\]]*\])+", names)
    if not names or ",".join(items) != names:
        raise UsageError(f"{NODES}={names}: is no list of nodes such as node[01-03,07],gpu1")
    found: list[str] = []
    for item in items:
        parts = [_numbers(part[1:-1]) if part.startswith("[") else [part]
                 for part in re.findall(r"\[[^\]]*\]|[^\[]+", item)]
        found += map("".join, product(*parts))
    return found


def _numbers(text: str) -> list[str]:
    """Return the numbers of `01-03,07`, each as wide as it is written."""
    found: list[str] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        found += [first] if not last else [f"{number:0{len(first)}}" for number in range(int(first), int(last) + 1)]
    return found


def address_of(node: str) -> str:
    """Return the address at which Slurm reaches a node; its name, where Slurm cannot be asked."""
    return _field(ask_slurm("scontrol", "show", "node", node), "NodeAddr") or node


def allocation() -> Mapping[str, Any]:
    """Return the job (fields of `repro.record.environment.nodes.Allocation`)."""
    job, shown = os.environ[JOB], ask_slurm("scontrol", "show", "job", os.environ[JOB])
    array = [os.environ.get(f"SLURM_ARRAY_{name}_ID", "") for name in ("JOB", "TASK")]
    share = _field(shown, "OverSubscribe")
    return {
        "scheduler": "slurm", "job": job, "nodes": hosts(), "queued_seconds": _queued_seconds(shown),
        "partition": _field(shown, "Partition") or os.environ.get("SLURM_JOB_PARTITION"),
        "resources": _field(shown, "AllocTRES") or _field(shown, "TRES"),
        "exclusive": None if share is None else share == "NO",
        "array_task": "_".join(array) if all(array) else None,
        "restarts": int(os.environ.get("SLURM_RESTART_COUNT", 0)),
    }


def _queued_seconds(shown: str | None) -> float | None:
    """Return how long a job waited for its nodes; None: Slurm does not say."""
    submitted, started = (_field(shown, f"{name}Time") or "" for name in ("Submit", "Start"))
    try:
        return (datetime.fromisoformat(started) - datetime.fromisoformat(submitted)).total_seconds()
    except ValueError:
        return None


def _field(shown: str | None, name: str) -> str | None:
    """Return a field of what `scontrol show` prints; None: it is not there, or Slurm knows no value."""
    match = re.search(rf"(?:^|\s){name}=(\S+)", shown or "")
    return match[1] if match and match[1] not in ("(null)", "N/A", "Unknown") else None


def ask_slurm(*words: str) -> str | None:
    """Return what a command of Slurm prints; "": it knows no such job; None: it is not installed here, or does not
    answer."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("SQUEUE_")}
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=COMMAND_SECONDS, check=False,
                              env=variables)
    except (OSError, subprocess.SubprocessError):
        return None
    if done.returncode:  # Slurm forgets a job some minutes after its end
        return "" if "Invalid job id" in done.stderr else None
    return done.stdout
