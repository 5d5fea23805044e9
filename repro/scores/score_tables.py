"""Scores over workloads as tables."""

from __future__ import annotations

from collections.abc import Iterator

from repro.compare import METRICS
from repro.record.folder.store import Record
from repro.scores.scores import TWICE, Scores, ranking
from repro.tables.layout import Column, TextTable, count, ends, figure, laid, name, ratio_and_ends, rounded, words
from repro.tables.tables import Table
from repro.tables.values import Row, estimate, plain


def scores(record: Record) -> Table:
    """Return one row per contender; none without a ranking."""
    found = ranking(record)
    return Table("scores", "One row per contender over all workloads", tuple(score_rows(found)) if found else ())


def score_times(record: Record) -> Table:
    """Return one row per contender and workload; none without a ranking."""
    found = ranking(record)
    rows = ({"contender": plain(item.contender), "workload": plain(item.workload), "origin": at.origin,
             "target": plain(at.target), "metric": found.metric, "cell_id": item.cell_id, "seeds": item.n,
             "planned": item.planned, "reached": item.reached, "median": item.median}
            for item in found.outcomes for at in found.workloads if at.name == item.workload) if found else ()
    return Table("score_times", "One row per contender and workload", tuple(rows))


def score_profiles(record: Record) -> Table:
    """Return one row per contender and factor of the best time; none without a ranking."""
    found = ranking(record)
    return Table("score_profiles", "One row per contender and factor of the best time",
                 tuple(_profile_rows(found)) if found else ())


def score_rows(found: Scores) -> Iterator[Row]:
    """Yield one row per contender."""
    for item in found.contenders:
        yield {"contender": plain(item.name), "by": plain(", ".join(found.by)), "origin": " and ".join(found.origins),
               "metric": found.metric, "workloads": len(found.workloads), "solved": item.solved,
               "tau_max": found.tau_max, **estimate("score", item.score), "best_share": item.best_share,
               "reference": plain(found.reference), **estimate("mean_ratio", item.mean_ratio),
               "withheld": plain(item.withheld), "draws": found.draws, "cautions": plain("; ".join(found.cautions))}


def _profile_rows(found: Scores) -> Iterator[Row]:
    for item in found.contenders:
        low, high = (side or (None,) * len(found.taus) for side in (item.low, item.high))
        for place, tau in enumerate(found.taus):
            yield {"contender": plain(item.name), "origin": " and ".join(found.origins), "metric": found.metric,
                   "tau": tau, "share": item.profile[place], "share_low": low[place], "share_high": high[place]}


def factors(found: Scores) -> list[float]:
    """Return the factors of the best time at which a table gives every profile."""
    return sorted({TWICE, found.tau_max} & set(found.taus))


def short_scores(record: Record) -> TextTable | None:
    """Return one row a contender; None without a ranking."""
    found = ranking(record)
    return score_table(found) if found else None


def short_times(record: Record) -> TextTable | None:
    """Return the medians behind the scores, one row a contender; None without a ranking."""
    found = ranking(record)
    return score_time_table(found) if found else None


def score_table(found: Scores) -> TextTable:
    """Return one row a contender."""
    rows = [row | {f"within {tau:g} x": found.within(item, tau) for tau in factors(found)}
            for item, row in zip(found.contenders, score_rows(found), strict=True)]
    return laid(
        f"Scores over {len(found.workloads)} workloads by the {METRICS[found.metric].noun}: area under the performance "
        f"profile to {found.tau_max:g} x, geometric mean of ratios to {name(found.reference)}; bands over seeds",
        (words("Contender", "contender"), words("Figures", "origin"), figure("Score", "score"), ends("Band", "score"),
         _share("Best on", "best_share"), *(_share(f"Within {tau:g} x", f"within {tau:g} x") for tau in factors(found)),
         count("Solved", "solved", "workloads"), *ratio_and_ends("Mean ratio", "mean_ratio"),
         words("Withheld", "withheld")), rows)


def _share(head: str, key: str) -> Column:
    return Column(head, lambda row: f"{100 * float(row[key] or 0):.0f} %")


def score_time_table(found: Scores, digits: int = 3) -> TextTable:
    """Return the medians behind the scores, one row a contender."""
    unit = METRICS[found.metric].unit
    by_contender: dict[str, dict[str, str]] = {}
    for item in found.outcomes:
        shown = "missed" if item.median is None else rounded(item.median, digits)
        by_contender.setdefault(item.contender, {})[item.workload] = f"{shown} ({item.reached}/{item.n})"
    heads = {item.name: name(f"{item.name}: {item.target}") for item in found.workloads}
    return TextTable(
        f"Median {METRICS[found.metric].noun}{f' ({unit})' if unit else ''} by workload, and seeds that reached the "
        "target", ("Contender", "Figures", *heads.values()), (False, False, *(True for _ in heads)),
        tuple((name(item.name), " and ".join(found.origins), *(by_contender[item.name][key] for key in heads))
              for item in found.contenders))
