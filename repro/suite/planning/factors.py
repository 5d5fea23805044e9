"""The factors of a suite that its `contrasts` may name: those with several levels."""

from __future__ import annotations

from collections.abc import Iterable

from repro.suite.field_problem import Problem
from repro.suite.model import Suite


def keep_factors(suite: Suite, problem: Problem, overridden: bool) -> tuple[Suite, list[str]]:
    """Return the suite with the contrasts that are factors, and a note for each that overrides removed.

    Raises:
        SuiteError: a contrast that is no factor, has a single level or is named twice.
    """
    able = [key for key, levels in suite.matrix.items() if len(levels) > 1]
    kept: list[str] = []
    notes = []
    for index, name in enumerate(suite.contrasts):
        if name in able and name not in kept:
            kept.append(name)
            continue
        what = _why_not(suite, name, able, kept)
        if not overridden or name in kept:
            raise problem(what, ("contrasts", index))
        notes.append(f"the main effects of {name} are dropped: after the overrides {what}")
    return (suite.model_copy(update={"contrasts": tuple(kept)}) if notes else suite), notes


def _why_not(suite: Suite, name: str, able: Iterable[str], kept: Iterable[str]) -> str:
    if name in kept:
        return f"{name!r} is named twice"
    one_level = f"factor {name!r} has one level, so it has no effect"
    what = one_level if name in suite.matrix else f"{name!r} is not a factor"
    return f"{what}; factors of this suite with several levels: {', '.join(able) or 'none'}"
