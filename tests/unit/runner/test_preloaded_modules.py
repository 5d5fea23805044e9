"""Modules that a run loads ahead of its trials: those that its trials and its gate need, and no others."""

from __future__ import annotations

from pathlib import Path

import pytest

from repro.runner import launching
from tests.plans import planned, suite


@pytest.mark.parametrize(("engine", "trains"), [("fake", False), ("single", True)])
def test_the_gates_worker_is_loaded_if_a_trial_trains_a_model(tmp_path: Path, engine: str, trains: bool) -> None:
    modules = launching._modules(planned(tmp_path, suite("some", engine=engine, launcher="inline")))
    assert ("repro.worker.gate.worker" in modules) == trains
    assert ("torch" in modules) == trains
