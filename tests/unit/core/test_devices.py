"""The one place that knows devices: which are found, and that nothing else of the package names a kind."""

from __future__ import annotations

import ast
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from repro.core import devices
from repro.core.devices import AMD, GPU, NVIDIA, SELECTORS, count_gpus, gpus_of, of_rank, on_gpu

ROOT = Path(__file__).parents[3]
PLACES = ("repro/core/devices.py", "repro/engines/zero/", "repro/engines/deepspeed_zero.py",
          "repro/comm/runtime/group.py", "repro/comm/algorithms/backend.py")
"""The one place, DeepSpeed's adapter, the vendors' process groups."""
NAMES = (GPU, "nccl")


def knowledge(tree: ast.AST) -> Iterator[str]:
    """Yield what a file knows of kinds of device: values, such as a field's choices and a table's keys, are no
    knowledge.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr == GPU and isinstance(node.value, ast.Name) \
                and node.value.id == "torch":
            yield f"{node.lineno}: torch.cuda"
        elif isinstance(node, ast.Attribute) and node.attr == "is_cuda":
            yield f"{node.lineno}: is_cuda"
        elif isinstance(node, ast.Compare):
            yield from (f"{node.lineno}: compares with {item.value!r}" for item in ast.walk(node)
                        if isinstance(item, ast.Constant) and item.value in NAMES)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "startswith":
            yield from (f"{node.lineno}: starts with {item.value!r}" for item in ast.walk(node)
                        if isinstance(item, ast.Constant) and str(item.value).partition(":")[0] in NAMES)
        elif isinstance(node, ast.ImportFrom | ast.Import):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [item.name for item in node.names]
            yield from (f"{node.lineno}: imports {name}" for name in names if name.startswith("torch.cuda"))


@pytest.mark.parametrize(("code", "count"), [
    ("x = torch.cuda.Event()", 1), ("if tensor.is_cuda: pass", 1), ("device.startswith('cuda')", 1),
    ("kind == 'cuda'", 1), ("name in ('nccl', 'gloo')", 1), ("import torch.cuda", 1),
    ("from torch.cuda import nccl", 1), ("device: Literal['auto', 'cpu', 'cuda'] = 'auto'", 0),
    ("TABLE = {'cuda': 1}", 0), ("torch.version.cuda", 0), ("device != 'cpu'", 0)])
def test_knowledge_of_a_kind_is_seen(code: str, count: int) -> None:
    assert len(list(knowledge(ast.parse(code)))) == count


def test_nothing_else_knows_a_kind_of_device() -> None:
    found = [f"{name}:{what}" for path in sorted((ROOT / "repro").rglob("*.py"))
             if not (name := path.relative_to(ROOT).as_posix()).startswith(PLACES)
             for what in knowledge(ast.parse(path.read_text(encoding="utf-8")))]
    assert found == [], "ask repro.core.devices"


def test_names_of_devices() -> None:
    assert [of_rank("cpu", 3), of_rank(GPU, 3)] == ["cpu", "cuda:3"]
    assert [on_gpu("cpu"), on_gpu("cuda"), on_gpu("cuda:1")] == [False, True, True]
    assert [gpus_of("cpu"), gpus_of("cuda"), gpus_of("cuda:1")] == [[], [0], [1]]


@pytest.fixture
def build(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """The version of the installed torch."""
    known = {"torch": "2.13.0"}
    monkeypatch.setattr(devices, "version", lambda name: known[name])
    for name in SELECTORS:
        monkeypatch.delenv(name, raising=False)
    return known


@pytest.mark.parametrize(("version", "vendor"), [
    ("2.13.0", NVIDIA), ("2.13.0+cu128", NVIDIA), ("2.13.0+rocm6.4", AMD), ("2.13.0+cpu", None)])
def test_the_build_of_torch_tells_whose_gpus_it_can_use(
    build: dict[str, str], version: str, vendor: devices.Vendor | None
) -> None:
    build["torch"] = version
    assert devices.vendor_here() is vendor


@pytest.fixture
def two(build: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver that lists two GPUs, one of them divided."""
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 'GPU 0: NVIDIA H100 (UUID: GPU-a)'\necho '  MIG 1g.10gb Device 0: (UUID: MIG-b)'\n"
                    "echo 'GPU 1: NVIDIA H100 (UUID: GPU-c)'\n")
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)


@pytest.mark.usefixtures("two")
@pytest.mark.parametrize(("environment", "count"), [
    ({}, 2), ({"CUDA_VISIBLE_DEVICES": "1"}, 1), ({"CUDA_VISIBLE_DEVICES": ""}, 0), ({"CUDA_VISIBLE_DEVICES": "-1"}, 0),
    ({"CUDA_VISIBLE_DEVICES": "GPU-a,GPU-c,GPU-x"}, 2), ({"HIP_VISIBLE_DEVICES": "0"}, 2)])
def test_nvidias_gpus_are_counted_as_far_as_they_are_visible(environment: dict[str, str], count: int) -> None:
    assert count_gpus(environment) == count


def test_amds_gpus_are_the_nodes_of_its_driver_that_compute(tmp_path: Path) -> None:
    assert devices.amd_gpus(tmp_path) == 0
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/kfd").touch()
    for number, units in enumerate((0, 304, 304)):  # the first node is the processor
        place = tmp_path / f"sys/class/kfd/kfd/topology/nodes/{number}"
        place.mkdir(parents=True)
        (place / "properties").write_text(f"cpu_cores_count {0 if units else 64}\nsimd_count {units}\n")
    assert devices.amd_gpus(tmp_path) == 2


@pytest.mark.parametrize(("environment", "count"), [
    ({}, 4), ({"HIP_VISIBLE_DEVICES": "0,2"}, 2), ({"ROCR_VISIBLE_DEVICES": "3"}, 1),
    ({"ROCR_VISIBLE_DEVICES": "0,1,2", "HIP_VISIBLE_DEVICES": "0"}, 1), ({"CUDA_VISIBLE_DEVICES": "1"}, 1)])
def test_amds_selectors_apply_together(
    build: dict[str, str], monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], count: int
) -> None:
    build["torch"] = "2.13.0+rocm6.4"
    monkeypatch.setattr(devices, "amd_gpus", lambda: 4)
    assert count_gpus(environment) == count
