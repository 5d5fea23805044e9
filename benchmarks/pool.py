"""What the coordinator of a pool costs: processor time a trial, and memory, without the lanes' own work.

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

from repro.core.frozen import Frozen
from repro.core.machine import Machine
from repro.record.folder.store import RunFolder
from repro.runner.context import Options, RunContext
from repro.runner.pool.coordinator import Blocks
from repro.runner.pool.lane import begin_shard
from repro.runner.run import Run, prepare
from repro.runner.tracking import Replays
from repro.suite.model import Suite
from repro.suite.planning.plan import Plan, make_plan

MOST_MS = 25.0
"""Processor time a trial that is promised, in milliseconds."""
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

    @property
    def holds(self) -> bool:
        return self.milliseconds_a_trial <= MOST_MS

    def text(self) -> str:
        return (f"coordinator: {self.blocks} blocks ({self.trials} trials) on {self.lanes} simulated lanes: "
                f"{self.milliseconds_a_trial:.2f} ms of processor time a trial (promised: at most {MOST_MS:g}), "
                f"{self.peak_mib:.0f} MiB at most")


@dataclass(slots=True)
class Simulated:
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

    def cancelled(self) -> set[int]:
        return set()

    def cancel(self) -> None: ...

    def said(self, shard: int) -> Path:
        return self.folder.shards / str(shard) / "output.log"

    def close(self) -> None: ...


def measure(blocks: int = 1000, lanes: int = 64) -> PoolCost:
    """Run a suite of two invented cells in a pool without a tracking server.

    Args:
        blocks: seeds of the suite, at most 1,000.
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
        begun = time.process_time()
        Blocks(RunContext(plan, folder, Quiet()), engine, 1, Replays(None, Quiet())).run(begun=False)
        spent = time.process_time() - begun - engine.spent
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    trials = len(plan.order)
    return PoolCost(blocks=suite.seeds, trials=trials, lanes=lanes, milliseconds_a_trial=1e3 * spent / trials,
                    peak_mib=peak)
