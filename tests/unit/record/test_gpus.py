"""GPUs as nvidia-smi describes them, here a program that prints what it prints on a node with eight H100."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from repro.record.environment.environment import settings
from repro.record.environment.gpus import RATES, interconnect, stated_peak, used_gpus

ROW = "NVIDIA H100 80GB HBM3, 550.54.15, 81559 MiB, 700.00 W, 700.00 W, 1980 MHz, 2619 MHz, Enabled, Disabled, Default"
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
    line = ("NVIDIA H100 80GB HBM3, driver 550.54.15, 81559 MiB, power limit 700.00 W, by default 700.00 W, SM clock "
            "up to 1980 MHz, memory clock up to 2619 MHz, ECC Enabled, MIG Disabled, compute mode Default")
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


def smi(folder: Path, answers: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Put an nvidia-smi on PATH that answers as recorded; like the real one, it fails for anything that it lacks."""
    cases = []
    for number, (question, answer) in enumerate(answers.items()):
        (folder / f"answer-{number}").write_text(answer)
        cases.append(f'"{question}") cat {folder}/answer-{number} ;;')
    script = folder / "nvidia-smi"
    script.write_text('#!/bin/sh\ncase "$*" in\n' + "\n".join(cases)
                      + "\n*) echo 'Field is not a valid field to query.'; exit 2 ;;\nesac\n")
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


DGX_A100 = """\
        GPU0    GPU1    GPU2    GPU3    NIC0    NIC1    NIC2    NIC3    CPU Affinity    NUMA Affinity   GPU NUMA ID
GPU0     X      NV12    NV12    NV12    PXB     PXB     SYS     SYS     48-63,176-191   3               N/A
GPU1    NV12     X      NV12    NV12    PXB     PXB     SYS     SYS     48-63,176-191   3               N/A
GPU2    NV12    NV12     X      NV12    SYS     SYS     PXB     PXB     16-31,144-159   1               N/A
GPU3    NV12    NV12    NV12     X      SYS     SYS     PXB     PXB     16-31,144-159   1               N/A
"""
"""Of a DGX A100, its first four GPUs and NICs."""
DGX_1 = """\
        GPU0    GPU1    GPU2    GPU3    GPU4    mlx4_0  CPU Affinity
GPU0     X      PIX     PHB     PHB     SYS     PHB     0-9,20-29
GPU1    PIX      X      PHB     PHB     SYS     PHB     0-9,20-29
GPU2    PHB     PHB      X      PIX     SYS     PHB     0-9,20-29
GPU3    PHB     PHB     PIX      X      SYS     PHB     0-9,20-29
GPU4    SYS     SYS     SYS     SYS      X      SYS     10-19,30-39
"""
"""Of a server of 2017, whose nvidia-smi names adapters by their driver and knows no NUMA columns."""
RTX_5090 = """\
\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID
GPU0\t X \tPHB\t0-63\t0\t\tN/A
GPU1\tPHB\t X \t0-63\t0\t\tN/A
"""
LISTED = """\
GPU 0: NVIDIA A100-SXM4-80GB (UUID: GPU-513536b6-7d19-9063-b049-1e69664bb298)
  MIG 1g.20gb     Device  0: (UUID: MIG-ce861fb0-a248-58ce-a9a8-f9adbc22a66a)
  MIG 1g.20gb     Device  1: (UUID: MIG-a45882f0-9215-5733-a0c1-49286ab31cb5)
GPU 1: NVIDIA A100-SXM4-80GB (UUID: GPU-d8594bd4-0fc3-8595-e355-7c98138f3b95)
"""
UUIDS = ("GPU-513536b6-7d19-9063-b049-1e69664bb298", "GPU-d8594bd4-0fc3-8595-e355-7c98138f3b95")
OLD = "--query-gpu=index,uuid,name,driver_version,memory.total --format=csv,noheader"


@pytest.mark.parametrize(("topology", "numbers", "expected"), [
    (DGX_A100, (0, 3), "between GPUs: NVLink (NV12)"),
    (DGX_1, (0, 1), "between GPUs: one PCIe switch (PIX)"),
    (DGX_1, (1, 2, 4), "between GPUs: a PCIe host bridge (PHB), the link between NUMA nodes (SYS)"),
    (RTX_5090, (0, 1), "between GPUs: a PCIe host bridge (PHB)"),
])
def test_recorded_topologies_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, topology: str, numbers: tuple[int, ...], expected: str
) -> None:
    indices = "".join(f"{number}, GPU-{number}\n" for number in range(8))
    smi(tmp_path, {"topo -m": topology, "--query-gpu=index,uuid --format=csv,noheader": indices}, monkeypatch)
    visible = ",".join(map(str, numbers))
    assert interconnect(len(numbers), {"CUDA_VISIBLE_DEVICES": visible}) == expected


