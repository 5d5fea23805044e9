"""What the coordinator of a pool costs: processor time a trial, and memory, without the lanes' own work; with MLflow
also that of the tracking process, and how long the coordinator waits for it.

The lanes are simulated: each runs its block in this process when it is asked whether it still runs, with an engine that
invents its figures, and the processor time of that is taken off.
"""

from __future__ import annotations

import resource
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from repro.core.errors import TrackingError
from repro.core.frozen import Frozen
from repro.core.machine import Machine
from repro.record.folder.store import RunFolder
from repro.runner.context import Options, RunContext
from repro.runner.pool.coordinator import Blocks, Engine
from repro.runner.pool.lane import begin_shard
from repro.runner.run import Run, prepare
from repro.runner.tracking import Replays, Tracker
from repro.suite.model import Suite
from repro.suite.planning.plan import Plan, make_plan

MOST_MS = 25.0
"""Processor time a trial that is promised, in milliseconds."""
MOST_TRACKING_MS = 100.0
"""The same of the tracking process."""
MOST_WAIT_MS = 1.0
"""Time a trial that the coordinator may spend on requests to it, in milliseconds."""
HERE = Machine("cpu", 0, 1)


class Quiet:
    """Shows nothing."""

    def stage(self, text: str) -> None: ...
    def trial_started(self, *_: object) -> None: ...
    def trial_ticked(self, *_: object) -> None: ...
    def trial_ended(self, *_: object) -> None: ...
    def look_taken(self, *_: object) -> None: ...


class PoolCost(Frozen):
    """The cost of one run in a pool."""

    blocks: int
    trials: int
    lanes: int
    milliseconds_a_trial: float
    peak_mib: float
    """Resident memory of the process, that of the simulated lanes included."""
    tracking_milliseconds: float | None = None
    """Processor time of the tracking process a trial; None: without MLflow."""
    waited_milliseconds: float = 0.0
    """Wall time a trial that the coordinator spent on requests to it before the end of the run."""

    @property
    def holds(self) -> bool:
        return self.milliseconds_a_trial <= MOST_MS and (
            (self.tracking_milliseconds or 0.0) <= MOST_TRACKING_MS and self.waited_milliseconds <= MOST_WAIT_MS)

    def text(self) -> str:
        return (f"coordinator: {self.blocks} blocks ({self.trials} trials) on {self.lanes} simulated lanes: "
                f"{self.milliseconds_a_trial:.2f} ms of processor time a trial (promised: at most {MOST_MS:g}), "
                f"{self.peak_mib:.0f} MiB at most" + ("" if self.tracking_milliseconds is None else (
                    f"; tracking process (MLflow on SQLite): {self.tracking_milliseconds:.1f} ms of processor time a "
                    f"trial (promised: at most {MOST_TRACKING_MS:g}), for whose requests the coordinator spent "
                    f"{self.waited_milliseconds:.3f} ms a trial (at most {MOST_WAIT_MS:g})")))


@dataclass(slots=True)
class Simulated(Engine):
    """An engine of a pool."""

    plan: Plan
    folder: RunFolder
    lanes: int
    period_seconds: float = 0.0
    spent: float = 0.0
    """Processor seconds of the lanes."""
    _waiting: list[int] = field(default_factory=list)

    def room(self) -> int:
        return self.lanes - len(self._waiting)

    def start(self, shards: Sequence[int]) -> None:
        self._waiting += shards

    def running(self) -> set[int] | None:
        begun = time.process_time()
        for _ in self._waiting[:max(1, self.lanes // 2)]:  # half of the lanes end between two questions
            found = begin_shard(self.folder.root, self.plan, self._waiting.pop(0))
            assert found is not None, "it was assigned once"
            Run(found[1], found[0], HERE, Quiet(), Options()).execute()
        self.spent += time.process_time() - begun
        return set(self._waiting)

    def cancel(self) -> None: ...

    def said(self, shard: int) -> Path:
        return self.folder.shards / str(shard) / "output.log"


def _of_children() -> float:
    """Return the processor seconds of child processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@dataclass(slots=True)
class Timed:
    """The tracker, with the time that its requests take."""

    tracker: Tracker
    seconds: float = 0.0
    problem: str = ""

    def sync(self, wait_seconds: float = 0.0) -> None:
        begun = time.perf_counter()
        self.tracker.sync(wait_seconds)
        self.seconds += time.perf_counter() - begun


def measure(blocks: int = 1000, lanes: int = 64, mlflow: bool = False) -> PoolCost:
    """Run a suite of two invented cells in a pool.

    Args:
        blocks: seeds of the suite, at most 1,000.
        mlflow: with a tracking process that replays to an SQLite store.

    Raises:
        TrackingError: the store does not have all of the record at the end.
    """
    fake = {"kind": "fake", "samples_scale": 1000}
    suite = Suite.model_validate({
        "suite": "pool-cost", "seeds": blocks, "master_seed": 1,
        "baseline": {"engine": {"step_seconds": 0.01}},
        "matrix": {"engine": [{**fake, "step_seconds": 0.01}, {**fake, "step_seconds": 0.013}]},
        "trial": {"workload": "digits", "engine": "fake", "launcher": "inline", "batch": {"global": 64},
                  "device": "cpu", "optimizer": {"kind": "sgd", "lr": 0.1}, "evaluate_every": 192,
                  "stop": {"metric": "top1", "target": 0.9, "max_epochs": 10}}})
    plan = make_plan(suite, HERE)
    with tempfile.TemporaryDirectory(prefix="repro-pool-") as place:
        folder = prepare(plan, "# of a benchmark\n", Path(place) / "run")
        engine = Simulated(plan, folder, lanes)
        timed = Timed(Tracker(folder.root, f"sqlite:///{place}/mlflow.db")) if mlflow else None
        replays: Any = Replays(timed, Quiet())  # type: ignore[arg-type]  # only `sync` of it is used
        begun = time.process_time()
        Blocks(RunContext(plan, folder, Quiet()), engine, 1, replays).run(begun=False)
        spent = time.process_time() - begun - engine.spent
        tracked = None
        if timed is not None:
            others = _of_children()  # those of the lanes
            end = timed.tracker.finish(3600.0)
            if end.pending:
                raise TrackingError(f"the replay did not end: {end.problem}")
            tracked = 1e3 * (_of_children() - others) / len(plan.order)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    trials = len(plan.order)
    return PoolCost(blocks=suite.seeds, trials=trials, lanes=lanes, milliseconds_a_trial=1e3 * spent / trials,
                    peak_mib=peak, tracking_milliseconds=tracked,
                    waited_milliseconds=1e3 * timed.seconds / trials if timed else 0.0)
