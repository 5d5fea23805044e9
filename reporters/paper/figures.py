"""The record's figures as vector files for a paper: quality over time, times by cell, speed-ups as a forest plot.

Drawn by matplotlib, a dependency of MLflow; the export of plotly would need a browser
(docs/decisions/cli-and-reporters.md). The same record and matplotlib give the same bytes: no date, fixed ids, no user
settings.
"""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from repro.compare import METRICS, Bounds, Comparison
from repro.core import registry
from repro.core.files import write_bytes
from repro.record.folder.store import Record
from repro.suite.planning.cell import Cell
from repro.tables.layout import name
from repro.tables.text import plural, shortened
from repro.tables.values import origins_of
from repro.tables.verdicts import pair_origin

from .brief import Shown, shown_of

FOLDER = "figures"
FORMATS = ("pdf", "svg")
TALL = 12
"""Most cells or contrasts in a figure of one column: with more it would be longer than a page."""
LINES = 8
"""Most cells in one panel of curves."""
LETTERS = 56
"""Most characters of `SMALL` in a line over the width of a figure."""
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#7f7f7f")
"""Colours of Okabe and Ito, safe for colour-blind readers; each also has its own line pattern."""
PATTERNS = ("-", "--", ":", "-.", (0, (6, 1)), (0, (1, 1)), (0, (3, 1, 1, 1)), (0, (5, 4)))
WIDTH = 3.3
"""Inches; the width of a column of a paper with two. The font sizes are those of the printed figure."""
SMALL = 6.5
"""Points; row labels and legends."""
SETTINGS: dict[str, Any] = {
    "font.family": "DejaVu Sans", "font.size": 7.5, "axes.spines.top": False, "axes.spines.right": False,
    "axes.grid": True, "grid.color": "#dddddd", "grid.linewidth": 0.5, "axes.axisbelow": True,
    "text.parse_math": False, "text.usetex": False, "svg.hashsalt": "repro", "svg.fonttype": "path",
    "pdf.fonttype": 42, "pdf.use14corefonts": False, "savefig.bbox": "standard", "legend.frameon": False,
}
METADATA: dict[str, dict[str, Any]] = {
    "pdf": {"CreationDate": None, "ModDate": None, "Creator": "repro", "Producer": "matplotlib"},
    "svg": {"Date": None, "Creator": "repro"},
}


@dataclass(frozen=True, slots=True)
class Drawing:
    """One figure: file name without ending, caption, and the function that draws it into a matplotlib figure."""

    name: str
    caption: str
    height: float
    """Inches."""
    into: Callable[[Any], None]


def figures(record: Record, shown: Shown | None = None) -> list[Drawing]:
    """Return the figures of a record, or of the part of it that is `shown`; none if no trial has run."""
    part = shown or shown_of(record)
    more = registry.parts("figure").values() if part.whole else ()
    return [*_curves(record, part), *_times(record, part), *_forest(record, part),
            *(drawing for part_of in more for drawing in part_of(record))]


def draw(found: Sequence[Drawing], out: Path) -> list[str]:
    """Write every figure in every format and return the paths."""
    paths = {out / FOLDER / f"{item.name}.{kind}": (item, kind) for item in found for kind in FORMATS}
    for path, (item, kind) in paths.items():
        write_bytes(path, rendered_figure(item, kind))
    return [str(path) for path in paths]


def rendered_figure(item: Drawing, kind: str) -> bytes:
    """Render a figure in one of `FORMATS`, independent of the matplotlib settings of the user."""
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    stream = io.BytesIO()
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(SETTINGS)
        figure = Figure(figsize=(WIDTH, item.height), layout="constrained")
        FigureCanvasAgg(figure)
        item.into(figure)
        figure.savefig(stream, format=kind, metadata=METADATA[kind])
    return stream.getvalue()


