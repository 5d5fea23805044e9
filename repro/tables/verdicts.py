"""Verdicts as rows and tables: comparisons of cells, factors of ratios of times, main effects, claims of a contest."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from repro.compare import METRICS, Bounds, Comparison
from repro.compare.design.effect import MainEffect
from repro.compare.figures import Claim
from repro.core.numbers import ratio_texts
from repro.tables.layout import (
    NOTHING,
    Column,
    TextTable,
    count,
    decimals,
    figure,
    laid,
    name,
    ratio_and_ends,
    rounded,
    sentence,
    words,
)
from repro.tables.values import Row, as_number, bounds, estimate, plain


def comparison_rows(found: Iterable[Comparison], origins: Mapping[str, str]) -> Iterator[Row]:
    """Yield one row per verdict.

    Args:
        origins: cell id -> origin of its figures.
    """
    for item in found:
        restricted, same = item.restricted, item.equivalence
        yield {
            "candidate": item.candidate, "candidate_cell": plain(item.candidate_label), "baseline": item.baseline,
            "baseline_cell": plain(item.baseline_label), "origin": pair_origin(item, origins),
            "metric": item.metric, "primary": item.primary, "paired": item.paired, "n": item.n, **_verdict(item),
            **estimate("welch", item.welch),
            **estimate("split_samples", item.split.samples if item.split else None),
            **estimate("split_throughput", item.split.throughput if item.split else None),
            "split_words": item.split.words if item.split else None,
            "restricted_ratio": restricted.ratio if restricted else None,
            "restricted_horizon": restricted.horizon if restricted else None,
            **bounds("restricted", restricted.interval if restricted else None), "log_rank_p": item.log_rank_p,
            **estimate("probability_less", item.probability_less),
            "equivalence_margin": same.margin if same else None, "equivalence_p": same.p if same else None,
            "equivalence_p_adjusted": same.p_adjusted if same else None,
            "equivalent": same.equivalent if same else None, **estimate("unbiased", item.unbiased),
            "mean_ratio": item.levels.mean_ratio if item.levels else None,
            "candidate_p90": item.levels.candidate_p90 if item.levels else None,
            "baseline_p90": item.levels.baseline_p90 if item.levels else None,
            "failures": item.failures.words if item.failures else None, "settles": plain(item.settles),
            "differs": plain(item.also), "cautions": plain("; ".join(item.cautions)),
        }


def _verdict(item: Comparison) -> Row:
    return {"ratio": item.ratio, **bounds("ratio", item.interval), "speedup": item.speedup, "verdict": item.verdict,
            "qualifier": item.qualifier.strip(), "refused": item.refused, "because": plain(item.because), "p": item.p,
            "p_adjusted": item.p_adjusted, "family": item.family}


def pair_origin(item: Comparison, origins: Mapping[str, str]) -> str:
    """Return the origin of a comparison; both origins if its cells differ."""
    return " and ".join(dict.fromkeys(origins.get(cell_id, NOTHING) for cell_id in (item.candidate, item.baseline)))


def pair_rows(found: Iterable[Comparison], origins: Mapping[str, str]) -> Iterator[Row]:
    """Yield one row per pair of trials with one seed."""
    for item in found:
        for pair in item.pairs:
            yield {
                "candidate": item.candidate, "baseline": item.baseline, "origin": pair_origin(item, origins),
                "metric": item.metric, "primary": item.primary, "seed": pair.repeat,
                "candidate_value": pair.candidate, "baseline_value": pair.baseline,
                "ratio": pair.candidate / pair.baseline, "unit": METRICS[item.metric].unit,
            }


def node_rows(found: Iterable[Comparison], origins: Mapping[str, str]) -> Iterator[Row]:
    """Yield one row for each node of each comparison of a run in a pool."""
    for item in found:
        for node in item.by_node.nodes if item.by_node else ():
            yield {"candidate": item.candidate, "baseline": item.baseline, "origin": pair_origin(item, origins),
                   "metric": item.metric, "primary": item.primary, "lane": plain(node.name), "n": node.pairs,
                   "ratio": node.ratio, **bounds("ratio", node.interval)}


def comparison_table(found: Sequence[Comparison], origins: Mapping[str, str]) -> TextTable:
    """Return one row per verdict."""
    return laid("Comparisons: candidate / baseline", (
        words("Candidate", "candidate_cell"), words("Baseline", "baseline_cell"), words("Figures", "origin"),
        Column("Ratio of", lambda row: METRICS[str(row["metric"])].noun + (" *" if row["primary"] else ""), False),
        *judged_columns("n", "n")), comparison_rows(found, origins))


def judged_columns(head: str, key: str) -> tuple[Column, ...]:
    """Return the columns from the ratio to the verdict.

    Args:
        head, key: of the column of counts.
    """
    def judged(row: Row) -> str:
        return rounded(as_number(row["p"] if row["p_adjusted"] is None else row["p_adjusted"]), 2)

    return (*ratio_and_ends("Ratio", "ratio"), count(head, key), Column("p", judged), figure(ALONE, "p", 2),
            Column("Verdict", lambda row: f"{row['verdict']} {row['qualifier']}".strip(), False))


def ratio_and_span(ratio: float | None, found: Bounds | None) -> tuple[str, str]:
    """Return a ratio and its interval, `0.812` and `0.740 to 0.893`; "" for what is not known."""
    known = [] if ratio is None else [ratio, *((found.low, found.high) if found else ())]
    text, *ends = ratio_texts(known) or [""]
    return text, " to ".join(ends)


def comparison_sentence(found: Comparison) -> str:
    """Return a comparison as one sentence."""
    versus = f"{found.candidate_label} against {found.baseline_label} ({found.metric})"
    settles = f"; {found.settles}" if found.settles else ""
    if found.ratio is None:
        return f"{versus}: {found.spoken}; {found.because}{settles}"
    counted = f"{found.n} pairs" if found.paired else f"{found.n} trials or more a side, not paired"
    ratio, span = ratio_and_span(found.ratio, found.interval)
    limits = f"{found.coverage} interval {span}, " if span else ""
    return (f"{versus}: {found.spoken}, {ratio} x {METRICS[found.metric].times} ({limits}{counted}); "
            f"{found.because}{settles}")


def factor_table(found: Sequence[Comparison], origins: Mapping[str, str]) -> TextTable:
    """Return three ratios of each contrast side by side, so that a protocol that is faster and worse, or slower and
    better, shows.
    """
    return laid("Convergence and speed: time to the target = samples to the target / samples a second", (
        words("Candidate", "candidate_cell"), words("Baseline", "baseline_cell"), words("Figures", "origin"),
        *ratio_and_ends("Samples, ratio", "split_samples"),
        *ratio_and_ends("Samples a second, ratio", "split_throughput"),
        *ratio_and_ends("Time, ratio", "ratio"), sentence("Factors, exploratory", "split_words"),
    ), comparison_rows((item for item in found if item.split is not None), origins))


ALONE = "p alone"
"""Header of p before the correction for several tests."""
FOOTNOTE = ("* declared contrast, tested alone; every other p is corrected by Holm over all shown. A ratio below 1 "
            "means less time, fewer samples, lower throughput or lower quality.")


def effect_rows(found: Sequence[MainEffect], origin: str) -> Iterator[Row]:
    """Yield one row per main effect.

    Args:
        origin: of the figures.
    """
    for item in found:
        pooled = item.pooled
        yield _effect(item, origin) | {
            "combinations": item.combinations, "incomplete": item.incomplete, "failed": item.failed,
            "seeds": pooled.n, **_verdict(pooled), "settles": plain(pooled.settles),
            "depends_on": plain(", ".join(dict.fromkeys(other.factor for other in item.flagged))),
            "differs": plain(pooled.also), "cautions": plain("; ".join(pooled.cautions))}


def interaction_rows(found: Sequence[MainEffect], origin: str) -> Iterator[Row]:
    """Yield one row per difference of a main effect between two levels of another factor."""
    for item in found:
        for other in item.interactions:
            yield _effect(item, origin) | {
                "other_factor": plain(other.factor), "other_level": plain(other.level),
                "other_reference": plain(other.reference), "combinations": other.combinations,
                "ratio_here": other.ratio_here, "ratio_there": other.ratio_there, "ratio": other.ratio,
                **bounds("ratio", other.interval), "p": other.p, "p_adjusted": other.p_adjusted,
                "flagged": other.flagged, "reverses": other.reverses}


def _effect(item: MainEffect, origin: str) -> Row:
    return {"factor": plain(item.factor), "level": plain(item.level), "reference": plain(item.reference),
            "origin": origin, "metric": item.pooled.metric}


def effect_table(found: Sequence[MainEffect], origin: str) -> TextTable:
    """Return one row per main effect; no row if the suite asks for none."""
    return laid("Main effects: each level against that of the baseline, paired over all other factors", (
        words("Level", "level"), words("Against", "reference"), words("Figures", "origin"),
        Column("Ratio of", lambda row: METRICS[str(row["metric"])].noun, False),
        count("Pairs of cells", "combinations"), *judged_columns("Seeds", "seeds"),
        words("Depends on", "depends_on")), effect_rows(found, origin))


def claim_rows(found: Sequence[Claim], origins: Mapping[str, str]) -> Iterator[Row]:
    """Yield one row a cell; none if the run is no contest."""
    for item in found:
        row: Row = {
            "cell_id": item.cell_id, "cell": plain(item.label), "origin": origins.get(item.cell_id),
            "quality": plain(item.metric), "direction": item.direction, "target": item.target, "alpha": item.alpha,
            "declared": item.declared, "n": item.n, "mean": item.mean, "deviation": item.deviation,
        }
        yield row | bounds("mean", item.interval) | {
            "p": item.p, "verdict": item.verdict, "because": plain(item.because),
            "cautions": plain("; ".join(item.cautions))}


def claim_table(found: Sequence[Claim], origins: Mapping[str, str]) -> TextTable:
    """Return one row a cell."""
    return laid(f"Claims of quality: {name(found[0].statement)}" if found else "", (
        words("Cell", "cell"), words("Figures", "origin"), count("Runs", "n", "declared"), decimals("Mean", "mean", 5),
        Column("Interval", _ends), decimals("Standard deviation", "deviation", 5), figure("p, one-sided", "p", 2),
        figure("alpha", "alpha", 2),
        Column("Claim", lambda row: str(row["verdict"]) if row["verdict"] == "supported" else
               f"{row['verdict']}: {name(str(row['because']))}", numeric=False)), claim_rows(found, origins))


def _ends(row: Row) -> str:
    if row["mean_low"] is None or row["mean_level"] is None:
        return NOTHING
    return f"{row['mean_low']:.5f} to {row['mean_high']:.5f} ({100 * float(row['mean_level']):.3g} %)"
