"""Cells -> contenders on workloads: which cells are one contender, and what makes a ranking over workloads wrong.

A workload here is whatever the contenders are compared on: task, target and every other factor that is no part of the
contender's name. Times on different workloads are never divided.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from repro.compare.cells import factors_of, tuned_levels
from repro.core import pattern
from repro.core.errors import UsageError
from repro.record.folder.store import Record
from repro.suite.levels import contender_label
from repro.suite.planning.cell import Cell, label_of, shown_factors

TASK = ("workload", "stop")
"""Fields of a trial that say what is to be solved, not who solves it."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One contender on one workload."""

    contender: str
    workload: str
    cell: Cell
    record: Record


@dataclass(frozen=True, slots=True)
class Field:
    """Contenders that ran on the same workloads, and those that did not."""

    by: tuple[str, ...]
    entries: Mapping[tuple[str, str], Entry]
    """(contender, workload) -> entry; complete for `contenders` x `workloads`."""
    contenders: tuple[str, ...]
    workloads: tuple[str, ...]
    left_out: tuple[tuple[str, str], ...]
    """(contender, reason)."""
    notes: tuple[str, ...]


def field_of(records: Sequence[Record], by: Sequence[str] = ()) -> Field:
    """Return the contenders of records of one machine.

    Args:
        by: factors that name a contender; (): those that vary on one workload.

    Raises:
        UsageError: an unknown factor, fewer than two workloads or contenders, two cells for one place, or cells of one
            workload with different targets or kinds of figures.
    """
    chosen = tuple(by) or default_factors(records)
    _check_factors(records, chosen)
    names = _Names(records, chosen, {
        key: value for record in records for key, value in tuned_levels(record.plan).items()})
    found: dict[tuple[str, str], Entry] = {}
    for record in records:
        for cell in record.plan.cells:
            entry = Entry(names.contender(cell), names.workload(cell), cell, record)
            place = (entry.contender, entry.workload)
            if place in found:
                raise UsageError(f"two cells are {entry.contender} on {entry.workload} ({found[place].cell.label}; "
                                 f"{cell.label}): name the factors that distinguish them with --by")
            found[place] = entry
    contenders, workloads = (tuple(dict.fromkeys(place[index] for place in found)) for index in (0, 1))
    if len(workloads) < 2:
        named = ", ".join(record.plan.suite.suite for record in records)
        raise UsageError(f"scores are taken over workloads, and {named} has only one by "
                         f"{', '.join(chosen) or 'no factor'} ({workloads[0]}); --by names the factors of a contender, "
                         "all others distinguish workloads")
    _check_alike(found.values())
    left = {name: f"it has no cell on {'; '.join(without)}" for name in contenders
            if (without := [workload for workload in workloads if (name, workload) not in found])}
    kept = tuple(name for name in contenders if name not in left)
    if len(kept) < 2:
        raise UsageError(f"a ranking needs two contenders with the same workloads; by {', '.join(chosen) or 'nothing'} "
                         f"there {'is' if len(kept) == 1 else 'are'} {len(kept)} ({'; '.join(contenders[:8])}); name "
                         f"the factor with --by, one of {', '.join(_varying(records)) or 'none'}")
    entries = {place: entry for place, entry in found.items() if place[0] not in left}
    return Field(chosen, entries, kept, workloads, tuple(left.items()), tuple(_notes(kept, workloads, entries, chosen)))


def default_factors(records: Sequence[Record]) -> tuple[str, ...]:
    """Return the factors that vary on one task, beside what says the task."""
    return tuple(name for name in _varying_on_a_task(records) if name.partition(".")[0] not in TASK)


