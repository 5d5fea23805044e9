"""The picture that follows a suite's question: scaling, accuracy under formats, a contest's claims, missed targets."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from repro.compare import METRICS
from repro.compare.evidence.pairing import observe
from repro.compare.findings import Findings
from repro.record.folder.store import Record
from repro.record.result.results import figure
from repro.record.result.status import meaning
from repro.tables.text import number

from .axis import INK, Axis, Sketch, Trace, from_nothing, from_zero, linear, log_ticks
from .cells import CellMark, goal, marks, origins
from .charts.bounds import ScalingLine, ScalingPoint
from .charts.scaling import ScalingPanel, ScalingView
from .charts.survival import curve, observations
from .speedup import Ratio

FEWEST_PROCESSES = 3
"""Numbers of processes from which a suite asks how time and bytes grow with them."""
MOST_CLAIMS = 8
"""Cells whose claims are drawn."""


@dataclass(frozen=True, slots=True)
class Question:
    """The figures of the first screen besides the ratio of the primary contrast."""

    sketches: tuple[Sketch, ...] = ()
    keys: tuple[ScalingLine | CellMark, ...] = ()
    """Names of the lines, if the table of cells next to the figures does not have them."""
    scaling: bool = False
    """The suite asks about scaling: these figures take the place of the ratio's, and the section leads the page."""


def question(findings: Findings, primary: Ratio | None, scaled: ScalingView) -> Question:
    """Choose the figures by what the suite varies and by how its trials ended."""
    record = findings.record
    plan, suite = record.plan, record.plan.suite
    if plan.measures:
        return Question()
    if len(suite.matrix.get("processes", ())) >= FEWEST_PROCESSES and (scaled.same or scaled.larger):
        panel = _panel(scaled, primary)
        return Question(_growth(panel) if panel else (), panel.lines if panel else (), scaling=True)
    if plan.design.is_contest:
        return Question(_claims(findings))
    if not plan.design.has_target or primary is None:
        return Question()
    if len(suite.matrix.get("precision", ())) > 1:
        return Question(_accuracy(findings, primary), tuple(_like(record, primary)))
    if primary.ratio is None and not primary.item.refused:
        return Question(_reached(findings, primary))
    return Question()


# ---- scaling


def _panel(scaled: ScalingView, primary: Ratio | None) -> ScalingPanel | None:
    """Return the panel of one batch that has the baseline of the primary contrast, else the first."""
    named = primary.baseline.cell_id if primary else ""
    with_it = [panel for panel in scaled.same
               if any(point.mark.cell_id == named for line in panel.lines for point in line.points)]
    return next(iter([*with_it, *scaled.same]), None)


def _growth(panel: ScalingPanel) -> tuple[Sketch, ...]:
    time = _against_processes(
        panel, "Step time, ms", "logarithmic; dotted: the modelled bound, which no step on these links can undercut",
        lambda point: None if point.bounds.step is None else 1e3 * point.bounds.step,
        lambda point: None if point.bounds.overlapped is None else 1e3 * point.bounds.overlapped)
    sent = _against_processes(
        panel, "Sent by the busiest rank, MB per epoch",
        "logarithmic; dotted: the modelled bound, the least of any all-reduce",
        lambda point: point.bytes_per_epoch and point.bytes_per_epoch / 1e6,
        lambda point: point.least_bytes_per_epoch and point.least_bytes_per_epoch / 1e6)
    return tuple(item for item in (time, sent) if item)


def _against_processes(
    panel: ScalingPanel, title: str, counted: str, value: Callable[[ScalingPoint], float | None],
    bound: Callable[[ScalingPoint], float | None],
) -> Sketch | None:
    traces: list[Trace] = []
    for line in panel.lines:
        for of, thin in ((bound, True), (value, False)):
            points = [(float(point.processes), known, f"{line.brief}, {point.processes} processes: {number(known)}")
                      for point in line.points if (known := of(point))]
            if len(points) > 1 or (points and not thin):  # a bound of one point would be no line
                words = () if thin else tuple(text for *_, text in points)
                traces.append(Trace(line.color, tuple((x, y) for x, y, _ in points), words, line.symbol,
                                    "dot" if thin else line.dash, thin))
    bounds = [trace for trace in traces if trace.thin]
    if len(bounds) == len(traces):
        return None
    if _alike(bounds):
        traces = [*(trace for trace in traces if not trace.thin), replace(bounds[0], color=INK)]
    if not bounds:
        counted = counted.split("; dotted", maxsplit=1)[0]
    ticks = sorted({float(point.processes) for line in panel.lines for point in line.points})
    heights = [y for trace in traces for _, y in trace.points]
    return Sketch(title, counted, "processes", traces, Axis(ticks[0], ticks[-1], True, 3, 97, tuple(ticks)),
                  _log(heights), panel.origins)


def _alike(bounds: Sequence[Trace]) -> bool:
    """Return True if all lines have one bound: drawn once and above them, it is not hidden by a line that meets it."""
    return len(bounds) > 1 and all(
        [x for x, _ in bound.points] == [x for x, _ in bounds[0].points] and all(
            math.isclose(y, other, rel_tol=0.01)
            for (_, y), (_, other) in zip(bound.points, bounds[0].points, strict=True))
        for bound in bounds)


