"""Engines of a pool: a job array of Slurm, and lanes of this machine, one for each GPU or share of its cores."""

from __future__ import annotations

import os
import re
import secrets
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import Field, ValidationError

from repro.core.errors import UsageError
from repro.core.files import read_model, write_text
from repro.core.frozen import Frozen
from repro.core.numbers import spans
from repro.launchers.nodes.agent_lane import OUTPUT
from repro.launchers.nodes.slurm_job import ask_slurm
from repro.launchers.nodes.slurm_queue import ENDED, Queue
from repro.launchers.nodes.slurm_submit import RefusedError, UnansweredError, submit_script
from repro.record.environment.gpus import usable_uuids
from repro.record.folder.store import RunFolder
from repro.runner.pool.agents import AgentLanes
from repro.runner.pool.coordinator import Engine
from repro.runner.run import base_of
from repro.suite.design import LEAST_REPEATS
from repro.suite.planning.consent import permissions
from repro.suite.planning.plan import Plan

FILE = "pool.json"
"""In the folder of a run, not part of the record: how its lanes are started."""
OVERRIDING = re.compile(r"-[aMoe]|--(array|clusters?|output|error|wrap)(=|$)")
"""Options of sbatch with which a pool would not find its tasks again."""


class Pool(Frozen):
    """The declaration of `--pool`."""

    kind: Literal["slurm", "agents", "gpus", "cores"]
    lanes: int | None = Field(None, ge=1, le=10_000)
    """Blocks that run at once; None: with gpus one for each GPU."""
    blocks_per_task: int = Field(1, ge=1, le=1000)
    """Blocks that one lane runs in one go: a task of slurm, a process elsewhere. Short blocks share its start."""
    solo: int | None = Field(None, ge=LEAST_REPEATS, le=10_000, exclude_if=lambda count: count is None)
    """Blocks that also run with no other lane busy, to tell what the load does to ratios; None: none."""


class StoredPool(Frozen):
    """A pool as the folder of its run has it."""

    pool: Pool
    name: str
    """Of all its jobs, which no other run has."""
    nodes: int = 1
    """Of one lane."""
    options: tuple[str, ...] = ()
    """Of sbatch."""
    flags: tuple[str, ...] = ()
    """Of every lane's command."""