def _curves(record: Record, part: Shown) -> list[Drawing]:
    """Make the figures of quality against wall clock and epochs, one for each workload, metric and target."""
    grouped: dict[tuple[str, str, float], list[Cell]] = {}
    for cell in part.cells:
        if any(point.value is not None for item in record.of_cell(cell.cell_id) for point in item.curve):
            stop = cell.choices.stop
            assert stop.target is not None, "it was evaluated"
            grouped.setdefault((cell.choices.task, stop.metric, stop.target), []).append(cell)
    drawn = []
    for number, ((workload, metric, target), cells) in enumerate(grouped.items(), 1):
        shown = cells[:LINES]
        clocks = {"wall_seconds": "wall clock (s)"}
        # A program may not state its epochs: all are 0 then.
        if any(point.epochs for cell in shown for item in record.of_cell(cell.cell_id) for point in item.curve):
            clocks["epochs"] = "epochs"
        caption = (f"{name(metric)} on {name(workload)} against the wall clock{' and epochs' * (len(clocks) - 1)}, one "
                   "line per trial, "
                   f"{_counted([len(record.of_cell(cell.cell_id)) for cell in shown])}; the grey line is the target "
                   f"{target:g}. Figures: {_origins(record, shown)}.{left_out(shown, cells, 'cell')}")
        drawn.append(Drawing(
            name="quality" if len(grouped) == 1 else f"quality-{number}", caption=caption,
            height=0.6 + 1.5 * len(clocks) + 0.13 * len(shown),
            into=partial(_draw_curves, record, shown, metric, target, clocks),
        ))
    return drawn


def _draw_curves(
    record: Record, cells: Sequence[Cell], metric: str, target: float, clocks: Mapping[str, str], figure: Any,
) -> None:
    panes = figure.subplots(len(clocks), 1, sharey=True, squeeze=False)[:, 0]
    for pane, (clock, words) in zip(panes, clocks.items(), strict=True):
        pane.axhline(target, color="#888888", linewidth=0.8)
        for index, cell in enumerate(cells):
            for number, item in enumerate(record.of_cell(cell.cell_id)):
                points = [(getattr(point, clock), point.value) for point in item.curve if point.value is not None]
                pane.plot([x for x, _ in points], [y for _, y in points], color=COLORS[index], linewidth=0.9,
                          linestyle=PATTERNS[index], label=None if number else shown_text(cell.label))
        pane.set_xlabel(words)
        pane.set_xlim(left=0)
        pane.set_ylabel(shown_text(f"{metric} [{_origins(record, cells)}]"))
    handles, labels = panes[0].get_legend_handles_labels()
    if handles:
        figure.legend(handles, [folded(label, LETTERS - 6) for label in labels], loc="outside lower left", ncols=1,
                      fontsize=SMALL)


def _times(record: Record, part: Shown) -> list[Drawing]:
    """Make the figure of every trial's value by cell, with median and interval."""
    metric = record.plan.suite.metric
    scale = METRICS[metric]
    found = [item for item in part.found.summaries if item.n and part.has(item.cell_id)]
    if not found:
        return []
    shown = found[:TALL]
    cells = [record.cell(item.cell_id) for item in shown]

    def into(figure: Any) -> None:
        pane = figure.subplots()
        for place, item in enumerate(shown):
            color = COLORS[place % len(COLORS)]
            spread = [place + 0.08 * (index % 3) for index in range(len(item.values))]
            pane.plot(item.values, spread, "o", markersize=3, color=color, alpha=0.7, linewidth=0)
            if item.interval is not None:
                pane.plot([item.interval.low, item.interval.high], [place + 0.3] * 2, color=color, linewidth=1.5)
            if item.median is not None:
                pane.plot([item.median], [place + 0.3], "|", color=color, markersize=8, markeredgewidth=1.5)
        several = len({record.origin_of(cell) for cell in cells}) > 1
        missing = [f": {item.n - item.ok} of {item.n} missing" if item.ok < item.n and scale.to_target else ""
                   for item in shown]
        head_rows(pane, [f"{name(cell.label)}{f' [{record.origin_of(cell)}]' if several else ''}{words}"
                         for cell, words in zip(cells, missing, strict=True)])
        pane.set_xlim(left=0)
        pane.set_xlabel(scale.title if several else f"{scale.title} [{_origins(record, cells)}]")

    levels = interval_levels([item.interval for item in shown])
    bars = f"; bars: median with its order-statistic interval ({levels})" if levels else "; bars: median"
    bars += ", if every trial reached the target" if levels and scale.to_target else ""
    caption = (f"{scale.noun.capitalize()} of every trial by cell, {_counted([item.n for item in shown])}{bars}. "
               f"Figures: {_origins(record, cells)}.{left_out(shown, found, 'cell')}")
    return [Drawing("times", caption, 0.6 + 0.42 * len(shown), into)]


