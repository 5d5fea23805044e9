"""Throttling of a machine: counters that grew are reported, others are not.

The control group is a real one where this process may make one. `nvidia-smi` is a made-up program on PATH: there is no
GPU here, and the names of its fields are NVIDIA's.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from repro.core.machine import Machine, load_now
from repro.runner import machine_watch, preflight
from repro.runner.machine_watch import MachineWatch
from tests.records import make_record


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """The files that the kernel keeps counters in, as on a machine with two cores and a container's limit."""
    for core in (0, 1):
        place = tmp_path / f"sys/devices/system/cpu/cpu{core}/thermal_throttle"
        place.mkdir(parents=True)
        (place / "core_throttle_count").write_text("4\n")
        (place / "package_throttle_count").write_text("7\n")
    (tmp_path / "sys/fs/cgroup/jobs/one").mkdir(parents=True)
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/jobs/one\n")
    (tmp_path / "sys/fs/cgroup/jobs/one/cpu.stat").write_text("usage_usec 9\nnr_throttled 3\nthrottled_usec 2000000\n")
    (tmp_path / "proc/stat").write_text("cpu  10 0 10 100 0 0 0 50 0 0\ncpu0 1 1 1\n")
    return tmp_path


def watch(root: Path, gpus: bool = False) -> MachineWatch:
    """A watch that began ten seconds ago."""
    now = iter([100.0, 100.0, *[110.0] * 8])
    found = MachineWatch(root, lambda: next(now), lambda: next(now))
    found.begin(gpus)
    return found


def test_unchanged_counters_are_not_reported(tree: Path) -> None:
    assert watch(tree).look() == []
    assert watch(tree / "no such place").look() == []


def test_heat(tree: Path) -> None:
    found = watch(tree)
    (tree / "sys/devices/system/cpu/cpu1/thermal_throttle/core_throttle_count").write_text("9\n")
    assert found.look() == [("throttled", "heat slowed the processor down 5 times")]
    assert found.look() == [], "reported once"


@pytest.mark.parametrize(("version", "after"), [(2, "throttled_usec 3500000"), (1, "throttled_time 3500000000")])
def test_a_control_groups_limit(tree: Path, version: int, after: str) -> None:
    place = tree / "sys/fs/cgroup/jobs/one/cpu.stat"
    if version == 1:
        (tree / "proc/self/cgroup").write_text("4:memory:/x\n3:cpu,cpuacct:/jobs/one\n")
        place = tree / "sys/fs/cgroup/cpu,cpuacct/jobs/one/cpu.stat"
        place.parent.mkdir(parents=True)
        place.write_text("throttled_time 2000000000\n")
    found = watch(tree)
    place.write_text(after + "\n")
    assert found.look() == [("throttled", "a control group's limit held its processes back for 1.5 of 10.0 s")]