def parse_pool(text: str) -> Pool:
    """Read `KIND` or `{kind: KIND, lanes: 16, blocks_per_task: 4}`.

    Raises:
        UsageError: it has another form.
    """
    try:
        data: Any = yaml.safe_load(text)
        found = Pool.model_validate({"kind": data} if isinstance(data, str) else data)
    except yaml.YAMLError:
        raise UsageError(f"--pool {text}: is no YAML; write it as '{{kind: slurm, lanes: 16}}'") from None
    except ValidationError as error:
        first = error.errors(include_input=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise UsageError(f"--pool {text}: {f'{place}: ' if place else ''}{first['msg']}; an example: "
                         "'{kind: slurm, lanes: 16}'") from None
    if found.lanes is None and found.kind != "gpus":
        raise UsageError(f"--pool {text}: lanes: is missing; an example: '{{kind: {found.kind}, lanes: 16}}'")
    return found


def stored_pool(folder: RunFolder) -> StoredPool | None:
    """Read the pool of a run; None: it has none.

    Raises:
        OutputError: the file is damaged.
    """
    path = folder.root / FILE
    return read_model(path, StoredPool) if path.is_file() else None


def store_name(suite: str) -> str:
    """Return a name for the jobs of a run that no other run has."""
    return f"repro-{suite}-{secrets.token_hex(4)}"


def check_options(pool: Pool, options: Sequence[str]) -> None:
    """Refuse options of sbatch that a pool cannot have.

    Raises:
        UsageError: its kind takes none, or it could not find its tasks with them.
    """
    if options and pool.kind != "slurm":
        raise UsageError(f"{options[0]}: only a pool of kind slurm takes options after --")
    if taken := [item for item in options if OVERRIDING.match(item)]:
        raise UsageError(f"{taken[0]}: a pool sets it itself, to find its tasks again; leave it out")


def engine_of(stored: StoredPool, plan: Plan, folder: RunFolder, tell: Callable[[str], None]) -> Engine:
    """Return the engine of a pool, to be closed.

    Args:
        tell: is given lines for the user.

    Raises:
        UsageError: it cannot start lanes here.
    """
    # By the folder of the suite as the run folder has it, from which a lane reads the plan.
    allowed = shlex.split(permissions(plan.cells, base_of(folder.root, plan)))
    stored = stored.model_copy(update={"flags": (*stored.flags, *allowed)})
    if stored.pool.kind == "slurm":
        return SlurmArray(stored, folder, Queue(tell))
    if stored.pool.kind == "agents":
        return AgentLanes(folder, stored.pool.lanes or 1, stored.flags, tell)
    return OneMachine(stored, folder, machine_lanes(stored.pool, plan))


def lane_command(stored: StoredPool, folder: RunFolder, number: str) -> str:
    """Return the shell command that runs a shard.

    Args:
        number: of the shard, or a variable of the shell.
    """
    words = [sys.executable, "-m", "repro", "lane", str(folder.root.absolute())]
    return f"{shlex.join(words)} {number} {shlex.join(stored.flags)}".strip()


TASK = "task"
"""In the folder of a shard: its task, `ARRAY_INDEX`."""
SUBMITTED = "?"
"""In place of a task that sbatch has not told yet."""
MOST_TASKS = 1000
"""Of one array; Slurm's own default of MaxArraySize is one more."""


@dataclass(slots=True)
class SlurmArray(Engine):
    """One task of a job array for each shard, found again by the array's number: a user may name jobs otherwise.

    An array keeps to the number of lanes. Tasks in place of lost ones are a new array, so they are submitted only as
    lanes become free. Shards beyond a limit of submitted jobs are held back, and submitted as tasks end.
    """

    stored: StoredPool
    folder: RunFolder
    queue: Queue
    period_seconds: float = 5.0
    tasks: dict[str, int] = field(default_factory=dict, init=False)
    """`ARRAY_INDEX` -> shard."""
    last: set[int] | None = field(default_factory=set, init=False)
    """Shards that ran when last asked; None: Slurm did not answer."""
    held: list[int] = field(default_factory=list, init=False)
    """Shards that are not submitted yet."""
    full: int = field(default=0, init=False)
    """Tasks in Slurm from which on none of these is submitted."""
    refused: str = field(default="", init=False)
    """What the user has been told of a limit."""
    stopped: set[int] = field(default_factory=set, init=False)
    """Shards whose task was cancelled by somebody else."""
    unsure: list[int] = field(default_factory=list, init=False)
    """Shards of the array that was submitted last, as long as sbatch has not answered; there may be one."""
    absent: bool = field(default=False, init=False)
    """Slurm did not have that array when it was asked for the first time."""
    ending: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        paths = [path for path in self.folder.shards.glob(f"*/{TASK}") if path.parent.name.isdecimal()]
        for path in sorted(paths, key=lambda path: int(path.parent.name)):
            task, shard = path.read_text(errors="replace").strip(), int(path.parent.name)
            if task == SUBMITTED:
                self.unsure.append(shard)
            else:
                self.tasks[task] = shard

    def room(self) -> int:
        if self.last is None or self.held:
            return 0
        return max(0, self.lanes - len(self.last)) if self.last else MOST_TASKS

    @property
    def lanes(self) -> int:
        return self.stored.pool.lanes or 1

    def start(self, shards: Sequence[int]) -> None:
        """Submit an array, a smaller one if Slurm does not accept it.

        Raises:
            UsageError: Slurm never had a task of this pool, and refuses a single one or gives no answer.
        """
        self.held += shards
        self._submit(self.last or set())

    def _submit(self, there: set[int]) -> None:
        """Submit arrays of shards that are held, as large as Slurm accepts, until it has as many tasks as lanes.

        Args:
            there: shards that wait or run in Slurm.
        """
        size = self.lanes - len(there) if there else MOST_TASKS
        while shards := self.held[:max(size, 0)]:
            try:
                self._submit_array(shards)
            except UnansweredError as unanswered:
                if not self.tasks:
                    raise UsageError(f"{unanswered}; --resume RUN goes on with it") from None
                self.queue.tell(f"{unanswered}; the queue is asked")
                break
            except RefusedError as refused:
                self.unsure = []
                for shard in shards:
                    (self.folder.shards / str(shard) / TASK).unlink()
                if not self.tasks and len(shards) == 1:
                    raise UsageError(f"{refused}; --resume RUN submits the blocks that are missing") from None
                size = len(shards) // 2
                if not size and str(refused) != self.refused:
                    self.refused = str(refused)
                    self.queue.tell(f"{len(there)} tasks are submitted, the other {len(self.held)} as jobs end: "
                                    f"{refused}")
                continue
            del self.held[:size]
            there |= {*shards}
            size = min(size, self.lanes - len(there))
        self.last, self.full = there, min(self.lanes, len(there))

    def _submit_array(self, shards: Sequence[int]) -> None:
        body = (f"set -- {' '.join(map(str, shards))}; shift \"$SLURM_ARRAY_TASK_ID\"\n"
                f"exec {lane_command(self.stored, self.folder, '$1')}")
        for shard in shards:
            write_text(self.folder.shards / str(shard) / TASK, f"{SUBMITTED}\n")
        self.unsure = [*shards]
        job = submit_script(self.stored.name, self.stored.nodes, body, self.folder.shards.absolute() / "%A_%a.log",
                            self.stored.options, [f"--array=0-{len(shards) - 1}%{self.lanes}"])
        self._know(job, shards)

    def _know(self, job: str, shards: Sequence[int]) -> None:
        for index, shard in enumerate(shards):
            write_text(self.folder.shards / str(shard) / TASK, f"{job}_{index}\n")
            self.tasks[f"{job}_{index}"] = shard
        self.unsure = []

    def _find_unsure(self) -> bool:
        """Look in the queue for the array of which sbatch has not told; return False while it is not known whether
        there is one: Slurm may still be busy with it when it is asked for the first time."""
        arrays, shards = self.queue.arrays(self.folder.shards.absolute()), self.unsure
        if arrays is None:
            return False
        if new := arrays - {task.partition("_")[0] for task in self.tasks}:
            self._know(job := max(new, key=int), shards)
            if self.held[:len(shards)] == shards:
                del self.held[:len(shards)]
            if self.ending:
                ask_slurm("scancel", job)
        elif not self.absent:
            self.absent = True
            return False
        self.unsure, self.absent, self.full = [], False, self.lanes
        return True

    def running(self) -> set[int] | None:
        if self.unsure and not self._find_unsure():
            self.last = None
            return None
        told, before = self.queue.states({task.partition("_")[0] for task in self.tasks}), self.last or set()
        if told is None:
            self.last = None
            return None
        states = {self.tasks[task]: state for task, state in told.items() if task in self.tasks}
        self.stopped |= {shard for shard, state in states.items() if state.startswith("CANCELLED")}
        self.last = {shard for shard, state in states.items() if not state.startswith(ENDED)}
        if len(before) > 1 and before <= self.stopped:  # all at once: none takes their place
            self.stopped |= {*self.held}
            self.held.clear()
        if self.held and len(self.last) < max(1, self.full):
            self._submit(self.last)
        return {*self.last, *self.held}

    def cancelled(self) -> set[int]:
        return self.stopped

    def cancel(self) -> None:
        self.ending = True
        if self.unsure:
            self._find_unsure()
            self.last = None
        self.held.clear()
        if self.last is None or self.last:
            ask_slurm("scancel", *sorted({task.partition("_")[0] for task, shard in self.tasks.items()
                                          if self.last is None or shard in self.last}))

    def said(self, shard: int) -> Path:
        task = next((task for task, known in self.tasks.items() if known == shard), "none")
        return self.folder.shards / f"{task}.log"


@dataclass(frozen=True, slots=True)
class MachineLane:
    """A share of this machine."""

    cores: tuple[int, ...]
    gpu: str = ""
    """UUID; "": none."""


def machine_lanes(pool: Pool, plan: Plan) -> list[MachineLane]:
    """Divide the cores of this machine, and its GPUs, among lanes.

    Raises:
        UsageError: there are too few cores, or the plan and the kind do not go together.
    """
    cores = sorted(os.sched_getaffinity(0))
    gpus = sorted(usable_uuids()) if pool.kind == "gpus" else []
    if pool.kind == "gpus" and not (gpus and plan.uses_gpus):
        raise UsageError("--pool gpus: " + ("this machine has no usable GPU" if not gpus else
                                            "no trial of this suite uses a GPU; use kind cores"))
    if pool.kind == "cores" and plan.uses_gpus:
        raise UsageError("--pool cores: trials of this suite use GPUs; use kind gpus")
    count = pool.lanes or len(gpus)
    if gpus and count > len(gpus):
        raise UsageError(f"--pool gpus: {count} lanes are too many for {len(gpus)} GPUs")
    each = len(cores) // count
    if not each:
        raise UsageError(f"--pool {pool.kind}: {count} lanes are too many for {len(cores)} cores")
    needed = max(cell.choices.ranks for cell in plan.cells)
    if gpus and needed > 1:
        raise UsageError(f"--pool gpus: a lane has one GPU, and a trial of this suite needs {needed}")
    return [MachineLane(tuple(cores[lane * each:(lane + 1) * each]), gpus[lane] if gpus else "")
            for lane in range(count)]


@dataclass(slots=True)
class OneMachine(Engine):
    """A process for each shard, on the cores and the GPU of a free lane; it ends with this one."""

    stored: StoredPool
    folder: RunFolder
    lanes: Sequence[MachineLane]
    period_seconds: float = 0.5
    _children: dict[int, tuple[int, subprocess.Popen[bytes]]] = field(default_factory=dict, init=False)
    """Shard -> its lane, and the process that runs it."""

    def room(self) -> int:
        return len(self._free())

    def start(self, shards: Sequence[int]) -> None:
        # In turn, so that blocks that run alone are not all on one lane.
        free = sorted(self._free(), key=lambda number: (number - shards[0]) % len(self.lanes))
        for shard, number in zip(shards, free, strict=False):
            lane = self.lanes[number]
            cores = spans(lane.cores, to="-", between=",")
            command = f"exec {lane_command(self.stored, self.folder, str(shard))} --tied --cores {cores}"
            chosen = {"CUDA_VISIBLE_DEVICES": lane.gpu} if lane.gpu else {}
            with self.said(shard).open("ab") as output:
                child = subprocess.Popen(["/bin/sh", "-c", command], env={**os.environ, **chosen},
                                         stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                                         start_new_session=True)  # Ctrl-C reaches the coordinator, which ends it
            self._children[shard] = number, child

    def running(self) -> set[int] | None:
        return {shard for shard, (_, child) in self._children.items() if child.poll() is None}

    def cancel(self) -> None:
        for _, child in self._children.values():
            if child.poll() is None:
                child.terminate()

    def said(self, shard: int) -> Path:
        return self.folder.shards / str(shard) / OUTPUT

    def _free(self) -> list[int]:
        busy = {number for number, child in self._children.values() if child.poll() is None}
        return [number for number in range(len(self.lanes)) if number not in busy]
