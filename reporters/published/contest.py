"""Claims of a contest -> the values of its section: a table of arms, the progression over the years, open claims."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from repro.core.errors import visible
from repro.published.contest_rules import Contest
from repro.published.record import PublishedResult
from repro.published.speedrun.claims import ArmClaim, Claims, TimeClaim, final_loss, judge_claims
from repro.published.store import Published
from repro.tables.text import plural, trimmed, wrapped

from ..page.axis import Axis, Sketch, Trace, linear, log_ticks
from ..page.cells import COLORS
from ..page.charts.plot import Chart, error_bars, layout, log_ticks_of

Runs = Mapping[str, Sequence[PublishedResult]]
"""By cell."""


def claim_sketches(
    item: ArmClaim, other: ArmClaim, numbers: dict[str, int], runs: Runs,
) -> tuple[Sketch, ...]:
    """Draw the means with their intervals and every run, the baseline above."""
    arms = (item, other)
    return (
        _sketch("Time of a run", "by the program's own clock, seconds", arms, numbers, runs,
                lambda run: run.seconds, [(arm.seconds, arm.seconds_interval) for arm in arms], None),
        _sketch("Loss at the end", "loss; line: the target", arms, numbers, runs,
                final_loss, [(arm.quality.mean, arm.quality.interval) for arm in arms], item.quality.target),
    )


def _sketch(
    title: str, across: str, arms: Sequence[ArmClaim], numbers: dict[str, int], runs: Runs,
    value: Callable[[PublishedResult], float | None], means: Sequence[tuple[float | None, tuple[float, float] | None]],
    goal: float | None,
) -> Sketch:
    traces, names = [], {}
    for row, (arm, (middle, interval)) in enumerate(zip(arms, means, strict=True), 1):
        known = [found for run in runs.get(arm.cell_id, ()) if (found := value(run)) is not None]
        color = (numbers[arm.cell_id] - 1) % COLORS
        names[float(row)] = f"No.\N{NO-BREAK SPACE}{numbers[arm.cell_id]}"
        traces.append(Trace(color, tuple((found, row + 0.28) for found in known), ("a run",) * len(known), thin=True))
        if middle is not None:
            traces.append(Trace(color, ((middle, float(row)),), (arm.arm,), spans=(interval,) if interval else ()))
    values = [x for trace in traces for x, _ in trace.points] + [
        end for trace in traces for span in trace.spans for end in span] + ([] if goal is None else [goal])
    return Sketch(title, "mean with its 95\N{NO-BREAK SPACE}% interval; small: runs", across, traces, linear(values),
                  Axis(0.4, len(arms) + 0.7, False, 0, 100, tuple(names)), ("published",), names, goal=goal)


MARKS = {
    "supported": ("--good", "circle"), "not supported": ("--bad", "x"), "cannot be tested": ("--muted", "circle-open"),
}
"""Colour and symbol of each verdict on the quality."""
WORDS = {
    "faster": "b-faster", "slower": "b-slower", "the same": "b-same", "not decided": "b-inconclusive",
    "supported": "b-pass", "not supported": "b-fail", "cannot be tested": "b-cannot-tell",
}
"""Style of each verdict; the others are words without a judgement."""


@dataclass(frozen=True, slots=True)
class TimeView:
    """The time of an arm against another."""

    claim: TimeClaim
    other: ArmClaim | None
    """The arm that the ratio is to."""
    other_number: int
    against: str
    """Name of the other arm; empty: none."""
    sketches: tuple[Sketch, ...]
    """Time and loss next to those of `against`; () without a ratio."""


@dataclass(frozen=True, slots=True)
class ArmRow:
    """One arm of a record."""

    claim: ArmClaim
    number: int
    times: tuple[TimeView, ...]
    """Against each baseline of its record."""


@dataclass(frozen=True, slots=True)
class TrackView:
    """The records of one track."""

    name: str
    target: str
    rows: tuple[ArmRow, ...]
    charts: tuple[Chart, ...]


@dataclass(frozen=True, slots=True)
class ContestView:
    """The section of one contest."""

    id: str
    rules: Contest
    tracks: tuple[TrackView, ...]
    unsupported: tuple[str, ...]
    """Claims that their own logs do not support, with the figures."""
    untested: tuple[str, ...]
    counts: str


def contest_view(name: str, published: Published) -> ContestView | None:
    """Compute the section; None: the import is no contest."""
    if published.record.contest is None:
        return None
    claims = judge_claims(published)
    numbers = {cell.cell_id: at for at, cell in enumerate(published.record.cells, 1)}
    runs = published.by_cell()
    return ContestView(
        id=f"{name}-contest", rules=claims.rules,
        tracks=tuple(_track(f"{name}-t{at}", track, items, numbers, runs)
                     for at, (track, items) in enumerate(
                         sorted(claims.tracks.items(), key=lambda pair: -len(pair[1])), 1)),
        unsupported=(*_open(claims, "not supported"), *(item.because for item in claims.stated)),
        untested=tuple(_open(claims, "cannot be tested")), counts=_counts(claims),
    )


def _open(claims: Claims, verdict: str) -> list[str]:
    return [f"{item.record}, {item.arm}: {item.quality.because}" for item in claims.arms
            if item.quality.verdict == verdict]


def _counts(claims: Claims) -> str:
    found: list[str] = [item.quality.verdict for item in claims.arms]
    return ", ".join(f"{found.count(word)} {text}" for word, text in (
        ("supported", "supported by their own logs"), ("not supported", "not supported"),
        ("cannot be tested", "that cannot be tested")))


def _track(
    name: str, track: str, items: Sequence[ArmClaim], numbers: dict[str, int], runs: Runs,
) -> TrackView:
    targets = sorted({item.quality.target for item in items})
    chart = _progression(name, items)
    return TrackView(track, " or ".join(f"{target:g}" for target in targets),
                     tuple(ArmRow(item, numbers[item.cell_id], tuple(
                         _time(item, time, numbers, items, runs) for time in item.times)) for item in items),
                     (chart,) if chart else ())


def _time(
    item: ArmClaim, time: TimeClaim, numbers: dict[str, int], items: Sequence[ArmClaim], runs: Runs,
) -> TimeView:
    other = next((other for other in items if other.cell_id == time.against), None)
    against = "" if other is None else f"{other.arm} of {other.record}" if other.record != item.record else other.arm
    return TimeView(time, other, numbers[other.cell_id] if other else 0, against,
                    claim_sketches(item, other, numbers, runs) if other and time.ratio is not None else ())


def _progression(name: str, items: Sequence[ArmClaim]) -> Chart | None:
    """Draw the mean time of every arm that is no baseline against the date of its record; None: one date or none."""
    known = [item for item in items if item.date and item.seconds and not item.baseline]
    if len({item.date for item in known}) < 2:
        return None
    traces = [trace for verdict in MARKS if (trace := _trace(verdict, [
        item for item in known if item.quality.verdict == verdict]))]
    looks = layout("date of the record", "mean time, seconds (logarithmic)")
    times = [item.seconds for item in known if item.seconds]
    looks["xaxis"] |= {"type": "date", "rangemode": "normal"}
    looks["yaxis"] |= log_ticks_of(log_ticks(min(times), max(times)), trimmed)
    looks |= {"showlegend": True, "legend": {"orientation": "h", "y": -0.22, "font": {"size": 12}}}
    return Chart(
        f"{name}-progression", "Progression of the record",
        "mean time of each record's arm by the program's own clock, with its 95 % interval; the mark says whether its "
        "own logs support its quality; the machines differ",
        {"data": traces, "layout": looks},
        f"mean time against date: {plural(len(known), 'arm')} of records, {known[0].date} to {known[-1].date}")


def _trace(verdict: str, items: Sequence[ArmClaim]) -> dict[str, Any] | None:
    if not items:
        return None
    color, symbol = MARKS[verdict]
    seconds = [item.seconds or 0.0 for item in items]
    return {
        "type": "scatter", "mode": "markers", "name": f"quality {verdict}", "showlegend": True,
        "x": [item.date for item in items], "y": seconds,
        "error_y": error_bars(seconds, [item.seconds_interval or (value, value)
                                        for item, value in zip(items, seconds, strict=True)], color),
        "text": [f"{wrapped(visible(f'{item.record}, {item.arm}'))}<br>n = {item.quality.n}, mean loss "
                 f"{'unknown' if item.quality.mean is None else f'{item.quality.mean:.5f}'}" for item in items],
        "marker": {"color": color, "symbol": symbol, "size": 9},
        "hovertemplate": "%{text}<br>%{x}: %{y:.5~g} s<extra></extra>",
    }
