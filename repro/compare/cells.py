"""The cells to compare: the primary contrast, baselines, scaling, and those that differ in the level of one factor.

A cell is an id, a label and factors.
"""

from __future__ import annotations

import difflib
import re
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

from repro.core import pattern
from repro.core.errors import SuiteError, UsageError
from repro.core.yaml_file import YamlFile
from repro.record.result.results import Result
from repro.suite.choice import Choice
from repro.suite.kinds.trial_config import TrialConfig
from repro.suite.model import Contrast, Suite
from repro.suite.planning.cell import Cell
from repro.suite.planning.matrix import levels_of_cells
from repro.suite.planning.plan import Plan
from repro.suite.recorded import reading


class ComparedCell(Protocol):
    """The parts of a cell that a comparison uses; cells of plans and of published results have them."""

    @property
    def cell_id(self) -> str: ...
    @property
    def label(self) -> str: ...
    @property
    def choices(self) -> Any: ...


@dataclass(frozen=True, slots=True)
class Named:
    """A stand-in for a cell: a cell whose name includes its run, or a level of a factor."""

    cell_id: str
    label: str
    choices: Any


def by_cell(results: Iterable[Result]) -> Mapping[str, list[Result]]:
    """Return cell id -> its results, in the order given; an empty list for any other cell."""
    found: defaultdict[str, list[Result]] = defaultdict(list)
    for result in results:
        found[result.cell_id].append(result)
    return found


def factors_of(cell: ComparedCell) -> Mapping[str, Any]:
    """Return the choices of a cell as plain JSON data."""
    choices = cell.choices
    if isinstance(choices, TrialConfig):
        return choices.stated()
    found: Mapping[str, Any] = choices if isinstance(choices, Mapping) else choices.model_dump(
        mode="json", by_alias=True)
    return found


def design_of(cell: ComparedCell) -> Any:
    """Return the design of a cell; without making plain data of all its choices, which costs most for large records."""
    choices = cell.choices
    return pattern.get(choices, "stop.design") if isinstance(choices, Mapping) else choices.stop.design


def select_cells(cells: Sequence[Cell], wanted: str | Mapping[str, Any], what: str) -> tuple[Cell, ...]:
    """Return the cells that are meant by a label, an id, a pattern (`engine=ddp,processes=2`) or factors.

    Args:
        what: option or argument, for errors.

    Raises:
        UsageError: it means no cell, or the pattern has another form.
    """
    if isinstance(wanted, str):
        named = tuple(cell for cell in cells if wanted in (cell.cell_id, cell.label))
        if named or not re.match(r"[\w.]+\s*=", wanted):
            return named or _no_cell(cells, wanted, what)
    factors = read_pattern(wanted, what) if isinstance(wanted, str) else wanted
    found = tuple(cell for cell in cells if pattern.matches(factors_of(cell), factors))
    return found or _no_cell(cells, wanted, what, absent_key(cells, factors))


def _no_cell(cells: Sequence[Cell], wanted: object, what: str, absent: str = "") -> NoReturn:
    labels = [cell.label for cell in cells]
    near = difflib.get_close_matches(str(wanted), labels, n=3, cutoff=0.3) or labels[:8]
    raise UsageError(f"{what} {wanted}: matches no cell{absent}; {'near' if len(near) < len(labels) else 'cells'}: "
                     f"{'; '.join(near)}")


def absent_key(cells: Sequence[ComparedCell], factors: Mapping[str, Any]) -> str:
    """Return words for the first key of a pattern that no cell has a value of; "" if there is none."""
    for key in factors:
        if all(pattern.get(factors_of(cell), key) is None for cell in cells):
            return f" (none has {key!r})"
    return ""


def read_pattern(text: str, option: str = "--baseline") -> dict[str, Any]:
    """Parse `engine=ddp,processes=1` as a pattern.

    Raises:
        UsageError: the text has another form.
    """
    found: dict[str, Any] = {}
    for part in text.split(","):
        key, equals, value = part.partition("=")
        if not equals or not key.strip() or not value.strip():
            raise UsageError(f"{option} {text!r}: must be key=value,key=value, for example engine=ddp,processes=1")
        found[key.strip()] = YamlFile(f"{option} {text}", f"[{value}]").data[0]
    return found


