"""Advice under an open comparison: what would settle it without more errors than stated.

Every further test of one contrast at 5 % errs in up to 5 % again: somebody who repeats an experiment until a verdict
appears finds one where there is none. So no advice asks for another run of a contrast that was tested. It asks for what
was missing (a trial, a grid, enough pairs for any verdict), or says how the next experiment is declared.
"""

from __future__ import annotations

from repro.compare.evidence.evidence import Evidence
from repro.compare.verdict.family import FamilyShare
from repro.suite.design import JUDGES

TESTED = (
    "report it as undecided. Adding pairs until a verdict appears would err in more than 5 % of cases; to ask again "
    "with more pairs, start a new run that declares this contrast as the primary one of a sequential design")

TESTED_IN_A_CONTEST = (
    "report it as undecided. Adding runs until a verdict appears would err in more than 5 % of cases; to show a "
    "smaller difference, start a new contest that declares more seeds")

OVER = (
    "report it as undecided. Its looks are used up, and running it again until a verdict appears would err in more "
    "than 5 % of cases")


def what_settles(item: Evidence, share: FamilyShare) -> str:
    """Return what settles a comparison that was tested and is open."""
    if not item.is_apart(1 - share.level):
        return "use the same distance between evaluations in both, in a new experiment"
    if not item.asked.paired:
        return "run pairs of one seed, interleaved: they show more than unpaired trials"
    return TESTED_IN_A_CONTEST if JUDGES.get(item.design) == "mean" else TESTED


def what_reaches(least: int, tested: bool) -> str:
    """Return how many pairs make a verdict possible.

    Args:
        tested: another contrast of the same run, the primary, was tested: a new run would test it again.
    """
    if tested:
        return f"declare at least {least} pairs in a suite before its first run"
    return f"run at least {least} pairs, with new seeds: repro run SUITE --seeds {least}"
