"""`repro import`: read, write the folder, say what it came to."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from rich.console import Console
from rich.table import Table
from rich.text import Text

from repro.core.errors import UsageError
from repro.published.cells import batch_costs
from repro.published.dawnbench import import_entries
from repro.published.imported import Imported
from repro.published.mlperf.folder import import_folder
from repro.published.record import Program, PublishedCell, PublishedResult, PublishedStatus
from repro.published.store import RECORD, REFUSED, Published, make_folder, write
from repro.published.untrusted.text import visible

READERS: Mapping[Program, Callable[[Path], Imported]] = {"mlperf": import_folder, "dawnbench": import_entries}
SHOWN_REFUSALS = 8


def run(program: Program, path: Path, out: Path) -> Published:
    """Import `path` into the new folder `out`.

    Raises:
        UsageError: nothing at `path`, or `out` cannot be used.
    """
    if not path.exists():
        raise UsageError(f"{path}: no such folder or file")
    make_folder(out)  # before the work: a place that cannot be written costs nothing
    found = READERS[program](path)
    return write(out, found, program, path)


def as_json(published: Published) -> dict[str, Any]:
    """What `--json` prints: the record, counts by status, the refused files, batch sizes against their cost."""
    costs = batch_costs(published.results)
    return published.record.model_dump(mode="json", by_alias=True) | {
        "folder": str(published.folder),
        "status": _counts(published),
        "refused_files": [item.model_dump(mode="json") for item in published.refused],
        "batch_costs": {key: [cost.model_dump(mode="json") for cost in of] for key, of in costs.items()},
    }


def show(published: Published) -> None:
    """The summary for a terminal."""
    console = Console(file=sys.stdout, width=None if sys.stdout.isatty() else 150)
    console.print(_table(published))
    for item in published.refused[:SHOWN_REFUSALS]:
        console.print(Text(f"refused  {visible(item.source)}: {visible(item.reason)}"))
    if len(published.refused) > SHOWN_REFUSALS:
        console.print(Text(f"refused  {len(published.refused) - SHOWN_REFUSALS} more: "
                           f"{published.folder / REFUSED}"))
    counts = ", ".join(f"{count} {status}" for status, count in _counts(published).items())
    console.print(Text(f"{len(published.results)} results ({counts}), {len(published.refused)} files refused; "
                       f"{published.folder / RECORD}"))


def _counts(published: Published) -> dict[str, int]:
    return {status: sum(item.status == status for item in published.results) for status in get_args(PublishedStatus)}


def _table(published: Published) -> Table:
    table = Table(title="published results: minutes to target as their program scores them", title_justify="left")
    for name in ("round", "benchmark", "org", "system"):
        table.add_column(name, overflow="fold")
    for name in ("accelerators", "batch", "runs", "without time", "minutes", "epochs to it"):
        table.add_column(name, justify="right")
    table.add_column("note", overflow="fold")
    reached: dict[str, list[PublishedResult]] = {}
    for item in published.results:
        if item.status == "ok":
            reached.setdefault(item.cell_id, []).append(item)
    for cell in published.record.cells:
        table.add_row(*(Text(visible(text)) for text in _row(cell, reached.get(cell.cell_id, []))))
    return table


def _row(cell: PublishedCell, reached: list[PublishedResult]) -> tuple[str, ...]:
    of = cell.factors
    minutes = "" if cell.score.minutes is None else f"{cell.score.minutes:.3f}"
    epochs = _spread([item.epochs_to_target for item in reached])
    return (
        of["round"], of["benchmark"], of["org"], of["system"], of.get("accelerators", ""), of.get("batch.global", ""),
        str(cell.score.runs), str(cell.score.failed), minutes,
        epochs or _spread([item.samples_to_target for item in reached], " samples"), cell.score.reason,
    )


def _spread(values: Sequence[float | None], unit: str = "") -> str:
    known = [value for value in values if value is not None]
    if not known:
        return ""
    low, high = min(known), max(known)
    return (f"{low:,g}" if low == high else f"{low:,g}-{high:,g}") + unit
