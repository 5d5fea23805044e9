"""Checks of a record from a pool: every block ran on one lane, and its shard says the same."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

from repro.bundle.verify_files import Problem, Verification, without_place
from repro.bundle.verify_ledger import LEDGER
from repro.core.errors import OutputError
from repro.record.folder import index as record_index
from repro.record.folder.ledger import Attempt, read_lines
from repro.record.folder.shards import Shard
from repro.record.folder.store import RunFolder, read_plan
from repro.record.result.results import Result
from repro.suite.planning.plan import Plan, shard_of, solo_plan, solo_seeds

LANES = "lanes.jsonl"


def check_lanes(
    folder: RunFolder, plan: Plan, results: Sequence[Result], attempts: Sequence[Attempt], found: Verification
) -> None:
    """Check the lanes of a record; nothing is checked of one without lanes."""
    if not folder.lanes.exists() and not any(item.shard for item in attempts):
        return
    try:
        lines = read_lines(folder.lanes, Shard)
    except (OutputError, OSError, RecursionError) as error:
        found.add(LANES, without_place(LANES, folder.root, error), "schema")
        return
    shards = {line.shard: line for line in lines}
    if (folder.root / record_index.MERGED).is_file():  # some of its runs may have had no pool
        listed = [item for item in attempts if item.shard]
    else:
        listed = list(attempts)
    if len(shards) < len(lines):
        found.add(LANES, "names a shard twice", "lanes")
    for texts in (_strange_starts(listed, shards), _divided(results, attempts)):
        found.add_each(LEDGER, texts, "lanes")
    for line in lines:
        if (folder.shards / line.shard).is_dir():
            found.extend(_of_shard(folder, plan, line, results, attempts))
            found.count("shards against the record")
    found.count("lanes of blocks")


def strange_solo(plan: Plan, alone: Plan | None) -> Iterator[Problem]:
    """Find blocks that ran alone and were not drawn for it, or are no part of the plan of the pool.

    Args:
        alone: their plan; None: there is none that can be read, which was reported.
    """
    if plan.solo != solo_seeds(plan, len(plan.solo)):
        yield Problem("plan.json", "solo: are not the seeds that its master seed draws", "plan")
    if alone is not None and (not plan.solo or not alone.whole
                              or alone != solo_plan(plan, alone.whole.plan_sha256)):  # a bundle may change paths of it
        yield Problem("solo/plan.json", "is not the part of plan.json that its solo seeds give", "lanes")


def _strange_starts(attempts: Sequence[Attempt], shards: Mapping[str, Shard]) -> Iterator[str]:
    """Find starts of no shard, of an unknown one, of another seed than its shard has, or elsewhere."""
    for item in attempts:
        line, called = shards.get(item.shard), f"attempt {item.attempt} of {item.trial_id[:120]}"
        if line is None:
            yield f"{called} is of the shard {item.shard[:40]!r}, which {LANES} does not have"
        elif item.repeat not in line.seeds:
            yield f"{called} is of shard {line.shard}, without a seed {item.repeat}"
        elif item.nodes != line.place[:len(item.nodes)]:
            yield f"{called} ran on another place than its shard {line.shard}"


def _counting(results: Sequence[Result], attempts: Sequence[Attempt]) -> list[Attempt]:
    numbers = {item.trial_id: item.attempt for item in results}
    return [item for item in attempts if numbers.get(item.trial_id) == item.attempt]


def _divided(results: Sequence[Result], attempts: Sequence[Attempt]) -> Iterator[str]:
    """Find blocks whose results are of several shards: their pairs compare lanes, not cells."""
    by_seed: dict[int, dict[str, None]] = defaultdict(dict)
    for item in _counting(results, attempts):
        by_seed[item.repeat][item.shard] = None
    for seed, names in sorted(by_seed.items()):
        if len(names) > 1:
            yield f"the block of seed {seed} is divided among the shards {', '.join(names)}"


def _of_shard(
    folder: RunFolder, plan: Plan, line: Shard, results: Sequence[Result], attempts: Sequence[Attempt]
) -> Iterator[Problem]:
    """Compare the record with the folder of a shard, where that is still there."""
    shard, place = RunFolder(folder.shards / line.shard), f"shards/{line.shard}"
    with suppress(OutputError):  # of the shard; the record itself is whole
        theirs = read_plan(shard.plan)
        wanted = shard_of(plan, plan.whole.plan_sha256 if plan.whole else record_index.file_sha256(folder.plan),
                          line.seeds,
                          theirs.whole.started if theirs.whole else {})
        if (theirs.order, theirs.whole, theirs.digest) != (wanted.order, wanted.whole, wanted.digest):
            yield Problem(f"{place}/plan.json", "is not the part of plan.json that its seeds give", "lanes")
    index = shard.root / record_index.NAME
    if not line.index_sha256 or not index.is_file():
        return
    if record_index.file_sha256(index) != line.index_sha256:
        yield Problem(f"{place}/{record_index.NAME}", f"is not the index that {LANES} names", "lanes")
        return
    sums = record_index.read_sums(index)
    for item in _counting(results, attempts):
        if item.shard != line.shard:
            continue
        for path in (folder.result(item.trial_id), folder.log(item.trial_id, item.attempt)):
            name = path.relative_to(folder.root).as_posix()
            if path.is_file() and sums.get(name) != record_index.file_sha256(path):
                yield Problem(name, f"is not the file that shard {line.shard} made", "lanes")
