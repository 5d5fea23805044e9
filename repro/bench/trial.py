"""Trial of the benchmarks: the network of `digits` under DDP, a fixed number of steps."""

from __future__ import annotations

import time
from pathlib import Path

from repro.bench import bare_ddp
from repro.core import registry
from repro.core.errors import TrialError
from repro.core.events import Event, read_events
from repro.seams.launching import Launcher, LaunchRequest, entry_point
from repro.suite.kinds.training import TrainingConfig
from repro.suite.model import Trial
from repro.worker.main import main


def bench_trial(
    processes: int, steps: int, block: int, warmup: bool = True, batch: int = bare_ddp.BATCH, rate: float = 0.1
) -> Trial:
    """Return a trial of `steps` steps with the bare script's work, evaluated every `block` steps."""
    samples = registry.load("workload", "digits")().train_samples
    choices = TrainingConfig.model_validate({
        "workload": {"kind": "digits", "augment": False}, "engine": "ddp", "processes": processes,
        "batch": {"global": batch}, "device": "cpu", "warmup_steps": warmup,
        "optimizer": {"kind": "sgd", "lr": rate, "momentum": 0.9, "nesterov": True, "weight_decay": 5e-4},
        "stop": {"metric": "top1", "target": 1.0, "max_epochs": (steps - 0.5) * batch / samples,
                 "design": "fixed_budget"},
        "evaluate_every": block * batch,
    })
    return Trial(suite="bench", suite_digest="", choices=choices, repeat=0, master_seed=0)


def preload() -> list[str]:
    """Return the modules that ranks of `bench_trial` need."""
    return [*dict.fromkeys([*bench_trial(1, 1, 1).choices.preload(), main.__module__])]


def run_trial(launcher: Launcher, trial: Trial, folder: Path) -> tuple[float, list[Event]]:
    """Run a trial; return (seconds from the request to the end of the last process, rank 0's events).

    Raises:
        TrialError: a rank failed.
    """
    begin = time.perf_counter()
    outcome = launcher.launch(LaunchRequest(
        entry=entry_point(main), processes=trial.choices.processes, device="cpu", folder=folder,
        timeout_seconds=600.0,
        payload={"trial": trial.model_dump(mode="json", by_alias=True), "log": "result.txt",
                 "launched_ns": time.monotonic_ns()},
    ))
    seconds = time.perf_counter() - begin
    if not outcome.ok:
        raise TrialError(f"the benchmark's trial failed: {outcome.failure_text()}")
    return seconds, read_events(folder / "result.txt")[0]
