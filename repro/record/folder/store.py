"""The run folder: names every file, appends to its ledgers, reads it back as a Record."""

from __future__ import annotations

import gc
import json
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from shlex import quote
from typing import Any, cast

from pydantic import Field

from repro.core import door
from repro.core.devices import on_gpu
from repro.core.errors import OutputError
from repro.core.files import read_bounded, read_model
from repro.core.frozen import Lenient
from repro.record.environment.differences import DifferenceKind
from repro.record.environment.environment import Environment
from repro.record.environment.gpus import stand_ins
from repro.record.environment.nodes import Nodes
from repro.record.folder.execution import Execution, execution_of
from repro.record.folder.ledger import (
    WASH_OUT,
    Attempt,
    Incident,
    IncidentKind,
    Look,
    append_line,
    cut_torn_line,
    end_of,
    latest,
    read_lines,
    read_starts,
)
from repro.record.result.results import Result
from repro.suite.model import Trial
from repro.suite.planning.cell import Cell, truly_labelled
from repro.suite.planning.plan import Plan

MAX_TRIALS = 200_000
TUNING = "tuning"
"""Folder of the tuning of a run, which is a record of its own."""
SOLO = "solo"
"""Folder of the blocks of a pool that ran alone, which is a record of its own."""


class RunFolder:
    """Names of everything in one run's folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.plan = root / "plan.json"
        self.suite = root / "suite.yaml"
        self.environment = root / "environment.json"
        self.ledger = root / "ledger.jsonl"
        self.incidents = root / "incidents.jsonl"
        self.looks = root / "looks.jsonl"
        self.nodes = root / "nodes.jsonl"
        self.lanes = root / "lanes.jsonl"
        """The shards of a run in a pool."""
        self.shards = root / "shards"
        """Their folders, which are runs."""
        self.launchers = root / "launchers.json"
        """Of an early record, which has the nodes of its first start only."""
        self.parity = root / "parity"
        self.parity_verdict = root / "parity.json"
        self.trials = root / "trials"
        self.reports = root / "report"
        self.tracking = root / "tracking.json"
        self.code = root / "code"
        """Source of the classes from files, a folder for each: what the ranks import."""
        self.cache = root / "cache"
        """Compiled code, while a run executes."""

    def clear_cache(self) -> None:
        """Remove compiled code: an execution never loads what it has not compiled itself.

        Raises:
            OutputError: it cannot be removed.
        """
        try:
            if self.cache.exists():
                shutil.rmtree(self.cache)
        except OSError as error:
            raise OutputError(f"{self.cache}: cannot be removed: {error.strerror or error}") from error

    @property
    def tuning(self) -> RunFolder:
        """The tuning of this run."""
        return RunFolder(self.root / TUNING)

    @property
    def solo(self) -> RunFolder:
        """The blocks of this pool that ran alone; lanes run them in shards of the pool."""
        found = RunFolder(self.root / SOLO)
        found.shards, found.code = self.shards, self.code
        return found

    def trial(self, trial_id: str) -> Path:
        return self.trials / trial_id

    def trial_file(self, trial_id: str) -> Path:
        return self.trial(trial_id) / "trial.json"

    def log(self, trial_id: str, attempt: int) -> Path:
        """Rank 0's events of one attempt."""
        return self.trial(trial_id) / f"result_{attempt}.txt"

    def logs(self, trial_id: str) -> list[tuple[int, Path]]:
        """Return (attempt, log) of every log of a trial that is there, by name."""
        found = [(path.stem.removeprefix("result_"), path) for path in self.trial(trial_id).glob("result_*.txt")]
        return [(int(number), path) for number, path in sorted(found) if number.isdecimal()]

    def system_log(self, trial_id: str, attempt: int) -> Path:
        """System metrics of one attempt, sampled by the parent."""
        return self.trial(trial_id) / f"system_{attempt}.txt"

    def checkpoints(self, trial_id: str) -> Path:
        """Checkpoints that a trial can be resumed from; removed when it has ended."""
        return self.trial(trial_id) / "checkpoints"

    def result(self, trial_id: str) -> Path:
        return self.trial(trial_id) / "result.json"

    @classmethod
    def create(cls, root: Path) -> RunFolder:
        """Make a new, empty run folder.

        Raises:
            OutputError: it exists and is not empty, or cannot be written.
        """
        try:
            if root.exists() and (not root.is_dir() or any(root.iterdir())):
                raise OutputError(f"{root}: exists and is not an empty folder; give another --out")
            folder = cls(root)
            folder.trials.mkdir(parents=True)  # of two runs that begin here at once one gets the folder
        except OSError as error:
            raise OutputError(f"{root}: cannot be written: {error.strerror}; give another --out") from error
        return folder

    @property
    def has_trials(self) -> bool:
        """A trial is in the record, begun or ended."""
        return self.ledger.exists() or any(self.trials.glob("*"))

    def append_attempt(self, attempt: Attempt) -> None:
        """Append a line to the ledger, durable before this returns.

        Raises:
            OutputError: it cannot be written.
        """
        append_line(self.ledger, attempt)

    def append_incident(
        self, kind: IncidentKind, text: str, trial_id: str = "", difference: DifferenceKind | None = None
    ) -> None:
        """Append a line to the incidents of the run, durable before this returns.

        Raises:
            OutputError: it cannot be written.
        """
        append_line(self.incidents, Incident(at_ms=round(time.time() * 1e3), kind=kind, text=text, trial_id=trial_id,
                                             difference=difference))

    def mend(self) -> None:
        """Remove what a killed writer left unfinished; only for the process that owns the folder."""
        for path in (self.ledger, self.incidents, self.looks, self.nodes, self.lanes):
            cut_torn_line(path)
        for path in (*self.root.glob(".*.tmp"), *self.trials.glob("*/.*.tmp")):
            path.unlink()


