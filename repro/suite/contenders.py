"""The contenders of a suite that is tuned, the settings that are tried for each, and the suites of the two phases."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from repro.core import pattern
from repro.core.errors import SuiteError
from repro.core.random_streams import Streams
from repro.suite.field_problem import FieldProblem, Problem, unlocated
from repro.suite.kinds.kinds import written_kinds
from repro.suite.levels import Levels, combine, contender_key, contender_label, every_combination
from repro.suite.metrics import METRICS
from repro.suite.model import Suite
from repro.suite.tune import MOST_SETTINGS, Setting, Settings, Space, Tune, Tuned, draw_settings


@dataclass(frozen=True, slots=True)
class Contender:
    """One competitor: the levels that single it out, its space, and its settings in the order of drawing."""

    levels: dict[str, Any]
    """Factor -> level, as the matrix has it."""
    space: Space
    place: int
    """Index of the space among those of the suite."""
    settings: tuple[Settings, ...]
    combination: Levels
    """The cell in which it is tuned, by all factors."""

    @property
    def label(self) -> str:
        """The contender in reports."""
        return contender_label(self.levels, self.space.space)


def contenders(suite: Suite, problem: Problem) -> list[Contender]:
    """Return the contenders of a suite with `tune`, each with its settings.

    Args:
        suite: its master seed is that of the tuning.

    Raises:
        SuiteError: a contender without a space or with several cells to be tuned in, more trials than a space
            has settings.
    """
    tune = suite.tune
    assert tune is not None and suite.master_seed is not None
    groups = _grouped(suite, tune, problem)
    spaces = {levels: _space_of(tune, levels, cells, suite, problem) for levels, cells in groups.items()}
    count = sum(tune.trials_of(tune.spaces[place]) for place in spaces.values())
    if count > MOST_SETTINGS:  # before any is drawn
        raise problem(f"its contenders have {count} settings in all; at most {MOST_SETTINGS} are allowed",
                      ("tune", "trials"))
    found: list[Contender] = []
    for levels, cells in groups.items():
        named, place = json.loads(levels), spaces[levels]
        space = tune.spaces[place]
        try:
            settings = draw_settings(space.space, tune.search, tune.trials_of(space), suite.master_seed, levels)
        except FieldProblem as error:
            whole = error.path == ("trials",) and space.trials is None
            raise problem(f"{contender_label(named)}: {error}",
                          ("tune", "trials") if whole else ("tune", "spaces", place, *error.path)) from error
        found.append(Contender(named, space, place, settings, cells[0]))
    return found


def _grouped(suite: Suite, tune: Tune, problem: Problem) -> dict[str, list[Levels]]:
    """Return contender -> the combinations in which it may be tuned; every contender of the matrix is in it."""
    names = tune.contenders if tune.contenders is not None else tuple(suite.matrix)
    for place, name in enumerate(names):
        if name not in suite.matrix:
            known = ", ".join(suite.matrix) or "none"
            raise problem(f"{name!r} is not a factor; factors of this suite: {known}", ("tune", "contenders", place))
    groups: dict[str, list[Levels]] = {}
    for levels in every_combination(suite):
        data = written_kinds(combine(suite.trial, levels, {}))
        if any(pattern.matches(data, item) for item in suite.exclude):
            continue
        key = contender_key({name: levels[name][1] for name in names})
        group = groups.setdefault(key, [])
        if pattern.matches(data, tune.at):
            group.append(levels)
    if not groups:
        raise problem("every combination is excluded", ("exclude",))
    lost = next((key for key, cells in groups.items() if not cells), None)
    if lost is not None:
        raise problem(f"no cell of the contender {contender_label(json.loads(lost))!r} matches {json.dumps(tune.at)}",
                      ("tune", "at"))
    return groups


def _space_of(tune: Tune, key: str, cells: list[Levels], suite: Suite, problem: Problem) -> int:
    """Return the index of the first space that matches a contender."""
    label = contender_label(json.loads(key))
    data = written_kinds(combine(suite.trial, cells[0], {}))
    place = next((place for place, space in enumerate(tune.spaces) if pattern.matches(data, space.for_)), None)
    if place is None:
        raise problem(f"the contender {label!r} has no space", ("tune", "spaces"))
    if len(cells) > 1:
        apart = {key: level for key, (_, level) in cells[0].items() if any(cell[key][1] != level for cell in cells[1:])}
        raise problem(f"the contender {label!r} has {len(cells)} cells; name the one in which it is tuned, for example "
                      f"at: {json.dumps(apart)}", ("tune", "at"))
    return place


def check_metric(suite: Suite, designs: set[str], kinds: set[str], problem: Problem) -> None:
    """Refuse a metric or rule of the tuning that trials of these designs and kinds do not have.

    Raises:
        SuiteError: a metric of a target or end that the design has not; trials that run outside of the harness, which
            cannot abandon them.
    """
    tune, place = suite.tune, ("tune", "metric")
    assert tune is not None
    if "measurement" in kinds:
        raise problem("a measurement trains nothing that could be tuned; remove it, or list the values in the matrix",
                      ("tune",))
    spec = METRICS[tune.metric]
    if tune.hopeless is not None and kinds != {"training"}:
        raise problem("only trials of kind training can be abandoned: a program ends by itself; remove it",
                      ("tune", "hopeless"))
    if "fixed_steps" in designs:
        if not spec.without_target:
            able = ", ".join(item.name for item in METRICS.values() if item.without_target)
            raise problem(f"{tune.metric} is not a figure that design fixed_steps has; use one of: {able}", place)
        if tune.hopeless is not None:
            raise problem("design fixed_steps evaluates nothing by which a trial could be judged; remove it",
                          ("tune", "hopeless"))
        return
    if spec.at_end and "contest" not in designs:
        raise problem(f"{tune.metric} is a time to the end of a fixed budget, which only design contest has; use "
                      "samples or tta_wall", place)
    if spec.to_target and "contest" in designs:
        raise problem(f"{tune.metric} ends at a target, and the runs of a contest go on to their end; use accuracy",
                      place)


def drawn_again(suite: Suite) -> list[Contender]:
    """Return the contenders of a suite of a plan, tuned or being tuned, with the settings that its declared search
    draws; none if they cannot be drawn here.
    """
    if suite.tuned is not None:
        suite = suite.model_copy(update={"tune": suite.tuned.tune, "settings": (), "tuned": None,
                                         "master_seed": suite.tuned.master_seed})
    try:
        return contenders(suite, unlocated)
    except SuiteError:
        return []  # a search of plug-ins that are not here


def tuning_seed(suite: Suite) -> int:
    """Return the master seed of the tuning trials: as declared, else from a stream of that of the scored trials.

    No two master seeds share a stream, so no tuning trial has the weights or data of a scored one.
    """
    assert suite.tune is not None and suite.master_seed is not None
    if suite.tune.master_seed is not None:
        return suite.tune.master_seed
    return Streams(suite.master_seed, 0).seed("tuning-master-seed")


def tuning_suite(suite: Suite) -> Suite:
    """Return the suite whose trials tune the contenders of `suite`: it asks for no comparison.

    Args:
        suite: as declared, with the master seed of the scored trials.
    """
    assert suite.tune is not None
    return suite.model_copy(update={
        "master_seed": tuning_seed(suite), "seeds": suite.tune.seeds, "baseline": {}, "primary": None,
        "contrasts": (), "sequential": None, "horizon": None,
        "tune": suite.tune.model_copy(update={"master_seed": None}),  # the suite's own now
    })


def scored_suite(
    suite: Suite, chosen: Sequence[tuple[dict[str, Any], dict[str, Any] | None]], record: str = ""
) -> Suite:
    """Return the suite that scores every contender with the setting chosen for it.

    Args:
        suite: as declared, with the master seed of the scored trials.
        chosen: (levels, setting) of every contender; without a setting it is not scored.
        record: sha256 of the tuning that chose them; "": they are a draft, for a plan.
    """
    assert suite.tune is not None and suite.master_seed is not None
    tuned = Tuned(tune=suite.tune, master_seed=tuning_seed(suite), scored_seed=suite.master_seed, record=record) \
        if record else None
    settings = tuple(Setting(where=levels, set=setting) for levels, setting in chosen)  # type: ignore[call-arg]
    return suite.model_copy(update={"tune": None, "settings": settings, "tuned": tuned})
