"""Quality against each clock, as plotly figures in plain data; the page resolves the names of colours.

Beside the trials stand the traces of a cell as a whole: median, range, the bracket of each crossing, the misses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

from repro.record.folder.store import Record
from repro.record.result.results import Point, Result
from repro.record.result.status import meaning
from repro.suite.kinds.kinds import AnyTrialConfig
from repro.suite.kinds.program import ProgramConfig
from repro.suite.planning.cell import Cell
from repro.suite.quality import Quality
from repro.tables.text import plural, wrapped

from ..cells import CellMark, goal, marks, origins
from .plot import DASHES, Chart, layout, short

MARKERS_UP_TO = 4000
"""Points in a figure above which only lines are drawn: ten thousand SVG markers are slow."""
DRAWN_UP_TO = 20_000
"""Points in a figure above which each line is thinned; all numbers on the page use every point."""
BANDS_UP_TO = 8
"""Cells in a panel up to which their ranges are visible at first."""
ROWS_UP_TO = 1500
"""Evaluations above which the table keeps only those around the target."""
CLOCKS = (
    ("wall", "wall clock", "from run_start, including evaluation", "seconds"),
    ("train", "training clock", "without evaluation, checkpoints and logging", "seconds"),
    ("samples", "samples", "training samples, independent of the batch size", "samples"),
    ("epochs", "epochs", "passes over the training data", "epochs"),
)
"""(name, title, what the clock counts, unit)"""


@dataclass(frozen=True, slots=True)
class Panel:
    """Cells with one workload and one metric, whose curves share axes."""

    workload: str
    metric: str
    quality: Quality
    derived: tuple[str, ...]
    """Names of the figures that follow from the metric."""
    clocks: frozenset[str]
    """Names of the clocks that its trials have."""
    origins: tuple[str, ...]
    marks: tuple[CellMark, ...]
    charts: tuple[Chart, ...]
    rows: tuple[tuple[CellMark, Result, Point], ...]
    """Evaluations for the table below the figures."""
    thinned: bool
    """True if the table holds only the evaluations around the target."""
    drawn: int
    """Most evaluations of a trial that its line shows; 0: all."""
    bands: bool
    """True if ranges are visible at first."""
    medians: bool
    """True if every cell has enough trials for a median: single trials are then drawn on demand."""
    without: int
    """Trials without a finite evaluation."""
    first: int
    """Trials that reached the target at their first evaluation."""


def panels(record: Record) -> list[Panel]:
    """Make one panel for each workload and metric of the plan."""
    grouped: dict[tuple[str, str], list[Cell]] = {}
    for cell in record.plan.cells:
        if cell.choices.stop.has_target:
            grouped.setdefault((cell.choices.task, cell.choices.stop.metric), []).append(cell)
    return [_panel(record, index, key, cells) for index, (key, cells) in enumerate(grouped.items())]


def _panel(record: Record, index: int, key: tuple[str, str], cells: Sequence[Cell]) -> Panel:
    known = marks(record)
    trials = [(known[cell.cell_id], result) for cell in cells for result in record.of_cell(cell.cell_id)]
    drawn = [(mark, result) for mark, result in trials if any(point.value is not None for point in result.curve)]
    count = sum(len(result.curve) for _, result in drawn)
    targets = sorted({target for cell in cells if (target := cell.choices.stop.target) is not None})
    summary = f"{plural(len(drawn), 'line')}, one per trial; target {goal(cells[0].choices)}"
    most = max(20, DRAWN_UP_TO // len(drawn)) if count > DRAWN_UP_TO else 0
    quality = cells[0].choices.quality
    clocks = _known(cells[0].choices, drawn)
    charts = tuple(
        Chart(f"curve-{index}-{clock}", title, counted,
              _figure((clock, unit), quality, drawn, targets, count <= MARKERS_UP_TO, most),
              f"{key[1]} against {title} in {unit}, {counted}; {summary}")
        for clock, title, counted, unit in map(partial(_words, cells[0].choices), CLOCKS) if clock in clocks
    ) if drawn else ()
    of_cells = [known[cell.cell_id] for cell in cells]
    return Panel(
        workload=key[0], metric=key[1], quality=quality, derived=tuple(quality.derived(targets[0])), clocks=clocks,
        origins=origins(of_cells), marks=tuple(of_cells), charts=charts,
        rows=tuple((mark, result, point) for mark, result in trials
                   for point in (_around_target(result) if count > ROWS_UP_TO else result.curve)),
        thinned=count > ROWS_UP_TO, drawn=most,
        bands=len(cells) <= BANDS_UP_TO,
        medians=all(len(record.of_cell(cell.cell_id)) >= LEAST_TRIALS for cell in cells),
        without=len(trials) - len(drawn),
        first=sum(result.bracket is not None and not result.bracket.miss_samples for _, result in drawn),
    )


def _known(choices: AnyTrialConfig, drawn: Sequence[tuple[CellMark, Result]]) -> frozenset[str]:
    """Return the names of the clocks that trials have: a program may state neither epochs nor a clock of its own."""
    names = frozenset(clock[0] for clock in CLOCKS)
    if not isinstance(choices, ProgramConfig):
        return names
    points = [point for _, result in drawn for point in result.curve]
    has = {"epochs": any(point.epochs for point in points),
           "samples": any(result.samples is not None or result.curve_in_steps for _, result in drawn),
           "train": any(point.train_seconds != point.wall_seconds for point in points)}
    return names - {name for name, known in has.items() if not known}


def _words(choices: AnyTrialConfig, clock: tuple[str, str, str, str]) -> tuple[str, str, str, str]:
    """Return a clock of `CLOCKS` in words that fit: samples that have tokens by their own noun and with their length,
    steps of a program by their name, its own clock as such."""
    quality = choices.quality
    if clock[0] == "train" and isinstance(choices, ProgramConfig):
        return clock[0], clock[1], "the program's own clock", clock[3]
    if clock[0] != "samples" or quality.counted == "samples":
        return clock
    if quality.tokens_per_sample is None:
        return clock[0], quality.counted, "as the program states them", quality.counted
    counted = f"{quality.unit} of {quality.tokens_per_sample:,} tokens, independent of the batch size"
    return clock[0], quality.unit, counted, quality.unit


def _figure(
    clock: tuple[str, str], quality: Quality, drawn: Sequence[tuple[CellMark, Result]], targets: Sequence[float],
    markers: bool, most: int,
) -> dict[str, Any]:
    name, unit = clock
    lower = quality.direction == "lower"
    return {
        "data": [*_behind(name, drawn, most or DRAWN_UP_TO),
                 *(_trace(name, mark, result, markers, most or DRAWN_UP_TO, quality) for mark, result in drawn)],
        "layout": layout(unit, quality.metric) | {
            "shapes": [{
                "type": "line", "xref": "paper", "x0": 0, "x1": 1, "yref": "y", "y0": target, "y1": target,
                "line": {"color": "--ink", "width": 1.2, "dash": "dash"},
            } for target in targets],
            "annotations": [_note(target, lower) for target in targets[:6]],
        },
    }


def _behind(clock: str, drawn: Sequence[tuple[CellMark, Result]], most: int) -> list[dict[str, Any]]:
    """Return the traces of whole cells: ranges, brackets, medians, first hits, misses."""
    cells: dict[CellMark, list[Result]] = {}
    for mark, result in drawn:
        cells.setdefault(mark, []).append(result)

    def where(point: Point) -> float:
        return _position(clock, point)

    layers: Sequence[Callable[..., dict[str, Any] | None]] = (
        partial(band, most=most), brackets, partial(middle, most=most), first_hits, misses)
    found = [layer(mark, results, where) for layer in layers for mark, results in cells.items()]
    return [trace for trace in found if trace is not None]


def _trace(
    clock: str, mark: CellMark, result: Result, markers: bool, most: int, quality: Quality
) -> dict[str, Any]:
    """Return the line of one trial; it ends in an open cross if the trial did not reach the target."""
    known = [point for point in thinned(result, most) if point.value is not None]
    symbols = [mark.symbol] * len(known)
    sizes = [5] * len(known)
    if known and result.status != "ok":
        symbols[-1], sizes[-1] = "x-thin-open", 10
    label = f"<b>{mark.number}</b> {wrapped(mark.label)}<br>seed {result.repeat}, {end_word(result)}"
    shown = {"samples": quality.counted, "epochs": "epochs"}.get(clock, "s")
    derived = [quality.words(point.value) for point in known]
    marker = {"symbol": symbols, "size": sizes, "color": f"--c{mark.color}",
              "line": {"width": 1.3, "color": f"--c{mark.color}"}}
    return {
        "type": "scatter", "mode": "lines+markers" if markers else "lines", "name": f"cell {mark.number}",
        "uid": f"trial-{mark.number}-{result.repeat}", "legendgroup": str(mark.number), "meta": [label],
        "opacity": 0.85,
        "x": [_position(clock, point) for point in known], "y": [point.value for point in known],
        "line": {"color": f"--c{mark.color}", "dash": DASHES[mark.dash], "width": 1.6},
        **({"marker": marker} if markers else {}),
        **({"text": derived} if any(derived) else {}),
        "hovertemplate": f"%{{meta[0]}}<br>%{{x:,.4~r}} {shown}: %{{y:,.4~r}}{'<br>%{text}' if any(derived) else ''}"
                         "<extra></extra>",
    }


def _position(clock: str, point: Point) -> float:
    value = {"wall": point.wall_seconds, "train": point.train_seconds,
             "samples": float(point.samples), "epochs": point.epochs}[clock]
    return short(value)


def _note(target: float, lower: bool) -> dict[str, Any]:
    """Return the label of a target's line, on the side that no curve crosses before its target."""
    return {
        "xref": "paper", "x": 0, "xanchor": "left", "yref": "y", "y": target, "yanchor": "top" if lower else "bottom",
        "showarrow": False, "text": f"target {target:g}", "font": {"size": 12, "color": "--ink"},
        "bgcolor": "--surface", "opacity": 0.85,
    }