@dataclass(frozen=True, slots=True)
class Record:
    """A run folder, read."""

    folder: RunFolder
    plan: Plan
    environment: Environment
    starts: tuple[Attempt, ...]
    """All starts of trials, in the order of the ledger."""
    results: tuple[Result, ...]
    parity: Mapping[str, Any] | None
    incidents: tuple[Incident, ...] = ()
    """Incidents of the run, in order."""
    looks: tuple[Look, ...] = ()
    """Looks of a sequential run, in order."""
    alone: tuple[Result, ...] = ()
    """Of a pool: results of blocks that also ran with no other lane busy."""
    node_history: tuple[Nodes, ...] = ()
    """Computers, links and job of the run: at its first start, and after each change."""
    derived: dict[str, object] = field(default_factory=dict, init=False, compare=False, repr=False)
    """What was computed from this record and is kept with it; a changed copy begins without."""

    @property
    def nodes(self) -> Nodes:
        """Computers, links and job at the first start, and what it took to load modules."""
        return self.node_history[0] if self.node_history else Nodes()

    @property
    def attempts(self) -> tuple[Attempt, ...]:
        """The measured starts, in the order of the ledger."""
        return tuple(item for item in self.starts if item.attempt != WASH_OUT)

    @property
    def wash_outs(self) -> tuple[Attempt, ...]:
        """The unmeasured starts, of suites with `wash_out`."""
        return tuple(item for item in self.starts if item.attempt == WASH_OUT)

    def of_cell(self, cell_id: str) -> list[Result]:
        """Return the results of one cell, by repeat."""
        return sorted((item for item in self.results if item.cell_id == cell_id), key=lambda item: item.repeat)

    def cell(self, cell_id: str) -> Cell:
        return next(cell for cell in self.plan.cells if cell.cell_id == cell_id)

    @property
    def emulated_devices(self) -> tuple[str, ...]:
        """The devices that stand for GPUs, as nodes and trials named them; () of a record without trials on GPUs."""
        if not self.plan.uses_gpus:
            return ()
        places = (self.environment, *(node.environment for moment in self.node_history for node in moment.nodes))
        named = [*(name for place in places for name in place.devices),
                 *(result.model.device for result in self.results if result.model)]
        return stand_ins(named)

    def origin_of(self, cell: Cell) -> str:
        """Return the label of a cell's figures."""
        return self.origins[cell.cell_id]

    @property
    def origins(self) -> Mapping[str, str]:
        """Cell id -> label of its figures: measured, emulated or simulated. Every row of every table asks for it."""
        if "origins" not in self.derived:
            stands = bool(self.emulated_devices)
            self.derived["origins"] = {
                cell.cell_id: "emulated" if stands and cell.choices.origin == "measured" and on_gpu(cell.choices.device)
                else cell.choices.origin for cell in self.plan.cells}
        return cast("Mapping[str, str]", self.derived["origins"])

    @property
    def execution(self) -> Execution:
        """All starts of trials, unmeasured ones as well, and where the run was resumed."""
        resumed = [item.at_ms for item in self.incidents if item.kind == "resumed"]
        return replace(execution_of(self.starts, resumed), alone=self.alone)

    def due(self) -> list[Trial]:
        """Return the planned trials that this record has or lacks: those after the end of a sequential run are neither.

        A run that its budget ended after a look has what it was for; it can be resumed all the same.
        """
        if not self.plan.design.looks:
            return list(self.plan.trials())
        end, done = end_of(self.looks), {result.trial_id for result in self.results}
        spent = self.budget_spent and bool(self.looks)
        return [trial for trial in self.plan.trials()
                if trial.trial_id in done or not (spent or (end is not None and trial.repeat >= end))]

    @property
    def planned(self) -> int:
        """Number of trials that are due."""
        return len(self.due()) if self.plan.design.looks else len(self.plan.order)

    @property
    def budget_spent(self) -> bool:
        """The last thing that happened is that the time given to a sequential run was spent."""
        ends = [place for place, item in enumerate(self.incidents) if item.kind == "budget"]
        again = (item.at_ms for item in self.incidents[ends[-1]:] if item.kind == "resumed") if ends else ()
        # Not compared with the end itself: a clock that was set back puts later trials before it.
        resumed_ms = next(iter(again), float("inf"))
        return bool(ends) and all(item.started_ms < resumed_ms for item in self.attempts)

    def due_of(self, cell_id: str) -> int:
        """Return how many trials of a cell are due."""
        if self.plan.kind == "suite" and not self.plan.design.looks:
            return self.plan.design.repeats
        return sum(trial.cell_id == cell_id for trial in self.due())

    def missing(self) -> list[Trial]:
        """Return the trials that are due and have no result yet."""
        done = {result.trial_id for result in self.results}
        return [trial for trial in self.due() if trial.trial_id not in done]

    def next_attempt(self, trial_id: str) -> int:
        """Return the number of the next start of a trial: above all in the ledger and in the names of its logs."""
        known = [item.attempt for item in self.attempts if item.trial_id == trial_id]
        logs = [number for number, _ in self.folder.logs(trial_id)]
        lost = self.plan.whole.started.get(trial_id, 0) if self.plan.whole else 0
        return 1 + max([lost, *known, *logs])


