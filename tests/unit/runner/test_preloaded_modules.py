"""Modules that a run loads ahead of its trials: those that its trials and its gate need, and no others."""

from __future__ import annotations

from pathlib import Path

import pytest

from repro.core.machine import Machine
from repro.launchers.local import Local
from repro.runner import launching
from tests.plans import planned, suite


@pytest.mark.parametrize(("engine", "trains"), [("fake", False), ("single", True)])
def test_the_gates_worker_is_loaded_if_a_trial_trains_a_model(tmp_path: Path, engine: str, trains: bool) -> None:
    modules = launching._modules(planned(tmp_path, suite("some", engine=engine, launcher="inline")))
    assert ("repro.worker.gate.worker" in modules) == trains
    assert ("torch" in modules) == trains


@pytest.mark.parametrize(("device", "opened"), [("cpu", "cpu"), ("auto", "cuda")])
def test_launchers_are_opened_for_the_device_of_the_trials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: str, opened: str
) -> None:
    """On a machine with a GPU DeepSpeed would be loaded for it, and fail in trials on the processor."""
    told = []
    monkeypatch.setattr(Local, "open", lambda self, modules, device: told.append(device))
    text = suite("some", engine="deepspeed", device=device, processes=1)
    launching.Launchers().open(planned(tmp_path, text, machine=Machine("cuda", 1, 8)), tmp_path, print)
    assert told == [opened]