def _forest(record: Record, part: Shown) -> list[Drawing]:
    """Make the figure of all ratios with intervals and pairs; the declared contrast is on top."""
    found = [item for item in part.comparisons if item.ratio is not None and item.ratio > 0]
    if not found:
        return []
    shown = found[:TALL]

    def into(figure: Any) -> None:
        pane = figure.subplots()
        pane.axvline(1.0, color="#888888", linewidth=0.8)
        for place, item in enumerate(shown):
            color = COLORS[0] if item.primary else COLORS[6]
            ratios = [pair.candidate / pair.baseline for pair in item.pairs if pair.baseline > 0 and pair.candidate > 0]
            pane.plot(ratios, [place + 0.2] * len(ratios), "o", markersize=2, color=color, alpha=0.5, linewidth=0)
            if item.interval is not None:
                pane.plot([item.interval.low, item.interval.high], [place, place], color=color, linewidth=1.2)
            pane.plot([item.ratio], [place], "D" if item.primary else "s", color=color, markersize=4)
        several = len(origins) > 1
        # The counts after the semicolon of a qualifier are in the table; here they would cut the name of the candidate.
        head_rows(pane, [f"{item.spoken.partition(';')[0]}: {_contrast(part.found.origins, item, several)}"
                         for item in shown])
        pane.set_xscale("log")
        _plain_ticks(pane, shown)
        words = f"ratio of {METRICS[shown[0].metric].noun}, candidate / baseline"
        pane.set_xlabel(words if several else shown_text(f"{words} [{origins[0]}]"))

    origins = list(dict.fromkeys(part.found.origins[key] for item in shown for key in (item.candidate, item.baseline)))
    without = len(part.comparisons) - len(found)
    none = f" {plural(without, 'contrast')} without a ratio: not drawn." if without else ""
    levels = interval_levels([item.interval for item in shown])
    bars = f"; bars: intervals ({levels})" if levels else ""
    paired = all(item.paired for item in shown)
    counts = _counted([item.n for item in shown], "pair") if paired else \
        f"n = {min(item.n for item in shown)} to {max(item.n for item in shown)} pairs or trials per side"
    points = f"points: pairs with one seed{'' if paired else ', if paired'}"
    blue = " The declared contrast is blue with a diamond." if any(item.primary for item in shown) else ""
    corrected = " Verdicts are corrected for the number of contrasts, intervals are not." if len(found) > 1 else ""
    caption = (f"Ratios of {METRICS[shown[0].metric].noun}, candidate / baseline, {counts}{bars}; {points}.{blue}"
               f"{corrected}{none} Figures: {' and '.join(origins)}.{left_out(shown, found, 'contrast')}")
    return [Drawing("ratios", caption, 0.7 + 0.44 * len(shown), into)]


def _contrast(known: Mapping[str, str], item: Comparison, origin: bool) -> str:
    words = f"{name(item.candidate_label)}\nagainst {name(item.baseline_label)}"
    return f"{words} [{pair_origin(item, known)}]" if origin else words


