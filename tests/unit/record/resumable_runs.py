"""Runs of the fake engine that keep checkpoints and fail on request."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from repro.core.events import Event
from repro.core.machine import Machine
from repro.engines.fake import FakeSession
from repro.record.environment import environment
from repro.record.folder.checkpoint import Checkpoints
from repro.record.folder.store import Record
from repro.runner import preflight
from repro.runner.run import Run, prepare
from repro.seams.training import Batch
from repro.suite.file import read_suite
from repro.suite.planning.plan import make_plan
from repro.worker.checkpoints import CheckpointWriter
from tests.plans import suite
from tests.watcher import Silent

MACHINE = Machine(device="cpu", device_count=0, cores=2)
Begin = Callable[..., Run]
Failing = Callable[..., None]


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "before", lambda *_: [])
    monkeypatch.setattr(environment, "_git", lambda *_: None)


@pytest.fixture
def begin(tmp_path: Path) -> Callable[..., Run]:
    """A new run of the invented suite in a separate folder."""
    def make(name: str = "run", more: str = "", engine: str = "fake", period: str = "2") -> Run:
        head = f"on_failure: resume_from_checkpoint\ncheckpoint_every: {period}\n{more}\n"
        (tmp_path / "suite.yaml").write_text(suite(
            "invented", head=head, engine=engine, launcher="inline",
            stop="{metric: top1, target: 0.9, max_epochs: 40}"))
        source = read_suite(str(tmp_path / "suite.yaml"), ())
        plan = make_plan(source.suite, MACHINE, source.problem)
        return Run(plan, prepare(plan, source.text, tmp_path / name), MACHINE, Silent())

    return make


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """From now on trials fail at these steps, one a start, after something was done to the folder."""
    def at(*steps: int, then: Callable[[int], None] = lambda _: None) -> None:
        left, real = list(steps), FakeSession.backward

        def backward(self: FakeSession, batches: Sequence[Batch]) -> float:
            if left and self.steps == left[0]:
                left.pop(0)
                then(len(steps) - len(left))
                raise RuntimeError("lost")
            return real(self, batches)

        monkeypatch.setattr(FakeSession, "backward", backward)

    return at


def ledger(record: Record) -> list[tuple[int, str, str]]:
    return [(item.attempt, item.status, item.resumed_from) for item in record.attempts]


# ---- the folder


LINE = f"{Event('cache_clear', True, 'POINT_IN_TIME', 0.0, {}).line()}".encode()


def written(root: Path, step: int, **changes: Any) -> Checkpoints:
    writer = CheckpointWriter(Checkpoints(root), 1, "trial", 1, 0, 2)
    assert writer.prepare(step, 0) == ""
    writer.write_own(step, {"step": step}, changes.pop("log", LINE))
    writer.keep(step, 64 * step, 5_000_000_000, changes.pop("wall_ms", time.time() * 1e3))
    return writer.folder


class Bomb:
    """Runs code where it is unpickled without care."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.mark),)
