"""Main effects and their interactions as rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from repro.compare import METRICS
from repro.compare.design.effect import Interaction, MainEffect

from .layout import Column, TextTable, count, laid, words
from .values import Row, bounds, plain
from .verdicts import judged_columns


def effect_rows(found: Sequence[MainEffect], origin: str) -> Iterator[Row]:
    """Yield one row per main effect.

    Args:
        origin: of the figures.
    """
    for item in found:
        pooled = item.pooled
        row = _effect(item, origin) | {
            "combinations": item.combinations, "incomplete": item.incomplete, "failed": item.failed,
            "seeds": pooled.n, "ratio": pooled.ratio,
        }
        row |= bounds("ratio", pooled.interval)
        row |= {"speedup": pooled.speedup, "verdict": pooled.verdict, "refused": pooled.refused,
                "because": plain(pooled.because), "p": pooled.p, "p_adjusted": pooled.p_adjusted,
                "family": pooled.family, "settles": plain(pooled.settles),
                "depends_on": plain(", ".join(dict.fromkeys(other.factor for other in item.flagged))),
                "differs": plain(pooled.also), "cautions": plain("; ".join(pooled.cautions))}
        yield row


def interaction_rows(found: Sequence[MainEffect], origin: str) -> Iterator[Row]:
    """Yield one row per difference of a main effect between two levels of another factor."""
    for item in found:
        for other in item.interactions:
            yield _effect(item, origin) | _interaction(other)


def _effect(item: MainEffect, origin: str) -> Row:
    return {"factor": plain(item.factor), "level": plain(item.level), "reference": plain(item.reference),
            "origin": origin, "metric": item.pooled.metric}


def _interaction(other: Interaction) -> Row:
    row: Row = {
        "other_factor": plain(other.factor), "other_level": plain(other.level),
        "other_reference": plain(other.reference), "combinations": other.combinations,
        "ratio_here": other.ratio_here, "ratio_there": other.ratio_there, "ratio": other.ratio,
    }
    return row | bounds("ratio", other.interval) | {
        "p": other.p, "p_adjusted": other.p_adjusted, "flagged": other.flagged, "reverses": other.reverses}


def effect_table(found: Sequence[MainEffect], origin: str, digits: int = 3) -> TextTable:
    """Return one row per main effect; no row if the suite asks for none.

    Args:
        digits: of ratios.
    """
    return laid("Main effects: each level against that of the baseline, paired over all other factors", (
        words("Level", "level"), words("Against", "reference"), words("Figures", "origin"),
        Column("Ratio of", lambda row: METRICS[str(row["metric"])].noun, False),
        count("Pairs of cells", "combinations"), *judged_columns("Seeds", "seeds", digits),
        words("Depends on", "depends_on")), effect_rows(found, origin))
