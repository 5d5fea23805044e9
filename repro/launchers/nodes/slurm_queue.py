"""Jobs in Slurm's queue: their states, and the reasons of those that it has not started."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path

from repro.launchers.nodes.slurm_job import ask_slurm

ENDED = ("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED",
         "TIMEOUT")
OWN = ("", "None", "JobArrayTaskLimit")
"""Reasons that say nothing: Slurm has not looked yet, or the pool has as many lanes as it asked for."""
WIDTH = 20
"""Of a column of squeue."""
AGAIN = "never starts; Ctrl-C, then"
REASONS = (
    ("Priority", "other jobs are first"),
    ("Resources", "no node is free"),
    ("BeginTime", "not before its begin time, as after a requeue"),
    (r"PartitionTimeLimit|\w+MaxWallDurationPerJobLimit",
     f"it asks for more time than is allowed: {AGAIN} pass a shorter --time after --"),
    ("BadConstraints", f"no node has what its options ask for: {AGAIN} pass others after --"),
    (r"PartitionNodeLimit|PartitionConfig|\w+PerJobLimit|\w+PerNode|MaxMemPerLimit|QOSMin\w+",
     f"it asks for more or less than is allowed: {AGAIN} pass other options after --"),
    (r"Invalid\w+|\w+NotAllowed|DependencyNeverSatisfied|ReservationDeleted",
     f"the site refuses an option: {AGAIN} pass others after --"),
    (r"\w+Grp(?!\w*Run)\w*(Minutes|Wall)Limit",
     "the time of its account or QOS is used up: it starts when the site grants more; or Ctrl-C, then pass another"),
    (r"\w+Limit", "until other jobs within this limit end"),
    (r"ReqNodeNotAvail|Nodes required|NodeDown|Partition(Down|Inactive)",
     "nodes that it needs are down, drained or reserved: it starts when the site returns them, `sinfo -R` says why; or "
     "Ctrl-C, then pass other options after --"),
    ("JobH[eo]ld", "it is held: `scontrol release JOB`, or ask the site"),
)
"""Beginning of a reason (squeue's %r) -> what it means and, if Slurm will not start the job, the next step."""


@dataclass(slots=True)
class Queue:
    """Answers for the states of jobs, and tells why some wait, once whenever the reasons change."""

    tell: Callable[[str], None]
    _told: set[str] = field(default_factory=set, init=False)

    def states(self, jobs: Collection[str]) -> dict[str, str] | None:
        """Return `JOB_TASK` -> state of the tasks of jobs that Slurm has not forgotten; None: it does not answer."""
        told = ask_slurm("squeue", "--noheader", "--array", "--all", "--states=all",
                         f"--jobs={','.join(sorted(jobs))}", "--format=%F_%K|%T|%r") if jobs else ""
        if told is None:
            return None
        rows = [row for line in told.splitlines() if len(row := line.split("|", 2)) == 3]
        waiting = [reason for _, state, reason in rows if state == "PENDING" and reason not in OWN]
        reasons = {re.match(r"\w*", reason)[0]: reason for reason in sorted(waiting)}  # type: ignore[index]
        if reasons and reasons.keys() != self._told:
            self._told = {*reasons}
            self.tell(f"{len(waiting)} job{'s' * (len(waiting) > 1)} in Slurm's queue: "
                      f"{'; '.join(map(in_words, reasons.values()))}")
        return {task: state for task, state, _ in rows}

    def arrays(self, folder: Path) -> set[str] | None:
        """Return the arrays whose output goes to files of this folder; None: Slurm does not answer."""
        told = ask_slurm("squeue", "--noheader", "--all", "--states=all", "--me",
                         f"--Format=ArrayJobID:{WIDTH},STDOUT:4096")
        return None if told is None else {line[:WIDTH].strip() for line in told.splitlines()
                                          if line[WIDTH:].startswith(f"{folder}/")}


def in_words(reason: str) -> str:
    """Return why a job waits, in words after Slurm's own, as far as they are known."""
    words = next((words for pattern, words in REASONS if re.match(pattern, reason)), "")
    return f"{reason} ({words})" if words else reason