def test_a_hypervisor(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    found = watch(tree)
    ticks = os.sysconf("SC_CLK_TCK")
    (tree / "proc/stat").write_text(f"cpu  10 0 10 100 0 0 0 {50 + ticks * 5} 0 0\n")
    assert found.look() == [("throttled", "the hypervisor gave 25 % of the processors' time to others")]


def nvidia_smi(folder: Path, monkeypatch: pytest.MonkeyPatch, counters: str, mask: str = "0x0", apps: str = "") -> None:
    """A made-up nvidia-smi that answers three questions."""
    (folder / "nvidia-smi").write_text(
        "#!/bin/sh\ncase \"$1\" in\n"
        f"*clocks_event_reasons_counters*) {f'echo {counters!r}' if counters else 'echo not a field; exit 2'};;\n"
        f"*clocks_throttle_reasons.active*) echo 'GPU-a, 0, {mask}';;\n*query-compute-apps*) printf '%b' '{apps}';;\n"
        "*index,uuid*) printf '0, GPU-a\n1, GPU-b\n';;\nesac\n")
    (folder / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}/usr/bin{os.pathsep}/bin")


def test_a_gpus_own_counters(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nvidia_smi(tree, monkeypatch, "GPU-a, 0, 0 us, 1000000 us, 0 us, [N/A]")
    found = watch(tree, gpus=True)
    nvidia_smi(tree, monkeypatch, "GPU-a, 0, 0 us, 3000000 us, 20 us, [N/A]")
    assert found.look() == [("throttled", "GPU 0 by heat (driver): its clock was held back for 2.0 of 10.0 s")]
    assert watch(tree).look() == [], "trials on the CPU do not ask"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-b")
    assert watch(tree, gpus=True).look() == [], "nor those on another GPU"


def test_an_older_driver_tells_of_the_moment(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nvidia_smi(tree, monkeypatch, "", "0x0000000000000060")
    found = watch(tree, gpus=True)
    assert found.look() == [("throttled", "GPU 0 is held back by heat (driver), heat (hardware)")]
    nvidia_smi(tree, monkeypatch, "", "0x0000000000000005")  # idle, and capped by power: not a fault
    assert found.look() == []


def test_others_on_the_gpu(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = make_record(tree / "run", only=0).plan
    nvidia_smi(tree, monkeypatch, "", apps=r"GPU-a, 4711, /usr/bin/python3\nGPU-b, 12, [Not Found]\n")
    assert preflight.before(plan, Machine("cuda", 1, 64), tree, 0.0) == [], "its trials run on the processor"
    plan = plan.model_copy(update={"cells": tuple(
        cell.model_copy(update={"choices": cell.choices.model_copy(update={"device": "cuda"})})
        for cell in plan.cells)})
    said = preflight.before(plan, Machine("cuda", 1, 64), tree, 0.0)
    assert said == ["other processes compute on its GPUs: python3 (4711), [Not Found] (12)"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert machine_watch.others_on_gpus() == ["[Not Found] (12)"], "the other GPU is not of this run"
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    nvidia_smi(tree, monkeypatch, "", apps="")
    assert preflight.before(plan, Machine("cuda", 1, 64), tree, 0.0) == []
    monkeypatch.setenv("PATH", str(tree / "empty"))
    assert machine_watch.others_on_gpus() == []


def test_a_real_busy_loop_is_seen_at_once() -> None:
    """A load that has just started: the average of the last minute would not show it."""
    spinning = [subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"]) for _ in range(2)]
    try:
        time.sleep(0.2)
        busy = load_now(0.4)
    finally:
        for process in spinning:
            process.kill()
            process.wait()
    assert 0.9 < busy <= (os.cpu_count() or 1) + 0.1


@pytest.mark.slow
def test_a_real_control_group_that_holds_back() -> None:
    """A tenth of a core for a loop that could use all of it."""
    base = Path("/sys/fs/cgroup/cpu") if Path("/sys/fs/cgroup/cpu").is_dir() else Path("/sys/fs/cgroup")
    group = base / f"repro-test-{os.getpid()}"
    try:
        group.mkdir()
        limits = {"cpu.cfs_quota_us": "10000"} if base.name == "cpu" else {"cpu.max": "10000 100000"}
        for name, value in limits.items():
            (group / name).write_text(value)
    except OSError as error:
        if group.is_dir():
            group.rmdir()
        pytest.skip(f"no control group can be made here: {error}")
    code = (f"import os, time; open('{group}/cgroup.procs', 'w').write(str(os.getpid()))\n"
            "from repro.runner.machine_watch import MachineWatch\nw = MachineWatch(); w.begin('cpu')\n"
            "e = time.monotonic() + 1.0\n"
            "while time.monotonic() < e: pass\nprint(w.look())")
    try:
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    finally:
        group.rmdir()
    assert "a control group's limit held its processes back for" in done.stdout


def test_this_machine_just_now() -> None:
    found = MachineWatch()
    found.begin("cpu")
    assert not [text for kind, text in found.look() if kind == "clock"]
