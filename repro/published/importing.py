"""Import of published results: read them, and write the folder of the record."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, get_args

from repro.core.errors import UsageError
from repro.published.cells import BatchCost, batch_costs
from repro.published.contest_rules import Contest
from repro.published.dawnbench import import_entries
from repro.published.mlperf.folder import import_folder
from repro.published.record import Imported, Program, PublishedRecord, PublishedStatus, Refused
from repro.published.speedrun.claims import ArmClaim, StatedClaim, judge_claims
from repro.published.speedrun.folder import import_records
from repro.published.store import Published, make_folder, write

READERS: Mapping[Program, Callable[[Path], Imported]] = {
    "mlperf": import_folder, "dawnbench": import_entries, "speedrun": import_records}


def import_results(program: Program, path: Path, out: Path, contest: Contest | None = None) -> Published:
    """Import `path` into the new folder `out`.

    Args:
        contest: the rules of a contest, for speed-runs.

    Raises:
        UsageError: `path` does not exist or holds nothing to import, or `out` cannot be used.
    """
    if not path.exists():
        raise UsageError(f"{path}: no such folder or file")
    is_new = not out.exists()
    make_folder(out)  # first, so that an unwritable folder is reported before the work
    read = READERS[program] if contest is None else partial(import_records, rules=contest)
    found = read(path)
    if not found.results and not found.refused:
        if is_new:
            out.rmdir()
        raise UsageError(f"{path}: holds no results of {program}")
    return write(out, found, program, path)


class ImportOutput(PublishedRecord):
    """The output of `repro import --json`."""

    arms: tuple[ArmClaim, ...] = ()
    not_given: tuple[StatedClaim, ...] = ()
    folder: str
    status: dict[str, int]
    refused_files: tuple[Refused, ...]
    batch_costs: dict[str, tuple[BatchCost, ...]]


def import_json(published: Published) -> dict[str, Any]:
    """Return the record, the counts by status, the refused files, and the cost of the batch sizes."""
    record = published.record.model_dump(mode="json", by_alias=True)
    if published.record.contest is not None:
        claims = judge_claims(published)
        record |= {"arms": [item.model_dump(mode="json") for item in claims.arms],
                   "not_given": [item.model_dump(mode="json") for item in claims.stated]}
    return record | {
        "folder": str(published.folder),
        "status": count_statuses(published),
        "refused_files": [item.model_dump(mode="json") for item in published.refused],
        "batch_costs": {f"{of.round} {of.benchmark}": [cost.model_dump(mode="json") for cost in of.costs]
                        for of in batch_costs(published.results)},
    }


def count_statuses(published: Published) -> dict[str, int]:
    """Return the number of results with each status."""
    return {status: sum(item.status == status for item in published.results) for status in get_args(PublishedStatus)}
