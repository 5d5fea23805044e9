"""Step time with the ledger over that without it, for each engine: single steps in turn in the same processes.

An unequal cost would favour an engine, so the ratios of all engines are compared, too.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

from repro.bench.trial import BenchOutcome, outcome
from repro.core import registry
from repro.core.errors import TrialError
from repro.core.frozen import Frozen
from repro.seams.launching import Launcher, LaunchRequest, entry_point
from repro.suite.kinds.training import TrainingConfig
from repro.suite.model import Trial
from repro.worker.loop import Loop
from repro.worker.main import build
from repro.worker.setup import RankPlace

ENGINES: Mapping[str, Any] = {
    "ddp": "ddp", "fsdp": "fsdp", "zero 1": {"kind": "deepspeed", "stage": 1},
    "zero 3": {"kind": "deepspeed", "stage": 3},
}
LIMIT, APART = 1.005, 0.003
"""Largest ratio of an engine, and largest difference between the ratios of two."""
WARM_UP, BLOCK = 20, 20


class LedgerCost(Frozen):
    """The ratio of every engine."""

    engines: tuple[BenchOutcome, ...]

    @property
    def apart(self) -> float:
        ratios = [item.ratio for item in self.engines]
        return max(ratios) - min(ratios)

    def text(self) -> str:
        apart = f"largest difference between two engines' ratios: {self.apart:.4f}; promised: at most {APART}"
        return "\n".join([*(item.text() for item in self.engines), apart])


def measure(pairs: int = 200, launches: int = 8, batch: int = 128, processes: int = 2, only: str = "") -> LedgerCost:
    """Time single steps each way; which comes first alternates. A launch gives one ratio of medians an engine.

    Args:
        pairs: counted steps of each way in one launch.
        batch: samples over all ranks, for steps of about 8 ms with DDP.
        only: part of an engine's name; "": all engines.
    """
    trials = {name: _trial(engine, processes, pairs, batch) for name, engine in ENGINES.items() if only in name}
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in trials}
    launcher = registry.load("launcher", "local")()
    launcher.open(["benchmarks.ledger", "torch", "deepspeed"], "cpu")
    try:
        for _ in range(launches):
            for name, trial in trials.items():
                found[name].append(_launch(launcher, trial, pairs))
    finally:
        launcher.close()
    return LedgerCost(engines=tuple(
        outcome(f"ledger: {name}, {processes} processes, batch {batch}: {pairs} single steps in turn, median of each "
                f"of {launches} launches", ("with the ledger", [1e3 * pair[0] for pair in values]),
                ("without", [1e3 * pair[1] for pair in values]), "ms per step", LIMIT)
        for name, values in found.items()))


def _trial(engine: Any, processes: int, pairs: int, batch: int) -> Trial:
    samples = registry.load("workload", "digits")().train_samples
    choices = TrainingConfig.model_validate({
        "workload": {"kind": "digits", "augment": False}, "engine": engine, "processes": processes,
        "batch": {"global": batch}, "device": "cpu",
        "optimizer": {"kind": "sgd", "lr": 1e-9, "momentum": 0.9},
        "stop": {"metric": "top1", "target": 1.0, "max_epochs": (2 * pairs + 2 * WARM_UP) * batch / samples,
                 "design": "fixed_budget"},
        "evaluate_every": BLOCK * batch,
    })
    return Trial(suite="bench", suite_digest="", choices=choices, repeat=0, master_seed=0)


def _launch(launcher: Launcher, trial: Trial, pairs: int) -> tuple[float, float]:
    """Return the median seconds of a step on rank 0, with and without the ledger.

    Raises:
        TrialError: a rank failed.
    """
    with tempfile.TemporaryDirectory() as scratch:
        ended = launcher.launch(LaunchRequest(
            entry=entry_point(rank), processes=trial.choices.processes, device="cpu", folder=Path(scratch),
            timeout_seconds=3600.0, payload={"trial": trial.model_dump(mode="json", by_alias=True), "log": "result.txt",
                                             "pairs": pairs, "launched_ns": time.monotonic_ns()}))
        if not ended.ok:
            raise TrialError(f"the benchmark failed: {ended.failure_text()}")
        seconds: dict[str, list[float]] = json.loads(Path(scratch, "seconds.json").read_text())
        return median(seconds["with"]), median(seconds["without"])


def rank(folder: str, payload: Mapping[str, Any]) -> None:
    """Run one rank: a step with the ledger and a step without it, in turn."""
    number, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    loop = build(Trial.model_validate(payload["trial"]), RankPlace(number, world, number),
                 Path(folder) / payload["log"], payload)
    assert isinstance(loop, Loop)
    steps, ledger = loop.steps, loop.steps.ledger
    assert ledger is not None
    seconds: dict[str, list[float]] = {"with": [], "without": []}
    try:
        loop.open_data()
        loop.input.start(0)
        ledger.start()
        losses: list[Any] = []
        steps.timer.start()
        for pair in range(payload["pairs"] + WARM_UP):
            for way in ("with", "without") if pair % 2 else ("without", "with"):
                ledger.close()
                ledger.attach()  # in both ways, so that both begin with the same caches
                if way == "without":
                    ledger.close()
                steps.ledger = ledger if way == "with" else None
                steps.last = steps.step + BLOCK - len(losses) - 1
                loop.session.synchronize()
                begin = time.perf_counter()
                losses.append(steps.train_step())
                seconds[way].append(time.perf_counter() - begin)
            if len(losses) == BLOCK:
                steps.ledger = ledger
                steps.log_block(losses)
                losses = []
                steps.timer.start()
        if number == 0:
            Path(folder, "seconds.json").write_text(json.dumps(
                {way: values[WARM_UP:] for way, values in seconds.items()}))
    finally:
        loop.close()



