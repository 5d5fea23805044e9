"""The launchers of a plan: each is opened once per run and launches entry points on all ranks of a trial."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from repro.core import registry
from repro.core.devices import CPU, GPU
from repro.core.errors import UsageError
from repro.core.frozen import canonical
from repro.program.main import main as program_rank
from repro.record.folder import post_mortem
from repro.seams.launching import Launcher, LaunchRequest, LaunchResult, entry_point
from repro.seams.training import Engine
from repro.suite.kinds.program import ProgramConfig
from repro.suite.kinds.training import TrainingConfig
from repro.suite.kinds.trial_config import TrialConfig
from repro.suite.model import Trial
from repro.suite.planning.plan import Plan
from repro.worker.gate import parity
from repro.worker.gate.worker import main as gate_rank
from repro.worker.main import main as training_rank

PARITY_WORKER = entry_point(gate_rank)
BUILD_SECONDS = 900.0
"""Longest time for the build of an extension."""


class Launchers:
    """The open launchers of one run, by their options."""

    def __init__(self) -> None:
        self._open: dict[str, Launcher] = {}
        self._root = Path()

    def open(self, plan: Plan, root: Path, tell: Callable[[str], None]) -> float | None:
        """Open every launcher of the plan; return the time it took to load modules, None if none were loaded.

        Args:
            root: the run's folder.
            tell: is given what a launcher waits for, now and in later launches.

        Raises:
            UsageError: a launcher cannot be opened on this machine, or an engine's extension cannot be built.
        """
        build_extensions(plan)
        modules = _modules(plan)
        self._root = root
        for cell in plan.cells:
            key = canonical(cell.choices.launcher)
            if key not in self._open:
                self._open[key] = cell.choices.launcher.get(Launcher)
                self._open[key].tell_by(tell)
                self._open[key].open(modules, GPU if plan.uses_gpus else CPU)
            self._open[key].prepare(cell.choices.ranks)
        seconds = [known for item in self._open.values() if (known := item.preload_seconds) is not None]
        return sum(seconds) if seconds else None

    @property
    def nodes(self) -> dict[str, Any]:
        """Computers, links, a scheduler's job: fields of `Nodes` with a value."""
        found: dict[str, Any] = {}
        for launcher in self._open.values():
            if launcher.other_nodes:
                found["nodes"] = [dict(node) for node in launcher.other_nodes]
            if launcher.links:
                found["links"] = [dict(link) for link in launcher.links]
            if launcher.allocation:
                found["allocation"] = dict(launcher.allocation)
        return found

    def gather(self, trial: Trial) -> int:
        """Wait for missing computers; return how many a launch of this trial takes.

        Raises:
            TrialError: one did not join in time.
        """
        launcher = self._open[canonical(trial.choices.launcher)]
        launcher.gather()
        return launcher.nodes_of(trial.choices.ranks)

    def close(self) -> None:
        """Close every launcher that was opened."""
        for launcher in self._open.values():
            launcher.close()

    def launch(self, trial: Trial, entry: str, folder: Path, payload: dict[str, Any]) -> LaunchResult:
        """Start an entry point on all ranks of a trial and wait for their end.

        Args:
            folder: receives the ranks' output.
            payload: its `spent_seconds`, if any, are subtracted from the trial's time limit.
        """
        folder.mkdir(parents=True, exist_ok=True)
        before = post_mortem.take_snapshot(folder)
        try:
            outcome = self._open[canonical(trial.choices.launcher)].launch(
                _request(trial, entry, folder, payload, self._root))
        finally:
            post_mortem.mask_secrets(folder)
        return _with_roles(trial, post_mortem.explain(outcome, before))


def entry_of(choices: TrialConfig) -> str:
    """Return the function that every rank of a trial runs, as launchers name it."""
    if isinstance(choices, TrainingConfig):
        return entry_point(training_rank)
    if isinstance(choices, ProgramConfig):
        return entry_point(program_rank)
    return registry.PARTS["rank"][choices.kind]


def _with_roles(trial: Trial, outcome: LaunchResult) -> LaunchResult:
    """Return the outcome; the reason of a rank that failed by itself says what the others needed it for."""
    engine = _engine(trial)
    if engine is None:
        return outcome
    return replace(outcome, ends=tuple(
        replace(end, reason=f"{end.reason} ({role})")
        if end.failed and end.cause == "failed" and (role := engine.role(end.rank, trial.choices.processes)) else end
        for end in outcome.ends))


def _engine(trial: Trial) -> Engine | None:
    """Return the engine of a trial that trains a model."""
    return trial.choices.engine.get(Engine) if isinstance(trial.choices, TrainingConfig) else None


def _request(trial: Trial, entry: str, folder: Path, payload: dict[str, Any], root: Path) -> LaunchRequest:
    choices, engine = trial.choices, _engine(trial)
    return LaunchRequest(
        entry=entry, processes=choices.ranks, device=choices.device, folder=folder,
        payload={**payload, "trial": trial.model_dump(mode="json", by_alias=True),
                 "simulated": choices.origin == "simulated", "launched_ns": time.monotonic_ns()},
        timeout_seconds=choices.timeout_seconds - payload.get("spent_seconds", 0.0),
        expendable=engine.expendable(choices.processes) if engine is not None and entry == entry_of(choices) else (),
        stall_seconds=choices.stall_seconds, progress=folder / payload["log"] if "log" in payload else None, root=root,
    )


def _modules(plan: Plan) -> list[str]:
    """List the modules that the ranks of this plan will import, in order, each once."""
    modules = [name for cell in plan.cells for name in cell.choices.preload()]
    entries = [entry_of(cell.choices).partition(":")[0] for cell in plan.cells]
    # A plan that trains no model does without the gate.
    gate = [gate_rank.__module__] if any(map(parity.trains_a_model, plan.cells)) else []
    return list(dict.fromkeys([*modules, *entries, *gate]))


def build_extensions(plan: Plan) -> None:
    """Build the compiled extensions of engines in a separate process, so that no trial waits for them.

    Raises:
        UsageError: it cannot be built.
    """
    needed = {engine.build_module: (choices.engine.kind, built) for choices in plan.trainings()
              if (built := (engine := choices.engine.get(Engine)).builds())}
    for module, (name, built) in needed.items():
        problem = _build(module)
        if problem:
            raise UsageError(f"engine {name}: {built} cannot be built: {problem}; `{sys.executable} -m {module}` "
                             "prints everything")


def _build(module: str) -> str:
    """Run the module; return the last line that names an error, "" if there was none."""
    try:
        ended = subprocess.run([sys.executable, "-m", module], capture_output=True, text=True, check=False,
                               timeout=BUILD_SECONDS, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        return f"not done after {BUILD_SECONDS:g} s"
    if ended.returncode == 0:
        return ""
    lines = [line.strip() for line in (ended.stdout + ended.stderr).splitlines() if line.strip()]
    return next((line for line in lines if "error:" in line.lower()), lines[-1] if lines else "no output")[:200]
