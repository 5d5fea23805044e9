"""Contrasts that a plan cannot decide, whatever it measures: its repeats leave no room for them after Holm."""

from __future__ import annotations

from repro import stats
from repro.compare.cells import CellIndex, contrast_pairs
from repro.compare.design.levels import Factors
from repro.compare.verdict.family import ALPHA
from repro.suite.planning.plan import Plan


def out_of_reach(plan: Plan) -> list[str]:
    """Return a note for each family of contrasts that cannot be significant with the repeats of the plan."""
    primary, contrasts = contrast_pairs(CellIndex(plan.cells), plan.suite)
    others = len(contrasts) - (primary is not None)
    name = "contrast" if others == 1 else "contrasts"
    found = [(others, f"the {others} {name} besides the primary" if primary else f"the {others} {name}")]
    if plan.suite.contrasts and not plan.has_twins:
        factors = Factors(plan.cells, plan.suite)
        effects = sum(len(factors.matches(name, plan.suite.baseline)) for name in plan.suite.contrasts)
        found.append((effects, f"the {effects} main effects"))
    return [note for count, words in found if count and (note := _note(plan.design.common, count, words))]


def _note(seeds: int, count: int, words: str) -> str:
    needed = stats.pairs_to_survive(count, ALPHA)
    if seeds >= needed:
        return ""
    return (f"with {seeds} repeats none of {words} can be significant at 5 % after Holm (exact test): {needed} repeats "
            "can")