class CellIndex:
    """The cells of a plan with their factors, in the order of the plan; look-ups by factor values need no search."""

    def __init__(self, cells: Sequence[ComparedCell]) -> None:
        self.cells = {cell.cell_id: cell for cell in cells}
        self.factors = {cell.cell_id: factors_of(cell) for cell in cells}

    def matching(self, wanted: Mapping[str, Any]) -> list[str]:
        """Return the ids of the cells that match a pattern."""
        return [cell_id for cell_id, data in self.factors.items() if pattern.matches(data, wanted)]

    def first_by(self, cell_ids: Sequence[str], keys: Sequence[str]) -> dict[Hashable, str]:
        """Return values of `keys` -> the first cell with them."""
        found: dict[Hashable, str] = {}
        for cell_id in cell_ids:
            found.setdefault(self.values(cell_id, keys), cell_id)
        return found

    def values(self, cell_id: str, keys: Sequence[str]) -> Hashable:
        data = self.factors[cell_id]
        return tuple(hashable(pattern.get(data, key)) for key in keys)


def hashable(value: Any) -> Hashable:
    """Return JSON data in a hashable form; equal data give equal forms."""
    if isinstance(value, Mapping):
        return frozenset((key, hashable(item)) for key, item in value.items())
    if isinstance(value, list | tuple):
        return tuple(hashable(item) for item in value)
    found: Hashable = value
    return found


CellPair = tuple[str, str]
"""(candidate, baseline), as ids."""


def contrast_pairs(
    index: CellIndex, suite: Suite, baseline: Mapping[str, Any] | None = None
) -> tuple[CellPair | None, list[CellPair]]:
    """Return (the declared contrast if it can be compared here, all contrasts with it first).

    Args:
        baseline: factors that select the cells to compare against, then without the declared contrast; None: the
            suite's.
    """
    matrix = list(suite.matrix)
    if baseline is not None:
        return None, baseline_pairs(index, matrix, baseline)
    first = primary_pair(index, suite.primary)
    others = [*baseline_pairs(index, matrix, suite.baseline), *scaling_pairs(index, matrix)]
    known = [pair for pair in others if first is None or pair != first[::-1]]  # the declared one, turned round
    return first, list(dict.fromkeys([*([first] if first else []), *known]))


def rerun_refusals(plan: Plan) -> tuple[str, ...]:
    """Return why the contrasts of a reproduction have no verdict: its pairs were not drawn for one.

    They are those with which its source ended because of its results, or those that were chosen, with the same seeds.
    """
    if plan.kind != "reproduction" or (plan.suite.sequential is None and plan.design.common >= plan.suite.seeds):
        return ()
    which = "sequential run has the pairs that its source ran" if plan.suite.sequential else \
        f"part has {plan.design.common} of {plan.suite.seeds} planned pairs"
    return (f"the reproduction of a {which}; it is judged against its source and gives no separate verdict",)


def primary_pair(index: CellIndex, wanted: Contrast | None) -> tuple[str, str] | None:
    """Return the declared pair of cells; None if none is declared or one of the two cannot run here."""
    if wanted is None:
        return None
    candidates, baselines = index.matching(wanted.candidate), index.matching(wanted.baseline)
    if not candidates or not baselines or candidates[0] == baselines[0]:
        return None
    return candidates[0], baselines[0]


