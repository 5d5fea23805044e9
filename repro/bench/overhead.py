"""Step time under the harness over that of a bare DDP loop: same network, same batch, single steps in turn.

Both train in the same processes. A step of one follows a step of the other after a barrier, so that whatever else the
machine does falls on both alike: blocks of steps in turn leave slow changes of the machine in the ratio, and separate
processes one after the other differed by 10 % on a busy machine, more than the difference of interest.

Where memory happens to lie makes a step faster or slower by up to 1 %, for as long as a process lives (Mytkowicz et
al., Producing wrong data without doing anything obviously wrong, ASPLOS 2009). So the unit of the interval is a launch,
not a step, and each launch places the two contenders at random.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

import numpy as np

from repro.bench.trial import SECONDS, BenchOutcome, bench_trial, outcome, preload, timed
from repro.core import registry
from repro.core.errors import TrialError, UsageError
from repro.core.random_streams import Streams
from repro.suite.model import Trial
from repro.worker.loop import Loop
from repro.worker.main import build
from repro.worker.setup import RankPlace

if TYPE_CHECKING:
    from repro.bench.bare_ddp import Trainer

LONG_STEP_MS = 5.0
"""Steps from here on are promised `LIMIT`, shorter ones `SHORT_LIMIT`."""
LIMIT, SHORT_LIMIT = 1.005, 1.02
WARM_UP = 20
"""Pairs before the first counted one."""
PLACEMENT = 1 << 14
"""Largest of eight blocks that a launch puts before each contender, in float32 values: small enough to lie in the heap,
so that what follows lies elsewhere."""
RATE = 1e-9
"""Learning rate of both: the weights stay what they are, because arithmetic takes longer on some values."""


class Overhead(BenchOutcome):
    """The ratio, and what the harness does between two blocks of steps."""

    block_steps: int
    log_ms: float
    """Mean time to read and log one block of steps, ms."""
    load: tuple[float, float]
    """Load of the machine (1 min) before and after."""

    def text(self) -> str:
        return "\n".join([
            super().text(),
            f"  a block of {self.block_steps} steps is logged in {self.log_ms:.3g} ms, "
            f"{1e3 * self.log_ms / self.block_steps:.2g} us a step, which is on the wall clock and not in a step",
            f"  load of the machine (1 min): {self.load[0]:.2f} before, {self.load[1]:.2f} after",
        ])


def measure(pairs: int, block: int, batch: int, processes: int, launches: int) -> Overhead:
    """Time single steps each way, of `batch` samples over all ranks; which comes first alternates.

    Args:
        pairs: counted steps of each contender, in one launch.
        launches: the median step of each gives one ratio; at least two.
    """
    before = os.getloadavg()[0]
    launcher = registry.load("launcher", "local")()
    if pairs + WARM_UP < block:
        raise UsageError(f"--pairs {pairs} is less than --steps {block} less {WARM_UP} of warm-up: no line "
                         "would be logged")
    trial = bench_trial(processes, pairs + WARM_UP, block, batch=batch, rate=RATE)
    launcher.open([*preload(), "repro.bench.overhead", "repro.bench.bare_ddp"], "cpu")
    try:
        found = [timed(launcher, trial, rank, pairs=pairs, block=block, launch=number) for number in range(launches)]
    finally:
        launcher.close()
    ours, theirs = ([1e3 * median(each[name]) for each in found] for name in ("ours", "theirs"))
    what = (f"overhead: DDP, {processes} processes, batch {batch}: median step of {launches} launches, in each of them "
            f"{pairs} single steps in turn in the same processes")
    limit = LIMIT if median(theirs) >= LONG_STEP_MS else SHORT_LIMIT
    made = outcome(what, ("repro", ours), ("bare DDP loop", theirs), "ms per step", limit)
    logged = fmean(seconds for each in found for seconds in each["logged"])
    return Overhead(**made.model_dump(), block_steps=block, log_ms=1e3 * logged, load=(before, os.getloadavg()[0]))


def rank(folder: str, payload: Mapping[str, Any]) -> None:
    """Run one rank: a step under the harness and a step of the bare loop, in turn."""
    from repro.bench import bare_ddp

    number, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    trial = Trial.model_validate(payload["trial"])
    placed = [_placed(payload["launch"], 0)]
    loop = build(trial, RankPlace(number, world, number), Path(folder) / payload["log"], payload)
    assert isinstance(loop, Loop)
    placed.append(_placed(payload["launch"], 1))
    bare = bare_ddp.Trainer(trial.training.batch.global_, RATE)
    try:
        loop.open_data()
        loop.input.start(0)
        _share_start(loop, bare)
        assert loop.steps.ledger is not None
        loop.steps.ledger.start()
        seconds: dict[str, list[float]] = {"ours": [], "theirs": [], "logged": []}
        losses: list[Any] = []
        loop.steps.begin_block(payload["block"])
        for pair in range(payload["pairs"] + WARM_UP):
            for ours in (True, False) if pair % 2 else (False, True):
                loop.session.synchronize()
                begin = time.perf_counter()
                if ours:
                    losses.append(loop.steps.train_step())
                else:
                    bare.train_step()
                seconds["ours" if ours else "theirs"].append(time.perf_counter() - begin)
            if len(losses) == payload["block"]:
                begin = time.perf_counter()
                loop.steps.log_block(losses)
                loop.steps.begin_block(payload["block"])
                seconds["logged"].append(time.perf_counter() - begin)
                losses = []
        if notes := loop.steps.ledger.facts().notes:
            raise TrialError(f"the ledger notes {notes}")
        if number == 0:
            counted = {name: values[WARM_UP:] if name != "logged" else values for name, values in seconds.items()}
            Path(folder, SECONDS).write_text(json.dumps(counted))
    finally:
        bare.close()
        loop.close()


def _placed(launch: int, contender: int) -> list[Any]:
    """Return memory of random sizes that lies before what is made next."""
    import torch

    sizes = Streams(0, launch).generator("placement", contender).integers(1, PLACEMENT, size=8)
    return [torch.empty(int(size)) for size in sizes]


def _share_start(loop: Loop, bare: Trainer) -> None:
    """Give the bare loop the data and the initial weights of the trial, so that both compute with the same values."""
    parts = loop.context.parts
    assert parts is not None
    images, labels = parts.train_batch(0, np.arange(loop.context.workload.train_samples))
    loop.input.consumed()
    bare.take_over(images, labels, list(parts.model.parameters()))

