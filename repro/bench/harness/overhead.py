"""Step time under the harness over that of a bare DDP loop: same network, same batch, single steps in turn.

Both train in the same processes. A step of one follows a step of the other after a barrier, so that whatever else the
machine does falls on both alike: blocks of steps in turn leave slow changes of the machine in the ratio, and separate
processes one after the other differed by 10 % on a busy machine, more than the difference of interest.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np

from repro.bench.harness.outcome import BenchOutcome, outcome
from repro.bench.harness.trial import bench_trial, preload
from repro.core import registry
from repro.core.errors import TrialError
from repro.seams.launching import LaunchRequest
from repro.suite.model import Trial
from repro.worker.loop import Loop
from repro.worker.main import build
from repro.worker.setup import RankPlace

if TYPE_CHECKING:
    from repro.bench.harness.bare_ddp import Trainer

LONG_STEP_MS = 5.0
"""Steps from here on are promised `LIMIT`, shorter ones `SHORT_LIMIT`."""
LIMIT, SHORT_LIMIT = 1.005, 1.02
WARM_UP = 20
"""Pairs before the first counted one."""


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


def measure(pairs: int, block: int, batch: int, processes: int) -> Overhead:
    """Time `pairs` single steps each way, of `batch` samples over all ranks; which comes first alternates."""
    before = os.getloadavg()[0]
    launcher = registry.load("launcher", "local")()
    trial = bench_trial(processes, pairs + WARM_UP, block, batch=batch)
    launcher.open([*preload(), "repro.bench.harness.overhead", "repro.bench.harness.bare_ddp"], "cpu")
    try:
        with tempfile.TemporaryDirectory() as scratch:
            ended = launcher.launch(LaunchRequest(
                entry="repro.bench.harness.overhead:rank", processes=processes, device="cpu", folder=Path(scratch),
                payload={"trial": trial.model_dump(mode="json", by_alias=True), "log": "result.txt", "pairs": pairs,
                         "block": block, "launched_ns": time.monotonic_ns()},
                timeout_seconds=3600.0,
            ))
            if not ended.ok:
                raise TrialError(f"the benchmark failed: {ended.failure_text()}")
            found: dict[str, list[float]] = json.loads(Path(scratch, "seconds.json").read_text())
    finally:
        launcher.close()
    ours, theirs = ([1e3 * seconds for seconds in found[name]] for name in ("ours", "theirs"))
    what = f"overhead: DDP, {processes} processes, batch {batch}, single steps in turn in the same processes"
    limit = LIMIT if sorted(theirs)[len(theirs) // 2] >= LONG_STEP_MS else SHORT_LIMIT
    made = outcome(what, ("repro", ours), ("bare DDP loop", theirs), "ms per step", limit)
    return Overhead(**made.model_dump(), block_steps=block, log_ms=1e3 * fmean(found["logged"]),
                    load=(before, os.getloadavg()[0]))


def rank(folder: str, payload: Mapping[str, Any]) -> None:
    """Run one rank: a step under the harness and a step of the bare loop, in turn."""
    from repro.bench.harness import bare_ddp

    number, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    trial = Trial.model_validate(payload["trial"])
    loop = build(trial, RankPlace(number, world, number), Path(folder) / payload["log"], payload)
    bare = bare_ddp.Trainer(trial.choices.batch.global_)
    try:
        loop.open_data()
        loop.input.start(0)
        _share_start(loop, bare)
        seconds: dict[str, list[float]] = {"ours": [], "theirs": [], "logged": []}
        losses: list[Any] = []
        loop.steps.timer.start()
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
                _log(loop, losses)
                seconds["logged"].append(time.perf_counter() - begin)
                losses = []
        if number == 0:
            counted = {name: values[WARM_UP:] if name != "logged" else values for name, values in seconds.items()}
            Path(folder, "seconds.json").write_text(json.dumps(counted))
    finally:
        bare.close()
        loop.close()


def _share_start(loop: Loop, bare: Trainer) -> None:
    """Give the bare loop the data and the initial weights of the trial, so that both compute with the same values."""
    parts = loop.context.parts
    assert parts is not None
    images, labels = parts.train_batch(0, np.arange(loop.context.workload.train_samples))
    loop.input.consumed()
    bare.take_over(images, labels, list(parts.model.parameters()))


def _log(loop: Loop, losses: list[Any]) -> None:
    """Do what the harness does after a block of steps, and begin the next."""
    loop.steps.log_block(losses)
    loop.steps.timer.start()
