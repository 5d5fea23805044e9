"""Forecast of the number of pairs that would settle an open comparison, from the figures so far."""

from __future__ import annotations

from repro import stats
from repro.compare.evidence import Evidence
from repro.compare.family import ALPHA, FamilyShare

FORECASTS = 100
"""Contrasts in a family up to which each gets a forecast; it takes longer than the verdict."""


def what_settles(item: Evidence, share: FamilyShare) -> str:
    """Return what would settle it, at the level of Holm's first step, as `repro plan --pilot` computes it."""
    if share.family > FORECASTS:
        return ""
    if not item.is_apart(1 - ALPHA / share.family):
        return "one evaluate_every for both would"
    if not item.asked.paired:
        return "pairs of one seed, run interleaved, would say more than unpaired trials"
    if item.interval is None or item.asked.stage is not None:  # a design has its own looks, and no others
        return ""
    forecast = _forecast(item, share)
    if forecast is None or forecast <= item.n:
        return ""
    return f"about {forecast} pairs would have; {_again(item)}"


def _again(item: Evidence) -> str:
    """Return how to try again. It invites nobody to repeat a test until it suits: this run has spent its 5 %."""
    primary = "" if item.asked.primary else "declare this contrast as its primary and "
    return f"a new run is a new experiment with its own 5 % of errors: {primary}plan it with --until-settled"


def what_reaches(item: Evidence, share: FamilyShare, least: int) -> str:
    """Return how many pairs make a verdict possible; they bring one only if the figures so far allow it."""
    if item.interval is None or item.missed is not None or share.family > FORECASTS:
        return f"it takes at least {_more_pairs(item.n, least)}, in a new run with --seeds {least}"
    forecast = _forecast(item, share)
    if forecast is None:
        return f"it takes at least {_more_pairs(item.n, least)}, and by the figures so far more than 10,000 in all"
    needed = max(least, forecast)
    return f"about {_more_pairs(item.n, needed)} would, in a new run with --seeds {needed}"


def _forecast(item: Evidence, share: FamilyShare) -> int | None:
    """Return the pairs in all that would show a difference or equivalence if the pairs so far are typical."""
    level = ALPHA / share.family
    return stats.or_none(lambda: stats.pairs_to_settle(item.logs, item.asked.margin, level))


def _more_pairs(n: int, needed: int) -> str:
    more = needed - n
    return f"{more} more pair{'s' if more != 1 else ''}"
