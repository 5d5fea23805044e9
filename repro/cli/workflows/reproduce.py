"""Reproduction of a record: run its trials again and judge the results."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any

from repro.bundle.judge import Reproduction, judge
from repro.bundle.source import open_record
from repro.bundle.verify import verify
from repro.cli.terminal import command
from repro.cli.workflows.run import execute
from repro.compare.evidence.repeated import repeated_cells
from repro.core.errors import Exit, OutputError, RecordModified, UsageError, nearest
from repro.core.files import read_bounded, write_json
from repro.core.machine import Machine, detect
from repro.core.random_streams import fresh_seed
from repro.record.folder.limits import check_size
from repro.record.folder.resume import reopen
from repro.record.folder.store import Record, RunFolder, read_record
from repro.record.folder.stored_code import allow_code_of, classes_from_files
from repro.runner.run import dated, prepare
from repro.suite.metrics import METRICS
from repro.suite.planning.consent import permissions, require_allowed, require_code
from repro.suite.planning.plan import Plan, planned_order

FILE = "reproduction.json"


@dataclass(frozen=True, slots=True)
class Reproduced:
    """The answer, and the folder of the second execution."""

    reproduction: Reproduction
    source: str
    identity: str | None
    run: Path

    @property
    def exit_code(self) -> Exit:
        """0 only if reproduced, so that a script never mistakes "inconclusive" for it."""
        return Exit.DONE if self.reproduction.answer == "reproduced" else Exit.NOT_REPRODUCED

    def as_json(self) -> dict[str, Any]:
        return {"exit_code": int(self.exit_code), "source": self.source, "identity": self.identity,
                "run": str(self.run), **self.reproduction.as_json()}

    def text(self) -> str:
        return f"{self.reproduction.text()}\nrun:    {self.run}"


def reproduce(
    source: Path, trials: str | None, out: Path | None, force: bool = False, resume: Path | None = None,
    allowed: Sequence[str] = (), code: str | None = None,
) -> Reproduced:
    """Run all or some trials of the record at `source` again, and judge the results.

    Args:
        trials: a number (the first seeds of every cell) or comma-separated ids; None: all that have a result.
        force: also if `verify` finds the record modified. With `resume` also if the machine or code have changed since
            the reproduction began.
        resume: the folder of an interrupted reproduction to complete.
        allowed: values of options that may lead out of the run, `SEAM.OPTION=VALUE`.
        code: hash of the code that the record brings and may run; None: none may.

    Raises:
        RecordModified: the record was modified.
        OutputError: the record cannot be read, or the run folder cannot be written.
        UsageError: no trial is chosen, this machine cannot run it, it is larger than one run can be, or `resume` is
            of another record.
        KeyboardInterrupt: a signal ended the run; completed trials are kept and not judged.
        ReproError: the run could not be completed.
    """
    checked = verify(source)
    if not checked.sound and not force:
        raise RecordModified(f"{source}: was modified ({checked.problems[0].text()}); for all problems run `repro "
                             f"verify {source}`, to reproduce it nevertheless add --force")
    with open_record(source) as root:
        first = read_record(root)
        require_trainings(source, first)
        require_code(str(source), first.plan.cells, code)
        if files := classes_from_files(first.plan):
            allow_code_of(first.folder.code, ((item.kind, item.code) for item in files))
            first = read_record(root)  # with the classes instead of their stand-ins
        if resume is not None:
            folder, plan = reopen_reproduction(resume, first)
            require_allowed(str(source), (*first.plan.cells, *plan.cells), allowed)
        else:
            require_allowed(str(source), first.plan.cells, allowed)
            plan = reduce_plan(first.plan, choose_trials(first, trials), detect(), fresh_seed())
            check_size(plan)
            folder = prepare(plan, _suite_text(first), out or dated(f"{plan.suite.suite}-reproduce"),
                             brought=first.folder.code)
        chosen = [(plan.cells[index].cell_id, repeat) for index, repeat in plan.order]
        origin = {"source": source.name, "identity": checked.identity, "of": figures_sha256(first)}
        write_json(folder.root / FILE, {**origin, "answer": None})  # a running reproduction has no answer yet
        on = command(f"reproduce {quote(str(source))} --resume {quote(str(folder.root))}"
                     f"{permissions(first.plan.cells)}")
        second = execute(plan, folder, kept="nothing is judged; completed trials are kept",
                                  next_step=f"resume with: {on}", force=force)
        found = judge(first, second, chosen)
    write_json(folder.root / FILE, {**origin, **found.as_json()})
    return Reproduced(found, str(source), checked.identity, folder.root)


def require_trainings(source: Path, record: Record) -> None:
    """Refuse to reproduce a figure that training alone decides from a record of one training repeated.

    Raises:
        UsageError: a cell of it has only one training.
    """
    spec = METRICS[record.plan.suite.metric]
    for item in repeated_cells(record) if spec.by_training else ():
        if item.trainings == 1:
            raise UsageError(f"{source}: is a record of one training repeated ({item.short}), so its {spec.noun} "
                             "cannot be reproduced; in a new run let every trial train with its own seed")


def figures_sha256(record: Record) -> str:
    """Return a hash over the times and figures of the trials, which identifies an execution as a run or a bundle."""
    starts = [[item.trial_id, item.attempt, item.started_ms] for item in record.attempts]
    figures = [[item.trial_id, item.attempt, item.status, item.run_seconds,
                [[at.samples, at.wall_seconds, at.value] for at in item.curve]] for item in record.results]
    return hashlib.sha256(json.dumps([starts, figures]).encode()).hexdigest()


def reopen_reproduction(root: Path, first: Record) -> tuple[RunFolder, Plan]:
    """Open an interrupted reproduction of the record `first`.

    Raises:
        OutputError: `root` is no run folder, or its plan is damaged.
        UsageError: it is no reproduction of this record.
    """
    folder, plan = reopen(root)
    have = {(item.cell_id, item.repeat) for item in first.results}
    wanted = {(plan.cells[index].cell_id, repeat) for index, repeat in plan.order}
    same = plan.digest == first.plan.digest and not wanted - have and _reproduced_figures(root) == figures_sha256(first)
    if plan.kind != "reproduction" or not same:
        raise UsageError(f"{root}: is not a reproduction of this record; to start one, omit --resume")
    reduce_plan(first.plan, sorted(wanted), detect(), 0)  # raises, before any write, if this machine cannot
    return folder, plan


def _reproduced_figures(root: Path) -> object:
    """Return the hash of the execution that a reproduction started from; None if its folder does not hold it."""
    try:
        found = json.loads(read_bounded(root / FILE))
    except (OutputError, ValueError, RecursionError):
        return None
    return found.get("of") if isinstance(found, dict) else None


def choose_trials(record: Record, trials: str | None) -> list[tuple[str, int]]:
    """Return (cell id, repeat) of the trials to run again; the choice never depends on their results.

    Raises:
        UsageError: neither a number nor ids of this record, or no trial has a result.
    """
    have = {(item.cell_id, item.repeat): item.trial_id for item in record.results}
    if not have:
        raise UsageError("the record holds no result to reproduce")
    if trials is None:
        return list(have)
    if trials.strip().isdecimal():
        count = int(trials.strip()[:9])  # no record has so many; Python refuses numbers of thousands of digits
        if count < 1:
            raise UsageError("--trials 0: must be at least 1")
        return [key for key in have if key[1] in sorted({repeat for cell, repeat in have if cell == key[0]})[:count]]
    by_id = {trial_id: key for key, trial_id in have.items()}
    wanted = [part.strip() for part in trials.split(",") if part.strip()]
    if unknown := next((part for part in wanted if part not in by_id), None):
        known = nearest(unknown, list(by_id)) if len(by_id) <= 12 else \
            f" among {len(by_id)}, for example {next(iter(by_id))}"
        raise UsageError(f"--trials: no trial with a result named {unknown!r}{known}")
    return [by_id[part] for part in dict.fromkeys(wanted)]


def reduce_plan(plan: Plan, chosen: Sequence[tuple[str, int]], machine: Machine, order_seed: int) -> Plan:
    """Return the plan of the record with the chosen trials only, its cells as written.

    Args:
        order_seed: for an order of its own: what only the order caused must not be reproduced with it.

    Raises:
        UsageError: this machine cannot run a cell, or a plug-in is not installed; the message gives the reason.
    """
    if absent := plan.absent_plugins():
        raise UsageError("; ".join(absent))
    wanted, kept = set(chosen), {name for name, _ in chosen}
    for cell in plan.cells:
        if cell.cell_id in kept and (why := cell.choices.unsupported(machine)):
            raise UsageError(f"{cell.label}: cannot run here: {why}")
    cells = tuple(cell for cell in plan.cells if cell.cell_id in kept)
    places = {cell.cell_id: place for place, cell in enumerate(cells)}
    order = tuple((places[plan.cells[index].cell_id], repeat) for index, repeat in plan.order
                  if (plan.cells[index].cell_id, repeat) in wanted)
    note = f"a reproduction: {len(order)} of {len(plan.order)} trials of a record are run again"
    found = plan.model_copy(update={
        "kind": "reproduction", "base": "", "cells": cells, "order": order, "notes": (*plan.notes, note),
        "cores": machine.cores, "device_count": machine.device_count, "order_seed": order_seed,
    })
    return found.model_copy(update={"order": tuple(planned_order(found))})


def _suite_text(record: Record) -> str:
    try:
        return read_bounded(record.folder.suite).decode()
    except (OutputError, UnicodeDecodeError):
        return "# the record that was reproduced holds no suite file; plan.json has all of it\n"
