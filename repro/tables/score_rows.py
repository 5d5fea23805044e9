"""Scores over workloads as rows of plain values."""

from __future__ import annotations

from collections.abc import Iterator

from repro.compare.ranking.score_figures import ContenderScore, Scores
from repro.tables.values import Row, bounds, estimate, plain


def score_rows(found: Scores) -> Iterator[Row]:
    """Yield one row per contender."""
    for item in found.contenders:
        yield _score(found, item)


def _score(found: Scores, item: ContenderScore) -> Row:
    row: Row = {"contender": plain(item.name), "by": plain(", ".join(found.by)), "origin": " and ".join(found.origins),
                "metric": found.metric, "workloads": len(found.workloads), "solved": item.solved,
                "tau_max": found.tau_max}
    row |= estimate("score", item.score)
    row |= {"best_share": item.best_share, "reference": plain(found.reference)}
    row |= {"mean_ratio": item.mean_ratio.value if item.mean_ratio else None}
    row |= bounds("mean_ratio", item.mean_ratio.interval if item.mean_ratio else None)
    return row | {"withheld": plain(item.withheld), "draws": found.draws,
                  "cautions": plain("; ".join(found.cautions))}


def score_time_rows(found: Scores) -> Iterator[Row]:
    """Yield one row per contender and workload."""
    origins = {item.name: (item.origin, item.target) for item in found.workloads}
    for item in found.outcomes:
        origin, target = origins[item.workload]
        yield {"contender": plain(item.contender), "workload": plain(item.workload), "origin": origin,
               "target": plain(target), "metric": found.metric, "cell_id": item.cell_id, "seeds": item.n,
               "planned": item.planned, "reached": item.reached, "median": item.median}


def profile_rows(found: Scores) -> Iterator[Row]:
    """Yield one row per contender and factor of the best time."""
    for item in found.contenders:
        low, high = (side or (None,) * len(found.taus) for side in (item.low, item.high))
        for place, tau in enumerate(found.taus):
            yield {"contender": plain(item.name), "origin": " and ".join(found.origins), "metric": found.metric,
                   "tau": tau, "share": item.profile[place], "share_low": low[place], "share_high": high[place]}