def read_record(root: Path) -> Record:
    """Read a run folder.

    Raises:
        OutputError: `root` is not a run folder, it has no trial yet, it holds a link, or a file is damaged.
    """
    folder = RunFolder(root)
    if not folder.plan.is_file():
        raise OutputError(f"{root}: is not a run folder (it has no plan.json)")
    door.refuse_links(root)
    if not folder.environment.exists() and not folder.has_trials:
        raise OutputError(f"{root}: no trial is in this record yet")
    plan, starts = read_plan(folder.plan), tuple(read_starts(folder.ledger))
    cells = {cell.cell_id for cell in plan.cells}
    if other := next((item for item in starts if item.cell_id not in cells), None):
        raise OutputError(f"{folder.ledger}: names a cell that the plan does not have: {other.cell_id[:80]}")
    with without_collector():
        results = tuple(_read_result(folder, trial) for trial in plan.trials()
                        if folder.result(trial.trial_id).is_file())
    return Record(
        folder=folder,
        plan=plan,
        environment=read_model(folder.environment, Environment),
        starts=starts,
        incidents=tuple(read_lines(folder.incidents, Incident)),
        looks=latest(read_lines(folder.looks, Look)),
        node_history=read_nodes(folder),
        results=results,
        alone=read_record(folder.solo.root).results if plan.solo and folder.solo.environment.is_file() else (),
        parity=_read_gate(folder.parity_verdict) if folder.parity_verdict.is_file() else None,
    )


