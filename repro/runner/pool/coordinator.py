"""The coordinator of a pool: hands out blocks, gathers them in the order of their seeds, and takes the looks.

It is the only writer of the record and the only client of the tracking server; lanes write their shards. A block
enters the record when all blocks before the next look have ended, never because it was quick: looks see the first n
seeds by number, and the record is what one lane would have made.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from repro.compare.design.sequential import stages
from repro.compare.runs.asked import asked_before
from repro.core.errors import OutputError, TrialError, visible
from repro.core.files import read_model, write_model
from repro.core.numbers import spans
from repro.record.environment.differences import differences
from repro.record.environment.environment import Environment
from repro.record.folder import resume
from repro.record.folder.index import NAME, file_sha256
from repro.record.folder.ledger import Look, append_line, end_of, latest, read_lines, read_starts
from repro.record.folder.shards import (
    ASSIGNED,
    Assignment,
    Shard,
    ShardRun,
    finish_taking,
    last_starts,
    numbers,
    read_assignment,
    shard_runs,
    take,
)
from repro.record.folder.store import Gate, Record, RunFolder, read_nodes, read_record
from repro.record.result.results import Result
from repro.runner.context import RunContext, Watcher
from repro.runner.gate import require_no_problem
from repro.runner.run import Findings, unsealed
from repro.runner.signals import DeferredInterrupt, raise_dropped
from repro.runner.tracking import Replays, Tracker
from repro.runner.trials import Looks
from repro.suite.planning.plan import Plan, solo_plan

MOST_LOSSES = 3
"""Times that a block may be lost in one execution: something ends its lanes."""
TAIL_BYTES = 4096
NOISE = "resource_tracker"
"""In lines of Python about a process that was killed."""
END_SECONDS = 45.0
"""Longest wait for lanes that were ended, so that their shards are sealed."""


class Engine(ABC):
    """Starts lanes: each runs `repro lane RUN NUMBER` for the shards that it is given."""

    period_seconds: float
    """Time between two questions whether lanes still run."""

    @abstractmethod
    def room(self) -> int:
        """Return how many more shards it takes now."""

    @abstractmethod
    def start(self, shards: Sequence[int]) -> None: ...

    @abstractmethod
    def running(self) -> set[int] | None:
        """Return the shards that wait or run; None: not known now."""

    def cancelled(self) -> set[int]:
        """Return the shards that somebody else has cancelled."""
        return set()

    def avoid(self, shard: int) -> bool:
        """Give the lane of a shard, which ended before its first trial, no other shard; return False if it is the last
        lane."""
        return False

    @abstractmethod
    def cancel(self) -> None:
        """End all lanes."""

    @abstractmethod
    def said(self, shard: int) -> Path:
        """Return the file with the output of a shard."""

    def close(self) -> None:  # noqa: B027  # most have nothing open
        """Start nothing more."""


@dataclass(slots=True)
class PooledRun:
    """One execution of a plan in a pool; has the interface of `Run`."""

    plan: Plan
    folder: RunFolder
    watcher: Watcher
    engine: Engine
    seeds_per_shard: int = 1
    tracking: Tracker | None = None
    alone: bool = False
    """These are blocks that run with no other lane busy."""
    has_written: bool = field(default=False, init=False)

    def execute(self, findings: Findings | None = None) -> Record:
        """Run every block of the plan that is not whole; return the record, read back from disk.

        Raises:
            ParityError: a lane found that two engines do not train alike.
            TrialError: the same block was lost several times.
            OutputError: the record cannot be written.
        """
        context, found = RunContext(self.plan, self.folder, self.watcher), findings or Findings()
        begun = self.folder.environment.is_file()
        if not (self.folder.root / NAME).exists():  # a killed coordinator leaves no index
            finish_taking(self.folder, self.plan)
        damage = [*resume.find(self.folder, self.plan)] if begun else []
        with ExitStack() as stack:
            self.has_written = True
            stack.enter_context(unsealed(context, [*damage, *_halves(self.folder, self.plan, damage)]))
            if found.stale_lock:
                self.folder.append_incident("lock", f"the lock of {found.stale_lock}, which no longer runs, was "
                                                    "replaced")
            for item in found.differences:
                self.folder.append_incident("difference", item.text, difference=item.kind)
            if self.plan.solo:
                self._run_alone()
            # As a run without a pool: what a look has ended goes on only for a block that was lost.
            end = end_of(latest(read_lines(self.folder.looks, Look)))
            if end is None or any(not self.folder.result(trial.trial_id).is_file() for trial in self.plan.trials()
                                  if trial.repeat < end):
                Blocks(context, self.engine, self.seeds_per_shard, Replays(self.tracking, self.watcher), self.alone
                       ).run(begun)
        return read_record(self.folder.root)

    def _run_alone(self) -> None:
        """Run what is missing of the blocks that also run with no other lane busy; nothing else runs meanwhile."""
        folder, plan = self.folder.solo, solo_plan(self.plan, file_sha256(self.folder.plan))
        if not folder.plan.is_file():
            folder.root.mkdir(exist_ok=True)
            write_model(folder.plan, plan)
        if resume.find(folder, plan) or any(not folder.result(trial.trial_id).is_file() for trial in plan.trials()):
            self.watcher.stage(f"{len(self.plan.solo)} blocks run alone first: seeds {spans(self.plan.solo)}")
            PooledRun(plan, folder, self.watcher, self.engine, self.seeds_per_shard, alone=True).execute()


def _halves(folder: RunFolder, plan: Plan, damage: Sequence[resume.Damaged]) -> Iterator[resume.Damaged]:
    """Yield the results in blocks that are not whole: they run again on one lane with the rest of their block."""
    lost = {item.trial_id for item in damage}
    known = {trial.trial_id: read_model(folder.result(trial.trial_id), Result) for trial in plan.trials()
             if trial.trial_id not in lost and folder.result(trial.trial_id).is_file()}
    broken = {trial.repeat for trial in plan.trials() if trial.trial_id not in known}
    for trial in plan.trials():
        if trial.trial_id in known and trial.repeat in broken:
            yield resume.Damaged(trial.trial_id, known[trial.trial_id].attempt, "its block runs again as a whole")


def _last_line(path: Path) -> str:
    """Return the last line that a lane has printed; "" if it printed none."""
    try:
        with path.open("rb") as stream:
            stream.seek(max(0, path.stat().st_size - TAIL_BYTES))
            lines = stream.read().decode(errors="replace").split("\n")
    except OSError:
        return ""
    return next((visible(line.strip()) for line in reversed(lines) if line.strip() and NOISE not in line), "")


@dataclass(slots=True)
class Blocks:
    """The blocks of a plan, from their assignment to the record."""

    context: RunContext
    engine: Engine
    seeds_per_shard: int
    replays: Replays
    alone: bool = False
    """One lane is busy at a time."""
    whole: set[int] = field(default_factory=set, init=False)
    """Seeds whose block is in the record."""
    ready: dict[int, ShardRun] = field(default_factory=dict, init=False)
    """Seed -> the shard from which its block counts, as soon as its turn comes."""
    lost: dict[int, list[ShardRun]] = field(default_factory=dict, init=False)
    """Seed -> shards that had begun its block and do not have it."""
    losses: Counter[int] = field(default_factory=Counter, init=False)
    assigned: dict[int, Assignment] = field(default_factory=dict, init=False)
    """Number -> what it has to run, of shards that have not ended."""
    absent: set[int] = field(default_factory=set, init=False)
    """Numbers that did not run when last asked; a file system may show their last files later."""
    listed: set[str] = field(default_factory=set, init=False)
    """Starts of shards that lanes.jsonl has."""
    known: set[tuple[str, int]] = field(default_factory=set, init=False)
    started: dict[str, int] = field(default_factory=dict, init=False)
    """Trial -> number of its last start in the record."""
    trials: dict[int, list[str]] = field(default_factory=dict, init=False)
    """Seed -> its trials."""
    lane_class: Environment | None = field(default=None, init=False)
    """Of the first lane; every other must be of its class."""
    last: int = field(default=0, init=False)
    """The largest number of a shard."""

    def run(self, begun: bool) -> None:
        """Run until every block is in the record, or a look ends the run.

        Args:
            begun: the record has blocks.
        """
        folder = self.context.folder
        for trial in self.context.plan.trials():
            self.trials.setdefault(trial.repeat, []).append(trial.trial_id)
        self._recall()
        first = next((trial for trial in self.context.plan.trials() if trial.repeat not in self.whole), None)
        if begun and first:
            self.context.folder.append_incident(
                "resumed", f"resumed after {len(self.whole)} of {len(self._seeds())} blocks had ended")
        looks = Looks.of(self.context, latest(read_lines(folder.looks, Look)), [first] if first else [], None) \
            if begun else Looks(self.context, stages(self.context.plan))
        self.replays.begin()
        try:
            self._work(looks)
        except BaseException:
            self._end()
            self._collect(ended=True)
            with suppress(OutputError):  # the first error says more
                self._gather(looks)
            raise
        finally:
            self._take_lost(looks)

    def _seeds(self) -> list[int]:
        return sorted(self.trials)

    def _recall(self) -> None:
        """Read what the record and its shards have from earlier executions."""
        folder, plan = self.context.folder, self.context.plan
        starts = read_starts(folder.ledger)
        for place in (folder, folder.solo):
            if self.lane_class is None and place.environment.is_file():
                self.lane_class = read_model(place.environment, Environment)
        self.known = {(item.trial_id, item.attempt) for item in starts}
        for item in starts:
            self.started[item.trial_id] = max(self.started.get(item.trial_id, 0), item.attempt)
        missing = {trial.repeat for trial in plan.trials() if not folder.result(trial.trial_id).is_file()}
        self.whole = set(self._seeds()) - missing
        self.listed = {line.shard for line in read_lines(folder.lanes, Shard)}
        for number in numbers(folder):
            self.last = number
            with suppress(OutputError):  # a coordinator that was killed had not written it
                assigned = read_assignment(folder, number)
                if assigned.alone == self.alone and not set(assigned.seeds) <= self.whole:
                    self.assigned[number] = assigned
        if not self.assigned:
            return
        while (running := self.engine.running()) is None:
            time.sleep(self.engine.period_seconds)
        for number in sorted(self.assigned.keys() - running):
            self._close(number, self.assigned.pop(number), told=False)

    def _work(self, looks: Looks) -> None:
        while True:
            raise_dropped()
            self._collect()
            if self._gather(looks):
                self._end()
                return
            waiting = self._waiting()
            room = self.engine.room()
            if self.alone:  # a resumed run may have tasks of the pool that still run
                running = self.engine.running()
                room = min(room, 1 - len(self.assigned)) if running is not None and running <= {*self.assigned} else 0
            groups = [waiting[place:place + self.seeds_per_shard]
                      for place in range(0, len(waiting), self.seeds_per_shard)][:room]
            if groups:
                self.engine.start(shards := [self._assign(group) for group in groups])
                self.context.watcher.stage(f"handed out: seeds {spans([seed for group in groups for seed in group])}, "
                                           f"shards {spans(shards)}; each block has a line as it ends")
            time.sleep(self.engine.period_seconds)

    def _waiting(self) -> list[int]:
        """Return the seeds of blocks that are neither assigned nor complete, in order."""
        busy = {seed for item in self.assigned.values() for seed in item.seeds}
        return [seed for seed in self._seeds() if seed not in self.whole and seed not in self.ready
                and seed not in busy]

    def _assign(self, seeds: Sequence[int]) -> int:
        """Write what a new shard has to run; return its number."""
        folder = self.context.folder
        mine = {name: self.started[name] for seed in seeds for name in self.trials[seed] if name in self.started}
        lost = [run for seed in seeds for run in self.lost.get(seed, ())]
        item = Assignment(seeds=tuple(seeds), started=last_starts(mine, lost), alone=self.alone)
        self.last = number = self.last + 1
        try:
            (folder.shards / str(number)).mkdir(parents=True)
        except OSError as error:
            raise OutputError(f"{folder.shards / str(number)}: cannot be made: {error.strerror}") from error
        write_model(folder.shards / str(number) / ASSIGNED, item)
        self.assigned[number] = item
        return number

    def _collect(self, ended: bool = False) -> None:
        """Read the shards that no longer run.

        Args:
            ended: all lanes were ended.
        """
        running = self.engine.running()
        if ended:
            running = running or set()
        elif running is None:
            return
        gone = self.assigned.keys() - running
        now = sorted(gone if ended else gone & self.absent)
        stopped = set() if ended else self._stopped(now)
        for number in now:
            self._close(number, self.assigned.pop(number), told=not ended and not stopped)
        self.absent = gone
        if stopped:
            raise TrialError(f"the tasks of shards {spans(sorted(stopped))} were cancelled, so no others are started; "
                             "--resume RUN runs the blocks that are missing")

    def _stopped(self, ended: Sequence[int]) -> set[int]:
        """Return the shards that have just ended because somebody wants the pool to end: cancelled before they had
        begun, or all at once. A single lane that is cancelled is a lost one."""
        found = self.engine.cancelled() & set(ended)
        waited = {number for number in found if not shard_runs(self.context.folder, number)}
        return found if waited or len(found) == len(self.assigned) > 1 else set()

    def _close(self, number: int, assigned: Assignment, told: bool) -> None:
        """Note what a shard has run and what it has lost.

        Args:
            told: a loss is a warning, and counts.
        """
        reason, runs = "", shard_runs(self.context.folder, number)
        for run in runs:
            self.lane_class = self.lane_class or run.record.environment
            if found := differences(self.lane_class, run.record.environment):
                reason = f"shard {run.name} ran on another class of machine: {found[0].text}"
                run = replace(run, done=frozenset())
            for seed in run.touched - self.whole:
                if seed in run.done and seed not in self.ready:
                    self.ready[seed] = run
                else:
                    self.lost.setdefault(seed, []).append(run)
        left = [seed for seed in assigned.seeds if seed not in self.ready and seed not in self.whole]
        if not left or not told:
            return
        for path in sorted((self.context.folder.shards / str(number)).glob("*/parity.json")):
            findings = [item.model_dump() for item in read_model(path, Gate).findings]
            require_no_problem(findings, resumed=False, checks=str(path))  # no other lane will pass it
        reason = reason or _last_line(self.engine.said(number))
        self.context.warn("lane", f"shard {number} ended without the blocks of seeds {spans(left)}"
                                  f"{f' ({reason})' if reason else ''}; they run again as a whole")
        if not any(run.record.starts for run in runs) and self.engine.avoid(number):
            return  # of another class, say: it would take and lose one block after another
        self.losses.update(left)
        if max(self.losses.values()) >= MOST_LOSSES:
            raise TrialError(f"the block of seed {max(self.losses, key=self.losses.__getitem__)} was lost "
                             f"{MOST_LOSSES} times, last: {reason or 'nothing was said'}; output: "
                             f"{self.engine.said(number)}")

    def _gather(self, looks: Looks) -> bool:
        """Put into the record what is ready and due, and take the looks that it allows; return True at the end."""
        while True:
            edge = looks.waiting[0].n if looks.waiting else math.inf
            for seed in sorted(item for item in self.ready if item < edge):
                self._take(seed)
            first = next((trial for trial in self.context.plan.trials() if trial.repeat not in self.whole), None)
            before = len(looks.waiting)
            if looks.end_before(first):
                self._leave_out()
                return True
            if len(looks.waiting) == before:
                return first is None

    def _take(self, seed: int) -> None:
        """Take a block with what lost lanes have of it; a signal is delivered when all of it is in the record."""
        run, interrupt = self.ready[seed], DeferredInterrupt()

        def put() -> None:
            for early in self.lost.get(seed, ()):
                self._put(early, seed, counts=False)
            self._put(run, seed, counts=True)

        interrupt.complete(put)
        del self.ready[seed]
        self.lost.pop(seed, None)
        self.whole.add(seed)
        interrupt.deliver()
        self.context.watcher.stage(f"[{len(self.whole)}/{len(self._seeds())}] seed {seed}, shard {run.name}, on "
                                   f"{' + '.join(run.line().place)}")
        self.replays.request()

    def _put(self, run: ShardRun, seed: int, counts: bool) -> None:
        """Take one block, and with the first of a shard what describes that."""
        folder, record = self.context.folder, run.record
        if not folder.environment.is_file():
            write_model(folder.environment, record.environment)
            if asked := asked_before(self.context.plan):
                self.context.warn("asked", asked)
        if not folder.parity_verdict.is_file() and record.folder.parity_verdict.is_file():
            if record.folder.parity.is_dir():
                record.folder.parity.rename(folder.parity)
            record.folder.parity_verdict.rename(folder.parity_verdict)
        if run.name not in self.listed:
            append_line(folder.nodes, *read_nodes(record.folder))
            append_line(folder.incidents, *(item.model_copy(update={"text": f"shard {run.name}: {item.text}"})
                                            for item in record.incidents))
            append_line(folder.lanes, run.line())
            self.listed.add(run.name)
        take(folder, run, seed, counts, self.known)
        for item in run.record.attempts:
            self.started[item.trial_id] = max(self.started.get(item.trial_id, 0), item.attempt)

    def _take_lost(self, looks: Looks) -> None:
        """Put the starts of blocks that are not whole into the ledger, so that a lost lane is not forgotten."""
        edge = looks.waiting[0].n if looks.waiting else math.inf
        for seed in sorted(item for item in self.lost if item < edge):
            for run in self.lost.pop(seed):
                self._put(run, seed, counts=False)

    def _end(self) -> None:
        """End all lanes, and wait until they have closed their shards."""
        self.engine.cancel()
        until = time.monotonic() + END_SECONDS
        while self.engine.running() and time.monotonic() < until:
            time.sleep(min(1.0, self.engine.period_seconds))

    def _leave_out(self) -> None:
        """Say which blocks had begun beyond the look that ended the run."""
        beyond = sorted({*self.ready, *self.lost, *(seed for item in self.assigned.values() for seed in item.seeds
                                                    if self._begun(seed))})
        if beyond:
            self.context.folder.append_incident(
                "lane", f"the blocks of seeds {spans(beyond)} had begun on other lanes when a look ended the run; they "
                        "stay in shards/ and count nowhere")
        self.ready.clear()
        self.lost.clear()

    def _begun(self, seed: int) -> bool:
        return any(list((self.context.folder.shards / str(number)).glob("*/ledger.jsonl"))
                   for number, item in self.assigned.items() if seed in item.seeds)
