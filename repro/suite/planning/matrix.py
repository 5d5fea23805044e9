"""Matrix -> cells: every combination of factors that no exclusion takes out, validated and labelled."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from repro.core import pattern, registry
from repro.core.errors import SuiteError
from repro.core.frozen import canonical
from repro.core.yaml_file import FieldPath
from repro.suite.choice import Choice, describe, parse_choice
from repro.suite.contenders import Contender, check_metric, contenders, drawn_again
from repro.suite.field_problem import FieldProblem, Problem, describe_error, unlocated
from repro.suite.kinds.kinds import AnyTrialConfig, config_class, written_kinds
from repro.suite.kinds.program_files import ProgramFiles
from repro.suite.levels import Levels, combine, contender_key, contender_label, every_combination
from repro.suite.model import Suite
from repro.suite.planning.cell import Cell, differing, label_of, shown_factors
from repro.suite.recorded import RecordedPlugin

MAX_CELLS = 5_000
"""Combinations of a matrix: each takes half a millisecond to check, and years to run."""
MAX_EXCLUDED = 500_000
"""Combinations times exclusions."""


@dataclass(frozen=True, slots=True)
class Combination:
    """One combination of factors, with the settings of its contender."""

    levels: Levels
    data: dict[str, Any]
    """The trial that it gives, as written."""
    places: Mapping[str, FieldPath]
    """Field of a setting -> where the suite gives its values."""
    contender: Contender | None = None
    """Of which it is one setting, in a tuning."""


def expand_matrix(suite: Suite, problem: Problem, files: ProgramFiles) -> tuple[list[Cell], set[int]]:
    """Return the cells of a suite and the indices of the exclusions that excluded something.

    The cells of a suite with `tune` are those of its tuning: one for every setting of every contender.

    Raises:
        SuiteError: too many combinations, one that is wrong in itself, a cell twice, or nothing left.
    """
    _check_size(suite, problem)
    found: list[tuple[AnyTrialConfig, Combination]] = []
    used: set[int] = set()
    for item in _combinations(suite, problem):
        choices = _parse_combination(item, suite, used, problem, files)
        # Again with the defaults filled in: an exclusion may name what the suite does not write out.
        if choices is not None and not _excluded(choices.stated(), suite, used):
            found.append((choices, item))
    if not found:
        raise problem("every combination is excluded", ("exclude",))
    if suite.tune is not None:
        check_metric(suite, {choices.stop.design for choices, _ in found}, {choices.kind for choices, _ in found},
                     problem)
    return _label(suite, found, problem), used


def _combinations(suite: Suite, problem: Problem) -> Iterator[Combination]:
    """Yield every combination of factors that is scored, of a suite with `tune` every setting of every contender."""
    if suite.tune is not None:
        for one in contenders(suite, problem):
            places = {key: ("tune", "spaces", one.place, "space", key) for key in one.space.space}
            for setting in one.settings:
                yield Combination(one.combination, combine(suite.trial, one.combination, setting), places, one)
        return
    known: dict[str, list[int]] = {}
    for number, item in enumerate(suite.settings):
        known.setdefault(contender_key(item.where), []).append(number)
    idle, wheres = set(range(len(suite.settings))), {frozenset(item.where) for item in suite.settings}
    for levels in every_combination(suite):
        keys = [contender_key({name: levels[name][1] for name in names}) for names in wheres if names <= levels.keys()]
        hits = sorted(number for key in keys for number in known.get(key, ()))
        idle -= set(hits)
        if any(suite.settings[number].set_ is None for number in hits):
            continue
        chosen = {key: (number, value) for number in hits for key, value in suite.settings[number].values.items()}
        yield Combination(levels, combine(suite.trial, levels, {key: value for key, (_, value) in chosen.items()}),
                          {key: ("settings", number, "set", key) for key, (number, _) in chosen.items()})
    if idle:
        raise problem("matches no combination of the suite's factors", ("settings", min(idle), "where"))


def _expanded(suite: Suite, device: str) -> Iterator[tuple[Combination, str]]:
    """Yield every combination of the suite of a plan with the id of its cell; "" if it is excluded as written."""
    _check_size(suite, unlocated)
    files = ProgramFiles(None, suite.programs)
    for item in _combinations(suite, unlocated):
        choices = _parse_combination(item, suite, set(), unlocated, files)
        yield item, "" if choices is None else choices.on(device).cell_id


def tried_cells(suite: Suite, device: str) -> list[tuple[Contender, list[str]]]:
    """Return the contenders of a suite with `tune`, each with the cell ids of its settings in their order.

    Args:
        suite: of the plan of a tuning; its programs have their hashes.
        device: of the plan, in place of device auto.

    Raises:
        SuiteError: the suite cannot be expanded here.
    """
    found: list[tuple[Contender, list[str]]] = []
    for item, cell_id in _expanded(suite, device):
        assert item.contender is not None, "of a tuning"
        if not found or found[-1][0] is not item.contender:
            found.append((item.contender, []))
        found[-1][1].append(cell_id)
    return found


def setting_notes(suite: Suite) -> list[str]:
    """Return the notes on the settings of a frozen suite: contenders without one, and settings of another search."""
    lost = [f"{contender_label(item.where)} is not scored: no trial of its tuning could be judged"
            for item in suite.settings if item.set_ is None]
    drawn = {contender_key(item.levels): item.settings for item in drawn_again(suite)} if suite.tuned else {}
    others = [contender_label(item.where, item.set_) for item in suite.settings
              if drawn and item.set_ is not None and item.set_ not in drawn.get(contender_key(item.where), ())]
    return lost + [f"{name} has a setting that the declared search does not draw: its tuning is not the one that the "
                   "suite states" for name in others]


def levels_of_cells(suite: Suite, device: str) -> dict[str, dict[str, Any]]:
    """Return cell id -> factor -> its level as the matrix has it, of a suite without `tune`.

    A cell with settings on top of a level cannot be told from its choices alone to be of that level.

    Args:
        suite: of a plan; its programs have their hashes.
        device: of the plan, in place of device auto.

    Raises:
        SuiteError: the suite cannot be expanded here.
    """
    return {cell_id: {key: level for key, (_, level) in item.levels.items()}
            for item, cell_id in _expanded(suite, device) if cell_id}


def describe_plugins(suite: Suite, cells: Sequence[Cell]) -> tuple[RecordedPlugin, ...]:
    """Return the plug-ins in `cells`, the expanded suite, of which readers need to know more than the suite says: those
    of other packages, and those with options that data have given.

    Raises:
        SuiteError: the class of a plug-in states something of the wrong type.
    """
    others = {(choice.seam, canonical(choice)): choice for cell in cells for choice in cell.choices.plugins()
              if choice.kind not in registry.BUILT_IN[choice.seam]
              or any(getattr(choice.plugin, name) is not None for name in choice.plugin.from_data)}
    written: dict[tuple[str, str], dict[str, dict[str, Any]]] = {key: {} for key in others}
    for item in _combinations(suite, unlocated) if others else ():
        data = item.data
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
    with suppress(FieldProblem):
        return parse_choice(seam, value)
    return None


def _check_size(suite: Suite, problem: Problem) -> None:
    sizes = [len(levels) for levels in suite.matrix.values()]
    count = math.prod(sizes) if suite.combine == "all" else 1 + sum(size - 1 for size in sizes)
    if count > MAX_CELLS:
        many = count if count < 1 << 63 else "more than 2^63"
        raise problem(f"its factors have {many} combinations; at most {MAX_CELLS} are allowed", ("matrix",))
    if count * len(suite.exclude) > MAX_EXCLUDED:
        raise problem(f"{len(suite.exclude)} exclusions of {count} combinations are too many to check", ("exclude",))


def _parse_combination(
    item: Combination, suite: Suite, used: set[int], problem: Problem, files: ProgramFiles
) -> AnyTrialConfig | None:
    """Return one combination as the configuration of its kind of trial; None if it is excluded as written."""
    data = item.data
    try:
        cls = config_class(data)
        if _excluded(written_kinds(data), suite, used):
            return None
        return cls.model_validate(data).located(files)
    except FieldProblem as error:
        raise _located(str(error), error.path, item, problem) from error
    except ValidationError as error:
        raise _located(*describe_error(error, cls), item, problem) from error


def _excluded(cell: dict[str, Any], suite: Suite, used: set[int]) -> bool:
    """Return whether an exclusion matches the cell; add the indices of those that do to `used`."""
    hits = {index for index, item in enumerate(suite.exclude) if pattern.matches(cell, item)}
    used |= hits
    return bool(hits)


def _located(text: str, path: tuple[str | int, ...], item: Combination, problem: Problem) -> SuiteError:
    where, levels = ".".join(map(str, path)), item.levels
    for key, place in item.places.items():
        if where == key or where.startswith(f"{key}."):
            return problem(text, place)
    for key, (index, _) in sorted(levels.items(), key=lambda item: -len(item[0])):  # engine.stage before engine
        if where == key or where.startswith(f"{key}."):
            rest = path[len(key.split(".")):]
            return problem(text, ("matrix", key, index, *rest))
    if levels and path[:1] == ("batch",):  # the batch is checked against processes and accumulation
        text += f" (with {', '.join(f'{key}={json.dumps(value)}' for key, (_, value) in levels.items())})"
    return problem(text, ("trial", *path))


def _label(suite: Suite, expanded: list[tuple[AnyTrialConfig, Combination]], problem: Problem) -> list[Cell]:
    cells: list[Cell] = []
    seen: dict[str, Combination] = {}
    every = [shown_factors(choices, suite.matrix) for choices, _ in expanded]
    varying = [key for key in suite.matrix if len({shown[key] for shown in every}) > 1]
    for (choices, item), shown in zip(expanded, every, strict=True):
        factors = {key: shown[key] for key in varying}
        # A factor that varies shows the options of its level, and so the settings below it.
        tuned = item.contender.space.space if item.contender else ()
        factors |= shown_factors(choices, (key for key in tuned if key.split(".")[0] not in varying))
        differs_in = None
        if suite.combine != "all" and suite.tune is None:
            differs_in = differing(factors, {key: every[0][key] for key in varying})
        label = label_of(choices, factors, differs_in)
        if (earlier := seen.setdefault(canonical(choices), item)) is not item:
            apart = [key for key, level in item.levels.items() if level != earlier.levels.get(key)]
            if len(apart) > 1:  # two factors set the same field
                raise problem(f"the cell {label!r} is requested twice", ("matrix",))
            equal = f" by two equal levels, {shown[apart[0]]}" if apart else ""
            raise problem(f"the cell {label!r} is requested twice{equal}", ("matrix", *apart))
        cells.append(Cell(cell_id=choices.cell_id, label=label, factors=factors, choices=choices,
                          differs_in=differs_in))
    return cells
