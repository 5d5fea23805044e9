"""Step time under the harness over a bare hand-written DDP script's: same network, same batch, interleaved."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from repro import registry
from repro.bench.outcome import BenchOutcome, outcome
from repro.bench.trial import bench_trial, preload, run_trial
from repro.errors import TrialError
from repro.events import Event
from repro.runner import why
from repro.seams import Launcher, Order

BLOCK = 50
"""Steps timed as one: long against the clock's own cost, short against the machine's drift."""
LIMIT = 1.02


def measure(pairs: int, steps: int, processes: int) -> BenchOutcome:
    """Median block of each run, harness over bare; the order inside a pair alternates."""
    launcher = registry.load("launcher", "local")()
    launcher.open(preload(), "cpu")
    ours: list[float] = []
    theirs: list[float] = []
    try:
        with tempfile.TemporaryDirectory() as scratch:
            for pair in range(pairs):
                _show(pair, pairs)
                todo = [(ours, _harness), (theirs, _bare)]
                for values, run in todo if pair % 2 else reversed(todo):
                    folder = Path(scratch, f"{pair}-{run.__name__}")
                    folder.mkdir()
                    values.append(1e3 * run(launcher, steps, processes, folder))
    finally:
        launcher.close()
    what = f"overhead: DDP, {processes} processes, {steps} steps of batch 64 a run, median block of {BLOCK} steps"
    return outcome(what, ("repro", ours), ("bare DDP script", theirs), "ms a step", LIMIT)


def _show(pair: int, pairs: int) -> None:
    print(f"pair {pair + 1} of {pairs}", end="\r" if sys.stderr.isatty() else "\n", file=sys.stderr, flush=True)


def _harness(launcher: Launcher, steps: int, processes: int, folder: Path) -> float:
    _, events = run_trial(launcher, bench_trial(processes, steps, BLOCK), folder)
    return median(block_seconds(events))


def block_seconds(events: Sequence[Event]) -> list[float]:
    """Seconds a step of every block, from the block's own start and stop; the first block is warm-up."""
    marks = [event for event in events if event.key in ("block_start", "block_stop")]
    found = []
    for start, stop in pairwise(marks):
        if start.key == "block_start" and stop.key == "block_stop":
            assert start.nanoseconds is not None and stop.nanoseconds is not None
            found.append((stop.nanoseconds - start.nanoseconds) / 1e9 / start.metadata["steps"])
    return found[1:] or found


def _bare(launcher: Launcher, steps: int, processes: int, folder: Path) -> float:
    """The bare script in processes started the same way, so that only what happens in a step differs."""
    outcome_ = launcher.launch(Order(
        entry="repro.bench.overhead:bare_rank", payload={"steps": steps}, processes=processes, device="cpu",
        folder=folder, timeout_seconds=600.0,
    ))
    if not outcome_.ok:
        raise TrialError(f"the bare script failed: {why(outcome_)}")
    blocks: list[float] = json.loads((folder / "blocks.json").read_text())
    return median(blocks[1:] or blocks) / BLOCK


def bare_rank(folder: str, payload: Mapping[str, Any]) -> None:
    """Entry of one rank of the bare script."""
    from repro.bench import bare_ddp

    target = Path(folder, "blocks.json") if os.environ["RANK"] == "0" else Path(os.devnull)
    with target.open("w") as stream, redirect_stdout(stream):
        sys.argv = ["bare_ddp", "--steps", str(payload["steps"]), "--block", str(BLOCK)]
        bare_ddp.main()
