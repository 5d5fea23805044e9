"""Preflight checks: each warns at its limit and not before; jumping clocks are distinguished from slow ones."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections import namedtuple
from pathlib import Path

import pytest

from repro.core.errors import UsageError
from repro.core.files import write_model
from repro.core.machine import Machine
from repro.program.file_readers import NO_TENSORBOARD
from repro.record.folder.store import RunFolder
from repro.runner import machine_watch, preflight
from repro.runner.context import Options
from repro.runner.machine_watch import MachineWatch
from repro.suite.file import read_suite
from repro.suite.planning.plan import Plan, make_plan
from tests.plans import planned, suite
from tests.records import SUITE, make_record

Usage = namedtuple("Usage", "total used free")


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    """Ranks on the CPU, two processes at most, 24 trials."""
    return make_record(tmp_path / "run", only=0).plan


@pytest.fixture(autouse=True)
def roomy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(1 << 40, 0, 1 << 40))


def before(plan: Plan, cores: int = 2, load: float | None = 0.0) -> list[str]:
    return preflight.before(plan, Machine(device="cpu", device_count=0, cores=cores), Path(), load)


def test_a_suitable_machine_has_no_warnings(plan: Plan) -> None:
    assert before(plan) == []
    assert before(plan, load=None) == []


@pytest.mark.parametrize(("compile_", "found", "chosen", "missing"), [
    ("true", "", "", True), ("true", "gcc", "", False), ("true", "clang", "", False), ("true", "", "cc-13", False),
    ("false", "", "", False), ("true", "g++", "", True)])
def test_compiling_for_a_gpu_needs_the_compiler_that_triton_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compile_: str, found: str, chosen: str, missing: bool
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: name if name == found else None)
    monkeypatch.setenv("CC", chosen)
    text = suite("gpus", device="cuda", processes=1, compile=compile_)
    said = preflight.missing_compiler(planned(tmp_path, text, machine=Machine("cuda", 1, 2)))
    assert ("install gcc" in said) is missing and bool(said) is missing


def test_a_busy_machine(plan: Plan) -> None:
    assert before(plan, load=0.5) == []
    assert before(plan, load=0.51) == ["its load is 0.51 on 2 core(s): other work slows trials, and not all alike"]


def test_too_few_cores_for_the_ranks_and_their_threads(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    assert before(plan, cores=1) == [
        "its 1 core(s) are too few for 2 threads of ranks: they wait for each other's cores"
    ]
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    assert "too few for 8 threads" in before(plan, cores=2)[0]


def test_too_little_room(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(1, 1, 5_000_000))
    disk, shared = before(plan)
    assert disk == "5 MB are free for the run folder, 294 MB may be needed"
    assert shared == "5 MB of shared memory are free, 2 ranks may need 8 MB"


def test_gpus_that_torch_cannot_compute_on_end_a_run_before_it_starts(
    tmp_path: Path, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver lists two; what torch says is that of a process of its own, here without any."""
    assert preflight.unusable_gpus(plan) == "", "its trials run on the processor"
    text = SUITE.replace("device: cpu", "device: cuda")
    there = make_plan(read_suite(str(written(tmp_path / "suite.yaml", text))).suite, Machine("cuda", 2, 2))
    assert "needs 2 GPU(s), and torch computes on 0 here: torch finds no GPU; " in preflight.unusable_gpus(there)
    monkeypatch.setattr(preflight, "proven_gpus", lambda: (2, ""))
    assert preflight.unusable_gpus(there) == ""


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> tuple[MachineWatch, dict[str, float]]:
    at = {"wall": 1e9, "monotonic": 5.0, "asleep": 3.0}
    monkeypatch.setattr(machine_watch, "_asleep", lambda: at["asleep"])
    found = MachineWatch(Path("/nowhere"), lambda: at["monotonic"], lambda: at["wall"])
    found.begin(gpus=False)
    return found, at


@pytest.mark.parametrize(("wall", "monotonic", "asleep", "said"), [
    (100.0, 100.0, 0.0, []),
    (100.4, 100.0, 0.0, []),  # slewed
    (103.0, 100.0, 0.0, ["the wall clock was set forward by 3.0 s"]),
    (40.0, 100.0, 0.0, ["the wall clock was set back by 60.0 s"]),
    (700.0, 100.0, 600.0, ["the machine slept for 600.0 s"]),
    (3600.0, 100.0, 600.0, ["the machine slept for 600.0 s", "the wall clock was set forward by 2900.0 s"]),
])
def test_clocks(
    clock: tuple[MachineWatch, dict[str, float]], wall: float, monotonic: float, asleep: float, said: list[str]
) -> None:
    watch, at = clock
    at["wall"] += wall
    at["monotonic"] += monotonic
    at["asleep"] += asleep
    assert watch.look() == [("clock", text) for text in said]
    assert watch.look() == [], "reported once"