def end_word(result: Result) -> str:
    """Return the word for a trial's end; a trial that is ok and crossed no target ran to the end of a contest."""
    end = meaning(result.status)
    return "ended" if end.reached and result.bracket is None else end.page_word


def _around_target(result: Result) -> list[Point]:
    """Return the last evaluation that missed and the first that hit; the last one if the trial missed its target."""
    if result.bracket is None:
        return list(result.curve[-1:])
    wanted = (result.bracket.miss_samples, result.bracket.hit_samples)
    return [point for point in result.curve if point.samples in wanted]


LEAST_TRIALS = 3
"""Fewer have no median that a single trial would not decide."""
Where = Callable[[Point], float]


def thinned(result: Result, most: int) -> list[Point]:
    """Select at most about `most` evaluations of a trial, evenly spread, for drawing only.

    The first, the last and those on both sides of the crossing are always selected.
    """
    points = list(result.curve)
    if len(points) <= most:
        return points
    step = len(points) / most
    kept = {min(len(points) - 1, int(index * step)) for index in range(most)} | {0, len(points) - 1}
    bracket = result.bracket
    if bracket is not None:
        kept |= {index for index, point in enumerate(points)
                 if point.samples in (bracket.miss_samples, bracket.hit_samples)}
    return [points[index] for index in sorted(kept)]