def baseline_pairs(index: CellIndex, matrix: Sequence[str], reference: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return every cell with the cell that matches the baseline pattern and has all other factors equal."""
    bases = index.matching(reference) if reference else list(index.cells)[:1]
    named = {part for key in reference for part in (key, key.partition(".")[0])}  # engine.stage=1 says which engine
    free = [key for key in matrix if key not in named] if reference else []
    by_values = index.first_by(bases, free)
    found = []
    for cell_id in index.cells:
        mate = by_values.get(index.values(cell_id, free))
        if mate is not None and mate != cell_id:
            found.append((cell_id, mate))
    return found


def scaling_pairs(index: CellIndex, matrix: Sequence[str]) -> list[tuple[str, str]]:
    """Return every cell of several processes with the cell of one process of the same kind."""
    if "processes" not in matrix:
        return []
    others = [key for key in matrix if key != "processes"]
    processes = {cell_id: pattern.get(data, "processes") for cell_id, data in index.factors.items()}
    singles = index.first_by([cell_id for cell_id, count in processes.items() if count == 1], others)
    return [
        (cell_id, mate) for cell_id, count in processes.items()
        if isinstance(count, int) and count > 1 and (mate := singles.get(index.values(cell_id, others))) is not None
    ]


Combination = tuple[Hashable, ...]
"""Levels of all other factors, in the order of `Factors.others`."""


@dataclass(frozen=True, slots=True)
class Level:
    """One level of a factor; equal levels have equal values."""

    value: Hashable
    label: str


@dataclass(frozen=True, slots=True)
class Match:
    """Two levels of one factor, and the cells that have them with all other factors equal."""

    factor: str
    candidate: Level
    baseline: Level
    others: tuple[str, ...]
    """All other factors."""
    cells: Mapping[Combination, tuple[Cell, Cell]]
    """Combination of the other factors -> (cell of the candidate, cell of the baseline)."""
    incomplete: int
    """Combinations of which only one of the two was planned: the other was skipped or excluded."""


class Factors:
    """The cells of a plan by the level of every factor of its matrix."""

    def __init__(self, cells: Sequence[Cell], suite: Suite) -> None:
        """Tell the cells of a suite by their levels.

        A tuned field is part of no level: it has another value in every cell of one contender.
        """
        self.cells = tuple(cells)
        self.names = tuple(suite.matrix)
        fields = dict.fromkeys((*suite.matrix, *(key for item in suite.settings for key in item.values)))
        self._data = [factors_of(cell) for cell in cells]
        self._levels = [{name: _level_of(cell, data, name, fields) for name in self.names}
                        for cell, data in zip(cells, self._data, strict=True)]

    def levels(self, factor: str) -> list[Level]:
        """Return the levels of a factor that some cell has, in the order of the plan."""
        return list(dict.fromkeys(found[factor] for found in self._levels))

    def reference(self, factor: str, wanted: Mapping[str, Any]) -> Level:
        """Return the level that the others are compared with: the one of the baseline pattern, else the first."""
        about = {key: value for key, value in wanted.items()
                 if key == factor or key.startswith(f"{factor}.") or factor.startswith(f"{key}.")}
        found = (levels[factor] for levels, data in zip(self._levels, self._data, strict=True)
                 if pattern.matches(data, about))
        return next(found, self._levels[0][factor])

    def matches(self, factor: str, wanted: Mapping[str, Any]) -> list[Match]:
        """Return each level of a factor against the reference."""
        reference = self.reference(factor, wanted)
        others = tuple(name for name in self.names if name != factor)
        by_level: dict[Level, dict[Combination, Cell]] = {}
        for cell, levels in zip(self.cells, self._levels, strict=True):
            by_level.setdefault(levels[factor], {})[tuple(levels[name].value for name in others)] = cell
        base = by_level[reference]
        return [
            Match(factor, level, reference, others, {key: (cell, base[key]) for key, cell in found.items()
                                                     if key in base}, len(found.keys() ^ base.keys()))
            for level, found in by_level.items() if level != reference
        ]


def _level_of(cell: Cell, data: Mapping[str, Any], factor: str, fields: Iterable[str]) -> Level:
    """Return a cell's level of a factor, without the fields below it that are factors or tuned themselves.

    With factors `engine` and `engine.bucket_mib`, the level of `engine` has no bucket.
    """
    below = {name.removeprefix(f"{factor}.") for name in fields if name.startswith(f"{factor}.")}
    value = pattern.get(data, factor)
    if isinstance(value, Mapping):
        value = {name: item for name, item in value.items() if name not in below}
    chosen = getattr(cell.choices, factor, None)
    shown = chosen.label_without(below) if isinstance(chosen, Choice) else str(value)
    return Level(hashable(value), cell.choices.phrase(factor, shown))


def tuned_levels(plan: Plan) -> Mapping[str, Mapping[str, Any]]:
    """Return cell id -> factor -> level of a suite with settings of its own; none of any other, or if it cannot be
    expanded here."""
    if not plan.suite.settings:
        return {}
    try:
        with reading(plan.plugins):
            return levels_of_cells(plan.suite, plan.device)
    except SuiteError:
        return {}
