"""Combinations of the levels of a suite's factors: the trial that each gives, and what some levels are called."""

from __future__ import annotations

import copy
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from repro.core import pattern
from repro.suite.field_problem import as_text
from repro.suite.model import Suite

Levels = dict[str, tuple[int, Any]]
"""Factor -> (index of its level, the level) of one combination."""


def contender_key(levels: Mapping[str, Any]) -> str:
    """Return the text that identifies a contender by its factors and levels."""
    return json.dumps(levels, sort_keys=True, separators=(",", ":"))


def contender_label(levels: Mapping[str, Any], tuned: Iterable[str] = ()) -> str:
    """Return the name of a contender in reports: its levels, without the values that its tuning replaces.

    Args:
        tuned: fields that are tuned, as dotted paths.
    """
    replaced = set(tuned)
    kept = ({key: value for key, value in level.items() if f"{factor}.{key}" not in replaced}
            if isinstance(level, dict) else level for factor, level in levels.items())
    return ", ".join(map(level_text, kept)) or "the suite's only cell"


def level_text(level: Any) -> str:
    """Return a level of a factor as people read it."""
    if isinstance(level, dict) and isinstance(level.get("kind"), str):
        rest = ", ".join(f"{key}={as_text(value)}" for key, value in level.items() if key not in ("kind", "code"))
        return f"{level['kind']} ({rest})" if rest else str(level["kind"])
    return as_text(level)


def combine(trial: dict[str, Any], levels: Levels, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the trial of one combination of factors, as written, with the settings put on top."""
    data: dict[str, Any] = copy.deepcopy(trial)
    for key, value in (*((key, level) for key, (_, level) in levels.items()), *settings.items()):
        pattern.put(data, key, copy.deepcopy(value))
    return data


def every_combination(suite: Suite) -> Iterator[Levels]:
    """Yield the levels of every combination of factors that the suite asks for."""
    factors = [list(enumerate(levels)) for levels in suite.matrix.values()]
    reference = [levels[0] for levels in factors]
    apart = ([*reference[:place], level, *reference[place + 1:]]
             for place, levels in enumerate(factors) for level in levels[1:])
    for combination in itertools.product(*factors) if suite.combine == "all" else (reference, *apart):
        yield dict(zip(suite.matrix, combination, strict=True))