def interval_levels(found: Sequence[Bounds | None]) -> str:
    """Return the levels of intervals as `95 %` or `95 % to 98.2 %`; "" without an interval."""
    levels = sorted({item.level for item in found if item is not None})
    return " to ".join(f"{100 * level:.3g} %" for level in dict.fromkeys((*levels[:1], *levels[-1:])))


def _counted(counts: Sequence[int], noun: str = "trial") -> str:
    """Return `7 trials each` or `5 to 7 trials each`, of rows with so many."""
    low, high = min(counts), max(counts)
    return f"{plural(low, noun)} each" if low == high else f"{low} to {plural(high, noun)} each"


def head_rows(pane: Any, labels: Sequence[str]) -> None:
    """Make one row for each label, the first on top; the label stands above its row, over the width of the figure."""
    pane.set_yticks(range(len(labels)), [])
    pane.tick_params(axis="y", length=0)
    for place, label in enumerate(labels):
        lines = (label if "\n" in label else folded(label)).split("\n")
        text = "\n".join(shown_text(shortened(line, LETTERS - 20, 15)) for line in lines)
        pane.annotate(text, (0, place - 0.16), (3, 0), fontsize=SMALL, va="bottom", ha="left",
                      xycoords=("axes fraction", "data"), textcoords="offset points", linespacing=1.0, zorder=4,
                      bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.6})
    pane.set_ylim(len(labels) - 0.5, -0.85)


def folded(text: str, letters: int = LETTERS) -> str:
    """Fold a label into at most two lines that fit the width of a figure."""
    lines = textwrap.wrap(text, letters) or [""]
    if len(lines) <= 2:
        return "\n".join(lines)
    return f"{lines[0]}\n{lines[1][:letters - 22].rstrip()} ... {text[-17:].lstrip()}"


def _plain_ticks(pane: Any, shown: Sequence[Comparison]) -> None:
    """Label a logarithmic axis of ratios with plain numbers: 0.5, 0.8, 1, 1.25, 2."""
    from matplotlib.ticker import FixedLocator, NullLocator

    seen = [value for item in shown for value in (
        *(pair.candidate / pair.baseline for pair in item.pairs if pair.baseline > 0 and pair.candidate > 0),
        *((item.interval.low, item.interval.high) if item.interval else ()), item.ratio or 1.0, 1.0)]
    low, high = min(seen), max(seen)
    low, high = min(low / 1.05, 0.95), max(high * 1.05, 1.05)
    pane.set_xlim(low, high)
    ticks: list[float] = []
    for steps in ((1, 1.05, 1.1, 1.2, 1.3, 1.5, 2, 3, 5, 7, 8, 9, 9.5), (1, 1.25, 1.5, 2, 3, 5, 7), (1, 2, 5), (1,)):
        decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        ticks = sorted({round(step * 10.0**decade, 12) for decade in decades for step in steps})
        ticks = [tick for tick in ticks if low <= tick <= high]
        gaps = [math.log(b / a) for a, b in pairwise(ticks)]
        if not gaps or min(gaps) > 0.07 * math.log(high / low):
            break
    pane.xaxis.set_major_locator(FixedLocator(ticks))
    pane.xaxis.set_minor_locator(NullLocator())
    pane.xaxis.set_major_formatter(lambda value, _: f"{value:g}")


def _origins(record: Record, cells: Sequence[Cell]) -> str:
    return " and ".join(origins_of(record, cells))


def left_out(shown: Sequence[Any], found: Sequence[Any], noun: str) -> str:
    return "" if len(shown) == len(found) else \
        f" Shown: the first {len(shown)} of {plural(len(found), noun)}; the tables contain all."


def shown_text(text: str) -> str:
    """Return one line in characters of the font; others become the replacement character."""
    known = _glyphs()
    return "".join(character if ord(character) in known else "\ufffd" for character in name(text))


@cache
def _glyphs() -> set[int]:
    from matplotlib.font_manager import findfont, get_font

    return set(get_font(findfont("DejaVu Sans")).get_charmap())
