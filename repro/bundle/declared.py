"""The terms of a second execution that a record supports: decided before anything runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from repro.bundle.claim import Claimed, Found, measured
from repro.core.errors import UsageError
from repro.record.folder.store import Record
from repro.stats.replication import (
    ALPHA,
    LEAST_PAIRS,
    POWER,
    MeanLog,
    pairs_for_margin,
    replication_power,
    supported_margin,
    two_sided,
)
from repro.suite.planning.terms import Terms

MOST = 0.99
"""Probability above which its digits say nothing."""
WIDEST = 1.0
"""The widest margin that can be declared."""
MOST_TIMES = 4
"""Pairs of a second execution, as a multiple of the record's, that are run without being asked for."""


@dataclass(frozen=True, slots=True)
class Asked:
    """The terms that are asked for."""

    margin: float
    interaction: float = 0.0
    until_settled: bool = False


def settled_terms(
    record: Record, claims: Sequence[Claimed], pairs: int | None, margin: float | None, interaction: float = 0.0,
    *, undecided: bool = False, until_settled: bool = False,
) -> Terms:
    """Return the terms of a second execution.

    Args:
        pairs: new pairs; None: as many as the margin needs, at least those of the record.
        margin: None: the suite's.
        undecided: also if "reproduced" is out of reach, or the record gives no figure.

    Raises:
        UsageError: a claim has no figure in the record, or the record cannot support an answer on these terms; the
            message says which terms it supports.
    """
    found = {claim: measured(record, claim) for claim in claims}
    asked = Asked(record.plan.suite.margin if margin is None else margin, interaction, until_settled)
    needed = pairs or max((_pairs_needed(item.mean, asked, len(found)) for item in found.values()
                           if item.mean is not None), default=record.plan.design.common)
    if found and not undecided and (why := _out_of_reach(found, needed, asked)):
        raise UsageError(f"{why}; to run all the same: --even-if-undecided")
    # Equal figures of a simulation are exact; measured ones may be equal by chance, and say nothing of their spread.
    known = all(item.mean is None or item.mean.error or _is_simulated(record, claim) for claim, item in found.items())
    return Terms(pairs=needed, margin=asked.margin, interaction=interaction, until_settled=until_settled,
                 power=joint_power([*found.values()], needed, asked) if found and known else None)


def _is_simulated(record: Record, claim: Claimed) -> bool:
    return all(record.cell(name).choices.origin == "simulated" for name in claim.cells)


def joint_power(found: Sequence[Found], pairs: int, asked: Asked) -> float:
    """Return the least probability that all claims are found to be reproduced if none has changed, however they depend
    on each other."""
    return max(0.0, 1 - sum(1 - power_of(item, pairs, asked) for item in found))


def _power_of_each(claims: int) -> float:
    """Return the probability that each of so many claims needs, for all of them to have `POWER`."""
    return 1 - (1 - POWER) / claims


def power_of(found: Found, pairs: int, asked: Asked) -> float:
    """Return the probability that an unchanged claim is found to be reproduced; of claims whose evaluations are too far
    apart, if all trials end with the weights of the record."""
    if found.mean is None or min(found.n, pairs) < LEAST_PAIRS:
        return 0.0
    if found.too_coarse(asked.margin) and not (found.has_weights and pairs <= found.n):
        return 0.0
    return replication_power(found.mean, pairs, asked.margin, asked.interaction, asked.until_settled)


def _pairs_needed(mean: MeanLog, asked: Asked, claims: int) -> int:
    """Return the fewest new pairs that show the margin, at least those of the record; its own number if none does."""
    needed = pairs_for_margin(mean, asked.margin, asked.interaction, _power_of_each(claims), asked.until_settled)
    return max(mean.figures, needed if needed is not None and needed <= MOST_TIMES * mean.figures else 0)


