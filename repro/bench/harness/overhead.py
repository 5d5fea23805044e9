"""Step time under the harness over that of a bare DDP script: same network, same batch, interleaved.

Both train in the same processes, one block of steps each in turn, so that other work on the machine affects both alike:
separate processes one after the other differed by 10 % on a busy machine, more than the difference of interest.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from repro.bench.harness.outcome import BenchOutcome, outcome
from repro.bench.harness.trial import bench_trial, preload
from repro.core import registry
from repro.core.errors import TrialError
from repro.seams.launching import LaunchRequest
from repro.suite.model import Trial
from repro.worker.loop import Loop
from repro.worker.main import build
from repro.worker.setup import RankPlace

LIMIT = 1.02


def measure(pairs: int, steps: int, processes: int) -> BenchOutcome:
    """Time `pairs` blocks of `steps` steps each way; the order inside a pair alternates, the first pair is warm-up."""
    launcher = registry.load("launcher", "local")()
    trial = bench_trial(processes, (pairs + 1) * steps, steps)
    launcher.open([*preload(), "repro.bench.harness.overhead", "repro.bench.harness.bare_ddp"], "cpu")
    try:
        with tempfile.TemporaryDirectory() as scratch:
            outcome_ = launcher.launch(LaunchRequest(
                entry="repro.bench.harness.overhead:rank", processes=processes, device="cpu", folder=Path(scratch),
                payload={"trial": trial.model_dump(mode="json", by_alias=True), "log": "result.txt", "pairs": pairs,
                         "steps": steps, "launched_ns": time.monotonic_ns()},
                timeout_seconds=3600.0,
            ))
            if not outcome_.ok:
                raise TrialError(f"the benchmark failed: {outcome_.failure_text()}")
            found: dict[str, list[float]] = json.loads(Path(scratch, "seconds.json").read_text())
    finally:
        launcher.close()
    ours, theirs = ([1e3 * seconds / steps for seconds in found[name]] for name in ("ours", "theirs"))
    what = f"overhead: DDP, {processes} processes, batch 64, blocks of {steps} steps in turn in the same processes"
    return outcome(what, ("repro", ours), ("bare DDP loop", theirs), "ms per step", LIMIT)


def rank(folder: str, payload: Mapping[str, Any]) -> None:
    """Run one rank: blocks under the harness and blocks of the bare loop, in turn."""
    from repro.bench.harness import bare_ddp

    number, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    trial = Trial.model_validate(payload["trial"])
    loop = build(trial, RankPlace(number, world, number), Path(folder) / payload["log"], payload)
    bare = bare_ddp.Trainer()
    try:
        loop.open_data()
        ours: list[float] = []
        theirs: list[float] = []
        for pair in range(payload["pairs"] + 1):
            for harness in (True, False) if pair % 2 else (False, True):
                if harness:
                    ours.append(_block(loop))
                else:
                    theirs.append(bare.block(payload["steps"]))
        if number == 0:
            Path(folder, "seconds.json").write_text(json.dumps({"ours": ours[1:], "theirs": theirs[1:]}))
    finally:
        bare.close()
        loop.close()


def _block(loop: Loop) -> float:
    """Time one block, including the harness's logging."""
    loop.session.synchronize()
    begin = time.perf_counter()
    loop.steps.log_block(loop.steps.train_block())
    return time.perf_counter() - begin
