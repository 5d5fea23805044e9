"""Cells as rows and tables: the declared metric with its interval, how trials ended, figures of training, and what
trials measure: figures and checks of operations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from repro.compare import METRICS, Summary
from repro.compare.cell_figures import GROUPS, Figure, cell_checks, cell_measures
from repro.compare.design.calibration import machine_of
from repro.compare.findings import Findings
from repro.core.numbers import readable, spans
from repro.record.folder.store import Record
from repro.record.result.status import counted
from repro.suite.planning.cell import Cell
from repro.tables.layout import NOTHING, Column, TextTable, count, ends, figure, laid, name, rounded, words
from repro.tables.text import trimmed
from repro.tables.values import Row, as_number, bounds, estimate, plain


def seconds_text(value: float, digits: int = 4) -> str:
    """Return a time as `0.7664 s` or `1.527 ms`."""
    number, unit = readable(value)
    return f"{trimmed(number, digits)} {unit}"


def amount_text(value: float, metric: str, digits: int = 4) -> str:
    """Return a value of a metric with the unit of the metric."""
    scale = METRICS[metric]
    return seconds_text(value, digits) if scale.timed else f"{trimmed(value, digits)} {scale.unit}".rstrip()


def ends_text(low: float, high: float, metric: str) -> str:
    """Return the ends of an interval; times have their unit, once if both have the same."""
    if not METRICS[metric].timed:
        return f"{trimmed(low, 4)} to {trimmed(high, 4)}"
    first, last = seconds_text(low), seconds_text(high)
    unit = last[last.index(" "):]
    return f"{first.removesuffix(unit)} to {last}"


PAPER = (
    ("step_seconds", "Step (s)"), ("train_samples_per_second", "Samples/s"), ("tokens_per_second", "Tokens/s"),
    ("mfu", "MFU"), ("training_peak_mib", "Peak memory (MiB)"), ("joules_per_sample", "J a sample"),
    ("version_lag", "Version lag"), ("clock_lag", "Clock lag"),
)
"""(path, header) of the figures that papers report; a column without any value is left out."""
TERMINAL = ("Speed", "Memory", "Input", "Energy")
"""Groups of figures that the terminal shows; JSON and the page have all."""


def cell_rows(found: Findings) -> Iterator[Row]:
    """Yield one row per cell with all that is known of it."""
    record = found.record
    for item in found.summaries:
        cell = record.cell(item.cell_id)
        row: Row = {"cell_id": item.cell_id, "cell": plain(item.label), "origin": record.origin_of(cell)}
        row |= {f"factor.{key}": plain(value) for key, value in cell.factors.items()}
        row |= summary_row(item, record.origin_of(cell)) | {"planned": record.due_of(item.cell_id)}
        row |= cell.choices.quality.columns("median_final_", item.median_final)
        row |= {"restricted_horizon": item.horizon, "diverged_share": item.diverged_share}
        row |= estimate("restricted_mean", item.restricted)
        yield row | {f"median_{path.replace('model.', '')}": value
                     for path, value in found.figures[item.cell_id].items()}


def summary_row(item: Summary, origin: str | None) -> Row:
    """Return the figures of a cell by one metric.

    Args:
        origin: of its figures; None: unknown.
    """
    statuses = ", ".join(f"{count} {status}" for status, count in sorted(item.statuses.items()))
    row: Row = {"cell_id": item.cell_id, "cell": plain(item.label), "origin": origin, "metric": item.metric,
                "unit": METRICS[item.metric].unit, "n": item.n, "ok": item.ok, "statuses": statuses,
                "median": item.median}
    return row | bounds("median", item.interval) | bounds("success", item.success) | {
        "coefficient_of_variation": item.coefficient_of_variation, "outliers": sum(item.outliers),
        "resumed": item.resumed, "trainings": item.trainings, "median_epochs": item.median_epochs,
        "median_samples_per_second": item.median_samples_per_second, "median_final": item.median_final,
    }


def cell_table(found: Sequence[Summary], origins: Mapping[str, str], title: str) -> TextTable:
    """Return one row per cell for a paper: without the columns about a target if none was asked for."""
    table = laid(title, (
        words("Cell", "cell"), words("Figures", "origin"), count(done(found), "ok", "n"),
        Column(f"Median {_noun(found)}", lambda row: str(row["without"] or rounded(as_number(row["median"])))),
        ends("Interval", "median"), figure("Epochs", "median_epochs"), figure("Samples/s", "median_samples_per_second"),
        figure("Final quality", "median_final", 4),
    ), _shown(found, origins))
    return table if all(item.has_target for item in found) else table.without(("Epochs", "Samples/s", "Final quality"))


def spread_table(found: Sequence[Summary], origins: Mapping[str, str]) -> TextTable:
    """Return one row per cell for a terminal: with units, the spread, and how the other trials ended."""
    return laid(f"Cells: {_noun(found)}", (
        words("Cell", "cell"), words("Figures", "origin"), count(done(found), "ok", "n"),
        Column("Median", lambda row: str(row["without"] or amount_text(float(row["median"] or 0), str(row["metric"])))),
        Column("Interval", _limits),
        Column("CV", lambda row: NOTHING if row["coefficient_of_variation"] is None else
               f"{100 * float(row['coefficient_of_variation']):.1f} %"),
        words("Other ends", "others"),
    ), _shown(found, origins))


def _shown(found: Sequence[Summary], origins: Mapping[str, str]) -> Iterator[Row]:
    for item in found:
        others = [f"{count} {status}" for status, count in sorted(item.statuses.items()) if status != "ok"]
        parts = (", ".join(others), f"{sum(item.outliers)} outlier(s)" if any(item.outliers) else "",
                 f"{item.resumed} resumed" if item.resumed else "")
        without = "" if item.median is not None else missing_text(item)
        yield summary_row(item, origins.get(item.cell_id)) | {
            "without": without, "others": "; ".join(part for part in parts if part)}


def missing_text(item: Summary) -> str:
    """Return what stands for a median that a cell has not."""
    if not item.n:
        return "not run"
    if not counted(item.statuses):
        return "no valid trial"
    return "not reached" if METRICS[item.metric].to_target and item.ok < item.n else "none"


def lane_rows(answers: Findings) -> Iterator[Row]:
    """Yield a row for each lane of a run in a pool: all are of one class, that of the environment."""
    record = answers.record
    for lane in answers.lanes:
        yield {"lane": plain(lane.name), "machine": plain(machine_of(record.environment)), "origin": answers.origin,
               "blocks": len(lane.repeats), "seeds_run": spans(sorted(lane.repeats)), "relative_time": lane.level}


def median_text(item: Summary) -> str:
    """Return the median of a cell with its unit, or what stands for it."""
    return missing_text(item) if item.median is None else amount_text(item.median, item.metric, 3)


def done(found: Sequence[Summary]) -> str:
    """Return the header of the column that counts the trials with a success."""
    if any(item.contest for item in found):
        return "At its end"
    return "Reached" if all(item.has_target for item in found) else "Ended well"


def _noun(found: Sequence[Summary]) -> str:
    scale = METRICS[found[0].metric] if found else None
    return "" if scale is None else f"{scale.noun}{f' ({scale.unit})' if scale.unit else ''}"


def _limits(row: Row) -> str:
    if row["median_low"] is None:
        return NOTHING
    low, high = float(row["median_low"]), float(row["median_high"] or 0)
    return f"{ends_text(low, high, str(row['metric']))} ({100 * float(row['median_level'] or 0):.3g} %)"


def training_table(cells: Mapping[str, str], found: Mapping[str, Mapping[str, float]]) -> TextTable:
    """Return the figures of training that papers report; no row without figures.

    Args:
        cells: id -> label.
        found: id of a cell -> its figures.
    """
    columns = [item for item in PAPER if any(item[0] in found[key] for key in cells)]
    rows = [{"cell": label, **dict.fromkeys((path for path, _ in columns), None), **found[key]}
            for key, label in cells.items()]
    return laid("Training alone: medians, not tested; memory of the largest rank",
                (words("Cell", "cell"), *(figure(head, path) for path, head in columns)), rows if columns else ())


def group_tables(labels: Sequence[str], found: Sequence[Mapping[str, float]]) -> Iterator[TextTable]:
    """Yield a table for each group of figures that the terminal shows and a cell has."""
    for title in TERMINAL:
        columns = [item for item in GROUPS[title] if any(item.path in values for values in found)]
        if columns:  # times carry their unit, which depends on their size
            heads = (item.title if item.unit in ("", "s") else f"{item.title} ({item.unit})" for item in columns)
            yield TextTable(
                f"{title}: medians of training, not tested", ("Cell", *heads), (False, *(True for _ in columns)),
                tuple((label, *(_figure(item, values.get(item.path)) for item in columns))
                      for label, values in zip(labels, found, strict=True)))


def _figure(item: Figure, value: float | None) -> str:
    if value is None:
        return NOTHING
    return seconds_text(value) if item.unit == "s" else trimmed(value, 4)


def measure_rows(record: Record, cells: Sequence[Cell]) -> Iterator[Row]:
    """Yield a row for every figure of every cell; none for other kinds of trial."""
    for cell in cells:
        for item in cell_measures(record.of_cell(cell.cell_id)):
            origin = "modelled" if item.label == "modelled" else record.origin_of(cell)
            row: Row = {"cell_id": cell.cell_id, "cell": plain(cell.label), "origin": origin,
                        "figure": plain(item.name), "title": plain(item.title), "unit": plain(item.unit),
                        "label": item.label, "n": item.n, "median": item.median}
            yield row | bounds("median", item.interval)


def check_rows(record: Record, cells: Sequence[Cell]) -> Iterator[Row]:
    """Yield a row for every check of every cell."""
    for cell in cells:
        for item in cell_checks(record.of_cell(cell.cell_id)):
            yield {"cell_id": cell.cell_id, "cell": plain(cell.label), "origin": record.origin_of(cell),
                   "check": plain(item.name), "n": item.n, "passed": item.passed, "worst_error": item.worst,
                   "limit": item.limit}


def operations_table(record: Record, cells: Sequence[Cell]) -> TextTable:
    """Return the medians of every cell with n and interval; no row for other kinds of trial."""
    return laid("Operations: medians over trials, not tested", (
        words("Cell", "cell"),
        Column("Figure", lambda row: name(f"{row['title']} ({row['unit']})".removesuffix(" ()")), numeric=False),
        Column("Figures", lambda row: str(row["origin" if row["label"] == "measured" else "label"]), numeric=False),
        count("n", "n"), figure("Median", "median"), ends("Interval", "median")), measure_rows(record, cells))


def checks_table(record: Record, cells: Sequence[Cell]) -> TextTable:
    """Return the worst error of every check of every cell."""
    return laid("Checks of the answers", (
        words("Cell", "cell"), words("Check", "check"), count("Passed", "passed", "n"),
        Column("Largest error", lambda row: "not finite" if row["worst_error"] is None else
               rounded(as_number(row["worst_error"]))),
        figure("Limit", "limit")), check_rows(record, cells))
