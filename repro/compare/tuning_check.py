"""Is a tuning fair? Budgets of the contenders, seeds of tuning and scoring, and settings that no declared search gave.

Everything is read back from what the record holds: the drawn settings are drawn again, the ledger is counted, and the
seeds of the tuning trials are those of their plan, not those that the suite states.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from repro.compare.cells import tuned_levels
from repro.record.folder.store import Record
from repro.record.result.results import Result
from repro.record.result.status import meaning
from repro.record.tuning import TunedContender, Tuning, read_tuning, tuning_of, tuning_sha256
from repro.suite.contenders import Contender, drawn_again
from repro.suite.levels import contender_label
from repro.suite.recorded import reading
from repro.suite.tune import Space, Tune

OPTIMIZERS = ("optimizer", "preconditioner")
"""Factors that say how an update is made."""
NEAR = 0.1
"""Share of a range, from either end, in which a chosen value is said to be near that end."""


@dataclass(frozen=True, slots=True)
class Budget:
    """Tuning budget of one contender."""

    label: str
    settings: int
    """Declared."""
    seeds: int
    space: Space
    trials: int | None
    """With a result; None: the tuning is not in this record."""
    further: int = 0
    """Starts that ended with a result beyond one for each planned trial."""
    untried: int = 0
    """Declared settings that no trial was planned for: excluded, or not possible on that machine."""

    @property
    def given(self) -> int:
        """Trials that it may have had: planned, and all found beyond those."""
        return (self.settings - self.untried) * self.seeds + self.further


@dataclass(frozen=True, slots=True)
class TuningCheck:
    """The tuning of a record, and what is wrong with it."""

    tune: Tune
    tuning: Tuning | None
    """None: a frozen suite, whose tuning is elsewhere."""
    tuning_seed: int
    scored_seed: int | None
    """None: the record is the tuning itself."""
    budgets: tuple[Budget, ...]
    budget_problems: tuple[str, ...]
    seed_problems: tuple[str, ...]

    @property
    def problems(self) -> tuple[str, ...]:
        return (*self.budget_problems, *self.seed_problems)


def check_tuning(record: Record) -> TuningCheck | None:
    """Return the tuning of a record with its problems; None if its suite states none.

    Raises:
        OutputError: the tuning below the record is damaged.
    """
    plan = record.plan
    alone = plan.kind == "tuning"
    tune = plan.suite.tune if alone else plan.suite.tuned.tune if plan.suite.tuned else None
    if tune is None:
        return None
    found = tuning_of(record) if alone else read_tuning(record.folder.root)
    scored = None if alone else plan.master_seed
    with reading(plan.plugins):
        drawn = drawn_again(plan.suite)
    budgets = tuple(_budgets(tune, drawn, found))
    seed = found.master_seed if found else plan.suite.tuned.master_seed if plan.suite.tuned else plan.master_seed
    return TuningCheck(
        tune, found, seed, scored, budgets, tuple(_budget_problems(record, budgets, drawn, found)),
        tuple(_seed_problems(record, found)))


def near_an_end(space: Space, values: Mapping[str, Any]) -> list[str]:
    """Return what to say of chosen values in the outer tenths of their ranges: a better one may lie beyond."""
    found = []
    for name, axis in sorted(space.space.items()):
        value = values.get(name)
        if axis.choices is not None or not isinstance(value, int | float):
            continue
        scale = math.log if axis.log else float
        low, high = map(scale, axis.ends)
        place = (scale(value) - low) / (high - low)
        if place < NEAR or place > 1 - NEAR:
            found.append(f"{name} is near the {'lower' if place < NEAR else 'upper'} end of its range")
    return found


def untuned_optimizers(record: Record) -> bool:
    """Return whether a record compares optimizers without saying where their settings come from."""
    varied = any(key.partition(".")[0] in OPTIMIZERS for cell in record.plan.cells for key in cell.factors)
    return varied and record.plan.suite.tuned is None and record.plan.kind != "tuning"


def _budgets(tune: Tune, drawn: Sequence[Contender], found: Tuning | None) -> Iterator[Budget]:
    if found is None:
        for item in drawn:
            yield Budget(item.label, len(item.settings), tune.seeds, item.space, None)
        return
    further = _further(found)
    for one in found.contenders:
        cells = {setting.cell.cell_id for setting in one.settings if setting.cell is not None}
        yield Budget(one.label, one.budget, tune.seeds, one.space, one.cost.trials,
                     sum(count for cell_id, count in further.items() if cell_id in cells),
                     sum(setting.cell is None for setting in one.settings))


def _further(found: Tuning) -> Counter[str]:
    """Return cell id -> starts with a result of their own, beyond the first of each planned trial."""
    planned = {trial.trial_id for trial in found.record.plan.trials()}
    counts = Counter((item.cell_id, item.trial_id) for item in found.record.attempts if meaning(item.status).stands)
    extra: Counter[str] = Counter()
    for (cell_id, trial_id), count in counts.items():
        extra[cell_id] += count - (trial_id in planned)
    return extra


def _budget_problems(
    record: Record, budgets: Sequence[Budget], drawn: Sequence[Contender], found: Tuning | None
) -> Iterator[str]:
    if not budgets:
        yield "the declared search cannot be drawn again here, so the settings cannot be checked against it"
    most, least = (pick(budgets, key=lambda item: item.given, default=None) for pick in (max, min))
    if most and least and most.given != least.given:
        reason = next((item.space.unequal for item in budgets if item.space.unequal), "")
        why = f" (declared: {' '.join(reason.split())})" if reason else ""
        yield f"{most.label} had {most.given} tuning trials, {least.label} {least.given}{why}"
    for item in budgets:
        if item.untried:
            yield f"{item.label}: {item.untried} of its {item.settings} settings were never tried"
        if item.further:
            yield (f"{item.label}: {item.further} starts in the ledger ended with a result beyond its "
                   f"{item.settings * item.seeds} declared trials")
    if found is not None and (missing := found.record.missing()):
        yield f"{len(missing)} of {len(found.record.plan.order)} tuning trials have no result"
    if record.plan.kind != "tuning":
        yield from _setting_problems(record, drawn, found)


def _setting_problems(record: Record, drawn: Sequence[Contender], found: Tuning | None) -> Iterator[str]:
    """Yield scored settings that the declared search does not explain."""
    suite = record.plan.suite
    given = {_key(item.where): item for item in suite.settings}
    by_key = {_key(item.levels): item for item in drawn}
    for key, item in given.items():
        of = by_key.get(key)
        if by_key and item.set_ is not None and (of is None or item.set_ not in of.settings):
            yield (f"the scored setting of {contender_label(item.where, item.set_)} is none of the "
                   f"{len(of.settings) if of else 0} that the declared search draws")
    for key, contender in by_key.items():
        if key not in given:
            yield f"{contender.label} was not scored with a tuned setting"
    if drawn and suite.settings:
        levels = tuned_levels(record.plan)  # none if it cannot be told here
        if not all(any(_has(levels[cell.cell_id], item.where) for item in suite.settings)
                   for cell in record.plan.cells if cell.cell_id in levels):
            yield "a scored cell has no tuned setting, although others have one"
    if found is None:
        return
    assert suite.tuned is not None
    if suite.tuned.tune != found.tune:
        yield "the search that ran is not the one that the suite declares"
    if tuning_sha256(found.record) != suite.tuned.record:
        yield "the tuning below this run is not the one that its settings come from: its hash differs"
    for one in found.contenders:
        scored = given.get(_key(one.levels))
        best = one.chosen.values if one.chosen else None
        if scored and scored.set_ is None and best is not None:
            yield f"{one.label} was not scored, although its tuning chose a setting"
        elif scored and scored.set_ != best:
            yield f"the scored setting of {one.label} is not the best one of its tuning"


def _key(levels: Mapping[str, Any]) -> str:
    return json.dumps(levels, sort_keys=True)


def _has(levels: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    return all(levels.get(key) == level for key, level in wanted.items())


def tuned_by(record: Record) -> dict[str, TunedContender]:
    """Return cell id -> its contender in the tuning below the record; none if the tuning is not there."""
    found = read_tuning(record.folder.root) if record.plan.suite.tuned else None
    levels = tuned_levels(record.plan) if found else {}
    return {cell_id: item for item in (found.contenders if found else ())
            for cell_id, of_cell in levels.items() if _has(of_cell, item.levels)}


def _seed_problems(record: Record, found: Tuning | None) -> Iterator[str]:
    """Yield where tuning and scoring share seeds, or where the stated seed is not the one that ran."""
    plan = record.plan
    if plan.kind == "tuning":
        return
    stated = plan.suite.tuned.master_seed if plan.suite.tuned else None
    seeds = {stated, found.master_seed if found else None} - {None}
    if plan.master_seed in seeds:
        yield f"tuned and scored with one master seed, {plan.master_seed}"
    if found is not None and stated is not None and stated != found.master_seed:
        yield f"the suite states {stated} as the seed of its tuning, whose trials had {found.master_seed}"
    if found is None:
        return
    tuned = {drawn for item in found.record.results if (drawn := _drawn_by_seed(found.record, item))}
    shared = [item for item in record.results if _drawn_by_seed(record, item) in tuned]
    if shared:
        yield (f"{len(shared)} scored trials have the initial weights and the data order of a tuning trial (first: "
               f"{shared[0].trial_id})")


def _drawn_by_seed(record: Record, item: Result) -> tuple[str, str, str] | None:
    """Return the task with the hashes of what the seed drew; None if one is missing, or the data come in their own
    order."""
    weights, order = item.hashes.get("init_weights"), item.hashes.get("data_order")
    if weights is None or order is None or item.effective.get("input_order") == "stream":
        return None
    return record.cell(item.cell_id).choices.task, weights, order