@contextmanager
def without_collector() -> Iterator[None]:
    """Pause the garbage collector, which would walk thousands of objects again and again; none is garbage."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def read_nodes(folder: RunFolder) -> tuple[Nodes, ...]:
    """Read the computers of a run, at its first start and after each change.

    Raises:
        OutputError: a line is not understood.
    """
    if folder.launchers.is_file():
        return (read_model(folder.launchers, Nodes), *read_lines(folder.nodes, Nodes))
    return tuple(read_lines(folder.nodes, Nodes))


def read_plan(path: Path) -> Plan:
    """Read the plan of a record, whose cells are called what their choices are: no reader can take one for the other.

    Raises:
        OutputError: it is damaged, or an assumption of readers does not hold.
    """
    plan = read_model(path, Plan)
    check_plan(path, plan)
    cells = truly_labelled(plan.cells)
    same = all(one is other for one, other in zip(cells, plan.cells, strict=True))
    return plan if same else plan.model_copy(update={"cells": cells})  # a copy computes the names of its trials again


def check_plan(path: Path, plan: Plan) -> None:
    """Check what every reader of a record assumes about its plan.

    Raises:
        OutputError: an assumption does not hold.
    """
    if not plan.cells or len({cell.cell_id for cell in plan.cells}) < len(plan.cells):
        raise OutputError(f"{path}: cells: must name at least one cell, and none twice")
    if other := next((cell for cell in plan.cells if not cell.well_named), None):
        raise OutputError(f"{path}: cells: {other.cell_id[:80]} is not what its name says; its choices give "
                          f"{other.choices.cell_id}")
    if not lists_trials(plan) or len(set(plan.order)) < len(plan.order):
        raise OutputError(f"{path}: order: names a trial twice, or one that is of no cell, or more than {MAX_TRIALS:,}")


def lists_trials(plan: Plan) -> bool:
    """Return whether the order of a plan names trials of its cells only, and not too many."""
    return len(plan.order) <= MAX_TRIALS and all(0 <= index < len(plan.cells) and 0 <= repeat < 1 << 32
                                                 for index, repeat in plan.order)


def _read_result(folder: RunFolder, trial: Trial) -> Result:
    path = folder.result(trial.trial_id)
    try:
        result = read_model(path, Result)
    except OutputError as error:
        raise OutputError(f"{error}; `repro run --resume {quote(str(folder.root))}` sets it aside and runs "
                          "this trial again") from error
    if not result.is_of(trial):
        raise OutputError(f"{path}: is the result of another trial ({result.trial_id[:80]})")
    return result


class Finding(Lenient):
    """The fields of a finding of the parity gate that readers rely on."""

    group: str
    reference: str
    candidate: str
    problem: str | None
    largest_difference: float
    cell: str = ""
    """Of a program: its cell."""
    files: str = ""
    """Of a program: hash of the files that were traced."""
    limits: tuple[str, ...] = ()
    """Of a program: what the comparison could not see."""
    against: str = ""
    """Of a program: the cell that it was compared with; its own if it is the reference of others."""


class Gate(Lenient):
    """The fields of the parity gate's file that readers rely on."""

    needed: bool = False
    why: str = ""
    steps: int = Field(0, ge=0, lt=1 << 63)
    tolerance: float = 0.0
    findings: tuple[Finding, ...] = ()
    skipped: dict[str, str] = Field(default_factory=dict)

    @property
    def programs(self) -> frozenset[tuple[str, str]]:
        """Return the cells of programs that passed, each with the hash of the files that were traced."""
        return frozenset((item.cell, item.files) for item in self.findings if item.cell and item.problem == "")


def _read_gate(path: Path) -> dict[str, Any]:
    read_model(path, Gate)  # refuses what readers cannot rely on
    data: dict[str, Any] = json.loads(read_bounded(path))
    return data


def seconds_by_cell(record: Record) -> dict[str, float]:
    """Return cell -> mean seconds of the starts of its trials that have ended, processes included."""
    cells = {trial.trial_id: trial.cell_id for trial in record.plan.trials()}
    found: dict[str, list[float]] = {}
    for item in record.attempts:
        if (seconds := item.known_seconds) is not None and item.trial_id in cells:
            found.setdefault(cells[item.trial_id], []).append(seconds)
    return {cell: sum(each) / len(each) for cell, each in found.items()}
