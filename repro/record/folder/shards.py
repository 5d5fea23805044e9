"""The shards of a run in a pool: what each has to run, what it has run, and how its blocks get into the record.

A shard is what one lane runs in one go: some blocks of the plan, each a seed with all of its trials. `shards/NUMBER/`
has what the coordinator assigned; every start of it by the scheduler makes a folder `shards/NUMBER/RUN/`, an ordinary
run with a plan of kind `shard`. A block counts from the first shard that has all of it; nothing is divided.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import Field

from repro.core.errors import OutputError
from repro.core.files import LATEST_MS, read_model
from repro.core.frozen import Frozen
from repro.record.folder.index import NAME, file_sha256
from repro.record.folder.ledger import WASH_OUT, Attempt, append_line, read_starts
from repro.record.folder.resume import as_it_ended, trials_to_run
from repro.record.folder.store import Record, RunFolder, read_record
from repro.record.result.remarks import stated
from repro.record.result.status import LOST, meaning
from repro.suite.planning.plan import Plan

ASSIGNED = "shard.json"


class Assignment(Frozen):
    """The blocks of one shard."""

    seeds: tuple[int, ...]
    started: dict[str, int] = Field(default_factory=dict)
    """Trial -> number of its last start by another shard; only of trials that were started."""
    alone: bool = Field(False, exclude_if=lambda alone: not alone)
    """They run with no other lane busy, and go into the record of such blocks."""


class Shard(Frozen):
    """One start of a shard, of which the record has blocks or lost attempts: a line of lanes.jsonl."""

    shard: str = Field(pattern=r"^\d{1,9}/\d{1,9}$")
    """`NUMBER/RUN`."""
    place: tuple[str, ...]
    """Names of the places that it ran on, node 0 first: the lane."""
    seeds: tuple[int, ...]
    """Of its plan."""
    begun_ms: float = Field(ge=0, le=LATEST_MS)
    """Wall clock of the lane, milliseconds since 1970."""
    index_sha256: str = Field("", pattern="^([0-9a-f]{64})?$")
    """Of the index of its folder; "" if it was killed before it had one."""


@dataclass(frozen=True, slots=True)
class ShardRun:
    """One start of a shard, read."""

    name: str
    record: Record
    done: frozenset[int]
    """Seeds of which nothing is missing."""

    @property
    def touched(self) -> frozenset[int]:
        """Seeds of which a trial was started."""
        return frozenset(item.repeat for item in self.record.starts)

    def line(self) -> Shard:
        """Return its line of lanes.jsonl."""
        index = self.record.folder.root / NAME
        longest = max((item.nodes for item in self.record.starts), key=len, default=())
        return Shard(
            shard=self.name, place=longest, seeds=tuple(sorted({repeat for _, repeat in self.record.plan.order})),
            begun_ms=min((item.started_ms for item in self.record.starts), default=0.0),
            index_sha256=file_sha256(index) if index.is_file() else "")

    def starts(self, repeat: int, counts: bool) -> Iterator[Attempt]:
        """Yield the starts of a block, each by its last line.

        Args:
            counts: False: the lane was lost before the block had ended, so that its results count nowhere.
        """
        results = {(item.trial_id, item.attempt): item for item in self.record.results}
        for start in self.record.starts:
            if start.repeat != repeat:
                continue
            line = as_it_ended(self.record.folder, start, results.get((start.trial_id, start.attempt)))
            changes: dict[str, object] = {"shard": self.name}
            if not counts and meaning(line.status).stands:
                changes |= {"status": LOST, "reasons": stated(
                    f"its lane was lost before its block had ended; it had ended as {line.status}")}
            yield line.model_copy(update=changes)


def numbers(folder: RunFolder) -> list[int]:
    """Return the numbers of the shards that were assigned."""
    return sorted(int(path.name) for path in folder.shards.glob("*") if path.name.isdecimal())


def read_assignment(folder: RunFolder, number: int) -> Assignment:
    """Read what a shard has to run.

    Raises:
        OutputError: there is no such shard.
    """
    return read_model(folder.shards / str(number) / ASSIGNED, Assignment)


def shard_runs(folder: RunFolder, number: int) -> list[ShardRun]:
    """Read every start of a shard that has begun, the earliest first.

    Raises:
        OutputError: one is damaged.
    """
    found = []
    for run in sorted((path for path in (folder.shards / str(number)).glob("*") if path.name.isdecimal()),
                      key=lambda path: int(path.name)):
        if RunFolder(run).environment.is_file():
            record = read_record(run)
            left = {trial.repeat for trial in trials_to_run(record, again=False)}
            found.append(ShardRun(f"{number}/{run.name}", record,
                                  frozenset(repeat for _, repeat in record.plan.order if repeat not in left)))
    return found


def last_starts(started: Mapping[str, int], runs: Collection[ShardRun]) -> dict[str, int]:
    """Return trial -> number of its last start, from what is known and from what some shards have started."""
    found = dict(started)
    for run in runs:
        for item in run.record.attempts:
            found[item.trial_id] = max(found.get(item.trial_id, 0), item.attempt)
    return found


def take(folder: RunFolder, run: ShardRun, repeat: int, counts: bool, known: set[tuple[str, int]]) -> None:
    """Put one block of a shard into the record: its starts into the ledger, then its files. May be repeated.

    Args:
        counts: False: the block is not whole, so that only its starts and their logs are taken.
        known: (trial, attempt) of the measured starts that the ledger has; grows.

    Raises:
        OutputError: the record cannot be written.
    """
    lines = list(run.starts(repeat, counts))  # in their order, whatever the lane's clock said
    new = [item for item in lines if (item.trial_id, item.attempt) not in known]
    append_line(folder.ledger, *new)
    known |= {(item.trial_id, item.attempt) for item in new if item.attempt != WASH_OUT}
    names = dict.fromkeys(item.trial_id for item in lines if item.attempt != WASH_OUT)
    try:
        for trial_id in names:
            own = run.record.folder.trial(trial_id)
            logs = {run.record.folder.log(trial_id, item.attempt) for item in lines if item.trial_id == trial_id}
            files = own.glob("*") if counts else (*logs, run.record.folder.trial_file(trial_id))
            # The result comes last: a trial with a result has all its files.
            for path in sorted(files, key=lambda path: path == run.record.folder.result(trial_id)):
                if path.is_file():
                    _put(path, folder.trial(trial_id) / path.name, linked=counts)
        for trial_id in names if counts else ():  # only when all are in the record: the block is whole here or there
            shutil.rmtree(run.record.folder.trial(trial_id), ignore_errors=True)
    except OSError as error:
        raise OutputError(f"{error.filename or folder.root}: cannot be taken from shard {run.name}: {error.strerror}"
                          ) from error


def finish_taking(folder: RunFolder, plan: Plan) -> None:
    """Finish what a coordinator that was killed had begun to take: the ledger has a block of which files are missing.

    Raises:
        OutputError: the record cannot be read or written.
    """
    starts = read_starts(folder.ledger)
    known = {(item.trial_id, item.attempt) for item in starts}
    missing = {trial.trial_id for trial in plan.trials() if not folder.result(trial.trial_id).is_file()}
    begun = {(item.shard, item.repeat) for item in starts
             if item.shard and item.trial_id in missing and meaning(item.status).stands}
    for name in sorted({shard for shard, _ in begun}):
        for run in shard_runs(folder, int(name.partition("/")[0])):
            for repeat in sorted(run.done) if run.name == name else ():
                if (name, repeat) in begun:
                    take(folder, run, repeat, counts=True, known=known)


def _put(source: Path, target: Path, linked: bool) -> None:
    """Give a file its place in the record: under a second name (atomic, also on NFS), or as a copy.

    A copy, because the process of a lost lane may still write.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.exists() and target.samefile(source):
        return
    new = target.with_name(f".{target.name}.tmp")
    new.unlink(missing_ok=True)
    try:
        if not linked:
            raise OSError
        os.link(source, new)
    except OSError:
        shutil.copyfile(source, new)
    new.replace(target)