def band(mark: CellMark, results: Sequence[Result], where: Where, most: int) -> dict[str, Any] | None:
    """Return the trace of the lowest to highest quality over the trials of a cell, at each evaluation.

    It ends where the shortest trial ends: beyond that the range would cover the slow trials only. x is the median over
    trials. None if there are fewer than two trials or two evaluations.
    """
    curves = [[point for point in item.curve if point.value is not None] for item in results]
    common = min((len(curve) for curve in curves), default=0)
    if len(curves) < 2 or common < 2:
        return None
    shown = range(0, common, -(-common // most))
    rows = [[curve[index] for curve in curves] for index in shown]
    x = [short(median(where(point) for point in row)) for row in rows]
    low = [min(point.value or 0.0 for point in row) for row in rows]
    high = [max(point.value or 0.0 for point in row) for row in rows]
    return {
        "type": "scatter", "mode": "lines", "uid": f"band-{mark.number}", "name": f"range of cell {mark.number}",
        "legendgroup": str(mark.number), "x": [*x, *reversed(x)], "y": [*high, *reversed(low)], "fill": "toself",
        "fillcolor": f"--c{mark.color}", "line": {"width": 0, "color": f"--c{mark.color}"}, "opacity": 0.13,
        "hoverinfo": "skip", "showlegend": False,
    }


def middle(mark: CellMark, results: Sequence[Result], where: Where, most: int) -> dict[str, Any] | None:
    """Return the trace of the median quality over the trials of a cell, at each evaluation.

    It ends where fewer than half of the trials go on; a trial that has ended counts with its last value, so that the
    fast ones do not leave the median. x is the median over those that go on. None below three trials
    or two evaluations.
    """
    curves = [[point for point in item.curve if point.value is not None] for item in results]
    if len(curves) < LEAST_TRIALS:
        return None
    lengths = sorted(map(len, curves), reverse=True)
    common = lengths[(len(curves) + 1) // 2 - 1]
    if common < 2:
        return None
    shown = sorted({*range(0, common, -(-common // most)), common - 1})
    x = [median(where(curve[index]) for curve in curves if index < len(curve)) for index in shown]
    y = [median(curve[min(index, len(curve) - 1)].value or 0.0 for curve in curves) for index in shown]
    return {
        "type": "scatter", "mode": "lines", "uid": f"median-{mark.number}", "name": f"cell {mark.number}",
        "legendgroup": str(mark.number), "x": [short(value) for value in x], "y": [short(value) for value in y],
        "line": {"color": f"--c{mark.color}", "dash": DASHES[mark.dash], "width": 2.6},
        "meta": [f"<b>{mark.number}</b> {wrapped(mark.label)}<br>median of {len(curves)} trials"],
        "hovertemplate": "%{meta[0]}<br>%{x:,.4~r}: %{y:,.4~r}<extra></extra>",
    }


def misses(mark: CellMark, results: Sequence[Result], where: Where) -> dict[str, Any] | None:
    """Return the trace of the ends of trials that did not end well, each at its last finite value; None if all did."""
    ends = [(item, [point for point in item.curve if point.value is not None][-1])
            for item in results if item.status != "ok"]
    if not ends:
        return None
    return {
        "type": "scatter", "mode": "markers", "uid": f"missed-{mark.number}", "name": f"missed, cell {mark.number}",
        "legendgroup": str(mark.number), "showlegend": False,
        "x": [short(where(point)) for _, point in ends], "y": [point.value for _, point in ends],
        "marker": {"symbol": "x-thin-open", "size": 10, "color": f"--c{mark.color}",
                   "line": {"width": 1.5, "color": f"--c{mark.color}"}},
        "customdata": [item.repeat for item, _ in ends],
        "hovertemplate": f"<b>{mark.number}</b> seed %{{customdata}} ended without the target<extra></extra>",
    }


def brackets(mark: CellMark, results: Sequence[Result], where: Where) -> dict[str, Any] | None:
    """Return the trace of each line from the last evaluation that missed the target to the first that reached it."""
    x: list[float | None] = []
    y: list[float | None] = []
    for miss, hit in filter(None, map(_ends, results)):
        if miss is not None:
            x += [short(where(miss)), short(where(hit)), None]
            y += [miss.value, hit.value, None]
    if not x:
        return None
    return {
        "type": "scatter", "mode": "lines", "uid": f"bracket-{mark.number}", "name": f"crossings of cell {mark.number}",
        "legendgroup": str(mark.number), "x": x, "y": y, "opacity": 0.28, "hoverinfo": "skip",
        "showlegend": False, "line": {"width": 7, "color": f"--c{mark.color}"},
    }


def first_hits(mark: CellMark, results: Sequence[Result], where: Where) -> dict[str, Any] | None:
    """Return the trace of trials that reached the target at their first evaluation: left-censored.

    A dotted line runs from the beginning to an open triangle at the evaluation, because the crossing is somewhere in
    between. None if there is no such trial.
    """
    x: list[float | None] = []
    y: list[float | None] = []
    seeds: list[int | None] = []
    for item in results:
        ends = _ends(item)
        if ends and ends[0] is None:
            x += [0.0, short(where(ends[1])), None]
            y += [ends[1].value, ends[1].value, None]
            seeds += [None, item.repeat, None]
    if not x:
        return None
    return {
        "type": "scatter", "mode": "lines+markers", "uid": f"first-{mark.number}",
        "name": f"first hits of cell {mark.number}", "legendgroup": str(mark.number), "x": x, "y": y,
        "showlegend": False, "line": {"width": 1.2, "dash": "2px,3px", "color": f"--c{mark.color}"},
        "marker": {"symbol": "triangle-left-open", "size": [0, 10, 0] * (len(x) // 3), "color": f"--c{mark.color}",
                   "line": {"width": 1.5, "color": f"--c{mark.color}"}},
        "customdata": seeds,
        "hovertemplate": f"<b>{mark.number}</b> seed %{{customdata}} reached the target by its first evaluation, "
                         "%{x:,.4~r}, or earlier<extra></extra>",
    }


def _ends(result: Result) -> tuple[Point | None, Point] | None:
    """Return (last evaluation that missed, first that hit); the former is None if the first evaluation hit."""
    bracket = result.bracket
    if bracket is None:
        return None
    by_samples = {point.samples: point for point in result.curve if point.value is not None}
    hit, miss = by_samples.get(bracket.hit_samples), by_samples.get(bracket.miss_samples)
    if hit is None or (miss is None and bracket.miss_samples):
        return None
    return miss, hit
