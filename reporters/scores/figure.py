"""Performance profiles as a figure for a paper."""

from __future__ import annotations

from functools import partial
from typing import Any

from repro.compare import METRICS
from repro.record.folder.store import Record
from repro.scores.scores import Scores, ranking
from repro.tables.text import plural

from ..paper.figures import COLORS, LINES, PATTERNS, SMALL, Drawing, left_out, shown_text

TAUS = (1, 1.2, 1.5, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
"""Labelled factors of a profile."""


def profiles(record: Record) -> list[Drawing]:
    """Make the figure of performance profiles; none without scores over workloads."""
    found = ranking(record)
    if found is None:
        return []
    shown = found.contenders[:LINES]
    bands = f"; bands: 95 % of {found.draws:,} draws of the seeds" if found.draws else ""
    caption = (f"Performance profiles over {plural(len(found.workloads), 'workload')}: share of them that a contender "
               f"solves within a factor of the best {METRICS[found.metric].noun} there{bands}. A missed workload is "
               f"within no factor. Figures: {' and '.join(found.origins)}."
               f"{left_out(shown, found.contenders, 'contender')}")
    return [Drawing("profiles", caption, 2.8 + 0.17 * len(shown), partial(_draw, found))]


def _draw(found: Scores, figure: Any) -> None:
    from matplotlib.ticker import FuncFormatter, NullFormatter

    pane = figure.subplots()
    for index, item in enumerate(found.contenders[:LINES]):
        if item.low:
            pane.fill_between(found.taus, item.low, item.high, step="post", color=COLORS[index], alpha=0.12,
                              linewidth=0)
        pane.step(found.taus, item.profile, where="post", color=COLORS[index], linewidth=1.2,
                  linestyle=PATTERNS[index], label=shown_text(item.name))
    pane.set_xscale("log")
    pane.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    pane.xaxis.set_minor_formatter(NullFormatter())
    pane.set_xticks([tick for tick in TAUS if tick <= found.taus[-1]])
    pane.set_xlim(1, found.taus[-1])
    pane.set_ylim(-0.03, 1.05)
    pane.set_xlabel(f"factor of the best {METRICS[found.metric].noun}")
    pane.set_ylabel(shown_text(f"share of workloads [{' and '.join(found.origins)}]"))
    figure.legend(loc="outside lower left", ncols=1, fontsize=SMALL)
