"""Suite -> Plan: matrix x seeds, exclusions, unsupported combinations with their reason, order of execution."""

from __future__ import annotations

import copy
import hashlib
import itertools
import json
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import numpy as np
from pydantic import Field, ValidationError

from repro.core import pattern
from repro.core.errors import SuiteError
from repro.core.machine import Machine
from repro.core.random_streams import Streams
from repro.core.yaml_file import FieldPath
from repro.seams.training import Engine
from repro.suite.model import METHOD, Choice, Frozen, Suite, Trial, TrialConfig, canonical, first_problem

MAX_CELLS = 5_000
"""Combinations of a matrix: each takes half a millisecond to check, and years to run."""
MAX_EXCLUDED = 500_000
"""Combinations times exclusions."""
Problem = Callable[[str, FieldPath], SuiteError]
"""Turns a problem at a path of the suite into an error that names file and line."""


class Cell(Frozen):
    """One combination of factors; its trials differ only in their seed."""

    cell_id: str
    label: str
    factors: dict[str, str]
    """The factors that vary over the plan, as a person reads them."""
    choices: TrialConfig


class Skipped(Frozen):
    """A combination that was asked for and will not run."""

    label: str
    factors: dict[str, str]
    reason: str


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
    """What a reader of the plan must know: declared contrasts that overrides took away, too few repeats."""

    def trials(self) -> Iterator[Trial]:
        """Every trial in order of execution."""
        for index, repeat in self.order:
            yield self.trial(self.cells[index], repeat)

    def trial(self, cell: Cell, repeat: int) -> Trial:
        """The trial of one cell and one repeat."""
        return Trial(
            suite=self.suite.suite, suite_digest=self.digest, choices=cell.choices, repeat=repeat,
            master_seed=self.suite.master_seed,
        )

    @property
    def smoke(self) -> bool:
        """Fewer repeats than a result needs (method.md section 3)."""
        return self.suite.seeds < 5


REPRODUCTION = "a reproduction: "
"""How the note of a plan begins that runs chosen trials of another record again."""


def is_part(plan: Plan) -> bool:
    """Whether the plan says of itself that it is a part of another one."""
    return any(note.startswith(REPRODUCTION) for note in plan.notes)


def make_plan(
    suite: Suite, machine: Machine, problem: Problem | None = None, overridden: bool = False
) -> Plan:
    """Expand `suite` for `machine`.

    Args:
        problem: makes errors that name file and line.
        overridden: the suite was changed on the command line; a declared contrast that is gone is then noted, not
            refused.

    Raises:
        SuiteError: a combination that is wrong in itself, a cell twice, a baseline that no cell matches, or nothing
            left to run.
    """
    problem = problem or (lambda text, path: SuiteError(text, field=".".join(map(str, path))))
    expanded, used = _expand(suite, problem)
    asked = _cells(suite, expanded, problem)
    idle = next((index for index in range(len(suite.exclude)) if index not in used), None)
    if idle is not None and not overridden:
        raise problem(f"{json.dumps(suite.exclude[idle])} excludes no combination of this suite", ("exclude", idle))
    suite, notes = _settled_contrasts(suite, asked, problem, overridden)
    digest = suite_digest(suite, asked)
    cells: list[Cell] = []
    names: set[str] = set()
    skipped: list[Skipped] = []
    for cell in asked:
        reason = _unsupported(cell.choices, machine)
        if reason:
            skipped.append(Skipped(label=cell.label, factors=cell.factors, reason=reason))
            continue
        settled = _on_machine(cell, machine)
        if settled.cell_id in names:
            text = f"the cell {cell.label!r} is asked for twice: device auto is {machine.device} here"
            raise problem(text, ("matrix", "device"))
        names.add(settled.cell_id)
        cells.append(settled)
    if not cells:
        raise problem(f"nothing can run on this machine: {skipped[0].label}: {skipped[0].reason}", ("trial",))
    return Plan(
        suite=suite, digest=digest, device=machine.device, device_count=machine.device_count, cores=machine.cores,
        cells=tuple(cells), skipped=tuple(skipped), order=execution_order(suite, len(cells)),
        notes=(*notes, *_few(suite), *_said(cells, machine), *_unkept(suite, cells)),
    )


