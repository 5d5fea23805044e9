"""Share of trials at the target by a time, by cell; its Kaplan-Meier estimate if some trials missed the target."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from repro.compare import METRICS, MetricSpec, Summary
from repro.compare.evidence.pairing import Observation, observe
from repro.compare.findings import Findings, findings
from repro.record.folder.store import Record
from repro.record.result.results import Result
from repro.record.result.status import meaning
from repro.suite.metrics import DEFAULT
from repro.suite.planning.cell import Cell
from repro.tables.tables import Table
from repro.tables.text import plural, wrapped
from repro.tables.values import plain

from ..cells import CellMark, goal, marks
from .plot import DASHES, Chart, layout, short


@dataclass(frozen=True, slots=True)
class SurvivalRow:
    """One cell."""

    mark: CellMark
    summary: Summary
    steps: tuple[tuple[float, float], ...] | None
    """(time, probability of having reached the target by then); None: unknown, as the note says."""
    note: str


@dataclass(frozen=True, slots=True)
class SurvivalPanel:
    """Cells with one workload and one metric of quality."""

    title: str
    goal: str
    charts: tuple[Chart, ...]
    rows: tuple[SurvivalRow, ...]
    missed: bool
    """True if a trial did not reach the target."""


@dataclass(frozen=True, slots=True)
class Survivals:
    """The section; it has no panel without a target."""

    spec: MetricSpec
    """The clock."""
    panels: tuple[SurvivalPanel, ...]

    @property
    def missed(self) -> bool:
        return any(panel.missed for panel in self.panels)

    @property
    def charts(self) -> tuple[Chart, ...]:
        return tuple(chart for panel in self.panels for chart in panel.charts)


def survival_table(record: Record) -> Table:
    """Return one row per step of a cell's curve."""
    found = survival(findings(record))
    return Table("survival", "One row per step of a cell's curve: share of trials at the target", tuple(
        {"cell_id": row.mark.cell_id, "cell": plain(row.mark.label), "origin": row.mark.origin,
         "metric": found.spec.name, "unit": found.spec.unit, "reached_at": time, "share": share}
        for panel in found.panels for row in panel.rows for time, share in row.steps or ()))


def survival(answers: Findings) -> Survivals:
    """Compute the curves by the clock of the declared contrast, else by the wall clock."""
    record = answers.record
    scale = METRICS[record.plan.suite.metric]
    scale = scale if scale.to_target else METRICS[DEFAULT]
    groups: dict[tuple[str, str], list[Cell]] = {}
    for cell in record.plan.cells if record.plan.design.judges == "trial" else ():
        groups.setdefault((cell.choices.task, goal(cell.choices)), []).append(cell)
    panels = [_panel(answers, index, key, cells, scale) for index, (key, cells) in enumerate(groups.items())]
    return Survivals(scale, tuple(panels))


def _panel(
    answers: Findings, number_: int, key: tuple[str, str], cells: Sequence[Cell], scale: MetricSpec
) -> SurvivalPanel:
    record = answers.record
    known = marks(record)
    found = [(known[cell.cell_id], observations(record.of_cell(cell.cell_id), scale),
              answers.summary(cell.cell_id, scale.name)) for cell in cells]
    missed = any(item.kind != "reached" for _, observed, _ in found for item in observed)
    noun = "probability of having reached" if missed else "share of trials at"
    traces = [trace for mark, observed, summary in found if (trace := _trace(mark, observed, summary, scale))]
    unit = "seconds" if scale.timed else scale.unit
    looks = layout(unit, f"{noun} the target")
    looks["yaxis"] |= {"range": [-0.03, 1.05], "tickformat": ".0%"}
    chart = Chart(
        f"survival-{number_}", f"{key[1]} on {key[0]}", f"against the {scale.noun}", {"data": traces, "layout": looks},
        f"{noun} {key[1]} against the {scale.noun}; {plural(len(traces), 'line')}, one per cell",
    )
    return SurvivalPanel(
        title=key[0], goal=key[1], charts=(chart,) if traces else (), missed=missed,
        rows=tuple(SurvivalRow(mark, summary, tuple(drawn[0]) if (drawn := curve(observed, summary)) else None,
                               _note(summary, observed)) for mark, observed, summary in found),
    )


def observations(results: Sequence[Result], scale: MetricSpec) -> list[Observation]:
    """Return how long each trial was observed; crashed and invalid trials give no information on the cell."""
    return [observe(item, scale) for item in results if meaning(item.status).counts]


def curve(observed: Sequence[Observation], summary: Summary) -> tuple[list[tuple[float, float]], float] | None:
    """Return (steps, longest observed time); None if the observed times are unknown.

    If all trials reached the target, the curve is their share by each time; if none did, it stays at 0.
    """
    if not observed or any(item.kind == "unknown" for item in observed):
        return None
    times = sorted(item.at for item in observed if item.kind == "reached")
    last = max([*times, *(item.at for item in observed if item.kind == "watched")], default=0.0)
    if summary.reached_by:
        return list(summary.reached_by), last
    if len(times) == len(observed):
        return [(time, sum(other <= time for other in times) / len(times)) for time in dict.fromkeys(times)], last
    return ([], last) if not times else None


def _trace(
    mark: CellMark, observed: Sequence[Observation], summary: Summary, scale: MetricSpec,
) -> dict[str, Any] | None:
    """Return a step line with a tick for each trial whose observation ended without reaching the target."""
    found = curve(observed, summary)
    if found is None:
        return None
    steps, last = found
    events = [(time, share, "circle", 4) for time, share in steps]
    for time in sorted({item.at for item in observed if item.kind == "watched"}):
        share = max([value for at, value in steps if at <= time], default=0.0)
        events.append((time, share, "line-ns-open", 11))
    events.sort(key=lambda item: (item[0], item[1]))
    if not events or events[-1][0] < last:
        events.append((last, steps[-1][1] if steps else 0.0, "circle", 1))
    events.insert(0, (0.0, 0.0, "circle", 1))
    color = f"--c{mark.color}"
    return {
        "type": "scatter", "mode": "lines+markers", "name": f"cell {mark.number}", "uid": f"survival-{mark.number}",
        "legendgroup": str(mark.number), "meta": [f"<b>{mark.number}</b> {wrapped(mark.label)}"],
        "x": [short(item[0]) for item in events], "y": [item[1] for item in events],
        "line": {"color": color, "dash": DASHES[mark.dash], "width": 2, "shape": "hv"},
        "marker": {"symbol": [item[2] for item in events], "size": [item[3] for item in events], "color": color,
                   "line": {"width": 1.5, "color": color}},
        "hovertemplate": f"%{{meta[0]}}<br>by %{{x:,.4~r}} {scale.unit}: %{{y:.3~g}}<extra></extra>",
    }


def _note(summary: Summary, observed: Sequence[Observation]) -> str:
    if not summary.n:
        return "no trial yet"
    left = summary.n - len(observed)
    notes = [f"{plural(left, 'trial')} excluded: crashed, or with an invalid log"] if left else []
    if observed and curve(observed, summary) is None:
        notes.append("the record does not say how long its trials were observed")
    return "; ".join(notes)
