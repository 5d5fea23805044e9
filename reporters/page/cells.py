"""The cells of a plan as the page shows them: number, colour, line style, symbol, summary and all points."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from repro.compare import METRICS, Bounds, MetricSpec, Summary
from repro.compare.evidence.pairing import is_meaningless
from repro.compare.findings import Findings
from repro.record.folder.store import Record
from repro.record.result.results import Result, figure
from repro.record.result.status import meaning
from repro.suite.kinds.kinds import AnyTrialConfig
from repro.suite.model import Metric
from repro.suite.planning.cell import Cell
from repro.tables.text import Number, limited, number, seconds, shortened, visible, without_paths

from .axis import Axis, from_zero

COLORS = 8
"""Number of cell colours in report.css (--c0 and on)."""
DASHES = ("solid", "dash", "dot", "dashdot", "longdash")
"""Line styles; report.css and `plot.DASHES` define their patterns."""
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "triangle-down", "cross", "x")


@dataclass(frozen=True, slots=True)
class CellMark:
    """The marks that identify a cell everywhere on the page, also without colour: 8 x 5 x 7 combinations."""

    number: int
    """From 1, in the order of the plan."""
    cell_id: str
    label: str
    brief: str
    """The label without its middle if it is long; tooltips and hyper-parameters show the full label."""
    color: int
    dash: str
    symbol: str
    origin: str
    """measured, emulated or simulated."""


@dataclass(frozen=True, slots=True)
class Strip:
    """Every point of one cell on the common axis, per cent of the width."""

    points: tuple[tuple[float, float, str], ...]
    """(x per cent, y pixels, tooltip)."""
    median: float | None
    interval: tuple[float, float] | None
    others: tuple[tuple[float, str], ...]
    """(y pixels, words) of trials without a time, drawn at the right edge."""
    words: str


@dataclass(frozen=True, slots=True)
class CellRow:
    """One line of the table of cells."""

    mark: CellMark
    n: int
    planned: int
    ok: int
    statuses: str
    success: str
    median: Number | None
    median_why: str
    interval: tuple[Number, Number] | None
    interval_why: str
    level: str
    epochs: Number | None
    rate: Number | None
    unit: str
    token_rate: Number | None
    """Tokens a second; None: samples have none."""
    tokens: Number | None
    """Tokens to the target."""
    final: Number | None
    derived: str
    """Figures that follow from the final quality."""
    metric: str
    goal: str
    strip: Strip


def marks(record: Record) -> dict[str, CellMark]:
    """Cell id -> mark, in the order of the plan."""
    return {
        cell.cell_id: CellMark(
            number=index + 1, cell_id=cell.cell_id, label=limited(name := visible(without_paths(cell.label)), 400),
            brief=shortened(name), color=index % COLORS, dash=DASHES[index % len(DASHES)],
            symbol=SYMBOLS[index % len(SYMBOLS)], origin=cell.choices.origin,
        )
        for index, cell in enumerate(record.plan.cells)
    }


def origins(found: Sequence[CellMark]) -> tuple[str, ...]:
    """Return the origins of several cells, each once."""
    return tuple(dict.fromkeys(mark.origin for mark in found)) or ("measured",)


def goal(choices: AnyTrialConfig) -> str:
    """Format metric and target: `top1 of at least 0.97`; of a contest its claim; without a target the steps."""
    if choices.stop.target is None:
        return choices.log_size().budget
    if choices.stop.claim:
        return str(choices.stop.claim)
    side = "at most" if choices.stop.direction == "lower" else "at least"
    derived = choices.quality.words(choices.stop.target)
    return f"{choices.stop.metric} of {side} {choices.stop.target:g}{f' ({derived})' if derived else ''}"


def spans(numbers: Sequence[int]) -> str:
    """Format 1, 2, 3, 5 as `1 to 3, 5`."""
    runs: list[list[int]] = []
    for value in sorted(numbers):
        if runs and value == runs[-1][-1] + 1:
            runs[-1].append(value)
        else:
            runs.append([value])
    return ", ".join(f"{run[0]} to {run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs)


def rows(found: Findings, metric: Metric | None = None) -> tuple[list[CellRow], Axis]:
    """Summarize all cells on one axis.

    Args:
        metric: None: the metric of the verdicts.
    """
    record = found.record
    summaries = [(cell, found.summary(cell.cell_id, metric)) for cell in record.plan.cells]
    axis = from_zero([value for _, summary in summaries for value in summary.values], right=90.0, letter=3.2)
    known = marks(record)
    return [
        _row(record, cell, summary, known[cell.cell_id], axis) for cell, summary in summaries
    ], axis


def _row(record: Record, cell: Cell, summary: Summary, mark: CellMark, axis: Axis) -> CellRow:
    interval, scale, epochs = summary.interval, METRICS[summary.metric], summary.median_epochs
    quality = cell.choices.quality
    return CellRow(
        mark=mark, n=summary.n, planned=record.due_of(cell.cell_id), ok=summary.ok, statuses=_statuses(summary),
        success=_success(summary.success), median=in_unit(summary.median, scale), median_why=_median_why(summary),
        interval=_ends(interval, scale), interval_why=_interval_why(summary),
        level=f"{interval.level:.1%}".replace("%", "\N{NO-BREAK SPACE}%") if interval else "",
        epochs=number(epochs), rate=number(summary.median_samples_per_second), unit=quality.unit,
        token_rate=number(quality.tokens(summary.median_samples_per_second)),
        tokens=None if not epochs else number(quality.tokens(epochs * (cell.choices.train_samples or 0))),
        final=number(summary.median_final, 4), derived=quality.words(summary.median_final), metric=quality.metric,
        goal=goal(cell.choices),
        strip=_strip(summary, record.of_cell(cell.cell_id), axis),
    )


def in_unit(value: float | None, scale: MetricSpec) -> Number | None:
    """Format a value in the unit of its metric."""
    return seconds(value) if scale.timed else number(value, 4, scale.unit)


def _ends(interval: Bounds | None, scale: MetricSpec) -> tuple[Number, Number] | None:
    low, high = (in_unit(interval.low, scale), in_unit(interval.high, scale)) if interval else (None, None)
    return (low, high) if low and high else None


def _success(bounds: Bounds | None) -> str:
    if bounds is None:
        return ""
    return f"P(reach) {bounds.low:.2f} to {bounds.high:.2f} at {bounds.level:.0%}".replace("%", "\N{NO-BREAK SPACE}%")


def _statuses(summary: Summary) -> str:
    """Count the trials that did not reach the target, by status."""
    return ", ".join(f"{count} {meaning(name).page_word}" for name, count in summary.statuses.items()
                     if not meaning(name).reached)


def _median_why(summary: Summary) -> str:
    if summary.median is not None:
        return ""
    if not summary.n:
        return "no trial yet"
    missed = any(meaning(status).counts for status in summary.statuses)
    return "not reached" if METRICS[summary.metric].to_target and missed else "no trial has a value"


def _interval_why(summary: Summary) -> str:
    if summary.interval is not None or not summary.n:
        return ""
    scale = METRICS[summary.metric]
    if len(summary.values) < summary.n:
        missed = scale.to_target and summary.ok < summary.n
        return "not every trial reached the target" if missed else f"not every trial has a value of {scale.noun}"
    return "95\N{NO-BREAK SPACE}% needs at least 6 trials"


def _strip(summary: Summary, results: Sequence[Result], axis: Axis) -> Strip:
    scale = METRICS[summary.metric]
    known = [(item, value) for item in results
             if (value := figure(item, scale)) is not None and not is_meaningless(value)]
    points = tuple((axis.at(value), 7.0 + 6.0 * (index % 3), f"seed {item.repeat}: {in_unit(value, scale)}")
                   for index, (item, value) in enumerate(known))
    drawn = {item.trial_id for item, _ in known}
    rest = [item for item in results if item.trial_id not in drawn]
    others = tuple(
        (7.0 + 6.0 * (index % 3), f"seed {item.repeat}: {meaning(item.status).page_word}")
        for index, item in enumerate(rest)
    )
    listed = ", ".join(str(in_unit(value, scale)) for value in summary.values)
    words = f"{scale.noun}: {listed}" if listed else f"no {scale.noun}"
    without = "time" if scale.timed else "figure"
    return Strip(
        points=points, median=axis.at(summary.median) if summary.median is not None else None,
        interval=(axis.at(summary.interval.low), axis.at(summary.interval.high)) if summary.interval else None,
        others=others, words=words + (f"; {len(rest)} without a {without}" if rest else ""),
    )
