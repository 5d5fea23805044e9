"""Whole trials on GPUs through the command line: killed and resumed, with checkpoints of every engine."""

from __future__ import annotations

from pathlib import Path

import pytest

from repro.core.machine import detect
from tests.gpu.trials import FED, KILLED, LIMIT_SECONDS, end, kill_a_rank, results, start

MACHINE = detect()
DEVICES = [pytest.param("cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(
    MACHINE.device != "cuda", reason="no GPU that the installed torch can use")]),
    pytest.param("cpu", marks=pytest.mark.slow)]
ENGINES = ["single", "ddp", "fsdp", *(f"{{kind: deepspeed, stage: {stage}}}" for stage in range(4))]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("engine", ENGINES)
def test_a_killed_trial_resumes_to_the_same_weights(tmp_path: Path, engine: str, processes: int, device: str) -> None:
    if device == "cuda" and processes > MACHINE.device_count:
        pytest.skip(f"needs {processes} GPUs, there are {MACHINE.device_count}")
    if engine == "single" and processes > 1:
        pytest.skip("engine single trains in one process")
    text = KILLED.format(engine=engine, processes=processes, device=device, epochs=20)
    whole, killed = start(tmp_path / "whole", text), None
    try:
        assert "run" in whole.communicate(timeout=LIMIT_SECONDS)[0]
        killed = start(tmp_path / "killed", text)
        kill_a_rank(killed, tmp_path / "killed")
        said = killed.communicate(timeout=LIMIT_SECONDS)
        (found,), (expected,) = results(tmp_path / "killed"), results(tmp_path / "whole")
        assert found.attempt == 2, said
        assert found.resumed, said
        assert found.hashes["final_weights"] == expected.hashes["final_weights"]
    finally:
        end(whole)
        end(killed)


@pytest.mark.parametrize("device", DEVICES)
def test_input_workers_feed_the_same_bytes(tmp_path: Path, device: str) -> None:
    """On a GPU their batches come through pinned memory and are copied while the step before computes."""
    run = start(tmp_path / "fed", FED.format(device=device))
    try:
        said = run.communicate(timeout=LIMIT_SECONDS)
    finally:
        end(run)
    found = results(tmp_path / "fed")
    assert [item.status for item in found] == ["ok", "ok"], said
    assert {item.effective["input_workers"] for item in found} == {"0", "2"}
    assert len({item.hashes["final_weights"] for item in found}) == 1
