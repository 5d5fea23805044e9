"""A suite in a pool: what the user's command does before the coordinator begins, and what every lane does."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from shlex import join

from repro.cli.terminal import say
from repro.cli.workflows.progress import TerminalWatcher
from repro.cli.workflows.run import consented, slurm_nodes
from repro.core import orphans
from repro.core.errors import Exit, OutputError, UsageError
from repro.core.files import read_bounded
from repro.core.machine import Machine, detect
from repro.core.random_streams import fresh_seed
from repro.launchers.nodes.slurm_job import ask_slurm
from repro.launchers.nodes.slurm_queue import ENDED, Queue
from repro.launchers.nodes.slurm_submit import submit_script
from repro.launchers.torchrun import Torchrun
from repro.runner.context import Options
from repro.runner.pool.engines import Pool, StoredPool, check_options, store_name
from repro.runner.pool.lane import begin_shard
from repro.runner.run import Messages, Run, open_session
from repro.suite.model import LEAST_NODES, Suite
from repro.suite.planning.plan import Plan, solo_seeds

PROBE_SECONDS, SILENT = 2.0, 60
"""Time between two questions whether the job has ended that asks a node, and how many in a row may have no answer."""


def unit_problem(suite: Suite, pool: Pool | None) -> str:
    """Return why the declared unit of verdicts cannot be had with these lanes; "" if it can."""
    if suite.unit == "block":
        return ""
    start = f"unit: node needs lanes on at least {LEAST_NODES} computers"
    other = f"use --pool '{{kind: slurm, lanes: {LEAST_NODES}}}' or -o unit=block"
    if pool is None:
        return f"{start}, and no pool is given; {other}"
    if pool.kind in ("gpus", "cores"):
        return f"{start}, and those of kind {pool.kind} are parts of one; {other}"
    return f"{start}, and there are {pool.lanes}; {other}" if (pool.lanes or 0) < LEAST_NODES else ""


def pool_machine(pool: Pool, suite: Suite, out: Path, options: Sequence[str]) -> Machine:
    """Return what a lane is: cores and GPUs of this machine's share, or of a node, as a job on one finds them.

    Args:
        out: the run folder, beside which the job writes.
        options: of sbatch.

    Raises:
        UsageError: the suite is to be tuned first, an option is not for a pool, or Slurm refuses the job, or it failed.
    """
    if suite.tune is not None:
        raise UsageError("--pool: a tuning ranks settings by trials that ran alike, which lanes do not; tune first, "
                         "then run tuned.yaml in a pool")
    check_options(pool, options)
    if pool.kind != "slurm":
        here = detect()
        if pool.kind == "agents":
            return here
        lanes = pool.lanes or max(here.device_count if pool.kind == "gpus" else 1, 1)
        cores = max(len(os.sched_getaffinity(0)) // lanes, 1)
        if pool.kind == "cores":
            return Machine("cpu", 0, cores, here.cpp_compiler)
        return Machine(here.device, min(here.device_count, 1), cores, here.cpp_compiler)
    found = out.with_name(f".{out.name}.{fresh_seed():x}.json").absolute()
    log = found.with_suffix(".log")
    log.parent.mkdir(parents=True, exist_ok=True)
    say("a short job asks a node for its cores and GPUs, because the plan is for the lanes", err=True)
    name, queue = f"repro-probe-{fresh_seed():x}", Queue(partial(say, err=True))
    try:
        job = submit_script(name, 1, f"exec {join([sys.executable, '-m', 'repro', 'probe', str(found)])}", log, options,
                            ["--time=5", f"--job-name={name}"])
        silent = 0
        while not found.is_file():
            states = queue.states([job])
            silent = 0 if states is not None else silent + 1
            if silent == SILENT:
                raise UsageError(f"`squeue` has failed {SILENT} times in a row, so the state of job {job}, which "
                                 "asks a node for its cores and GPUs, is unknown; call `squeue` yourself to see why")
            if states is not None and all(state.startswith(ENDED) for state in states.values()):
                break
            time.sleep(PROBE_SECONDS)
        return Machine(**json.loads(read_bounded(found)))
    except KeyboardInterrupt:
        ask_slurm("scancel", f"--name={name}")
        raise
    except (OutputError, ValueError, TypeError) as error:
        said = log.read_text(errors="replace").strip().splitlines() if log.is_file() else []
        raise UsageError("the job that asks a node for its cores and GPUs failed: "
                         f"{said[-1] if said else error}") from None
    finally:
        found.unlink(missing_ok=True)
        log.unlink(missing_ok=True)


def declared_pool(pool: Pool, plan: Plan, options: Sequence[str], flags: Sequence[str]) -> StoredPool:
    """Return the pool of a plan, as its run folder keeps it.

    Raises:
        UsageError: the plan cannot run in a pool.
    """
    if plan.suite.on_failure == "stop":
        raise UsageError("--pool: on_failure: stop ends a run after a failure, but other lanes would still run; use "
                         "-o on_failure=continue or rerun")
    if plan.design.is_contest:
        raise UsageError("--pool: a contest counts every declared run once, and a lost lane starts its block again; "
                         "run it without a pool")
    if pool.kind == "agents" and plan.base:
        raise UsageError("--pool agents: the folder of the suite, in which its programs run, is not on the agents' "
                         "computers; use kind slurm, with a folder that all nodes share")
    if pool.kind in ("gpus", "cores") and "--energy" in flags:
        raise UsageError(f"--energy: is that of a whole computer, which lanes of kind {pool.kind} share; leave it out")
    launchers = [cell.choices.launcher.plugin for cell in plan.cells]
    if pool.kind == "agents" and any(isinstance(item, Torchrun) and item.nodes > 1 for item in launchers):
        raise UsageError("--pool agents: a lane is one computer, and trials of this suite take several; use launcher "
                         "local")
    return StoredPool(pool=pool, name=store_name(plan.suite.suite), nodes=slurm_nodes(plan.cells) or 1,
                      options=tuple(options), flags=tuple(flags))


def with_solo(plan: Plan, pool: Pool) -> Plan:
    """Return the plan with the blocks that the pool also runs alone.

    Raises:
        UsageError: the plan has fewer.
    """
    if not pool.solo:
        return plan
    if not (seeds := solo_seeds(plan, pool.solo)):
        first = f" up to its first look, at {plan.design.looks[0]}" if plan.design.looks else ""
        raise UsageError(f"--pool: solo: this suite has fewer than {pool.solo} blocks{first}; give a smaller solo, or "
                         "more seeds")
    return plan.model_copy(update={"solo": seeds})


def run_lane(
    root: Path, number: int, options: Options, allowed: Sequence[str], code: str | None, cores: str | None, tied: bool
) -> Exit:
    """Run the blocks of one shard on this lane.

    Args:
        cores: those of the lane, `0-3,8`; None: those of this process.
        tied: end when the coordinator does, which is this process's parent.

    Raises:
        ReproError: it could not be run; what has ended stays in its folder.
        KeyboardInterrupt: a signal ended it.
    """
    if tied:
        orphans.signal_at_parent_exit(signal.SIGTERM)
    if cores:
        spans = (part.partition("-") for part in cores.split(","))
        ranges = (range(int(first), int(last or first) + 1) for first, _, last in spans)
        os.sched_setaffinity(0, {*chain(*ranges)})
    plan = consented(root, allowed, code)
    begun = begin_shard(root, plan, number)
    if begun is None:
        return Exit.DONE
    folder, part = begun
    told = Messages("its blocks that are whole are kept", "the pool runs the others again", "the shard is being closed")
    with TerminalWatcher() as watcher, open_session(folder, watcher, told) as session:
        session.execute(Run(part, folder, detect(), watcher, options)).completed()
    return Exit.DONE
