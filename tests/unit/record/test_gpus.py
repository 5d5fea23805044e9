"""GPUs as nvidia-smi describes them, here a program that prints what it prints on a node with eight H100."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from repro.record.environment import settings
from repro.record.gpus import interconnect, used_gpus

ROW = "NVIDIA H100 80GB HBM3, 550.54.15, 81559 MiB, 700.00 W, 1980 MHz, 2619 MHz, Enabled, Disabled, Default"
HEAD = "\t\x1b[4mGPU0\tGPU1\tGPU2\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m"
TOPOLOGY = f"""{HEAD}
GPU0\t X \tNV18\tSYS\tPIX\t0-51\t0\t\tN/A
GPU1\tNV18\t X \tSYS\tNODE\t0-51\t0\t\tN/A
GPU2\tSYS\tSYS\t X \tSYS\t52-103\t1\t\tN/A
NIC0\tPIX\tNODE\tSYS\t X

Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)
"""


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "topology").write_text(TOPOLOGY)
    script = tmp_path / "nvidia-smi"
    script.write_text(f"""#!/bin/sh
case "$*" in
topo*) cat {tmp_path}/topology ;;
*index,uuid,*) for k in 0 1 2; do echo "$k, GPU-{'a' * 8}$k, {ROW}"; done ;;
*) for k in 0 1 2; do echo "$k, GPU-{'a' * 8}$k"; done ;;
esac
""")
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    return tmp_path


def test_a_gpu_is_one_line_with_its_limits_and_modes(node: Path) -> None:
    line = ("NVIDIA H100 80GB HBM3, driver 550.54.15, 81559 MiB, power limit 700.00 W, SM clock up to 1980 MHz, memory "
            "clock up to 2619 MHz, ECC Enabled, MIG Disabled, compute mode Default")
    assert used_gpus({}) == (line,) * 3


@pytest.mark.parametrize(("visible", "count"), [
    ("0", 1), ("2,0", 2), ("", 0), ("0,7,1", 1), ("GPU-aaaaaaaa1", 1), ("-1", 0), (" 1 , 2 ", 2)])
def test_only_the_gpus_that_may_be_used_are_recorded(node: Path, visible: str, count: int) -> None:
    assert len(used_gpus({"CUDA_VISIBLE_DEVICES": visible})) == count


@pytest.mark.parametrize(("visible", "devices", "expected"), [
    ("0,1", 2, "between GPUs: NVLink (NV18)"),
    ("0,2", 2, "between GPUs: the link between NUMA nodes (SYS)"),
    (None, 3, "between GPUs: NVLink (NV18), the link between NUMA nodes (SYS)"),
    ("0", 1, "one GPU: nothing is sent between devices"),
    (None, 0, "loopback of one machine"),
])
def test_links_are_those_between_the_gpus_that_are_used(
    node: Path, visible: str | None, devices: int, expected: str
) -> None:
    assert interconnect(devices, {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}) == expected


def test_without_nvidia_smi_nothing_is_invented(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert used_gpus({}) == ()
    assert interconnect(2, {}) == "between GPUs: unknown (nvidia-smi topo -m says nothing)"


def test_variables_that_change_gpu_training_are_recorded_and_hosts_are_not() -> None:
    given = {"NVIDIA_TF32_OVERRIDE": "0", "CUDA_LAUNCH_BLOCKING": "1", "CUDA_DEVICE_MAX_CONNECTIONS": "1",
             "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True", "UCX_TLS": "rc", "FI_PROVIDER": "efa",
             "SLURM_NTASKS": "8", "SLURM_JOB_NODELIST": "node[1-4]"}
    assert set(settings(given)) == set(given) - {"SLURM_JOB_NODELIST"}