def _expand(suite: Suite, problem: Problem) -> tuple[list[TrialConfig], set[int]]:
    """All combinations of the matrix that are not excluded, validated; and which exclusions excluded something."""
    found: list[TrialConfig] = []
    used: set[int] = set()
    count = math.prod(len(levels) for levels in suite.matrix.values())
    if count > MAX_CELLS:
        many = count if count < 1 << 63 else "endlessly many"
        raise problem(f"its factors have {many} combinations; {MAX_CELLS} are the most", ("matrix",))
    if count * len(suite.exclude) > MAX_EXCLUDED:
        raise problem(f"{len(suite.exclude)} exclusions of {count} combinations are too many to be looked through",
                      ("exclude",))
    level_lists = [list(enumerate(levels)) for levels in suite.matrix.values()]
    for combination in itertools.product(*level_lists):
        levels = dict(zip(suite.matrix, combination, strict=True))
        data: dict[str, Any] = copy.deepcopy(suite.trial)
        for key, (_, value) in levels.items():
            pattern.put(data, key, copy.deepcopy(value))
        if _excluded(_kinds(data), suite, used):
            continue
        try:
            choices = TrialConfig.model_validate(data)
        except ValidationError as error:
            raise _located(error, levels, problem) from error
        # Once more with the defaults filled in: what an exclusion names need not have been written out.
        if not _excluded(choices.model_dump(mode="json", by_alias=True), suite, used):
            found.append(choices)
    if not found:
        raise problem("every combination is excluded", ("exclude",))
    return found, used


def _excluded(cell: dict[str, Any], suite: Suite, used: set[int]) -> bool:
    """Whether an exclusion agrees with the cell; `used` learns which ones did."""
    hits = {index for index, item in enumerate(suite.exclude) if pattern.matches(cell, item)}
    used |= hits
    return bool(hits)


def _kinds(data: dict[str, Any]) -> dict[str, Any]:
    """A trial as written, with plug-ins given by name as mappings, so that patterns read both alike."""
    seams = ("workload", "engine", "comm", "precision", "optimizer", "launcher")
    return {key: {"kind": value} if key in seams and isinstance(value, str) else value for key, value in data.items()}


def _located(error: ValidationError, levels: dict[str, tuple[int, Any]], problem: Problem) -> SuiteError:
    text, path = first_problem(error, TrialConfig)
    where = ".".join(map(str, path))
    for key, (index, _) in sorted(levels.items(), key=lambda item: -len(item[0])):  # engine.stage before engine
        if where == key or where.startswith(f"{key}."):
            rest = path[len(key.split(".")):]
            return problem(text, ("matrix", key, index, *rest))
    if levels and "processes" in text:
        text += f" (with {', '.join(f'{key}={json.dumps(value)}' for key, (_, value) in levels.items())})"
    return problem(text, ("trial", *path))


def _cells(suite: Suite, expanded: list[TrialConfig], problem: Problem) -> list[Cell]:
    cells: list[Cell] = []
    seen: dict[str, str] = {}
    varying = _varying(suite, expanded)
    for choices in expanded:
        factors = {key: _shown(choices, key) for key in varying}
        label = ", ".join(_phrase(key, value) for key, value in factors.items()) or choices.engine.label
        cell = Cell(cell_id=choices.cell_id, label=label, factors=factors, choices=choices)
        if canonical(choices) in seen:
            raise problem(f"the cell {label!r} is asked for twice", ("matrix", *_repeated(suite)))
        seen[canonical(choices)] = label
        cells.append(cell)
    return cells


def _varying(suite: Suite, expanded: list[TrialConfig]) -> list[str]:
    return [key for key in suite.matrix if len({_shown(choices, key) for choices in expanded}) > 1]


def _shown(choices: TrialConfig, key: str) -> str:
    value: Any = getattr(choices, key, None)
    if isinstance(value, Choice):
        return value.label
    value = pattern.get(choices.model_dump(mode="json", by_alias=True), key)
    return json.dumps(value, sort_keys=True) if isinstance(value, dict | list) else str(value)


def _phrase(key: str, value: str) -> str:
    if key == "processes":
        return f"{value} process{'es' if value != '1' else ''}"
    if key in ("engine", "workload", "precision", "comm", "optimizer", "launcher"):
        return value
    if key == "batch.global":
        return f"batch {value}"
    return f"{key.split('.')[-1].replace('_', ' ')} {value}"


def _repeated(suite: Suite) -> tuple[str, ...]:
    """The first factor that lists one level twice; none where two factors set the same field."""
    for key, levels in suite.matrix.items():
        if len({json.dumps(level, sort_keys=True) for level in levels}) < len(levels):
            return (key,)
    return ()


