"""One lane of a pool: the folder and the plan of a shard's next start."""

from __future__ import annotations

import shutil
from pathlib import Path

from repro.core.errors import OutputError
from repro.core.files import read_bounded
from repro.record.folder.index import file_sha256
from repro.record.folder.shards import last_starts, read_assignment, shard_runs
from repro.record.folder.store import RunFolder
from repro.runner.run import fill
from repro.suite.planning.plan import Plan, shard_of


def begin_shard(root: Path, plan: Plan, number: int) -> tuple[RunFolder, Plan] | None:
    """Make the folder of the next start of a shard: it runs the blocks that no earlier start of it has whole.

    A block that was begun runs again from its first trial, because its pairs would be divided otherwise. Environment
    and gate are those of the pool or of its blocks that ran alone, if these have them already: a lane of another class
    refuses to start.

    Args:
        plan: of the run at `root`, with its classes from files.

    Returns:
        None: nothing is left to run.

    Raises:
        OutputError: there is no such shard, or the folder cannot be written.
    """
    pool = RunFolder(root)
    assigned, earlier = read_assignment(pool, number), shard_runs(pool, number)
    seeds = set(assigned.seeds).difference(*(run.done for run in earlier))
    if not seeds:
        return None
    part = shard_of(plan.model_copy(update={"base": str((root / plan.base).resolve()) if plan.base else ""}),
                    file_sha256(pool.plan), seeds, last_starts(assigned.started, earlier))
    place = pool.shards / str(number)
    taken = [int(path.name) for path in place.glob("*") if path.name.isdecimal()]
    folder = RunFolder.create(place / str(1 + max(taken, default=0)))
    passed = next((item for item in (pool, pool.solo)
                   if item.environment.is_file() and item.parity_verdict.is_file()), None)
    try:
        if passed is not None:
            shutil.copyfile(passed.environment, folder.environment)
            shutil.copyfile(passed.parity_verdict, folder.parity_verdict)
    except OSError as error:
        raise OutputError(f"{error.filename or folder.root}: cannot be copied: {error.strerror}") from error
    return fill(folder, part, read_bounded(pool.suite).decode(), brought=pool.code), part
