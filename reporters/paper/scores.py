"""Scores over workloads as two tables for a README or a paper."""

from __future__ import annotations

from repro.compare import METRICS
from repro.compare.ranking.score_figures import Scores
from repro.tables.words import NOTHING, TextTable, interval, name, rounded


def scores_table(found: Scores | None) -> TextTable:
    """Return one row a contender; no row without a ranking."""
    headers = ("Contender", "Figures", "Score", "Band", "Best on", "Solved", "Mean ratio", "Interval", "Withheld")
    numeric = (False, False, True, True, True, True, True, True, False)
    if found is None:
        return TextTable("", headers, numeric, ())
    return TextTable(
        title=f"Scores over {len(found.workloads)} workloads by the {METRICS[found.metric].noun}: area under the "
              f"performance profile to {found.tau_max:g} x, geometric mean of ratios to {name(found.reference)}; bands "
              "over seeds",
        headers=headers, numeric=numeric,
        rows=tuple((
            name(item.name), " and ".join(found.origins), rounded(item.score.value), interval(item.score.interval),
            f"{100 * item.best_share:.0f} %", f"{item.solved}/{len(found.workloads)}",
            rounded(item.mean_ratio.value if item.mean_ratio else None),
            interval(item.mean_ratio.interval if item.mean_ratio else None),
            name(item.withheld) or NOTHING) for item in found.contenders),
    )


def score_times_table(found: Scores | None) -> TextTable:
    """Return the medians behind the scores, one row a contender; no row without a ranking."""
    if found is None:
        return TextTable("", (), (), ())
    unit = METRICS[found.metric].unit
    return TextTable(
        title=f"Median {METRICS[found.metric].noun}{f' ({unit})' if unit else ''} by workload, and seeds that reached "
              "the target",
        headers=("Contender", "Figures", *(name(f"{item.name}: {item.target}") for item in found.workloads)),
        numeric=(False, False, *(True for _ in found.workloads)),
        rows=tuple((name(item.name), " and ".join(found.origins), *(
            f"{'missed' if cell.median is None else rounded(cell.median)} ({cell.reached}/{cell.n})"
            for workload in found.workloads for cell in [found.outcome(item.name, workload.name)]))
            for item in found.contenders),
    )
