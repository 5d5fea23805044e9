"""Suite -> Plan: the cells that run, unsupported combinations with their reason, the order of execution."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import numpy as np
from pydantic import Field, model_validator

from repro.core import pattern
from repro.core.errors import SuiteError
from repro.core.frozen import Frozen
from repro.core.machine import Machine
from repro.core.random_streams import Streams
from repro.core.yaml_file import FieldPath
from repro.suite import legacy
from repro.suite.cell import Cell, Skipped
from repro.suite.identity import METHOD, canonical
from repro.suite.legacy import PlanKind
from repro.suite.matrix import Problem, expand_matrix
from repro.suite.model import Suite, Trial

LEAST_SEEDS = 5
"""Repeats that a result needs (method.md section 3); fewer make a smoke test."""


class Plan(Frozen):
    """The expanded suite: what will run, in which order, and what will not."""

    schema_: Literal[1] = Field(default=1, alias="schema")
    suite: Suite
    digest: str = Field(pattern="^[0-9a-f]{64}$")
    method: str = METHOD
    device: str
    device_count: int
    cores: int
    cells: tuple[Cell, ...]
    skipped: tuple[Skipped, ...]
    order: tuple[tuple[int, int], ...]
    """(index into cells, repeat) of every trial, in order of execution."""
    notes: tuple[str, ...] = ()
    """For people: declared contrasts that overrides removed, too few repeats, costs. No code searches them."""
    smoke_note: str = ""
    """The one of `notes` that says that the suite is a smoke test; "" if it is none."""
    kind: PlanKind = "suite"
    """suite: all that a suite expands to. reproduction: chosen trials of another record, run again. calibration: cells
    of a suite against themselves."""

    @model_validator(mode="after")
    def _from_older_version(self) -> Plan:
        if "kind" not in self.model_fields_set:
            object.__setattr__(self, "kind", legacy.plan_kind(self.suite.title, self.notes))
            object.__setattr__(self, "cells", legacy.with_sides(self.suite.title, self.cells))
            object.__setattr__(self, "smoke_note", legacy.smoke_note(self.notes))
        return self

    def trials(self) -> Iterator[Trial]:
        """Yield every trial in order of execution."""
        for index, repeat in self.order:
            yield self.trial(self.cells[index], repeat)

    def trial(self, cell: Cell, repeat: int) -> Trial:
        """Return the trial of one cell and one repeat."""
        return Trial(
            suite=self.suite.suite, suite_digest=self.digest, choices=cell.choices, repeat=repeat,
            master_seed=self.suite.master_seed, side=cell.trial_side,
        )

    @property
    def has_twins(self) -> bool:
        """Its cells are the two sides of a calibration, which no suite expands to."""
        return any(cell.side for cell in self.cells)

    @property
    def smoke(self) -> bool:
        """The suite has fewer repeats than a result needs."""
        return self.suite.seeds < LEAST_SEEDS


def make_plan(
    suite: Suite, machine: Machine, problem: Problem | None = None, overridden: bool = False
) -> Plan:
    """Expand `suite` for `machine`.

    Args:
        problem: makes errors that name file and line.
        overridden: the suite was changed on the command line; a declared contrast that no cell matches any more then
            becomes a note, not an error.

    Raises:
        SuiteError: a combination that is wrong in itself, a cell twice, a baseline that no cell matches, or nothing
            left to run.
    """
    problem = problem or (lambda text, path: SuiteError(text, field=".".join(map(str, path))))
    requested, used = expand_matrix(suite, problem)
    idle = next((index for index in range(len(suite.exclude)) if index not in used), None)
    if idle is not None and not overridden:
        raise problem(f"{json.dumps(suite.exclude[idle])} excludes no combination of this suite", ("exclude", idle))
    suite, lost = _keep_contrasts(suite, requested, problem, overridden)
    cells, skipped = _on_machine(requested, machine, problem)
    plan = Plan(
        suite=suite, digest=suite_digest(suite, requested), device=machine.device, device_count=machine.device_count,
        cores=machine.cores, cells=tuple(cells), skipped=tuple(skipped), order=execution_order(suite, len(cells)),
        kind="suite",
    )
    smoke_note = _smoke_note(plan)
    notes = (*lost, *([smoke_note] if smoke_note else []), *_notes(plan, machine))
    return plan.model_copy(update={"notes": notes, "smoke_note": smoke_note})


def _keep_contrasts(
    suite: Suite, cells: list[Cell], problem: Problem, overridden: bool
) -> tuple[Suite, list[str]]:
    """Return the suite with the contrasts that its cells can answer, and a note for each that overrides removed."""
    data = [cell.choices.model_dump(mode="json", by_alias=True) for cell in cells]
    wanted: list[tuple[dict[str, Any], FieldPath]] = [(suite.baseline, ("baseline",))] if suite.baseline else []
    if suite.primary:
        wanted.append((suite.primary.candidate, ("primary", "candidate")))
        wanted.append((suite.primary.baseline, ("primary", "baseline")))
    notes: list[str] = []
    for item, path in wanted:
        found = [cell.label for cell, choices in zip(cells, data, strict=True) if pattern.matches(choices, item)]
        if len(found) == 1 or (found and path[0] == "baseline"):
            continue
        what = f"matches {len(found)} cells, not one: {'; '.join(found[:8])}" if found else (
            f"matches no cell of this suite; cells: {'; '.join(cell.label for cell in cells[:8])}")
        if not overridden:
            raise problem(f"{json.dumps(item)} {what}", path)
        notes.append(f"the declared {path[0]} is dropped: after the overrides {json.dumps(item)} {what}")
        suite = suite.model_copy(update={"baseline": {}} if path[0] == "baseline" else {"primary": None})
    return suite, notes


def _on_machine(requested: list[Cell], machine: Machine, problem: Problem) -> tuple[list[Cell], list[Skipped]]:
    """Return the cells that run on `machine`, with the device they run on, and those that do not."""
    cells: dict[str, Cell] = {}
    skipped: list[Skipped] = []
    for cell in requested:
        if reason := cell.choices.unsupported(machine):
            skipped.append(Skipped(label=cell.label, factors=cell.factors, reason=reason))
            continue
        here = cell
        if cell.choices.device == "auto":
            here = cell.with_choices(cell.choices.model_copy(update={"device": machine.device}))
        if here.cell_id in cells:
            raise problem(f"the cell {cell.label!r} is requested twice: device auto is {machine.device} here",
                          ("matrix", "device"))
        cells[here.cell_id] = here
    if not cells:
        raise problem(f"nothing can run on this machine: {skipped[0].label}: {skipped[0].reason}", ("trial",))
    return list(cells.values()), skipped


def _smoke_note(plan: Plan) -> str:
    """Return the note of a smoke test; "" if it is none."""
    if not plan.smoke:
        return ""
    return f"{plan.suite.seeds} repeats make a smoke test, not a result; {LEAST_SEEDS} are the least, 10 the default"


def _notes(plan: Plan, machine: Machine) -> list[str]:
    """Return the other notes on the plan, each once."""
    found: list[str] = []
    if plan.suite.seeds == LEAST_SEEDS:
        found.append("5 pairs cannot be significant at the 5 % level (sign-flip floor 0.0625); 6 can")
    found += dict.fromkeys(note for cell in plan.cells for note in cell.choices.notes(machine))
    return [*found, *_without_checkpoints(plan)]


def _without_checkpoints(plan: Plan) -> list[str]:
    """Return why some trials start from the beginning, although the suite resumes them from checkpoints."""
    if not plan.suite.keeps_checkpoints:
        return []
    reasons = sorted({reason for cell in plan.cells if (reason := cell.choices.why_no_checkpoints())})
    return [f"{reason}: a trial of it that fails starts from the beginning" for reason in reasons]


def suite_digest(suite: Suite, cells: Sequence[Cell]) -> str:
    """Return the sha256 of what defines the experiment: the complete cells; not titles, not the number of repeats."""
    data = {
        "suite": suite.suite, "method": METHOD, "master_seed": suite.master_seed, "baseline": suite.baseline,
        "primary": suite.primary.model_dump(mode="json") if suite.primary else None,
        "cells": sorted(canonical(cell.choices) for cell in cells),
    }
    # Newer than the first suites: part of the digest only if not the default, so that older suites keep theirs.
    data |= {key: value for key, value in (("margin", suite.margin), ("horizon", suite.horizon))
             if value != Suite.model_fields[key].default}
    if suite.keeps_checkpoints:  # writing them is on the clock of every trial
        data["checkpoint_every"] = suite.checkpoint_every
    return hashlib.sha256(json.dumps(data, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def execution_order(suite: Suite, cells: int) -> tuple[tuple[int, int], ...]:
    """Blocks of one seed over all cells, shuffled inside the block: machine drift affects all cells alike."""
    order: list[tuple[int, int]] = []
    for repeat in range(suite.seeds):
        generator = Streams(suite.master_seed, repeat).generator("execution-order")
        order += [(int(index), repeat) for index in generator.permutation(np.arange(cells))]
    return tuple(order)
