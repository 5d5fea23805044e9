"""The terms of a second execution that a record supports: decided before anything runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

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
    terms = Terms(pairs=pairs or 1, margin=record.plan.suite.margin if margin is None else margin,
                  interaction=interaction, until_settled=until_settled)
    if not pairs:
        terms = terms.model_copy(update={"pairs": max(
            (_pairs_needed(item.mean, terms, len(found)) for item in found.values() if item.mean is not None),
            default=record.plan.design.common)})
    if found and not undecided and (why := _out_of_reach(found, terms)):
        raise UsageError(f"{why}; to run all the same: --even-if-undecided")
    # Equal figures of a simulation are exact; measured ones may be equal by chance, and say nothing of their spread.
    known = all(item.mean is None or item.mean.error or _is_simulated(record, claim) for claim, item in found.items())
    return terms.model_copy(update={"power": joint_power([*found.values()], terms) if found and known else None})


def _is_simulated(record: Record, claim: Claimed) -> bool:
    return all(record.cell(name).choices.origin == "simulated" for name in claim.cells)


def joint_power(found: Sequence[Found], terms: Terms) -> float:
    """Return the least probability that all claims are found to be reproduced if none has changed, however they depend
    on each other."""
    return max(0.0, 1 - sum(1 - power_of(item, terms) for item in found))


def _power_of_each(claims: int) -> float:
    """Return the probability that each of so many claims needs, for all of them to have `POWER`."""
    return 1 - (1 - POWER) / claims


def power_of(found: Found, terms: Terms) -> float:
    """Return the probability that an unchanged claim is found to be reproduced; of claims whose evaluations are too far
    apart, if all trials end with the weights of the record."""
    if found.mean is None or min(found.n, terms.pairs) < LEAST_PAIRS or _is_coarse(found, terms):
        return 0.0
    return replication_power(found.mean, terms.pairs, terms.margin, terms.interaction, terms.until_settled)


def _is_coarse(found: Found, terms: Terms) -> bool:
    """Return whether evaluations are too far apart for the margin, and weights of so many trials cannot be compared
    instead."""
    return bool(found.too_coarse(terms.margin)) and not (found.has_weights and terms.pairs <= found.n)


def _pairs_needed(mean: MeanLog, terms: Terms, claims: int) -> int:
    """Return the fewest new pairs that show the margin, at least those of the record; its own number if none does."""
    needed = pairs_for_margin(mean, terms.margin, terms.interaction, _power_of_each(claims), terms.until_settled)
    return max(mean.figures, needed if needed is not None and needed <= MOST_TIMES * mean.figures else 0)


def _out_of_reach(found: Mapping[Claimed, Found], terms: Terms) -> str:
    """Return why no answer can be expected on these terms, with those on which one can; "" if one can."""
    claim, pairs = next(iter(found)), terms.pairs
    for each, item in found.items():
        if item.mean is None:
            return f"the record gives no figure to reproduce: {each.label}: {item.why}"
        if item.n < LEAST_PAIRS:
            return (f"no answer is within reach: the record has {each.counted(item.n)} of {each.label}, and an answer "
                    f"needs at least {LEAST_PAIRS} in both executions")
    if pairs < LEAST_PAIRS:
        few = "is" if pairs == 1 else "are"
        return f"{claim.counted(pairs)} {few} too few for an answer; at least {LEAST_PAIRS} are required"
    coarse = [item for item in found.values() if _is_coarse(item, terms)]
    if coarse and not all(math.isfinite(item.apart) and item.apart <= 1 for item in coarse):
        return f"no answer is within reach: in the record {coarse[0].too_coarse(terms.margin)}"
    power = joint_power([*found.values()], terms)
    if power >= POWER:
        return ""
    unchanged = "an unchanged claim" if len(found) == 1 else f"all {len(found)} claims, if unchanged,"
    start = f"no answer is within reach: in the record {coarse[0].too_coarse(terms.margin)}" if coarse else (
        f"no answer is within reach: {claim.counted(pairs, 'new')} find {unchanged} to be within a margin of "
        f"{100 * terms.margin:.3g} % with {chance_words(power)} probability")
    return start + ("" if coarse else _with_more(found, terms)) + _with_wider(found, terms)


def _with_more(found: Mapping[Claimed, Found], terms: Terms) -> str:
    """Return how many pairs would do."""
    most = _most_pairs(found, terms)
    if most:
        return f"; {most} do with {100 * POWER:.0f} %: --trials {most}"
    alone = terms.model_copy(update={"interaction": 0.0})
    why = "the declared interaction alone is as large as the margin" if _most_pairs(found, alone) else (
        "the record itself is not that precise")
    return f", and no number does with {100 * POWER:.0f} %, because {why}"


def _most_pairs(found: Mapping[Claimed, Found], terms: Terms) -> int | None:
    """Return the new pairs with which all claims are shown; None: no number is enough."""
    each = _power_of_each(len(found))
    counts = [pairs_for_margin(item.mean, terms.margin, terms.interaction, each, terms.until_settled)
              for item in found.values() if item.mean is not None]
    known = [count for count in counts if count is not None]
    return max(known) if len(known) == len(counts) else None


def _with_wider(found: Mapping[Claimed, Found], terms: Terms, trials: str = "") -> str:
    """Return the margin that would do; if none does with these pairs, with the fewest that show the widest margin.

    Args:
        trials: the option for so many pairs, if they are not those that were asked for.
    """
    each = _power_of_each(len(found))
    margins = [supported_margin(item.mean, terms.pairs, terms.interaction, each, terms.until_settled)
               for item in found.values() if item.mean is not None]
    if None in margins:
        most = _most_pairs(found, terms.model_copy(update={"margin": WIDEST}))
        if most is None or most <= terms.pairs:
            return ""
        return _with_wider(found, terms.model_copy(update={"pairs": most}), f" --trials {most}")
    grids = [math.ceil(100 * item.apart) / 100 for item in found.values()
             if not (item.has_weights and terms.pairs <= item.n)]
    wider = max(*(margin or 0.0 for margin in margins), *grids, 0.0)
    if wider > WIDEST:
        return ""
    support = (f"; {next(iter(found)).counted(terms.pairs)} support a margin of {100 * wider:.0f} %: --margin {wider:g}"
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