def _out_of_reach(found: Mapping[Claimed, Found], pairs: int, asked: Asked) -> str:
    """Return why no answer can be expected on these terms, with those on which one can; "" if one can."""
    claim = next(iter(found))
    for each, item in found.items():
        if item.mean is None:
            return f"the record gives no figure to reproduce: {each.label}: {item.why}"
        if item.n < LEAST_PAIRS:
            return (f"no answer is within reach: the record has {each.counted(item.n)} of {each.label}, and an answer "
                    f"needs at least {LEAST_PAIRS} in both executions")
    if pairs < LEAST_PAIRS:
        few = "is" if pairs == 1 else "are"
        return f"{claim.counted(pairs)} {few} too few for an answer; at least {LEAST_PAIRS} are required"
    coarse = [item for item in found.values()
              if item.too_coarse(asked.margin) and not (item.has_weights and pairs <= item.n)]
    if coarse and not all(math.isfinite(item.apart) and item.apart <= 1 for item in coarse):
        return f"no answer is within reach: in the record {coarse[0].too_coarse(asked.margin)}"
    power = joint_power([*found.values()], pairs, asked)
    if power >= POWER:
        return ""
    unchanged = "an unchanged claim" if len(found) == 1 else f"all {len(found)} claims, if unchanged,"
    start = f"no answer is within reach: in the record {coarse[0].too_coarse(asked.margin)}" if coarse else (
        f"no answer is within reach: {claim.counted(pairs, 'new')} find {unchanged} to be within a margin of "
        f"{100 * asked.margin:.3g} % with {chance_words(power)} probability")
    return start + ("" if coarse else _with_more(found, asked)) + _with_wider(found, pairs, asked)


def _with_more(found: Mapping[Claimed, Found], asked: Asked) -> str:
    """Return how many pairs would do."""
    most = _most_pairs(found, asked)
    if most:
        return f"; {most} do with {100 * POWER:.0f} %: --trials {most}"
    why = "the declared interaction alone is as large as the margin" if _most_pairs(found, replace(
        asked, interaction=0.0)) else "the record itself is not that precise"
    return f", and no number does with {100 * POWER:.0f} %, because {why}"


def _most_pairs(found: Mapping[Claimed, Found], asked: Asked) -> int | None:
    """Return the new pairs with which all claims are shown; None: no number is enough."""
    each = _power_of_each(len(found))
    counts = [pairs_for_margin(item.mean, asked.margin, asked.interaction, each, asked.until_settled)
              for item in found.values() if item.mean is not None]
    known = [count for count in counts if count is not None]
    return max(known) if len(known) == len(counts) else None


def _with_wider(found: Mapping[Claimed, Found], pairs: int, asked: Asked, trials: str = "") -> str:
    """Return the margin that would do; if none does with these pairs, with the fewest that show the widest margin.

    Args:
        trials: the option for so many pairs, if they are not those that were asked for.
    """
    each = _power_of_each(len(found))
    margins = [supported_margin(item.mean, pairs, asked.interaction, each, asked.until_settled)
               for item in found.values() if item.mean is not None]
    if None in margins:
        most = _most_pairs(found, replace(asked, margin=WIDEST))
        return _with_wider(found, most, asked, f" --trials {most}") if most is not None and most > pairs else ""
    grids = [math.ceil(100 * item.apart) / 100 for item in found.values()
             if not (item.has_weights and pairs <= item.n)]
    wider = max(*(margin or 0.0 for margin in margins), *grids, 0.0)
    if wider > WIDEST:
        return ""
    support = (f"; {next(iter(found)).counted(pairs)} support a margin of {100 * wider:.0f} %: --margin {wider:g}"
               f"{trials}")
    return support + wider_than_effect(found, wider)


def wider_than_effect(found: Mapping[Claimed, Found], margin: float) -> str:
    """Return that a margin exceeds a difference that the record shows; "" if it does not."""
    hidden = [claim for claim, item in found.items() if claim.baseline and item.mean is not None
              and two_sided(item.mean) <= ALPHA and abs(item.mean.value) <= math.log1p(margin)]
    return f"; this margin is wider than the whole effect of {hidden[0].label}, so a ratio of 1 would be reproduced, " \
           "too" if hidden else ""


def chance_words(power: float) -> str:
    """`83 %`; `more than 99 %`."""
    return "more than 99 %" if power > MOST else f"{100 * power:.0f} %"
