"""Matrix -> cells: every combination of factors that no exclusion takes out, validated and labelled."""

from __future__ import annotations

import copy
import itertools
import json
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from pydantic import ValidationError

from repro.core import pattern, registry
from repro.core.errors import SuiteError
from repro.core.yaml_file import FieldPath
from repro.suite.cell import Cell, label_of, shown_factors
from repro.suite.choice import Choice, describe, parse_choice
from repro.suite.field_problem import FieldProblem, describe_error
from repro.suite.identity import canonical
from repro.suite.kinds import AnyTrialConfig, config_class
from repro.suite.model import Suite
from repro.suite.program_files import ProgramFiles
from repro.suite.recorded import RecordedPlugin

MAX_CELLS = 5_000
"""Combinations of a matrix: each takes half a millisecond to check, and years to run."""
MAX_EXCLUDED = 500_000
"""Combinations times exclusions."""
Problem = Callable[[str, FieldPath], SuiteError]
"""Turns a problem at a path of the suite into an error that names file and line."""
Levels = dict[str, tuple[int, Any]]
"""Factor -> (index of its level, the level) of one combination."""


def expand_matrix(suite: Suite, problem: Problem, files: ProgramFiles) -> tuple[list[Cell], set[int]]:
    """Return the cells of a suite and the indices of the exclusions that excluded something.

    Raises:
        SuiteError: too many combinations, one that is wrong in itself, a cell twice, or nothing left.
    """
    _check_size(suite, problem)
    found: list[AnyTrialConfig] = []
    used: set[int] = set()
    for levels, data in _combinations(suite):
        choices = _parse_combination(data, levels, suite, used, problem, files)
        # Again with the defaults filled in: an exclusion may name what the suite does not write out.
        if choices is not None and not _excluded(choices.model_dump(mode="json", by_alias=True), suite, used):
            found.append(choices)
    if not found:
        raise problem("every combination is excluded", ("exclude",))
    return _label(suite, found, problem), used


def _combinations(suite: Suite) -> Iterator[tuple[Levels, dict[str, Any]]]:
    """Yield the levels of every combination of factors, and the trial that they give, as written."""
    level_lists = [list(enumerate(levels)) for levels in suite.matrix.values()]
    for combination in itertools.product(*level_lists):
        levels = dict(zip(suite.matrix, combination, strict=True))
        data: dict[str, Any] = copy.deepcopy(suite.trial)
        for key, (_, value) in levels.items():
            pattern.put(data, key, copy.deepcopy(value))
        yield levels, data


def describe_plugins(suite: Suite, cells: Sequence[Cell]) -> tuple[RecordedPlugin, ...]:
    """Return the plug-ins in `cells`, the expanded suite, of which readers need to know more than the suite says: those
    of other packages, and those with options that data have given.

    Raises:
        SuiteError: the class of a plug-in states something of the wrong type.
    """
    others = {(choice.seam, canonical(choice)): choice for cell in cells for choice in cell.choices.plugins()
              if choice.kind not in registry.BUILT_IN[choice.seam] or choice.plugin.from_data}
    written: dict[tuple[str, str], dict[str, dict[str, Any]]] = {key: {} for key in others}
    for _, data in _combinations(suite) if others else ():
        for seam in {seam for seam, _ in others}:
            if (choice := _parsed(seam, data.get(seam))) is not None and (seam, canonical(choice)) in written:
                options = {} if isinstance(data[seam], str) else {
                    key: value for key, value in data[seam].items() if key != "kind"}
                written[seam, canonical(choice)][json.dumps(options, sort_keys=True)] = options
    try:
        return tuple(describe(choice, written[key].values()) for key, choice in others.items())
    except ValidationError as error:
        raise SuiteError(f"a plug-in states something wrong about itself: {describe_error(error, Suite)[0]}") from error


def _parsed(seam: str, value: Any) -> Choice | None:
    """Return a choice as a suite writes it; None if it is none, which is the default, or only in excluded cells."""
    try:
        found = parse_choice(seam, value)
    except FieldProblem:
        return None
    return found if isinstance(found, Choice) else None


def _check_size(suite: Suite, problem: Problem) -> None:
    count = math.prod(len(levels) for levels in suite.matrix.values())
    if count > MAX_CELLS:
        many = count if count < 1 << 63 else "more than 2^63"
        raise problem(f"its factors have {many} combinations; at most {MAX_CELLS} are allowed", ("matrix",))
    if count * len(suite.exclude) > MAX_EXCLUDED:
        raise problem(f"{len(suite.exclude)} exclusions of {count} combinations are too many to check", ("exclude",))


def _parse_combination(
    data: dict[str, Any], levels: Levels, suite: Suite, used: set[int], problem: Problem, files: ProgramFiles
) -> AnyTrialConfig | None:
    """Return one combination as the configuration of its kind of trial; None if it is excluded as written."""
    try:
        cls = config_class(data)
        if _excluded(_kinds(data, cls.plugin_fields), suite, used):
            return None
        return cls.model_validate(data).located(files)
    except FieldProblem as error:
        raise _located(str(error), error.path, levels, problem) from error
    except ValidationError as error:
        raise _located(*describe_error(error, cls), levels, problem) from error


def _excluded(cell: dict[str, Any], suite: Suite, used: set[int]) -> bool:
    """Return whether an exclusion matches the cell; add the indices of those that do to `used`."""
    hits = {index for index, item in enumerate(suite.exclude) if pattern.matches(cell, item)}
    used |= hits
    return bool(hits)


def _kinds(data: dict[str, Any], seams: Sequence[str]) -> dict[str, Any]:
    """Return a trial as written, with plug-ins given by name as mappings, so that patterns read both alike."""
    return {key: {"kind": value} if key in seams and isinstance(value, str) else value for key, value in data.items()}


def _located(text: str, path: tuple[str | int, ...], levels: Levels, problem: Problem) -> SuiteError:
    where = ".".join(map(str, path))
    for key, (index, _) in sorted(levels.items(), key=lambda item: -len(item[0])):  # engine.stage before engine
        if where == key or where.startswith(f"{key}."):
            rest = path[len(key.split(".")):]
            return problem(text, ("matrix", key, index, *rest))
    if levels and path[:1] == ("batch",):  # the batch is checked against processes and accumulation
        text += f" (with {', '.join(f'{key}={json.dumps(value)}' for key, (_, value) in levels.items())})"
    return problem(text, ("trial", *path))


def _label(suite: Suite, expanded: list[AnyTrialConfig], problem: Problem) -> list[Cell]:
    cells: list[Cell] = []
    seen: dict[str, str] = {}
    every = [shown_factors(choices, suite.matrix) for choices in expanded]
    varying = [key for key in suite.matrix if len({shown[key] for shown in every}) > 1]
    for choices, shown in zip(expanded, every, strict=True):
        factors = {key: shown[key] for key in varying}
        label = label_of(choices, factors)
        if canonical(choices) in seen:
            raise problem(f"the cell {label!r} is requested twice", ("matrix", *_repeated(suite)))
        seen[canonical(choices)] = label
        cells.append(Cell(cell_id=choices.cell_id, label=label, factors=factors, choices=choices))
    return cells


def _repeated(suite: Suite) -> tuple[str, ...]:
    """Return the first factor that lists one level twice; () if two factors set the same field."""
    for key, levels in suite.matrix.items():
        if len({json.dumps(level, sort_keys=True) for level in levels}) < len(levels):
            return (key,)
    return ()
