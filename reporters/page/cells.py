"""The cells of a plan as the page shows them: number, colour, line style, symbol, summary and all points."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from repro.compare import METRICS, MetricSpec, Summary
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
    cell: Cell
    summary: Summary
    planned: int
    strip: Strip

    @property
    def scale(self) -> MetricSpec:
        """The metric of its figures."""
        return METRICS[self.summary.metric]

    @property
    def statuses(self) -> str:
        """Its trials that did not reach the target, by status."""
        return ", ".join(f"{count} {meaning(name).page_word}" for name, count in self.summary.statuses.items()
                         if not meaning(name).reached)

    @property
    def success(self) -> str:
        """The interval of its probability to reach the target; "" if there is none."""
        bounds = self.summary.success
        return f"P(reach) {bounds.low:.2f} to {bounds.high:.2f} at {100 * bounds.level:.0f}\N{NO-BREAK SPACE}%" \
            if bounds else ""

    @property
    def median(self) -> Number | None:
        return in_unit(self.summary.median, self.scale)

    @property
    def interval(self) -> tuple[Number | None, Number | None] | None:
        """Its ends in the unit of the metric."""
        found = self.summary.interval
        return (in_unit(found.low, self.scale), in_unit(found.high, self.scale)) if found else None

    @property
    def median_why(self) -> str:
        """Why it has no median."""
        if not self.summary.n:
            return "no trial yet"
        missed = any(meaning(status).counts for status in self.summary.statuses)
        return "not reached" if self.scale.to_target and missed else "no trial has a value"

    @property
    def interval_why(self) -> str:
        """Why its median has no interval; "" before its first trial."""
        summary = self.summary
        if not summary.n:
            return ""
        if len(summary.values) < summary.n:
            missed = self.scale.to_target and summary.ok < summary.n
            return "not every trial reached the target" if missed else \
                f"not every trial has a value of {self.scale.noun}"
        return "95\N{NO-BREAK SPACE}% needs at least 6 trials"


def marks(record: Record) -> dict[str, CellMark]:
    """Cell id -> mark, in the order of the plan."""
    return {
        cell.cell_id: CellMark(
            number=index + 1, cell_id=cell.cell_id, label=limited(name := visible(without_paths(cell.label)), 400),
            brief=shortened(name), color=index % COLORS, dash=DASHES[index % len(DASHES)],
            symbol=SYMBOLS[index % len(SYMBOLS)], origin=record.origin_of(cell),
        )
        for index, cell in enumerate(record.plan.cells)
    }


@dataclass(frozen=True, slots=True)
class ContenderMark:
    """Mark of a contender, distinct also without colour."""

    index: int
    name: str
    color: int
    dash: str
    symbol: str


def contender_mark(index: int, name: str) -> ContenderMark:
    """Return the mark of a contender by its place."""
    return ContenderMark(index, visible(without_paths(name)), index % COLORS, DASHES[index % len(DASHES)],
                         SYMBOLS[index % len(SYMBOLS)])


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


def rows(found: Findings, metric: Metric | None = None) -> tuple[list[CellRow], Axis]:
    """Summarize all cells on one axis.

    Args:
        metric: None: the metric of the verdicts.
    """
    record = found.record
    summaries = [(cell, found.summary(cell.cell_id, metric)) for cell in record.plan.cells]
    axis = from_zero([value for _, summary in summaries for value in summary.values], right=90.0, letter=3.2)
    known = marks(record)
    return [CellRow(known[cell.cell_id], cell, summary, record.due_of(cell.cell_id),
                    _strip(summary, record.of_cell(cell.cell_id), axis)) for cell, summary in summaries], axis


def in_unit(value: float | None, scale: MetricSpec) -> Number | None:
    """Format a value in the unit of its metric."""
    return seconds(value) if scale.timed else number(value, 4, scale.unit)


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
