"""Families of contrasts and the 5 % for wrong verdicts, which each of them spends once.

The primary contrast is not corrected, Holm corrects the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from repro import stats
from repro.compare.evidence.evidence import Evidence
from repro.compare.figures import Claim, Comparison
from repro.suite.design import LEAST_REPEATS

ALPHA = 0.05


@dataclass(frozen=True, slots=True)
class FamilyShare:
    """A contrast's place in its family."""

    family: int = 1
    p: float | None = None
    """Adjusted."""
    floor: float = 1.0
    """Smallest adjusted p possible: if every contrast of the family were as clear as it can be."""
    equivalence_p: float | None = None
    level: float = ALPHA
    """Error that an interval of this contrast may have: the family's divided by its contrasts, a look's nominal one."""
    same_level: float = ALPHA
    """The same for each side of sameness."""


def shares_of(found: Sequence[Evidence]) -> list[FamilyShare]:
    """Return the place of each contrast, in the order given.

    A contrast that gives no p counts in the family with p = 1: leaving it out would make the others easier. So does one
    that was refused, independent of its figures.
    """
    family = [item for item in found if not item.asked.primary]
    adjusted = stats.holm([1.0 if item.p is None else item.p for item in family])
    floors = stats.holm([item.floor for item in family])
    same = stats.holm([item.equivalence.p if item.equivalence else 1.0 for item in family])
    level = ALPHA / max(1, len(family))
    shares = iter(
        FamilyShare(len(family), None if item.p is None else p, floor, q if item.equivalence else None, level, level)
        for item, p, floor, q in zip(family, adjusted, floors, same, strict=True))
    return [_alone(item) if item.asked.primary else next(shares) for item in found]


def can_be_same(pairs: int, family: int) -> bool:
    """Return True if this many pairs could show sameness to a test without assumptions, after Holm over the family."""
    return pairs >= LEAST_REPEATS and 0.5 ** min(pairs, 1000) * family <= ALPHA


def _alone(item: Evidence) -> FamilyShare:
    """Return the figures of a contrast that is not corrected, those of a look on the scale of its nominal level."""
    same = item.equivalence.p if item.equivalence else None
    stage = item.asked.stage
    if stage is None:
        return FamilyShare(1, item.p, item.floor, same)
    different, alike = ALPHA / stage.difference, ALPHA / stage.same
    # An e-process has no level of a look: intervals of brackets, which are none of it, share the 5 % over all looks.
    levels = (ALPHA / stage.of, ALPHA / stage.of) if stage.anytime else (stage.difference, stage.same)
    return FamilyShare(1, None if item.p is None else min(1.0, item.p * different), item.floor,
                       None if same is None else min(1.0, same * alike), *levels)


def error_budget(found: Sequence[Comparison], effects: int, convergence: int, claims: Sequence[Claim]) -> str:
    """Return what stands beside the verdicts about their errors; "" if there is no verdict to err in.

    Args:
        effects: main effects shown, tested as one family.
        convergence: cells whose samples to the target are shown in addition, tested as one family.
        claims: of a contest, each tested alone at its own level.
    """
    families = list(_families(found, effects))
    if convergence:
        families.append(f"the samples to the target of {convergence} cell{'s' if convergence > 1 else ''}"
                        f"{_holm(convergence)}")
    if not families:
        return ""
    per_cent = f"{100 * ALPHA:g} %"
    every = "" if len(families) == 1 else f"; so at most {100 * ALPHA * len(families):g} % over all of them"
    each = "" if len(families) == 1 else "each of: "
    qualities = "" if not claims else (
        f"; {100 * claims[0].alpha:g} % for each of {len(claims)} claims of quality, tested alone")
    return (f"the chance of a wrong verdict is at most {per_cent} for {each}{'; '.join(families)}{every}{qualities}. "
            f"Every further metric, baseline or run that you look at adds {per_cent}")


def _families(found: Sequence[Comparison], effects: int) -> Iterator[str]:
    primary = sum(item.primary for item in found)
    others = len(found) - primary
    if primary:
        yield "the primary contrast, tested alone"
    if others:
        name = "contrast" if others == 1 else "contrasts"
        yield f"the {others} {'other ' if primary else ''}{name}{' of single cells' if effects else ''}{_holm(others)}"
    if effects:
        yield f"the {effects} main effect{'s' if effects > 1 else ''}{_holm(effects)}"


def _holm(count: int) -> str:
    return " together (Holm)" if count > 1 else ""
