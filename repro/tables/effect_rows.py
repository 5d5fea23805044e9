"""Main effects, their interactions and the warnings of a run as rows of tables."""

from __future__ import annotations

from collections.abc import Iterable

from repro.compare.runs.findings import Findings
from repro.tables.values import Row, bounds, origins_of, plain


def effect_rows(found: Findings) -> Iterable[Row]:
    """Yield one row per main effect."""
    origin = " and ".join(origins_of(found.record.plan.cells))
    for item in found.effects:
        pooled = item.pooled
        row: Row = {
            "factor": plain(item.factor), "level": plain(item.level), "reference": plain(item.reference),
            "origin": origin, "metric": pooled.metric, "combinations": item.combinations,
            "incomplete": item.incomplete, "failed": item.failed, "seeds": pooled.n, "ratio": pooled.ratio,
        }
        row |= bounds("ratio", pooled.interval)
        row |= {"speedup": pooled.speedup, "verdict": pooled.verdict, "refused": pooled.refused,
                "because": plain(pooled.because), "p": pooled.p, "p_adjusted": pooled.p_adjusted,
                "family": pooled.family, "settles": plain(pooled.settles),
                "depends_on": plain(", ".join(dict.fromkeys(other.factor for other in item.flagged))),
                "differs": plain(pooled.also), "cautions": plain("; ".join(pooled.cautions))}
        yield row


def interaction_rows(found: Findings) -> Iterable[Row]:
    """Yield one row per difference of a main effect between two levels of another factor."""
    origin = " and ".join(origins_of(found.record.plan.cells))
    for item in found.effects:
        for other in item.interactions:
            row: Row = {
                "factor": plain(item.factor), "level": plain(item.level), "reference": plain(item.reference),
                "origin": origin, "metric": item.pooled.metric, "other_factor": plain(other.factor),
                "other_level": plain(other.level), "other_reference": plain(other.reference),
                "combinations": other.combinations, "ratio_here": other.ratio_here, "ratio_there": other.ratio_there,
                "ratio": other.ratio,
            }
            yield row | bounds("ratio", other.interval) | {
                "p": other.p, "p_adjusted": other.p_adjusted, "flagged": other.flagged, "reverses": other.reverses}


def warning_rows(found: Findings) -> Iterable[Row]:
    """Yield one row per warning about the machine and the course of the run."""
    for item in found.warnings:
        yield {"title": item.title, "about": item.about, "text": plain(item.text), "means": plain(item.consequence)}
