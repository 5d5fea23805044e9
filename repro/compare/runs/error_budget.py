"""Spending of the 5 % for wrong verdicts: once for each family that is corrected apart from the others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from repro.compare.design.effect import MainEffect
from repro.compare.figures import Claim, Comparison
from repro.compare.verdict.family import ALPHA


def error_budget(
    found: Sequence[Comparison], effects: Sequence[MainEffect] = (), convergence: int = 0,
    claims: Sequence[Claim] = (),
) -> str:
    """Return what stands beside the verdicts about their errors; "" if there is no verdict to err in.

    Args:
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


def _families(found: Sequence[Comparison], effects: Sequence[MainEffect]) -> Iterator[str]:
    primary = sum(item.primary for item in found)
    others = len(found) - primary
    if primary:
        yield "the primary contrast, tested alone"
    if others:
        name = "contrast" if others == 1 else "contrasts"
        yield f"the {others} {'other ' if primary else ''}{name}{' of single cells' if effects else ''}{_holm(others)}"
    if effects:
        yield f"the {len(effects)} main effect{'s' if len(effects) > 1 else ''}{_holm(len(effects))}"


def _holm(count: int) -> str:
    return " together (Holm)" if count > 1 else ""
