"""The first start of an engine in a rank imports nothing that its fork server could have loaded."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import pytest

from repro.launchers.local import Local
from repro.seams.launching import LaunchRequest
from repro.suite.model import Trial

CHOICES = {
    "workload": "digits", "engine": {"kind": "deepspeed", "stage": 1}, "batch": {"global": 64}, "processes": 2,
    "optimizer": {"kind": "sgd", "lr": 0.1}, "stop": {"metric": "top1", "target": 0.9, "max_epochs": 0.1},
    "evaluate_every": 1437, "device": "cpu",
}


def train(folder: str, payload: dict[str, Any]) -> None:
    """Run a trial, and print what of torch's compiler it imported."""
    before = set(sys.modules)
    from repro.worker.main import main

    main(folder, payload)
    found = sorted(name for name in set(sys.modules) - before if name.startswith(("torch._inductor", "networkx")))
    print("IMPORTED", len(found), flush=True)


@pytest.mark.slow
def test_a_rank_of_deepspeed_does_not_load_the_compiler(tmp_path: Path) -> None:
    pytest.importorskip("deepspeed")
    trial = Trial.model_validate({"suite": "s", "suite_digest": "d", "repeat": 0, "master_seed": 7, "choices": CHOICES})
    launcher = Local()
    launcher.open([*dict.fromkeys(trial.choices.preload()), "repro.worker.main"], "cpu")
    try:
        payload = {"log": "log.txt", "trial": trial.model_dump(mode="json", by_alias=True),
                   "launched_ns": time.monotonic_ns()}
        request = LaunchRequest("tests.flow.test_first_start:train", payload, 2, "cpu", tmp_path, 120.0)
        assert launcher.launch(request).ok
    finally:
        launcher.close()
    assert "IMPORTED 0" in (tmp_path / "rank0.log").read_text()
