"""Imports of published results and own runs -> the values that the page template reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup, escape

from repro.compare import factors_of
from repro.compare.findings import findings
from repro.core.errors import visible
from repro.core.files import write_text
from repro.published.brief import cost_text, notices
from repro.published.cells import BatchCosts, batch_costs
from repro.published.record import PublishedCell, PublishedRecord, PublishedResult, Refused
from repro.published.store import Published, by_question
from repro.record.folder.store import Record
from repro.record.result.status import meaning
from repro.suite.metrics import DEFAULT
from repro.tables.text import Number, number, plural, shortened, shown

from ..html_page import LONG, PRINTED
from ..page.axis import Axis, from_zero
from ..page.cells import COLORS, CellRow, goal, origins
from ..page.cells import rows as cell_rows
from ..page.charts.plot import DASHES, Chart
from ..page.document import page_scripts, rendered
from .charts import SystemLine, batch_chart, budget, curves
from .contest import WORDS, ContestView, contest_view

RUNS_UP_TO = 5_000
REFUSED_UP_TO = 2_000
"""Rows above which a table says how many it leaves out and which file has them."""


@dataclass(frozen=True, slots=True)
class ScoreRow:
    """One system on one benchmark."""

    cell: PublishedCell
    number: int
    dash: str
    minutes: Number | None
    costs: str
    points: tuple[tuple[float, float, str], ...]
    """(x per cent, y pixels, words) of every run with a time."""
    score_at: float | None
    words: str

    @property
    def division(self) -> str | None:
        return self.cell.factors.get("division")


@dataclass(frozen=True, slots=True)
class BenchmarkGroup:
    """One benchmark of one round: results that answer one question."""

    id: str
    round: str
    benchmark: str
    targets: str
    rows: tuple[ScoreRow, ...]
    axis: Axis
    charts: tuple[Chart, ...]
    required: str

    @property
    def size(self) -> int:
        """The number of systems."""
        return len(self.rows)


@dataclass(frozen=True, slots=True)
class RunRow:
    """One log or entry."""

    run: PublishedResult
    cell: str
    link: str
    """Link to the score of its system; empty if there is none."""
    word: str
    minutes: Number | None
    epochs: Number | None
    samples: Number | None


@dataclass(frozen=True, slots=True)
class ImportView:
    """One import on the page."""

    id: str
    record: PublishedRecord
    lead: str
    notices: tuple[tuple[str, str, str], ...]
    """(level, title, text)."""
    contest: ContestView | None
    """Claims of a contest, which has no groups: its records are rows of one table."""
    groups: tuple[BenchmarkGroup, ...]
    overlays: tuple[tuple[str, Chart], ...]
    """(benchmark, chart of batch size against epochs over all rounds)."""
    one_batch: tuple[str, ...]
    """Sentences about benchmarks with only one batch size, which have no chart."""
    by_system: tuple[tuple[int, str, int, str], ...]
    """(number, label, runs, their minutes): target of the links of the scores without JavaScript."""
    runs: tuple[RunRow, ...]
    runs_left_out: int
    refused: tuple[Refused, ...]
    refused_left_out: int


@dataclass(frozen=True, slots=True)
class OwnRun:
    """An own run, separate from everything published."""

    id: str
    title: str
    origins: tuple[str, ...]
    place: str
    rows: tuple[CellRow, ...]
    facts: tuple[tuple[str, str], ...]


def _import(index: int, published: Published, most: int) -> ImportView:
    record = published.record
    runs = published.by_cell()
    lines = {cell.cell_id: SystemLine(at, cell.label, runs[cell.cell_id])
             for at, cell in enumerate(record.cells, 1)}
    rows = _runs(published, lines)
    overlays, one_batch = _overlays(f"i{index}", published)
    return ImportView(
        id=f"i{index}", record=record, lead=_lead(published),
        notices=tuple(notices(published)), contest=contest_view(f"i{index}", published),
        groups=tuple(_group(f"i{index}-g{at}", key, cells, lines, most)
                     for at, (key, cells) in enumerate(by_question(record.cells).items(), 1)
                     if record.contest is None),
        overlays=overlays, one_batch=one_batch, by_system=tuple(_system(line) for line in lines.values()),
        runs=tuple(rows[:RUNS_UP_TO]),
        runs_left_out=max(0, len(rows) - RUNS_UP_TO),
        refused=published.refused[:REFUSED_UP_TO], refused_left_out=max(0, len(published.refused) - REFUSED_UP_TO),
    )


def _lead(published: Published) -> str:
    cells = published.record.cells
    if published.record.contest is not None:
        records = len({cell.factors["round"] for cell in cells})
        arms = f"{plural(len(cells), 'arm')} of {plural(records, 'record')}"
        return (f"{plural(len(published.results), 'run')} of {arms}, "
                f"{plural(len(published.refused), 'file')} refused")
    rounds, benchmarks = ({cell.factors[name] for cell in cells} for name in ("round", "benchmark"))
    return (f"{plural(len(published.results), 'run')} of {plural(len(cells), 'system')} on "
            f"{plural(len(benchmarks), 'benchmark')} of {plural(len(rounds), 'round')}, "
            f"{plural(len(published.refused), 'file')} refused")


def _group(
    name: str, key: tuple[str, str], cells: Sequence[PublishedCell], lines: dict[str, SystemLine], most: int
) -> BenchmarkGroup:
    of = [lines[cell.cell_id] for cell in cells]
    minutes = [run.seconds / 60 for line in of for run in line.results if run.seconds]
    axis = from_zero(minutes, right=94.0, letter=4.0)
    targets = sorted({_target(run) for line in of for run in line.results})
    required = {cell.score.required for cell in cells} - {None}
    return BenchmarkGroup(
        id=name, round=key[0], benchmark=key[1], targets=" or ".join(targets),
        rows=tuple(_score_row(cell, lines[cell.cell_id], axis) for cell in sorted(cells, key=lambda cell: cell.place)),
        axis=axis,
        charts=tuple(curves(name, of, most)), required=f"{required.pop()}" if len(required) == 1 else "",
    )


def _target(run: PublishedResult) -> str:
    goal = " and ".join(f"{name} {'at most' if run.direction.get(name) == 'lower' else 'at least'} {value:g}".strip()
                        for name, value in run.target.items())
    return goal or "unknown"


def _score_row(cell: PublishedCell, line: SystemLine, axis: Axis) -> ScoreRow:
    score = cell.score
    reached = [run for run in line.results if run.seconds is not None]
    points = tuple(
        (axis.at((run.seconds or 0.0) / 60), 7.0 + 6.0 * (index % 3),
         f"run {run.repeat}: {number((run.seconds or 0.0) / 60, 4, 'min')}")
        for index, run in enumerate(reached)
    )
    listed = ", ".join(str(number((run.seconds or 0.0) / 60, 4)) for run in reached[:50])
    return ScoreRow(
        cell=cell, number=line.number, dash=list(DASHES)[(line.number - 1) // COLORS % len(DASHES)],
        minutes=number(score.minutes, 4),
        costs=cost_text(line.results), points=points,
        score_at=None if score.minutes is None else axis.at(score.minutes),
        words=f"minutes of every run: {listed}" if listed else "no run has a time",
    )


def _count(text: str | None) -> Number | None:
    return _whole(int(text)) if text is not None and text.isascii() and text.isdigit() else None


def _whole(value: int | None) -> Number | None:
    return None if value is None else Number(value, f"{value:,}")


def _system(line: SystemLine) -> tuple[int, str, int, str]:
    times = ", ".join(str(number(run.seconds / 60, 4)) for run in line.results[:50] if run.seconds is not None)
    return line.number, line.label, len(line.results), times


def _overlays(name: str, published: Published) -> tuple[tuple[tuple[str, Chart], ...], tuple[str, ...]]:
    """Make one chart per benchmark, each round in its own colour; a sentence if there is only one batch size."""
    labels = {cell.cell_id: cell.label for cell in published.record.cells}
    by_benchmark: dict[str, list[BatchCosts]] = {}
    for of in batch_costs(published.results):
        by_benchmark.setdefault(of.benchmark, []).append(of)
    found, alone = [], []
    for index, (benchmark, by_round) in enumerate(sorted(by_benchmark.items())):
        references = [item for item in published.record.references if item.benchmark == benchmark]
        sizes = {cost.global_batch_size for of in by_round for cost in of.costs}
        if len(sizes) == 1 and not references:
            alone.append(f"{benchmark}: every run states the batch {sizes.pop():,}, so there is nothing to "
                         "compare")
            continue
        chart = batch_chart(f"{name}-b{index}", by_round, labels, references)
        if chart is not None:
            found.append((benchmark, chart))
    return tuple(found), tuple(alone)


def _runs(published: Published, lines: dict[str, SystemLine]) -> list[RunRow]:
    """Return all runs: those without a time first, otherwise in the order of the import.

    A run of a contest that is `ok` reached its end: only the mean of an arm is held against the target.
    """
    complete = published.record.contest is not None
    rows = [
        RunRow(
            run=item, cell=f"{lines[item.cell_id].number}" if item.cell_id in lines else "-",
            link=f"c-{item.cell_id}" if item.cell_id in lines else "",
            word="complete" if complete and item.status == "ok" else meaning(item.status).page_word,
            minutes=number(None if item.seconds is None else item.seconds / 60, 4),
            epochs=number(item.epochs_to_target), samples=_whole(item.samples_to_target),
        )
        for item in published.results
    ]
    return sorted(rows, key=lambda row: row.run.status == "ok")


def _own(index: int, record: Record) -> OwnRun:
    rows, _ = cell_rows(findings(record), DEFAULT)
    environment = record.environment
    batches = {str(factors_of(cell)["batch"].get("global")) for cell in record.plan.cells}
    return OwnRun(
        id=f"o{index}", title=record.plan.suite.title or record.plan.suite.suite,
        origins=origins([row.mark for row in rows]), place=record.folder.root.name, rows=tuple(rows),
        facts=(
            ("Suite", record.plan.suite.suite), ("Suite digest (sha256)", record.plan.digest),
            ("Method", record.plan.method), ("Machine", f"{environment.cpu}, {environment.cores} cores"),
            ("Global batch", ", ".join(sorted(batches))),
        ),
    )


NAME = "published.html"


def write(imports: Sequence[Published], own: Sequence[Record], out: Path) -> list[str]:
    """Write the page into `out`.

    Raises:
        OutputError: `out` cannot be written.
    """
    path = out / NAME
    write_text(path, render(imports, own))
    return [str(path)]


def render(imports: Sequence[Published], own: Sequence[Record] = ()) -> str:
    """Render the page: works offline, tables need no JavaScript, the same bytes for the same folders."""
    most = budget(sum(len(item.results) for item in imports))
    shown_imports = [_import(index, item, most) for index, item in enumerate(imports, 1)]
    values = {"long": LONG, "printed": PRINTED, "imports": shown_imports, "styles": WORDS, "goal": goal,
              "own": [_own(index, item) for index, item in enumerate(own, 1)]}
    charts = any(item.overlays or item.contest or any(group.charts for group in item.groups) for item in shown_imports)
    return rendered("published.html.j2", values, page_scripts("published.js", charts),
                    styles=("report.css", "published.css"), show=_shown, filters={
                        "breaks": _breaks, "counted": _count, "brief": lambda text: shortened(text, 24, 10)})


def _breaks(text: str) -> Markup:
    """Let lines break after slashes and underscores, and nowhere inside a word."""
    found = escape(_shown(text))
    for mark in "/_":
        found = Markup(found.replace(mark, Markup(f"{mark}<wbr>")))
    return found


def _shown(value: object) -> object:
    """Print a value as on every page; control and direction characters of foreign text become visible."""
    found = shown(value)
    return visible(found) if isinstance(found, str) and not isinstance(found, Markup) else found
