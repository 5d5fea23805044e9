"""Runs whose trials end as a script says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from repro.core.machine import Machine
from repro.record.environment import differences, environment
from repro.record.folder import resume
from repro.record.folder.store import Record, RunFolder
from repro.runner import preflight
from repro.runner.context import Options
from repro.runner.launching import Launchers
from repro.runner.run import Run, prepare
from repro.seams.launching import LaunchResult, RankEnd
from repro.suite.file import read_suite
from repro.suite.model import Trial
from repro.suite.planning.plan import Plan, make_plan
from tests.plans import suite
from tests.watcher import Silent

MACHINE = Machine(device="cpu", device_count=0, cores=2)


class ScriptedLaunchers(Launchers):
    """Launches as the script says, in order; "" is a launch as it is, and so is all that follows the script."""

    def __init__(self, script: list[str]) -> None:
        super().__init__()
        self.script = script

    def launch(self, trial: Trial, entry: str, folder: Path, payload: dict[str, Any]) -> LaunchResult:
        told = self.script.pop(0) if self.script else ""
        if told == "interrupt":
            raise KeyboardInterrupt
        if told == "crash":
            return LaunchResult((RankEnd(0, -9, "killed by SIGKILL", "last words"),), 0.1)
        if told == "hang":
            return LaunchResult((RankEnd(0, -9, "hung: no event for 5 s"),), 0.1, hung=True)
        outcome = super().launch(trial, entry, folder, payload)
        if told == "hole":
            log = folder / payload["log"]
            log.write_bytes(b"\0" * 500 + log.read_bytes()[500:])
        return outcome


class Scripted(Run):
    """A run with scripted launches."""

    def __init__(self, plan: Plan, folder: RunFolder, script: Sequence[str] = (), **options: bool) -> None:
        super().__init__(plan, folder, MACHINE, Silent(), Options(**options))
        self.launchers = ScriptedLaunchers(list(script))


Begin = Callable[..., Scripted]


def invented(more: str = "") -> str:
    """Two cells of the fake engine, two seeds."""
    return suite("invented", """\
matrix:
  engine: [{kind: fake, step_seconds: 0.010}, {kind: fake, step_seconds: 0.014}]
""", head=f"{more}\n", seeds=2, engine="fake", stop="{metric: top1, target: 0.9, max_epochs: 40}", launcher="inline")


@pytest.fixture
def begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Scripted]:
    """A new run with this script."""
    monkeypatch.setattr(preflight, "before", lambda *_: [])
    monkeypatch.setattr(environment, "_git", lambda *_: None)  # a process each time

    def make(*script: str, more: str = "", **options: Any) -> Scripted:
        (tmp_path / "suite.yaml").write_text(invented(more))
        source = read_suite(str(tmp_path / "suite.yaml"), ())
        plan = make_plan(source.suite, MACHINE, source.problem)
        return Scripted(plan, prepare(plan, source.text, tmp_path / "run"), script, **options)

    return make


def go_on(run: Scripted, *script: str, **options: Any) -> Record:
    folder, plan = resume.reopen(run.folder.root)
    return Scripted(plan, folder, script, **options).execute()


def texts(found: Sequence[differences.Difference]) -> list[str]:
    return [item.text for item in found]


def ledger(record: Record) -> list[tuple[int, str]]:
    """(attempt, status) of every start, trial by trial in the order of the plan."""
    return [(item.attempt, item.status) for trial in record.plan.trials() for item in record.attempts
            if item.trial_id == trial.trial_id]


def results(folder: RunFolder) -> dict[str, bytes]:
    return {path.parent.name: path.read_bytes() for path in folder.trials.glob("*/result.json")}


# ---- another machine, another plan


@pytest.fixture
def half(begin: Begin) -> Scripted:
    """A run that was interrupted after one trial."""
    run = begin("", "interrupt")
    with pytest.raises(KeyboardInterrupt):
        run.execute()
    return run


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 2 // 3])