def _settled_contrasts(
    suite: Suite, cells: list[Cell], problem: Problem, overridden: bool
) -> tuple[Suite, list[str]]:
    """The suite with contrasts that its cells can answer, and a note for each that overrides took away."""
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
        what = f"agrees with {len(found)} cells, not one: {'; '.join(found[:8])}" if found else (
            f"agrees with no cell of this suite; cells: {'; '.join(cell.label for cell in cells[:8])}")
        if not overridden:
            raise problem(f"{json.dumps(item)} {what}", path)
        notes.append(f"the declared {path[0]} is gone: after the overrides {json.dumps(item)} {what}")
        suite = suite.model_copy(update={"baseline": {}} if path[0] == "baseline" else {"primary": None})
    return suite, notes


def _few(suite: Suite) -> list[str]:
    if suite.seeds < 5:
        return [f"{suite.seeds} repeats make a smoke test, not a result; 5 are the least, 10 the default"]
    if suite.seeds == 5:
        return ["5 pairs cannot be significant at the 5 % level (sign-flip floor 0.0625); 6 can"]
    return []


def _unkept(suite: Suite, cells: Sequence[Cell]) -> list[str]:
    """Engines whose trials begin anew, though the suite wants them to go on from checkpoints."""
    kinds = {cell.choices.engine.kind for cell in cells if not cell.choices.engine.get(Engine).checkpoints}
    return [f"engine {kind} keeps no checkpoints: a trial of it that fails runs again from its start"
            for kind in sorted(kinds) if suite.keeps_checkpoints]


def suite_digest(suite: Suite, cells: Sequence[Cell]) -> str:
    """sha256 over what defines the experiment: the cells, complete; not titles, not the number of repeats."""
    data = {
        "suite": suite.suite, "method": METHOD, "master_seed": suite.master_seed, "baseline": suite.baseline,
        "primary": suite.primary.model_dump(mode="json") if suite.primary else None,
        "cells": sorted(canonical(cell.choices) for cell in cells),
    }
    # Came later: named only where they are not the default, so that older suites keep their digest.
    data |= {key: value for key, value in (("margin", suite.margin), ("horizon", suite.horizon))
             if value != Suite.model_fields[key].default}
    if suite.keeps_checkpoints:  # writing them is on the clock of every trial
        data["checkpoint_every"] = suite.checkpoint_every
    return hashlib.sha256(json.dumps(data, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _unsupported(choices: TrialConfig, machine: Machine) -> str | None:
    if choices.device == "cuda" and machine.device != "cuda":
        return "device cuda was asked for and no usable GPU is here"
    device = machine.device if choices.device == "auto" else choices.device
    setting = choices.setting(device, machine.device_count if device == "cuda" else 0)
    for choice in choices.plugins():
        reason = choice.plugin.unsupported(setting)
        if reason:
            return f"{choice.seam} {choice.kind}: {reason}"
    return None


BITWISE = ("determinism bitwise costs time, which is in every figure of its cells: deterministic kernels, and hashes "
           "of the weights in the logging; how much it is here, `repro run determinism` measures")


def _said(cells: list[Cell], machine: Machine) -> list[str]:
    """What the plug-ins of the plan want its reader to know, each once."""
    found: dict[str, None] = {}
    if any(cell.choices.determinism == "bitwise" and cell.choices.origin != "simulated" for cell in cells):
        found[BITWISE] = None
    for cell in cells:
        setting = cell.choices.setting(cell.choices.device, machine.device_count)
        for choice in cell.choices.plugins():
            if text := choice.plugin.note(setting):
                found[f"{choice.seam} {choice.label}: {text}"] = None
    return list(found)


def _on_machine(cell: Cell, machine: Machine) -> Cell:
    """The cell with its device settled, so that a record says where it ran."""
    if cell.choices.device != "auto":
        return cell
    choices = cell.choices.model_copy(update={"device": machine.device})
    return cell.model_copy(update={"choices": choices, "cell_id": choices.cell_id})


def execution_order(suite: Suite, cells: int) -> tuple[tuple[int, int], ...]:
    """Blocks of one seed over all cells, shuffled inside the block: machine drift hits all cells alike."""
    order: list[tuple[int, int]] = []
    for repeat in range(suite.seeds):
        generator = Streams(suite.master_seed, repeat).generator("execution-order")
        order += [(int(index), repeat) for index in generator.permutation(np.arange(cells))]
    return tuple(order)
