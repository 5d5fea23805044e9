"""Does a main effect depend on another factor? Per-seed differences of the effect between two of its levels."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from repro import stats
from repro.compare.design.effect import Interaction
from repro.compare.design.levels import Combination, Factors, Level, Match
from repro.compare.evidence.evidence import NO_SPREAD
from repro.compare.figures import bounds
from repro.compare.verdict.family import ALPHA

Effects = Mapping[Combination, Sequence[float]]
"""Combination of the other factors -> log(candidate / baseline) of every seed."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One difference of effects before the correction for their number."""

    owner: int
    """Index of the main effect."""
    found: Interaction


def interactions(
    measured: Sequence[tuple[Match, Effects]], factors: Factors, wanted: Mapping[str, Any]
) -> list[tuple[Interaction, ...]]:
    """Return the interactions of each main effect, flagged at 5 % by Holm over all of them.

    The test is Student's t over seeds. It warns of an average that stands for two effects; it decides no verdict, so
    the exact test, whose least p a family this large could not pass, is not asked.

    Args:
        wanted: the baseline pattern, which selects the levels to compare with.
    """
    every = [Difference(owner, found) for owner, (match, effects) in enumerate(measured)
             for found in _differences(match, effects, factors, wanted)]
    adjusted = stats.holm([item.found.p for item in every]) if every else []
    judged = [replace(item, found=item.found.model_copy(update={"p_adjusted": p, "flagged": p <= ALPHA}))
              for item, p in zip(every, adjusted, strict=True)]
    return [tuple(item.found for item in judged if item.owner == owner) for owner in range(len(measured))]


def _differences(match: Match, effects: Effects, factors: Factors, wanted: Mapping[str, Any]) -> Iterator[Interaction]:
    """Yield every level of every other factor against the reference, or the first that the effect was measured at."""
    for place, factor in enumerate(match.others):
        by_level: dict[object, dict[Combination, Sequence[float]]] = {}
        for combination, values in effects.items():
            rest = combination[:place] + combination[place + 1:]
            by_level.setdefault(combination[place], {})[rest] = values
        levels = [level for level in factors.levels(factor) if level.value in by_level]
        reference = factors.reference(factor, wanted)
        base = reference if reference in levels or not levels else levels[0]
        for level in levels:
            found = None if level == base else _difference(
                factor, level, by_level[level.value], base, by_level[base.value])
            if found is not None:
                yield found


def _difference(factor: str, level: Level, here: Effects, reference: Level, there: Effects) -> Interaction | None:
    shared = [rest for rest in here if rest in there]
    if not shared or len(here[shared[0]]) < 2:
        return None
    ours = np.mean([here[rest] for rest in shared], axis=0)
    theirs = np.mean([there[rest] for rest in shared], axis=0)
    steady = float(np.std(ours - theirs, ddof=1)) < NO_SPREAD
    above, below = np.exp(ours), np.exp(theirs)
    _, interval = stats.paired_ratio(above, below)
    p = _steady_p(ours - theirs) if steady else stats.paired_p(above, below)
    return Interaction(
        factor=factor, level=level.label, reference=reference.label, combinations=len(shared),
        ratio_here=math.exp(float(np.mean(ours))), ratio_there=math.exp(float(np.mean(theirs))),
        interval=None if steady else bounds(interval), p=p, p_adjusted=p, flagged=False,
    )


def _steady_p(differences: np.ndarray) -> float:
    """Return p of differences that are all alike, which leave no spread to judge by: the exact test's."""
    if float(np.max(np.abs(differences))) < NO_SPREAD:
        return 1.0
    return stats.sign_flip_floor(len(differences))