def test_checkpoints_take_room(plan: Plan) -> None:
    pytest.importorskip("torch")
    suite = plan.suite.model_copy(update={"on_failure": "resume_from_checkpoint"})
    assert preflight.checkpoint_bytes(plan) == 0, "its suite requires none"
    trial = {**suite.trial, "engine": "ddp", "workload": {"kind": "digits-mlp", "hidden": 512, "depth": 1}}
    small = {**trial, "workload": {"kind": "digits-mlp", "hidden": 64, "depth": 1}}
    found = []
    for each in (trial, small):
        again = make_plan(suite.model_copy(update={"trial": each, "matrix": {}, "baseline": {}, "primary": None}),
                          Machine(device="cpu", device_count=0, cores=2))
        found.append(preflight.checkpoint_bytes(again))
    # 64 x 512 + 512 x 10 weights and their biases; two checkpoints and one being written, 16 bytes a weight
    assert found == [(64 * 512 + 512 + 512 * 10 + 10) * 48, (64 * 64 + 64 + 64 * 10 + 10) * 48]


@pytest.mark.slow
def test_a_real_small_disk_and_a_real_small_shared_memory(tmp_path: Path) -> None:
    """In a separate mount namespace: a run folder, and /dev/shm, on file systems of a megabyte."""
    plan, small = make_record(tmp_path / "record", only=0).folder.plan, Path(tempfile.mkdtemp())
    code = (
        "from pathlib import Path; from repro.runner import preflight as guards; "
        "from repro.core.machine import Machine; "
        f"from repro.suite.planning.plan import Plan; "
        f"import sys; plan = Plan.model_validate_json(sys.stdin.read()); "
        f"print('\\n'.join(guards.before(plan, Machine('cpu', 0, 64), Path({str(small)!r}), None)))")
    mounts = f"mount -t tmpfs -o size=1m none {small} && mount -t tmpfs -o size=1m none /dev/shm"
    done = subprocess.run(["unshare", "-m", "sh", "-c", f'{mounts} && exec "$0" -c "$1"', sys.executable, code],
                          input=plan.read_text(), capture_output=True, text=True, timeout=60, check=False)
    small.rmdir()
    if done.returncode and not done.stdout and ("unshare" in done.stderr or "mount" in done.stderr):
        pytest.skip(f"no mount namespace can be made here: {done.stderr.strip()[:80]}")
    disk, shared = done.stdout.splitlines()
    assert disk == "1 MB are free for the run folder, 294 MB may be needed"
    assert shared == "1 MB of shared memory are free, 2 ranks may need 8 MB"


def test_a_reader_whose_package_is_missing_is_named_before_a_program_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "train.py").write_text("")
    plan = planned(tmp_path, """\
suite: mine
trial:
  engine: {kind: program, run: [python, train.py, "{run_dir}"]}
  evaluation: {reader: tensorboard, tag: loss, logs: "{run_dir}", metric: loss, direction: lower}
  stop: {target: 1.5}
""")
    monkeypatch.setattr(shutil, "which", lambda name, path: name)
    for spec, found in ((None, [f"evaluation.reader: {NO_TENSORBOARD}"]), (object(), [])):
        monkeypatch.setattr(preflight, "find_spec", lambda name, spec=spec: spec)
        assert preflight.missing_commands(plan, RunFolder(tmp_path / "run")) == found


def test_another_command_of_a_program_on_path_is_not_resumed_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with another virtual environment, whose packages the harness does not see."""
    (tmp_path / "train.py").write_text("")
    plan = planned(tmp_path, """\
suite: mine
trial:
  engine: {kind: program, run: [python, train.py]}
  evaluation: {pattern: 'loss (?P<value>\\S+)', metric: loss, direction: lower}
  stop: {target: 1.5}
""")
    folder, machine = RunFolder(tmp_path), Machine("cpu", 0, 4)
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "python").symlink_to(sys.executable)
    monkeypatch.setenv("PATH", str(tmp_path / "one"), prepend=os.pathsep)
    write_model(folder.environment, preflight.check(plan, machine, folder, Options()).environment)
    assert preflight.check(plan, machine, folder, Options()).differences == ()
    monkeypatch.setenv("PATH", str(tmp_path / "other"), prepend=os.pathsep)
    with pytest.raises(UsageError, match=r"setting command python sha256:\w+, now sha256:"):
        preflight.check(plan, machine, folder, Options())
