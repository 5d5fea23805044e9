"""Verdicts on pairs of cells as rows: comparisons, the factors of ratios of times, pairs of trials."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from repro.compare import METRICS, Comparison
from repro.compare.evidence.time_split import in_words
from repro.compare.findings import Findings

from .layout import NOTHING, Column, TextTable, count, ends, figure, laid, rounded, sentence, words
from .values import Row, as_number, bounds, estimate, plain


def comparison_rows(found: Iterable[Comparison], origins: Mapping[str, str]) -> Iterator[Row]:
    """Yield one row per verdict.

    Args:
        origins: cell id -> origin of its figures.
    """
    for item in found:
        row: Row = {
            "candidate": item.candidate, "candidate_cell": plain(item.candidate_label), "baseline": item.baseline,
            "baseline_cell": plain(item.baseline_label), "origin": pair_origin(item, origins),
            "metric": item.metric, "primary": item.primary, "paired": item.paired, "n": item.n, "ratio": item.ratio,
        }
        row |= bounds("ratio", item.interval)
        row |= {"speedup": item.speedup, "verdict": item.verdict, "refused": item.refused,
                "because": plain(item.because),
                "p": item.p, "p_adjusted": item.p_adjusted, "family": item.family}
        row |= estimate("welch", item.welch)
        row |= estimate("split_samples", item.split.samples if item.split else None)
        row |= estimate("split_throughput", item.split.throughput if item.split else None)
        row |= {"split_words": in_words(item.split) if item.split else None}
        restricted, same = item.restricted, item.equivalence
        row |= {"restricted_ratio": restricted.ratio if restricted else None,
                "restricted_horizon": restricted.horizon if restricted else None}
        row |= bounds("restricted", restricted.interval if restricted else None)
        row |= {"log_rank_p": item.log_rank_p}
        row |= estimate("probability_less", item.probability_less)
        row |= {"equivalence_margin": same.margin if same else None, "equivalence_p": same.p if same else None,
                "equivalence_p_adjusted": same.p_adjusted if same else None,
                "equivalent": same.equivalent if same else None}
        row |= {"settles": plain(item.settles), "differs": plain(item.also),
                "cautions": plain("; ".join(item.cautions))}
        yield row


def pair_origin(item: Comparison, origins: Mapping[str, str]) -> str:
    """Return the origin of a comparison; both origins if its cells differ."""
    return " and ".join(dict.fromkeys(origins.get(cell_id, NOTHING) for cell_id in (item.candidate, item.baseline)))


def pair_rows(found: Findings) -> Iterator[Row]:
    """Yield one row per pair of trials with one seed."""
    for item in found.comparisons:
        for pair in item.pairs:
            yield {
                "candidate": item.candidate, "baseline": item.baseline, "origin": pair_origin(item, found.origins),
                "metric": item.metric, "primary": item.primary, "seed": pair.repeat,
                "candidate_value": pair.candidate, "baseline_value": pair.baseline,
            }


def comparison_table(found: Sequence[Comparison], origins: Mapping[str, str], digits: int = 3) -> TextTable:
    """Return one row per verdict.

    Args:
        digits: of ratios.
    """
    return laid("Comparisons: candidate / baseline", (
        words("Candidate", "candidate_cell"), words("Baseline", "baseline_cell"), words("Figures", "origin"),
        Column("Ratio of", lambda row: METRICS[str(row["metric"])].noun + (" *" if row["primary"] else ""), False),
        *judged_columns("n", "n", digits)), comparison_rows(found, origins))


def judged_columns(head: str, key: str, digits: int) -> tuple[Column, ...]:
    """Return the columns from the ratio to the verdict.

    Args:
        head, key: of the column of counts.
    """
    def judged(row: Row) -> str:
        return rounded(as_number(row["p"] if row["p_adjusted"] is None else row["p_adjusted"]), digits - 1)

    def ratio(row: Row) -> str:
        return "no result" if row["refused"] and row["ratio"] is None else rounded(as_number(row["ratio"]), digits)

    return (Column("Ratio", ratio), ends("Interval", "ratio", digits), count(head, key), Column("p", judged),
            figure(ALONE, "p", digits - 1), words("Verdict", "verdict"))


def factor_table(found: Sequence[Comparison], origins: Mapping[str, str]) -> TextTable:
    """Return three ratios of each contrast side by side, so that a protocol that is faster and worse, or slower and
    better, shows.
    """
    return laid("Convergence and speed: time to the target = samples to the target / samples a second", (
        words("Candidate", "candidate_cell"), words("Baseline", "baseline_cell"), words("Figures", "origin"),
        figure("Samples, ratio", "split_samples"), ends("Interval", "split_samples"),
        figure("Samples a second, ratio", "split_throughput"), ends("Interval", "split_throughput"),
        figure("Time, ratio", "ratio"), ends("Interval", "ratio"), sentence("Factors, exploratory", "split_words"),
    ), comparison_rows((item for item in found if item.split is not None), origins))


ALONE = "p alone"
"""Header of p before the correction for several tests."""
FOOTNOTE = ("* declared contrast, tested alone; every other p is corrected by Holm over all shown. A ratio below 1 "
            "means less time, fewer samples, lower throughput or lower quality.")
