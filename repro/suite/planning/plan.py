"""Suite -> Plan: the cells that run, unsupported ones with their reason, the order of execution, the modelled cost."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
from pydantic import Field, ModelWrapValidatorHandler, model_validator

from repro.core import pattern
from repro.core.devices import on_gpu
from repro.core.frozen import FORMAT, Formatted, Frozen, canonical
from repro.core.machine import Machine
from repro.core.random_streams import SEEDS_BELOW, Streams
from repro.core.yaml_file import FieldPath
from repro.suite.design import LEAST_REPEATS, PlanKind
from repro.suite.field_problem import Problem, unlocated
from repro.suite.kinds.program import SAME_PROGRAM
from repro.suite.kinds.program_files import ProgramFiles
from repro.suite.kinds.training import TrainingConfig
from repro.suite.model import METHOD, Suite, Trial
from repro.suite.planning.cell import Cell, Skipped
from repro.suite.planning.designs import check_designs, planned_design, without_primary
from repro.suite.planning.matrix import describe_plugins, expand_matrix, setting_notes
from repro.suite.planning.terms import Terms
from repro.suite.recorded import RecordedPlugin, StandIn, reading
from repro.suite.sequential import Design


@dataclass(frozen=True, slots=True)
class Drawn:
    """Random numbers that a run needs and its suite does not state.

    The command line draws them for every run; the defaults are for a plan that must be the same at every call.
    """

    master_seed: int = 20151102
    """Used if the suite states none."""
    order_seed: int = 20151102


class Whole(Frozen):
    """The plan that a shard is part of, and what other shards have run of its blocks."""

    plan_sha256: str = Field(pattern="^[0-9a-f]{64}$")
    """Of its file."""
    started: dict[str, int] = Field(default_factory=dict)
    """Trial -> number of its last start, on a lane that was lost."""


FIXED = Drawn()
C = TypeVar("C", int, str)


class Plan(Formatted):
    """The expanded suite: what will run, in which order, and what will not."""

    suite: Suite
    digest: str = Field(pattern="^[0-9a-f]{64}$")
    method: Literal["2.0"] = METHOD
    device: str
    device_count: int
    cores: int
    cpp_compiler: bool = True
    """A C++ compiler is installed."""
    plugins: tuple[RecordedPlugin, ...] = ()
    """The plug-ins of other packages in the suite, so that readers need none of them installed."""
    cells: tuple[Cell, ...]
    skipped: tuple[Skipped, ...]
    order: tuple[tuple[int, int], ...]
    """(index into cells, repeat) of every trial, in order of execution."""
    order_seed: int = Field(ge=0, lt=SEEDS_BELOW)
    """The order follows from it."""
    notes: tuple[str, ...] = ()
    """For people: declared contrasts that overrides removed, too few repeats, costs. No code searches them."""
    smoke_note: str = ""
    """The one of `notes` that says that the suite is a smoke test; "" if it is none."""
    base: str = ""
    """Folder of the suite's file, in which programs run; in a record relative to the run's folder. "": no programs."""
    kind: PlanKind = "suite"
    """suite: all that a suite expands to. tuning: the same of a suite with `tune`, whose trials are not scored.
    reproduction: chosen trials of another record, run again. calibration: cells of a suite against themselves.
    shard: chosen blocks of the plan of a pool, run on one lane."""
    terms: Terms | None = None
    """Of a reproduction: what was declared before it ran."""
    whole: Whole | None = None
    """Of a shard: the plan that it is part of."""
    solo: tuple[int, ...] = Field((), exclude_if=lambda seeds: not seeds)
    """Of a pool: seeds whose blocks also run with no other lane busy. These trials enter no verdict of the run."""

    @model_validator(mode="wrap")
    @classmethod
    def _without_plugins(cls, data: Any, handler: ModelWrapValidatorHandler[Plan]) -> Plan:
        """Read a plan although plug-ins in it are not installed here."""
        with reading(data.get("plugins", ()) if isinstance(data, Mapping) else ()):
            return handler(data)

    @model_validator(mode="after")
    def _master_seed_drawn(self) -> Plan:
        if self.suite.master_seed is None:
            raise ValueError("suite.master_seed is missing: a plan holds the one that its trials are drawn from")
        return self

    @property
    def master_seed(self) -> int:
        """Seed of every random number of the trials."""
        assert self.suite.master_seed is not None, "validated"
        return self.suite.master_seed

    def trials(self) -> Iterator[Trial]:
        """Yield every trial in order of execution."""
        return iter(self.listed_trials)

    @cached_property
    def listed_trials(self) -> tuple[Trial, ...]:
        """Every trial in order of execution: made once, because its name is a hash."""
        found, contents = [], {}
        for index, repeat in self.order:
            trial = self.trial(self.cells[index], repeat)
            if index not in contents:  # the trials of a cell differ in their repeat only
                contents[index] = trial.model_dump(mode="json", by_alias=True)
            vars(trial)["trial_id"] = trial.name_of(contents[index] | {"repeat": repeat})
            found.append(trial)
        return tuple(found)

    def trial(self, cell: Cell, repeat: int) -> Trial:
        """Return the trial of one cell and one repeat."""
        return Trial(
            suite=self.suite.suite, suite_digest=self.digest, method=self.method, choices=cell.choices, repeat=repeat,
            # Stated only where the choices alone do not identify the cell.
            master_seed=self.master_seed, side="" if cell.cell_id == cell.choices.cell_id else cell.side,
        )

    def absent_plugins(self) -> list[str]:
        """Return a sentence for each plug-in in it that is not installed here as the plan describes it."""
        return list(dict.fromkeys(choice.plugin.absence for cell in self.cells for choice in cell.choices.plugins()
                                  if isinstance(choice.plugin, StandIn)))

    def trainings(self) -> list[TrainingConfig]:
        """Return the choices of the cells that train a model here, in their order."""
        return [cell.choices for cell in self.cells
                if isinstance(cell.choices, TrainingConfig) and cell.choices.needs_parts]

    @cached_property
    def design(self) -> Design:
        """The number of repeats of its cells, the looks at which they are judged, and the subject of the target.

        A reproduction or a shard has the chosen repeats of its source, a fixed number.
        """
        found = planned_design(self.suite, self.cells, self.kind)
        if not self.is_part:
            return found
        repeats = min(Counter(index for index, _ in self.order).values(), default=self.suite.seeds)
        return Design(judges=found.judges, repeats=repeats, scored=found.scored)

    @property
    def is_part(self) -> bool:
        """Its order has chosen trials only of those that its suite expands to."""
        return self.kind in ("reproduction", "shard")

    @property
    def has_twins(self) -> bool:
        """Its cells are the two sides of a calibration, which no suite expands to."""
        return any(cell.side for cell in self.cells)

    @property
    def measures(self) -> bool:
        """Its trials are measurements, which no cell shares with another kind: they train nothing."""
        return any(not cell.choices.trains for cell in self.cells)

    @property
    def uses_gpus(self) -> bool:
        """Some of its trials run on GPUs; on a machine with GPUs the others leave them alone."""
        return any(on_gpu(cell.choices.device) for cell in self.cells)

    @property
    def searches(self) -> int:
        """Independent searches of which this tuned run is one; 1: it stands alone, as does a run without tuning."""
        return self.suite.tuned.tune.searches if self.suite.tuned is not None else 1

    @property
    def washes_out(self) -> bool:
        """An unmeasured trial runs where a trial would follow one of another cell as the first of its block."""
        return self.suite.wash_out and self.design.scored

    @property
    def smoke(self) -> bool:
        """The suite has fewer repeats than a result needs."""
        return self.suite.seeds < LEAST_REPEATS and self.design.scored


def shard_of(plan: Plan, plan_sha256: str, repeats: Collection[int], started: Mapping[str, int]) -> Plan:
    """Return the part of a plan with the blocks of some repeats, in their order."""
    order = tuple((index, repeat) for index, repeat in plan.order if repeat in repeats)
    names = {trial.trial_id for trial in plan.trials() if trial.repeat in repeats}
    return plan.model_copy(update={"kind": "shard", "order": order, "solo": (), "whole": Whole(
        plan_sha256=plan_sha256, started={name: count for name, count in started.items() if name in names})})


def solo_seeds(plan: Plan, count: int) -> tuple[int, ...]:
    """Return the seeds whose blocks also run alone: one drawn from each of `count` equal parts of the seeds that the
    run has whatever its looks say; () if there are fewer than `count`."""
    among = plan.design.looks[0] if plan.design.looks else plan.design.repeats
    draw = Streams(plan.master_seed, 0).generator("solo-blocks")
    return tuple(int(draw.integers(among * part // count, among * (part + 1) // count))
                 for part in range(count)) if count <= among else ()


def solo_plan(plan: Plan, plan_sha256: str) -> Plan:
    """Return the part of a plan of a pool that also runs alone."""
    return shard_of(plan, plan_sha256, plan.solo, {}).model_copy(update={"base": ""})


def make_plan(
    suite: Suite, machine: Machine, problem: Problem = unlocated, overridden: bool = False, drawn: Drawn = FIXED,
    folder: Path | None = None, missing: Mapping[str, str] | None = None,
) -> Plan:
    """Expand `suite` for `machine`.

    Args:
        problem: makes errors that name file and line.
        overridden: the suite was changed on the command line; a declared contrast that no cell matches any more then
            becomes a note, not an error.
        drawn: the random numbers of this run.
        folder: of the suite's file, whose programs are hashed; None: the suite states their hashes, as that of a
            record does.
        missing: label of a cell -> what was not installed that it needs, on the machine where it was planned before;
            None: what is installed here decides.

    Raises:
        SuiteError: a combination that is wrong in itself, a cell twice, a baseline that no cell matches, or nothing
            left to run.
    """
    files = ProgramFiles(folder, suite.programs)
    if suite.master_seed is None:
        suite = suite.model_copy(update={"master_seed": drawn.master_seed})
    requested, used = expand_matrix(suite, problem, files)
    if files.found:
        suite = suite.model_copy(update={"programs": dict(files.found)})
    idle = next((index for index in range(len(suite.exclude)) if index not in used), None)
    if idle is not None and not overridden and suite.tune is None:
        raise problem(f"{json.dumps(suite.exclude[idle])} excludes no combination of this suite", ("exclude", idle))
    suite, lost = _keep_contrasts(suite, requested, problem, overridden)
    check_designs(suite, requested, problem)
    suite, without = keep_factors(suite, problem, overridden)
    cells, skipped = _on_machine(requested, machine, problem, missing)
    plan = Plan(
        format=FORMAT,
        suite=suite, digest=suite_digest(suite, requested), device=machine.device,
        device_count=machine.device_count, cores=machine.cores, cpp_compiler=machine.cpp_compiler,
        plugins=describe_plugins(suite, requested),
        cells=tuple(cells), skipped=tuple(skipped), order=(), order_seed=drawn.order_seed,
        kind="suite" if suite.tune is None else "tuning",
        base=str(folder) if folder is not None and files.found else "",
    )
    plan = plan.model_copy(update={"order": tuple(planned_order(plan))})
    repeats = "1 repeat makes" if suite.seeds == 1 else f"{suite.seeds} repeats make"
    smoke_note = f"{repeats} a smoke test, not a result; {LEAST_REPEATS} are the least, 10 the default" if plan.smoke \
        else ""
    notes = (*lost, *without, *([smoke_note] if smoke_note else []), *_notes(plan, machine))
    return plan.model_copy(update={"notes": notes, "smoke_note": smoke_note})


def _keep_contrasts(suite: Suite, cells: list[Cell], problem: Problem, overridden: bool) -> tuple[Suite, list[str]]:
    """Return the suite with the contrasts that its cells can answer, and a note for each that overrides removed."""
    data = [cell.choices.stated() for cell in cells]
    wanted: list[tuple[dict[str, Any], FieldPath]] = [(suite.baseline, ("baseline",))] if suite.baseline else []
    if suite.primary:
        wanted.append((suite.primary.candidate, ("primary", "candidate")))
        wanted.append((suite.primary.baseline, ("primary", "baseline")))
    notes: list[str] = []
    sides: list[str] = []
    for item, path in wanted:
        found = [cell.label for cell, choices in zip(cells, data, strict=True) if pattern.matches(choices, item)]
        if path[0] == "primary":
            sides += found
        by_machine = item.get("device") == "auto"  # in the plan no cell has it any more, so no reader would find one
        if not by_machine and (len(found) == 1 or (found and path[0] == "baseline")):
            if 1 < len(found) == len(cells):
                notes.append(f"the declared baseline {json.dumps(item)} matches every cell, so none is compared with "
                             "it: name a level of a factor")
            continue
        what = f"matches {len(found)} cells, not one: {'; '.join(found[:8])}" if found else (
            f"matches no cell of this suite; cells: {'; '.join(cell.label for cell in cells[:8])}")
        if by_machine:
            what = "names device auto, which the machine decides: leave it out, or list cpu and cuda in the matrix"
        if not overridden:
            raise problem(f"{json.dumps(item)} {what}", path)
        notes.append(f"the declared {path[0]} is dropped: after the overrides {json.dumps(item)} {what}")
        suite = suite.model_copy(update={"baseline": {}} if path[0] == "baseline" else without_primary(suite))
    if suite.primary and sides[0] == sides[1]:  # each matches one cell
        what = f"candidate and baseline are one cell, {sides[0]}"
        if not overridden:
            raise problem(f"{what}: name two", ("primary", "candidate"))
        notes.append(f"the declared primary is dropped: after the overrides {what}")
        suite = suite.model_copy(update=without_primary(suite))
    return suite, notes


def _on_machine(
    requested: list[Cell], machine: Machine, problem: Problem, missing: Mapping[str, str] | None
) -> tuple[list[Cell], list[Skipped]]:
    """Return the cells that run on `machine`, with the device they run on, and those that do not."""
    cells: dict[str, Cell] = {}
    skipped: list[Skipped] = []
    for cell in requested:
        reason = cell.choices.unsupported(machine, installed=True)
        lacking = "" if reason else _lacking(cell, machine, missing)
        if reason or lacking:
            skipped.append(Skipped(label=cell.label, factors=cell.factors, reason=reason or lacking,
                                   missing=bool(lacking)))
            continue
        here = cell.with_choices(cell.choices.on(machine.device))
        here = here.relabelled() if "device" in here.factors else here  # no longer `auto`
        if here.cell_id in cells:
            raise problem(f"the cell {cell.label!r} is requested twice: device auto is {machine.device} here",
                          ("matrix", "device"))
        cells[here.cell_id] = here
    for cell_id, reason in _on_another_device(cells).items():
        apart = cells.pop(cell_id)
        skipped.append(Skipped(label=apart.label, factors=apart.factors, reason=reason))
    if not cells:
        raise problem(f"nothing can run on this machine: {skipped[0].label}: {skipped[0].reason}", ("trial",))
    return list(cells.values()), skipped


def _lacking(cell: Cell, machine: Machine, missing: Mapping[str, str] | None) -> str:
    """Return what is not installed that a cell needs: here, or as a plan said of another machine; "" if nothing is.

    A cell whose plug-ins ask for nothing that may be missing lacks nothing, whatever a plan says.
    """
    if missing is None:
        return cell.choices.unsupported(machine)
    said = missing.get(cell.label, "")
    return said if said and cell.choices.unsupported(machine, installed=False) else ""


def _on_another_device(cells: Mapping[str, Cell]) -> dict[str, str]:
    """Return the ids of cells on the processor that cannot share a run with those on GPUs, each with the reason."""
    if not any(on_gpu(cell.choices.device) for cell in cells.values()):
        return {}
    return {name: f"{choice.seam} {choice.kind}: it chooses one kind of device for all processes of a run, and other "
                  "cells run on GPUs; run this one apart, with -o device=cpu"
            for name, cell in cells.items() if not on_gpu(cell.choices.device)
            for choice in cell.choices.plugins() if choice.plugin.one_device}


def _notes(plan: Plan, machine: Machine) -> list[str]:
    found: list[str] = []
    if plan.suite.seeds == LEAST_REPEATS and plan.design.scored:
        found.append("5 pairs cannot be significant at the 5 % level (sign-flip floor 0.0625); 6 can")
    if plan.suite.sequential is not None and not plan.design.looks:
        found.append("no look is taken: a cell of the primary contrast cannot run here; every cell runs "
                     f"{plan.design.repeats} times, the pairs of the first look")
    found += setting_notes(plan.suite)
    found += dict.fromkeys(note for cell in plan.cells for note in cell.choices.notes(machine))
    found += _same_programs(plan)
    reasons = {reason for cell in plan.cells if (reason := cell.choices.why_no_checkpoints())}
    return [*found, *(f"{reason}: a trial of it that fails starts from the beginning"
                      for reason in sorted(reasons) if plan.suite.keeps_checkpoints)]


def _same_programs(plan: Plan) -> Iterator[str]:
    """Yield the cells of programs that differ only in numbers that the program does not get."""
    labels: dict[str, list[str]] = {}
    for cell in plan.cells:
        if (given := getattr(cell.choices, "given", None)) is not None:
            labels.setdefault(given, []).append(cell.label)
    for same in labels.values():
        if len(same) > 1:
            yield f"{'; '.join(same)}: {SAME_PROGRAM}"


def expand_again(plan: Plan, machine: Machine, elsewhere: bool = False) -> Plan:
    """Expand the suite of a plan again, with the random numbers that were drawn for it.

    Args:
        elsewhere: what was installed where the plan was made decides, as it says, and not what is installed here.

    Raises:
        SuiteError: the suite cannot be expanded here.
    """
    with reading(plan.plugins):
        missing = {item.label: item.reason for item in plan.skipped if item.missing} if elsewhere else None
        return make_plan(plan.suite, machine, overridden=True, drawn=Drawn(plan.master_seed, plan.order_seed),
                         missing=missing)


def suite_digest(suite: Suite, cells: Sequence[Cell]) -> str:
    """Return the sha256 of what defines the experiment: the complete cells; not titles, not the number of repeats.

    The master seed is no part of it, so that runs with other seeds are runs of the same experiment.
    """
    # `tuned` is no part: it says where settings come from, which are part of the cells.
    defining = {"suite", "baseline", "primary", "sequential", "margin", "horizon", "contrasts", "tune"}
    data = suite.model_dump(mode="json", by_alias=True, include=defining) | {
        "method": METHOD, "cells": sorted(canonical(cell.choices) for cell in cells),
        # Writing checkpoints is on the clock of every trial.
        "checkpoint_every": suite.checkpoint_every if suite.keeps_checkpoints else None,
        **({"wash_out": True} if suite.wash_out else {}),
        **({"unit": suite.unit} if suite.unit != "block" else {}),
    }
    if suite.tune is not None and suite.tune.searches == 1:
        del data["tune"]["searches"]  # a later field: suites without it keep their digest
    return hashlib.sha256(json.dumps(data, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def planned_order(plan: Plan) -> Iterator[tuple[int, int]]:
    """Yield the order that the seed of a plan gives to its trials.

    A reproduction or a shard has chosen ones only; of a reproduction also repeats beyond those of the suite. After the
    first look of a sequential design only two cells go on.
    """
    chosen = set(plan.order)
    blocks = 1 + max((repeat for _, repeat in chosen), default=0) if plan.is_part else plan.suite.seeds
    for index, repeat in execution_order(blocks, len(plan.cells), plan.order_seed):
        if (index, repeat) in chosen if plan.is_part else repeat < plan.design.repeats_of(index):
            yield index, repeat


def wrong_order(plan: Plan, again: Plan | None = None) -> str:
    """Return that the order is not the one that the plan's seed gives to these trials; "" if it is.

    Args:
        again: its suite, expanded again; shows cells that changed places.
    """
    here = [cell.cell_id for cell in plan.cells]
    there = [cell.cell_id for cell in again.cells] if again else here
    cells = there if sorted(there) == sorted(here) else here
    expected = [(cells[index], repeat) for index, repeat in islice(planned_order(plan), len(plan.order) + 1)]
    found = [(here[index], repeat) for index, repeat in plan.order]
    if found == expected or sorted(found) != sorted(expected):
        return ""
    place = next(at for at, (ours, wanted) in enumerate(zip(found, expected, strict=True), 1) if ours != wanted)
    return f"order is not the one that its order_seed {plan.order_seed} gives: it differs from trial {place} on"


def execution_order(repeats: int, cells: int, seed: int) -> Iterator[tuple[int, int]]:
    """Yield blocks of one seed over all cells, each shuffled on its own: no drift of the machine favours a cell.

    Args:
        repeats: number of blocks.
        seed: drawn for the run (`Plan.order_seed`). Fewer repeats give the beginning of the same order.
    """
    for repeat in range(repeats):
        generator = Streams(seed, repeat).generator("execution-order")
        yield from ((int(index), repeat) for index in generator.permutation(np.arange(cells)))


def washed_out(order: Iterable[tuple[C, int]]) -> Iterator[tuple[C, int]]:
    """Yield the trials before which an unmeasured one of their cell runs: the first of each block, unless its cell ran
    last.

    So both trials of a pair follow the same cell where a run has two cells; with more, each follows any of them
    equally often.

    Args:
        order: (cell, repeat) of every trial, in order of execution.
    """
    before: tuple[C, int] | None = None
    for cell, repeat in order:
        if before is None or (before[1] != repeat and before[0] != cell):
            yield cell, repeat
        before = cell, repeat


def keep_factors(suite: Suite, problem: Problem, overridden: bool) -> tuple[Suite, list[str]]:
    """Return the suite with the contrasts that are factors, and a note for each that overrides removed.

    Raises:
        SuiteError: a contrast that is no factor, has a single level or is named twice.
    """
    able = [key for key, levels in suite.matrix.items() if len(levels) > 1]
    known = f"factors of this suite with several levels: {', '.join(able) or 'none'}"
    kept: list[str] = []
    notes = []
    for index, name in enumerate(suite.contrasts):
        if name in kept:
            raise problem(f"{name!r} is named twice", ("contrasts", index))
        if name in able:
            kept.append(name)
            continue
        what = f"{name!r} is not a factor; {known}"
        if name in suite.matrix:
            what = f"factor {name!r} has one level, so it has no effect; {known}"
        if not overridden:
            raise problem(what, ("contrasts", index))
        notes.append(f"the main effects of {name} are dropped: after the overrides {what}")
    return (suite.model_copy(update={"contrasts": tuple(kept)}) if notes else suite), notes