def test_an_nvidia_smi_that_lacks_a_field_still_names_the_devices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    smi(tmp_path, {OLD: "0, GPU-1, Tesla V100-SXM2-16GB, 418.87.00, 16130 MiB\n"}, monkeypatch)
    assert used_gpus({}) == ("Tesla V100-SXM2-16GB, driver 418.87.00, 16130 MiB",)


def test_a_slice_of_a_gpu_is_named_with_its_profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = "".join(f"{number}, {uuid}, NVIDIA A100-SXM4-80GB, 535.54.03, 81920 MiB\n"
                   for number, uuid in enumerate(UUIDS))
    smi(tmp_path, {OLD: rows, "-L": LISTED}, monkeypatch)
    assert used_gpus({"CUDA_VISIBLE_DEVICES": "MIG-a45882f0-9215-5733-a0c1-49286ab31cb5"}) == (
        "slice 1g.20gb of NVIDIA A100-SXM4-80GB, driver 535.54.03, 81920 MiB",)


@pytest.mark.parametrize(("environment", "doubtful"), [
    ({"CUDA_VISIBLE_DEVICES": "0"}, True), ({"CUDA_VISIBLE_DEVICES": "GPU-1"}, False), ({}, False),
    ({"CUDA_VISIBLE_DEVICES": "0", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, False)])
def test_the_number_of_one_of_unlike_gpus_is_said_to_be_uncertain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], doubtful: bool
) -> None:
    smi(tmp_path, {OLD: "0, GPU-1, NVIDIA T1000, 535.54.03, 4096 MiB\n1, GPU-2, NVIDIA H100 PCIe, 535.54.03, "
                        "81559 MiB\n"}, monkeypatch)
    assert ("CUDA_DEVICE_ORDER" in used_gpus(environment)[0]) is doubtful


def test_doctor_prints_the_gpus_and_their_links(node: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from repro.core.machine import Machine
    from repro.runner import doctor

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    monkeypatch.setattr("repro.core.machine.detect", lambda: Machine("cuda", 2, 8))
    found = {item.what: item.found for item in doctor._gpus()}
    assert set(found) == {"GPU 0", "GPU 1", "interconnect"}
    assert "power limit 700.00 W" in found["GPU 0"] and found["interconnect"] == "between GPUs: NVLink (NV18)"


@pytest.mark.parametrize(("device", "number_format", "tera"), [
    ("NVIDIA A100-SXM4-80GB", "bfloat16", 312.0), ("NVIDIA A100-SXM4-80GB", "tf32", 156.0),
    ("NVIDIA A100 80GB PCIe", "float32", 19.5), ("NVIDIA H100 80GB HBM3", "bfloat16", 989.5),
    ("NVIDIA H100 PCIe", "float16", 756.5), ("Tesla V100-SXM2-32GB", "float16", 125.0),
    ("NVIDIA GeForce RTX 4090", "bfloat16", 165.2), ("NVIDIA L4", "bfloat16", 121.0),
])
def test_a_peak_is_dense_and_of_the_format(device: str, number_format: str, tera: float) -> None:
    found = stated_peak(device, number_format)
    assert found is not None and found.flops == pytest.approx(tera * 1e12)
    assert "data sheet" in found.source or "white paper" in found.source


@pytest.mark.parametrize(("device", "number_format"), [
    ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", "bfloat16"), ("NVIDIA H100", "bfloat16"), ("NVIDIA L40", "bfloat16"),
    ("Tesla V100-SXM2-32GB", "bfloat16"), ("Tesla T4", "tf32"), ("cpu", "float32"), ("NVIDIA L4", "int8")])
def test_a_slice_an_unknown_device_or_a_format_that_it_lacks_has_none(device: str, number_format: str) -> None:
    assert stated_peak(device, number_format) is None


def test_narrower_formats_are_no_slower() -> None:
    for device, rates in RATES.items():
        known = [rate for rate in (rates.float32, rates.tf32, rates.bfloat16) if rate is not None]
        assert known == sorted(known), device
