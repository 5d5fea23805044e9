"""Cells by the levels of their factors: which two cells differ in one factor only."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from repro.compare.cells import hashable
from repro.core import pattern
from repro.suite.choice import Choice
from repro.suite.model import Suite
from repro.suite.planning.cell import Cell

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
        self._levels = [{name: _level_of(cell, data, name, fields) for name in self.names}
                        for cell in cells for data in [cell.choices.model_dump(mode="json", by_alias=True)]]
        self._data = [cell.choices.model_dump(mode="json", by_alias=True) for cell in cells]

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

    def label(self, factor: str, value: Hashable) -> str:
        """Return the words for a level."""
        return next((level.label for level in self.levels(factor) if level.value == value), str(value))


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
