"""The tuning as the page shows it: budgets, costs, spaces, the whole search, and the best so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from repro.compare.findings import Findings
from repro.compare.ranking.tuning_check import (
    Budget,
    TuningCheck,
    near_an_end,
    untuned_optimizers,
    width,
)
from repro.record.tuning import RULE, TunedContender, Tuning, TuningCost
from repro.suite.metrics import METRICS
from repro.tables.text import Number, number, plural, seconds, share, visible, without_paths, wrapped
from repro.tables.tuning import end_of, figure_text, is_lower_better, setting_text

from ..cells import COLORS, DASHES, SYMBOLS
from ..charts.curves import DASHES as PATTERNS
from ..charts.curves import Chart, layout
from ..charts.parallel import Parallel, parallel
from .scores import ContenderMark


@dataclass(frozen=True, slots=True)
class SettingRow:
    """One setting in the table of the search."""

    rank: int
    number: int
    setting: str
    figure: str
    quality: Number | None
    ends: str


@dataclass(frozen=True, slots=True)
class TunedRow:
    """One contender."""

    mark: ContenderMark
    budget: Budget
    trials: int | None
    abandoned: Number | None
    """Share of its trials."""
    wall: Number | None
    processor: Number | None
    unknown: int
    chosen: str
    near: str
    """Fields whose chosen value is near an end of its range; "" none is."""
    figure: str
    unequal: bool
    drawn: Parallel | None
    settings: tuple[SettingRow, ...]


@dataclass(frozen=True, slots=True)
class SpaceRow:
    """One field of one space."""

    contenders: str
    field: str
    values: str
    width: str
    origin: str
    first: bool
    """The first row of its space."""
    rows: int
    """Fields of its space."""


@dataclass(frozen=True, slots=True)
class TuningView:
    """The section."""

    check: TuningCheck
    noun: str
    rule: str
    rows: tuple[TunedRow, ...]
    spaces: tuple[SpaceRow, ...]
    total: TunedRow | None
    charts: tuple[Chart, ...]
    equal: bool
    """Every contender had the same number of tuning trials."""
    here: bool


@dataclass(frozen=True, slots=True)
class Untuned:
    """Optimizers are compared, and nothing says where their settings come from."""

    check: None = None
    charts: tuple[Chart, ...] = ()


def page_tuning(findings: Findings) -> TuningView | Untuned | None:
    """Return the tuning of a record; None if there is nothing to say about one."""
    found = findings.tuning
    if found is None:
        return Untuned() if untuned_optimizers(findings.record) else None
    metric, tuning = found.tune.metric, found.tuning
    most = max((item.given for item in found.budgets), default=0)
    rows = tuple(_row(index, item, most, tuning, metric) for index, item in enumerate(found.budgets))
    return TuningView(
        check=found, noun=METRICS[metric].noun, rule=RULE, rows=rows, spaces=tuple(_spaces(found.budgets)),
        total=_total(tuning), charts=_charts(tuning, metric) if tuning else (),
        equal=all(item.given == most for item in found.budgets), here=tuning is not None)


def _mark(index: int, label: str) -> ContenderMark:
    return ContenderMark(index, visible(without_paths(label)), index % COLORS, DASHES[index % len(DASHES)],
                         SYMBOLS[index % len(SYMBOLS)])


def _row(index: int, budget: Budget, most: int, tuning: Tuning | None, metric: str) -> TunedRow:
    contender = tuning.contenders[index] if tuning else None
    cost, best = (contender.cost, contender.chosen) if contender else (None, None)
    return TunedRow(
        mark=_mark(index, budget.label), budget=budget, trials=cost.trials if cost else None,
        abandoned=_abandoned(cost), wall=seconds(cost.wall_seconds) if cost else None,
        processor=seconds(cost.processor_seconds) if cost else None, unknown=cost.unknown if cost else 0,
        chosen=setting_text(best.values) if best else "",
        near="; ".join(near_an_end(budget.space, best.values)) if best else "",
        figure=figure_text(best, metric) if best else "",
        unequal=budget.given != most, drawn=parallel(contender, metric) if contender else None,
        settings=_settings(contender, metric) if contender else ())


def _abandoned(cost: TuningCost | None) -> Number | None:
    return share(cost.abandoned / cost.trials) if cost and cost.trials else None


def _total(tuning: Tuning | None) -> TunedRow | None:
    if tuning is None or not tuning.contenders:
        return None
    first, cost = tuning.contenders[0], tuning.cost
    budget = Budget("all", sum(item.budget for item in tuning.contenders), tuning.tune.seeds, first.space, cost.trials)
    return TunedRow(_mark(0, "all"), budget, cost.trials, _abandoned(cost), seconds(cost.wall_seconds),
                    seconds(cost.processor_seconds), cost.unknown, "", "", "", False, None, ())


def _settings(contender: TunedContender, metric: str) -> tuple[SettingRow, ...]:
    return tuple(SettingRow(
        item.rank, item.number, setting_text(item.values), figure_text(item, metric), number(item.quality, 4),
        ", ".join(f"{count} {status.replace('_', ' ')}" for status, count in sorted(item.statuses.items()))
        or end_of(item)) for item in contender.ranked)


def _spaces(budgets: Sequence[Budget]) -> list[SpaceRow]:
    groups: dict[str, list[Budget]] = {}
    for item in budgets:
        groups.setdefault(item.space.model_dump_json(), []).append(item)
    found = []
    for members in groups.values():
        space = members[0].space
        names = "; ".join(item.label for item in members)
        found += [SpaceRow(names, name, axis.text(), width(axis), " ".join(space.origin.split()), not place,
                           len(space.space)) for place, (name, axis) in enumerate(sorted(space.space.items()))]
    return found


def _charts(tuning: Tuning, metric: str) -> tuple[Chart, ...]:
    """Return one chart a task: the best figure after so many settings, in the order in which they were drawn."""
    groups: dict[str, list[tuple[int, TunedContender]]] = {}
    for index, item in enumerate(tuning.contenders):
        task = next((one.cell.choices.task for one in item.settings if one.cell is not None), "")
        groups.setdefault(task, []).append((index, item))
    found = []
    for place, (task, members) in enumerate(groups.items()):
        lines = [line for index, item in members if (line := _best_so_far(index, item, metric))]
        if not lines:
            continue
        title = f"{METRICS[metric].noun}{f' on {task}' if task else ''}"
        looks = layout("settings tried", METRICS[metric].title)
        found.append(Chart(f"tuning-{place}", title, "in the order of drawing", {"data": lines, "layout": looks},
                           f"best {title} after so many settings; {plural(len(lines), 'line')}, one per contender"))
    return tuple(found)


def _best_so_far(index: int, contender: TunedContender, metric: str) -> dict[str, Any] | None:
    """Return the line of a contender; None if no setting has a figure."""
    lower = is_lower_better(contender, metric)
    best: float | None = None
    x: list[int] = []
    y: list[float] = []
    for item in contender.settings:
        if item.figure is not None and (best is None or (item.figure < best if lower else item.figure > best)):
            best = item.figure
        if best is not None:
            x.append(item.number)
            y.append(best)
    if not x:
        return None
    mark = _mark(index, contender.label)
    color = f"--c{mark.color}"
    return {
        "type": "scatter", "mode": "lines+markers", "uid": f"tuning-{index}", "name": f"contender {index + 1}",
        "legendgroup": f"tuned-{index}", "meta": [wrapped(mark.name)], "x": x, "y": y,
        "line": {"color": color, "dash": PATTERNS[mark.dash], "width": 2, "shape": "hv"},
        "marker": {"symbol": mark.symbol, "size": 6, "color": color},
        "hovertemplate": f"%{{meta[0]}}<br>best of %{{x}} settings: %{{y:.4~g}} {METRICS[metric].unit}<extra></extra>",
    }
