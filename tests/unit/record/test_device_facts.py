"""What is measured on GPUs: the child's answers, a child that hangs or dies; locks of builds that were killed."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from repro.core.machine import Machine
from repro.record.environment.device_facts import DeviceFacts, measure, proven_gpus, waiting_locks
from repro.runner import doctor
from repro.runner.preflight import changed_copies

COPY = {"sender": "0", "receiver": "1", "bytes_per_second": 2e11, "latency_seconds": 1e-5, "direct": True,
        "intact": True}
H100 = "NVIDIA H100 80GB HBM3"


def answered(code: str, limit_seconds: float = 60) -> DeviceFacts:
    return measure(limit_seconds, (sys.executable, "-c", code))


def test_what_the_child_tells_later_replaces_what_it_told_before() -> None:
    found = answered("print('{\"flops\": {\"float32\": 1}}'); print('of a library'); "
                     "print('{\"flops\": {\"float32\": 2, \"tf32\": 3}, \"doing\": \"x\"}')")
    assert (found.flops, found.problem) == ({"float32": 2, "tf32": 3}, "")


@pytest.mark.slow
def test_a_child_that_hangs_loses_only_what_comes_after() -> None:
    found = answered("import time\nprint('{\"fused\": [\"SGD\"]}\\n{\"doing\": \"copy from 0 to 1\"}', flush=True)\n"
                     "time.sleep(1000)", 3)
    assert found.fused == ("SGD",)
    assert found.problem == "no end within 3 s, at: copy from 0 to 1"


@pytest.mark.parametrize(("code", "problem"), [
    ("import os\nprint('{\"doing\": \"product in tf32\"}', flush=True)\nos.abort()",
     "ended by code -6, at: product in tf32: it said nothing"),
    ("raise RuntimeError('no driver')", "ended by code 1, at: the start: RuntimeError: no driver"),
    ("print('{\"seen\": 1}')", "an answer cannot be read: Extra inputs are not permitted"),
    ("print('{\"problem\": \"torch finds no GPU\"}')", "torch finds no GPU")])
def test_a_child_that_fails_says_where(code: str, problem: str) -> None:
    assert answered(code).problem == problem


@pytest.mark.slow
def test_without_a_gpu_the_real_child_says_so() -> None:
    torch = pytest.importorskip("torch")
    if torch.accelerator.is_available():
        pytest.skip("there is one")
    assert measure().problem == "torch finds no GPU" and proven_gpus() == (0, "torch finds no GPU")


@pytest.mark.parametrize(("code", "found"), [
    ("print('noise')\nprint('{\"devices\": [\"A\", \"B\"]}')", (2, "")),
    ("import sys\nsys.exit('torch: undefined symbol')", (0, "ended by code 1, at: the start: torch: undefined symbol")),
    ("import os\nos._exit(7)", (0, "ended by code 7, at: the start: it said nothing"))])
def test_a_gpu_counts_when_a_process_has_computed_on_it(code: str, found: tuple[int, str]) -> None:
    assert proven_gpus((sys.executable, "-c", code)) == found


def words(**facts: object) -> dict[str, tuple[str, str]]:
    return {item.what: (item.state, item.found) for item in doctor.tried(DeviceFacts(devices=(H100,), **facts))}


def test_doctor_prints_what_was_measured() -> None:
    found = words(kernel_seconds=2e-5, flops={"bfloat16": 7e14}, fused=["SGD"], copies=[COPY], seconds=4,
                  deterministic={"product": "yes", "max pooling": "no"}, refused={"product in tf32": "none"})
    assert found["kernel"] == ("ok", "20 us until the host knows that it ended")
    assert found["product in bfloat16"] == ("ok", "700 TFLOP/s, 71% of the stated peak")
    assert found["deterministic kernels"] == ("note", "not for max pooling (no)")
    assert found["copy from 0 to 1"] == ("ok", "200 GB/s, 10 us, direct")
    assert found["product in tf32"] == ("note", "refused: none")
    assert found["tried"] == ("ok", "all, in 4 s")
    assert found["nvcc"][0] == "note"


def test_a_copy_that_arrives_changed_is_missing_and_a_warning_of_runs() -> None:
    changed = {**COPY, "intact": False}
    assert words(copies=[changed])["copy from 0 to 1"][0] == "missing"
    facts = DeviceFacts.model_validate({"copies": [COPY, changed]})
    assert [text.partition(":")[0] for text in changed_copies(facts)] == ["a copy from 0 to 1 arrived changed"]
    assert list(changed_copies(None)) == []


def test_rates_of_a_stand_in_are_called_a_processors() -> None:
    assert "processor" in {item.what: item.found for item in
                           doctor.tried(DeviceFacts(devices=("Emulated H100",)))}["emulated"]


def test_doctor_says_that_there_is_no_gpu_to_try(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    monkeypatch.setattr(doctor.machine, "detect", lambda: Machine("cpu", 0, 2))
    found, = doctor.examine_devices()
    assert found.found.startswith("no GPU here")


def test_a_lock_that_no_process_holds_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By torch's own lock: it keeps its file open while it builds."""
    pytest.importorskip("torch")
    from torch.utils.file_baton import FileBaton

    for name in ("py311_cu130/left", "py311_cu130/building", "py311_cpu/built"):
        (tmp_path / "torch_extensions" / name).mkdir(parents=True)
    left = tmp_path / "torch_extensions/py311_cu130/left/lock"
    left.touch()
    baton = FileBaton(str(left.parents[1] / "building/lock"))
    assert baton.try_acquire()
    try:
        for place in ({"XDG_CACHE_HOME": str(tmp_path)}, {"TORCH_EXTENSIONS_DIR": str(left.parents[1])}):
            assert list(waiting_locks(place)) == [left]
    finally:
        os.close(baton.fd)
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(left.parents[1]))
    assert [(item.what, item.state, item.mend) for item in doctor._locks()] == [
        ("build of building", "note", f"rm {baton.lock_file_path}"), ("build of left", "note", f"rm {left}")]


def test_torchs_builds_are_where_the_locks_are_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    from torch.utils import cpp_extension

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("TORCH_EXTENSIONS_DIR", raising=False)
    folder = Path(cpp_extension._get_build_directory("made", False))
    (folder / "lock").touch()
    assert list(waiting_locks()) == [folder / "lock"]


def test_what_doctor_imports_sends_no_telemetry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_DISABLE_TELEMETRY", raising=False)
    assert doctor._ran("import os; print(os.environ['MLFLOW_DISABLE_TELEMETRY'])") == (True, "true")
