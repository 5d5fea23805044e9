"""Import of published results: read them, and write the folder of the record."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, get_args

from repro.core.errors import UsageError
from repro.published.cells import batch_costs
from repro.published.dawnbench import import_entries
from repro.published.imported import Imported
from repro.published.mlperf.folder import import_folder
from repro.published.record import Program, PublishedStatus
from repro.published.store import Published, make_folder, write

READERS: Mapping[Program, Callable[[Path], Imported]] = {"mlperf": import_folder, "dawnbench": import_entries}


def import_results(program: Program, path: Path, out: Path) -> Published:
    """Import `path` into the new folder `out`.

    Raises:
        UsageError: `path` does not exist, or `out` cannot be used.
    """
    if not path.exists():
        raise UsageError(f"{path}: no such folder or file")
    make_folder(out)  # first, so that an unwritable folder is reported before the work
    found = READERS[program](path)
    return write(out, found, program, path)


def import_json(published: Published) -> dict[str, Any]:
    """Return the record, the counts by status, the refused files, and the cost of the batch sizes."""
    costs = batch_costs(published.results)
    return published.record.model_dump(mode="json", by_alias=True) | {
        "folder": str(published.folder),
        "status": count_statuses(published),
        "refused_files": [item.model_dump(mode="json") for item in published.refused],
        "batch_costs": {key: [cost.model_dump(mode="json") for cost in of] for key, of in costs.items()},
    }


def count_statuses(published: Published) -> dict[str, int]:
    """Return the number of results with each status."""
    return {status: sum(item.status == status for item in published.results) for status in get_args(PublishedStatus)}