@dataclass(frozen=True, slots=True)
class _Names:
    """The words for contenders and workloads of some records."""

    records: Sequence[Record]
    by: Sequence[str]
    levels: Mapping[str, Mapping[str, Any]]
    """Cell id -> factor -> level, of suites whose settings were tuned."""

    def contender(self, cell: Cell) -> str:
        """Return the factors of the contender as labels show them; the kind of a plug-in by itself.

        A tuned contender is named by its levels: its settings may differ between workloads.
        """
        levels = self.levels.get(cell.cell_id)
        if levels is not None and all(name in levels for name in self.by):
            tuned = {key for record in self.records for item in record.plan.suite.settings for key in item.values}
            return contender_label({name: levels[name] for name in self.by}, tuned)
        kinds = [str(pattern.get(factors_of(cell), name)) for name in self.by if name.endswith(".kind")]
        others = shown_factors(cell.choices, [name for name in self.by if not name.endswith(".kind")])
        return ", ".join([*kinds, *([label_of(cell.choices, others)] if others or not kinds else [])])

    def workload(self, cell: Cell) -> str:
        """Return the task, and what else varies on a task but names no contender."""
        free = [name for name in _varying_on_a_task(self.records) if not _covered(name, self.by) and name != "workload"]
        goal = [target_of(cell)] if any(name.partition(".")[0] == "stop" for name in free) else []
        others = {name: cell.factors[name] for name in free
                  if name in cell.factors and name.partition(".")[0] not in TASK}
        return ", ".join([cell.choices.task, *goal, *([label_of(cell.choices, others)] if others else [])])


def _covered(key: str, by: Sequence[str]) -> bool:
    """A factor is named by itself, by the whole of which it is a part, or by a part of it."""
    return any(key == name or key.startswith(f"{name}.") or name.startswith(f"{key}.") for name in by)


def _varying(records: Sequence[Record]) -> list[str]:
    return list(dict.fromkeys(key for record in records for cell in record.plan.cells for key in cell.factors))


def _varying_on_a_task(records: Sequence[Record]) -> list[str]:
    levels: dict[tuple[str, str], set[str]] = {}
    for record in records:
        for cell in record.plan.cells:
            for name, value in cell.factors.items():
                levels.setdefault((name, cell.choices.task), set()).add(value)
    return [name for name in _varying(records)
            if any(len(found) > 1 for (key, _), found in levels.items() if key == name)]


def _check_factors(records: Sequence[Record], by: Sequence[str]) -> None:
    for record in records:
        for cell in record.plan.cells:
            unknown = next((name for name in by if pattern.get(factors_of(cell), name) is None), None)
            if unknown is not None:
                raise UsageError(f"--by {unknown}: the cell {cell.label} has no such field; factors that vary: "
                                 f"{', '.join(_varying(records)) or 'none'}")


def _check_alike(entries: Iterable[Entry]) -> None:
    first: dict[str, Entry] = {}
    for entry in entries:
        mate = first.setdefault(entry.workload, entry)
        names = f"{mate.contender} and {entry.contender}"
        if target_of(mate.cell) != target_of(entry.cell):
            raise UsageError(f"on {entry.workload} the targets of {names} differ: {target_of(mate.cell)} against "
                             f"{target_of(entry.cell)}; times to different targets do not compare")
        origins = [item.record.origin_of(item.cell) for item in (mate, entry)]
        if origins[0] != origins[1]:
            raise UsageError(f"on {entry.workload} the figures of {names} are of different kinds: {origins[0]} against "
                             f"{origins[1]}")


def target_of(cell: Cell) -> str:
    """Return metric, side and value of a cell's target; "none" without one."""
    stop = cell.choices.stop
    if stop.target is None:
        return "none"
    confirmed = "" if stop.confirm_evals == 1 else f" {stop.confirm_evals} times in a row"
    return f"{stop.metric} of at {'most' if stop.direction == 'lower' else 'least'} {stop.target:g}{confirmed}"


def _notes(
    contenders: Sequence[str], workloads: Sequence[str], entries: Mapping[tuple[str, str], Entry], by: Sequence[str]
) -> Iterable[str]:
    """Yield which contenders have other settings on other workloads: a contender is its name then."""
    fields = list(dict.fromkeys(name.partition(".")[0] for name in by))
    own = [name for name in contenders if len({
        str([factors_of(entries[name, workload].cell).get(field) for field in fields]) for workload in workloads}) > 1]
    if own:
        yield f"not the same settings on every workload: {'; '.join(own)}"
