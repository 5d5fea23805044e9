"""Main effects as a table and as sentences for a README or a paper."""

from __future__ import annotations

from collections.abc import Sequence

from repro.compare import METRICS
from repro.compare.design.effect import MainEffect
from repro.record.folder.store import Record
from repro.tables.text import plural
from repro.tables.values import origins_of, plain
from repro.tables.words import NOTHING, TextTable, VerdictText, interval, name, rounded


def effects_table(record: Record, found: Sequence[MainEffect]) -> TextTable:
    """Return one row per main effect; no row if the suite asks for none."""
    figures = " and ".join(origins_of(record.plan.cells))
    return TextTable(
        title="Main effects: each level against that of the baseline, paired over all other factors",
        headers=("Level", "Against", "Figures", "Ratio of", "Ratio", "Interval", "Pairs of cells", "Seeds", "p",
                 "Verdict", "Depends on"),
        numeric=(False, False, False, False, True, True, True, True, True, False, False),
        rows=tuple((
            name(item.level), name(item.reference), figures, METRICS[item.pooled.metric].noun,
            rounded(item.pooled.ratio), interval(item.pooled.interval), str(item.combinations), str(item.pooled.n),
            rounded(item.pooled.p_adjusted, 2), item.pooled.verdict,
            name(", ".join(dict.fromkeys(other.factor for other in item.flagged))) or NOTHING,
        ) for item in found),
    )


def effect_sentence(item: MainEffect) -> VerdictText:
    """Return a main effect with its scope, its reason and the factors that it depends on."""
    pooled, scale, estimate = item.pooled, METRICS[item.pooled.metric], ""
    if pooled.ratio is not None:
        estimate = f"{rounded(pooled.ratio)} x {scale.times}"
        estimate += f", {interval(pooled.interval)}, " if pooled.interval else ", no interval, "
    parts = [f"{estimate}{plural(pooled.n, 'seed')}, {item.scope}; {plain(pooled.because)}."]
    parts += [f" It {plain(pooled.also)}."] if pooled.also else []
    parts += [f" Next: {plain(pooled.settles)}."] if pooled.settles else []
    parts += [f" Caution: it {plain(other.words)}." for other in item.flagged]
    parts += [f" Caution: {plain(text)}." for text in pooled.cautions]
    return VerdictText(
        verdict=pooled.verdict, why="".join(parts),
        contrast=f"{name(item.level)} against {name(item.reference)} (main effect of {name(item.factor)}, "
                 f"{scale.noun})")
