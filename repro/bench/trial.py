"""What the benchmarks of the harness share: their trial, and a ratio over interleaved pairs with its interval."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from repro import stats
from repro.bench import bare_ddp
from repro.core import registry
from repro.core.errors import TrialError
from repro.core.frozen import Frozen
from repro.seams.launching import Launcher, LaunchRequest, entry_point
from repro.suite.kinds.training import TrainingConfig
from repro.suite.model import Trial
from repro.worker.main import main


class BenchOutcome(Frozen):
    """Ratio of our time to theirs, pair by pair."""

    what: str
    ours: str
    theirs: str
    unit: str
    ours_values: tuple[float, ...]
    theirs_values: tuple[float, ...]
    ratio: float
    """Geometric mean over pairs."""
    low: float
    high: float
    level: float
    median_ratio: float
    median_low: float | None
    """Interval of the median of the pairs' ratios, by order statistics; None: too few pairs."""
    median_high: float | None
    limit: float
    """Largest ratio promised by the project."""

    def text(self) -> str:
        pairs = len(self.ours_values)
        inner = "" if self.median_low is None else f" ({self.median_low:.4f} to {self.median_high:.4f})"
        return "\n".join([
            self.what,
            f"  {self.ours}: median {median(self.ours_values):.4g} {self.unit}",
            f"  {self.theirs}: median {median(self.theirs_values):.4g} {self.unit}",
            f"  ratio {self.ratio:.4f} ({self.level:.0%} interval {self.low:.4f} to {self.high:.4f}, {pairs} "
            f"interleaved pairs), median of pairs {self.median_ratio:.4f}{inner}; promised: at most {self.limit:g}",
            "  measured on this machine, now",
        ])


def outcome(
    what: str, ours: tuple[str, Sequence[float]], theirs: tuple[str, Sequence[float]], unit: str, limit: float
) -> BenchOutcome:
    """Pair the two lists and compute their ratio with its interval."""
    ratio, interval = stats.paired_ratio(ours[1], theirs[1])
    ratios = [a / b for a, b in zip(ours[1], theirs[1], strict=True)]
    inner = stats.median_interval(ratios)
    return BenchOutcome(
        what=what, ours=ours[0], theirs=theirs[0], unit=unit, ours_values=tuple(ours[1]),
        theirs_values=tuple(theirs[1]), ratio=ratio, low=interval.low, high=interval.high, level=interval.level,
        median_ratio=median(ratios),
        median_low=inner.low if inner else None, median_high=inner.high if inner else None, limit=limit,
    )


def bench_trial(
    processes: int, steps: int, block: int, batch: int = bare_ddp.BATCH, rate: float = 0.1, engine: Any = "ddp"
) -> Trial:
    """Return a trial of `steps` steps with the bare script's work, evaluated every `block` steps."""
    samples = registry.load("workload", "digits")().train_samples
    choices = TrainingConfig.model_validate({
        "workload": {"kind": "digits", "augment": False}, "engine": engine, "processes": processes,
        "batch": {"global": batch}, "device": "cpu",
        "optimizer": {"kind": "sgd", "lr": rate, "momentum": 0.9, "nesterov": True, "weight_decay": 5e-4},
        "stop": {"metric": "top1", "target": 1.0, "max_epochs": (steps - 0.5) * batch / samples,
                 "design": "fixed_budget"},
        "evaluate_every": block * batch,
    })
    return Trial(suite="bench", suite_digest="", choices=choices, repeat=0, master_seed=0)


def preload() -> list[str]:
    """Return the modules that ranks of `bench_trial` need."""
    return [*dict.fromkeys([*bench_trial(1, 1, 1).choices.preload(), main.__module__])]


Entry = Callable[[str, Mapping[str, Any]], None]


def run_trial(
    launcher: Launcher, trial: Trial, folder: Path, entry: Entry = main, limit_seconds: float = 3600.0, **more: Any
) -> float:
    """Run a trial; return the seconds from the request to the end of the last process.

    Args:
        entry: of every rank, which gets `more` with the trial.

    Raises:
        TrialError: a rank failed.
    """
    begin = time.perf_counter()
    ended = launcher.launch(LaunchRequest(
        entry=entry_point(entry), processes=trial.choices.processes, device="cpu", folder=folder,
        timeout_seconds=limit_seconds,
        payload={"trial": trial.model_dump(mode="json", by_alias=True), "log": "result.txt",
                 "launched_ns": time.monotonic_ns(), **more},
    ))
    seconds = time.perf_counter() - begin
    if not ended.ok:
        raise TrialError(f"the benchmark failed: {ended.failure_text()}")
    return seconds


SECONDS = "seconds.json"
"""File in which rank 0 of a benchmark leaves its seconds."""


def timed(launcher: Launcher, trial: Trial, entry: Entry, **more: Any) -> dict[str, list[float]]:
    """Run `entry` on every rank of a trial; return what rank 0 wrote to `SECONDS`, name -> seconds.

    Raises:
        TrialError: as `run_trial`.
    """
    with tempfile.TemporaryDirectory() as scratch:
        run_trial(launcher, trial, Path(scratch), entry, **more)
        found: dict[str, list[float]] = json.loads(Path(scratch, SECONDS).read_text())
        return found