def _log(values: Sequence[float]) -> Axis:
    low, high = min(values), max(values)
    return Axis(low / 1.1, high * 1.1, True, 0, 100, tuple(
        value for value in log_ticks(low, high) if low / 1.1 <= value <= high * 1.1))


# ---- accuracy beside time


def _like(record: Record, primary: Ratio) -> list[CellMark]:
    """Return the cells that differ from the baseline of the primary contrast in their format alone."""
    known = marks(record)
    cells = {cell.cell_id: cell for cell in record.plan.cells}
    base = cells[primary.baseline.cell_id].factors | {"precision": ""}
    return [known[cell.cell_id] for cell in record.plan.cells if cell.factors | {"precision": ""} == base]


def _accuracy(findings: Findings, primary: Ratio) -> tuple[Sketch, ...]:
    """Draw the final quality against the time to the target, each trial and the median of each cell."""
    record = findings.record
    scale = METRICS[record.plan.suite.metric]
    traces = []
    for mark in _like(record, primary):
        summary = findings.summary(mark.cell_id)
        results = [item for item in record.of_cell(mark.cell_id)
                   if item.final is not None and math.isfinite(item.final) and meaning(item.status).counts]
        reached = [(value, item.final or 0.0) for item in results if (value := figure(item, scale)) is not None]
        missed = [(seen.at, item.final or 0.0) for item in results
                  if (seen := observe(item, scale)).kind == "watched" and seen.at > 0]
        for trials, words, symbol in ((reached, "a trial", mark.symbol), (missed, "missed the target", "x")):
            traces += [Trace(mark.color, tuple(trials), (f"cell {mark.number}, {words}",) * len(trials), symbol,
                             thin=True)] * bool(trials)
        if reached and summary.median is not None and summary.median_final is not None:
            traces.append(Trace(mark.color, ((summary.median, summary.median_final),),
                                (f"cell {mark.number}, median",), mark.symbol))
    if not traces:
        return ()
    choices = record.plan.cells[0].choices
    target = choices.stop.target
    up = linear([y for trace in traces for _, y in trace.points] + ([target] if target is not None else []))
    across = replace(from_zero([x for trace in traces for x, _ in trace.points]), left=0, right=100)
    return (Sketch(
        f"Final {choices.quality.metric} against the {scale.noun}",
        "large: median of a cell; small: trials (a cross: missed, at its end); line: target",
        f"{scale.noun}, {'seconds' if scale.timed else scale.unit}", traces, across, up,
        origins(_like(record, primary)), level=target),)


# ---- the claims of a contest


def _claims(findings: Findings) -> tuple[Sketch, ...]:
    """Draw the mean quality of each cell with its interval, the runs, and the target of the claim."""
    record = findings.record
    known = marks(record)
    tested = [item for item in findings.claims if item.mean is not None]
    found = tested[:MOST_CLAIMS]
    if not found:
        return ()
    rest = f"; the first {len(found)} of {len(tested)} cells" if len(found) < len(tested) else ""
    traces, names = [], {}
    for row, item in enumerate(reversed(found), 1):
        mark = known[item.cell_id]
        runs = [result.final for result in record.of_cell(item.cell_id) if result.final is not None]
        names[float(row)] = str(mark.number)
        traces += [
            Trace(mark.color, tuple((value, row + 0.28) for value in runs), ("a run",) * len(runs), mark.symbol,
                  thin=True),
            Trace(mark.color, ((item.mean or 0.0, float(row)),), (item.sentence,), mark.symbol,
                  spans=((item.interval.low, item.interval.high),) if item.interval else ())]
    across = linear([x for trace in traces for x, _ in trace.points]
                     + [end for trace in traces for span in trace.spans for end in span] + [found[0].target])
    return (Sketch(
        f"Mean {found[0].metric} by cell",
        f"with its 95\N{NO-BREAK SPACE}% interval; small: runs; line: the target{rest}",
        found[0].metric, traces, across, Axis(0.4, len(found) + 0.7, False, 0, 100, tuple(names)),
        origins([known[item.cell_id] for item in found]), names, goal=found[0].target),)


# ---- missed targets


def _reached(findings: Findings, primary: Ratio) -> tuple[Sketch, ...]:
    """Draw the probability of having reached the target by a time, of both cells (Kaplan and Meier, 1958)."""
    record = findings.record
    scale = METRICS[record.plan.suite.metric]
    traces: list[Trace] = []
    for mark in (primary.baseline, primary.candidate):
        results = record.of_cell(mark.cell_id)
        found = curve(observations(results, scale), findings.summary(mark.cell_id))
        if found is None:
            return ()
        steps, last = found
        points = [(0.0, 0.0), *steps, (last, steps[-1][1] if steps else 0.0)]
        traces.append(Trace(mark.color, tuple(points), (), mark.symbol, mark.dash, stepped=True))
    return (Sketch(
        f"Probability of having reached {goal(record.cell(primary.baseline.cell_id).choices)}",
        f"Kaplan-Meier estimate against the {scale.noun}; a line ends with the last trial",
        "seconds" if scale.timed else scale.unit, traces,
        from_nothing(max(x for trace in traces for x, _ in trace.points)),
        Axis(0.0, 1.04, False, 0, 100, (0.0, 0.5, 1.0)), origins([primary.baseline, primary.candidate]),
        {0.0: "0 %", 0.5: "50 %", 1.0: "100 %"}),)
