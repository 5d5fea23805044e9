"""Step time with the ledger over that without it, for each engine: single steps in turn in the same processes.

An unequal cost would favour an engine, so the ratios of all engines are compared, too. The noise of single steps is
larger than the cost: a launch gives the ratio of the means of each way's faster half, which differs less from launch to
launch than that of medians does (0.2 % and 0.4 %, 300 steps of 15 ms). The time spent inside the ledger's own functions
is measured beside it, in further steps: it has hardly any noise, but leaves out what the ledger slows elsewhere.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import torch.distributed as dist

from repro.bench.trial import SECONDS, BenchOutcome, bench_trial, outcome, timed
from repro.core import registry
from repro.core.frozen import Frozen
from repro.core.random_streams import Streams
from repro.suite.model import Trial
from repro.worker.ledger.training import TrainingLedger
from repro.worker.loop import Loop
from repro.worker.main import build
from repro.worker.setup import RankPlace

ENGINES: Mapping[str, Any] = {
    "ddp": "ddp", "fsdp": "fsdp", "zero 1": {"kind": "deepspeed", "stage": 1},
    "zero 3": {"kind": "deepspeed", "stage": 3},
}
LIMIT, APART = 1.005, 0.003
"""Largest ratio of an engine, and largest difference between the ratios of two."""
WARM_UP, BLOCK, RATE = 20, 21, 1e-9
WAYS = ("with", "without", "inside")


class LedgerCost(Frozen):
    """The ratios of every engine."""

    engines: tuple[BenchOutcome, ...]
    inside: tuple[BenchOutcome, ...]
    """A step plus the time inside the ledger's functions, over a step."""

    def text(self) -> str:
        lines = [item.text() for item in (*self.engines, *self.inside)]
        for name, found in (("single steps", self.engines), ("its own functions", self.inside)):
            ratios = [item.ratio for item in found]
            lines.append(f"largest difference between two engines' ratios by {name}: {max(ratios) - min(ratios):.4f}; "
                         f"promised: at most {APART}")
        return "\n".join(lines)


def measure(pairs: int = 200, launches: int = 8, batch: int = 128, processes: int = 2, only: str = "") -> LedgerCost:
    """Time single steps each way, each three in a drawn order. A launch gives one ratio an engine.

    Args:
        pairs: counted steps of each way in one launch.
        batch: samples over all ranks, for steps of about 8 ms with DDP.
        only: part of an engine's name; "": all engines.
    """
    steps = len(WAYS) * (pairs + WARM_UP)
    trials = {name: bench_trial(processes, steps, BLOCK, batch, RATE, engine) for name, engine in ENGINES.items()
              if only in name}
    found: dict[str, list[Mapping[str, list[float]]]] = {name: [] for name in trials}
    launcher = registry.load("launcher", "local")()
    launcher.open(["benchmarks.ledger", "torch", "deepspeed"], "cpu")
    try:
        for launch in range(launches):
            for name, trial in trials.items():
                found[name].append(timed(launcher, trial, rank, pairs=pairs, launch=launch))
    finally:
        launcher.close()
    engines, inside = list[BenchOutcome](), list[BenchOutcome]()
    for name, values in found.items():
        what = (f"ledger: {name}, {processes} processes, batch {batch}: {pairs} single steps in turn, mean of the "
                f"faster half in each of {launches} launches")
        ms = {way: [1e3 * _usual(each[way]) for each in values] for way in WAYS}
        without = ("without", ms["without"])
        engines.append(outcome(what, ("with the ledger", ms["with"]), without, "ms per step", LIMIT))
        both = [own + step for own, step in zip(ms["inside"], ms["without"], strict=True)]
        inside.append(outcome(what, ("and its own functions", both), without, "ms per step", LIMIT))
    return LedgerCost(engines=tuple(engines), inside=tuple(inside))


def _usual(seconds: Sequence[float]) -> float:
    """Return the mean of the faster half: what else runs on the machine makes steps slower, and none faster."""
    return fmean(sorted(seconds)[:max(1, len(seconds) // 2)])


class _Inside:
    """Adds up the time inside the ledger's functions, less that of the loss itself."""

    def __init__(self, ledger: TrainingLedger) -> None:
        self.ns = 0
        for name in ("begin", "end", "_on_forward", "_on_loss", "_on_update"):
            setattr(ledger, name, self._timed(getattr(ledger, name), 1))
        ledger._loss = self._timed(ledger._loss, -1)

    def _timed(self, function: Callable[..., Any], sign: int) -> Callable[..., Any]:
        def call(*args: Any, **named: Any) -> Any:
            begin = time.perf_counter_ns()
            try:
                return function(*args, **named)
            finally:
                self.ns += sign * (time.perf_counter_ns() - begin)

        return call


def rank(folder: str, payload: Mapping[str, Any]) -> None:
    """Run one rank: a step with the ledger, one without it, and one whose ledger is timed, in a drawn order."""
    number, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    loop = build(Trial.model_validate(payload["trial"]), RankPlace(number, world, number),
                 Path(folder) / payload["log"], payload)
    assert isinstance(loop, Loop)
    steps, ledger = loop.steps, loop.steps.ledger
    assert ledger is not None
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    own = dict(vars(ledger))
    order = Streams(payload["launch"], 0).generator("ledger ways")  # equal on all ranks
    try:
        loop.open_data()
        loop.input.start(0)
        ledger.start()
        losses: list[Any] = []
        steps.begin_block(BLOCK)
        for _ in range(payload["pairs"] + WARM_UP):
            # In a fixed order one way would always follow another, or the log of a block.
            for way in order.permutation(WAYS):
                ledger.close()
                inside = _Inside(ledger) if way == "inside" else None
                ledger.attach()  # in every way, so that all begin with the same caches
                if way == "without":
                    ledger.close()
                steps.ledger = None if way == "without" else ledger
                dist.barrier()  # what one rank did before its step is no other's step
                begin = time.perf_counter()
                losses.append(steps.train_step())
                seconds[way].append(inside.ns / 1e9 if inside else time.perf_counter() - begin)
                if inside:
                    ledger.close()
                    for name in ("begin", "end", "_on_forward", "_on_loss", "_on_update"):
                        delattr(ledger, name)
                    ledger._loss = own["_loss"]
            if len(losses) == BLOCK:
                steps.ledger = ledger
                steps.log_block(losses)
                losses = []
                steps.begin_block(BLOCK)
        if number == 0:
            Path(folder, SECONDS).write_text(json.dumps(
                {way: values[WARM_UP:] for way, values in seconds.items()}))
    finally:
        loop.close()
