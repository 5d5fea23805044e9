"""Submit a run to a scheduler: one job for all trials of a plan."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from repro.launchers.slurm import Slurm, in_job, submit
from repro.seams.launching import Launcher
from repro.suite.planning.plan import Plan


def needs_job(plan: Plan) -> bool:
    """Return whether the plan runs in a Slurm job and this process is in none."""
    return bool(_launchers(plan)) and not in_job()


def submit_plan(
    plan: Plan, options: Sequence[str], arguments: Sequence[str], out: Path | None, flags: Sequence[str]
) -> str:
    """Submit a plan; return the message for the user.

    Args:
        options: of sbatch.
        arguments: of this command.
        flags: those of them that a resumed run needs as well.

    Raises:
        UsageError: Slurm refuses.
    """
    place = out or Path("runs") / f"{plan.suite.suite}-{time.strftime('%Y%m%d-%H%M%S')}"
    first = list(arguments[: arguments.index("--")]) if "--" in arguments else list(arguments)
    if out is None:
        first += ["--out", str(place)]
    job = submit(plan.suite.suite, max(each.nodes for each in _launchers(plan)), first,
                 ["run", "--resume", str(place), *flags], place, options)
    return (f"job {job} is submitted; its output: {place}.slurm.log, the run: {place}\n"
            f"next: squeue --job {job}; scancel {job} ends it, and what has run stays")


def _launchers(plan: Plan) -> list[Slurm]:
    found = (cell.choices.launcher.get(Launcher) for cell in plan.cells)
    return [each for each in found if isinstance(each, Slurm)]
