"""What a GPU changes in a rank, as far as it shows without one: kernels, random states, refusals in the plan."""

from __future__ import annotations

import os
import stat
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from repro.comm.algorithms.backend import Backend
from repro.core.errors import SuiteError
from repro.core.machine import Machine
from repro.core.random_streams import Streams
from repro.engines.deepspeed_zero import DeepSpeedZero
from repro.engines.precisions import Bf16Master, Fp16Autocast
from repro.engines.torch_engines import Single
from repro.launchers.local import Local
from repro.optimizers import rules
from repro.optimizers.rules import Adam, AdamW, Lion, RmsProp, Rule, Sgd
from repro.seams.plugin import ModelOptions
from repro.seams.training import Engine, Job
from repro.suite.planning.plan import Plan
from tests.engine_ranks import build_parts, images
from tests.plans import planned, setting, suite

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.tensor import DTensor, Shard  # noqa: E402

from repro.engines.plain.fsdp_session import _groups_of  # noqa: E402
from repro.engines.plain.state import RandomStates, kernel_of  # noqa: E402
from repro.optimizers.rules import kernels  # noqa: E402


@pytest.fixture
def mesh(tmp_path: Path) -> Any:
    """A world of one rank, whose tensors are divided all the same."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        yield init_device_mesh("cpu", (1,))
    finally:
        dist.destroy_process_group()


def divided(mesh: Any, device: str) -> torch.nn.Parameter:
    local = torch.ones(4, 3, device=device)
    return torch.nn.Parameter(DTensor.from_local(local, mesh, [Shard(0)], run_check=False))


def test_sgd_is_not_fused_where_tensors_are_divided(mesh: Any) -> None:
    """torch divides Adam's fused kernel over the ranks, and has no rule for SGD's."""
    part, whole = divided(mesh, "meta"), torch.nn.Parameter(torch.ones(4, 3, device="meta"))
    assert kernels([{"params": [part]}], on_divided=False) == {"foreach": True, "fused": False}
    assert kernels([{"params": [part]}], on_divided=True) == {"foreach": False, "fused": True}
    assert kernels([{"params": [whole]}], on_divided=False) == {"foreach": False, "fused": True}
    assert kernels([{"params": [divided(mesh, "cpu")]}], on_divided=True) == {"foreach": False, "fused": False}
    assert (Sgd.fuses, Adam.fuses, AdamW.fuses) == ("whole", "divided", "divided")


@pytest.mark.parametrize("rule", [RmsProp(lr=0.1), Lion(lr=0.1)], ids=lambda rule: type(rule).__name__)
def test_rules_without_a_fused_kernel_step_all_tensors_at_once_on_a_gpu(rule: Rule, mesh: Any) -> None:
    """Else DDP would launch some kernels for each of hundreds of tensors, and ZeRO, whose tensors are flat, for one."""
    for made, chosen in ((torch.ones(2, device="meta"), True), (torch.ones(2), False),
                         (divided(mesh, "meta"), True), (divided(mesh, "cpu"), False)):
        assert rule.chosen_kernels([{"params": [made]}]) == {"foreach": chosen}


@pytest.mark.parametrize("kind", ["SGD", "Adam", "AdamW", "RMSprop"])
def test_the_kernels_that_are_chosen_step_divided_tensors(mesh: Any, kind: str) -> None:
    """With gradients of a step, and as the plain loop does: to the last bit."""
    chosen = {"fused" if kind.startswith("Adam") else "foreach": True}
    more: dict[str, Any] = {"momentum": 0.9, "weight_decay": 0.1} if "foreach" in chosen else {}
    found = []
    for options in (chosen, dict.fromkeys(chosen, False)):
        parameter = divided(mesh, "cpu")
        optimizer = getattr(torch.optim, kind)([parameter], lr=0.1, **more, **options)
        for step in range(3):
            parameter.grad = torch.full_like(parameter, 0.3 + step)
            optimizer.step()
        found.append(parameter.detach().to_local())
    torch.testing.assert_close(found[0], found[1], rtol=0 if "foreach" in chosen else 1e-6, atol=0)


def test_the_kernel_that_steps_is_read_back() -> None:
    parameter = torch.nn.Parameter(torch.ones(2))
    assert kernel_of(torch.optim.SGD([parameter], foreach=False)) == {}
    assert kernel_of(torch.optim.SGD([parameter], foreach=True)) == {"optimizer_kernel": "foreach"}
    assert kernel_of(torch.optim.AdamW([parameter], fused=True)) == {"optimizer_kernel": "fused"}


def test_masters_have_the_memory_format_of_their_weights() -> None:
    """torch's kernels for many tensors at once, which copy between both, take tensors of one format."""
    parts = replace(build_parts(False), model=torch.nn.Conv2d(3, 8, 3))
    job = Job(0, 1, "cpu", 4, 1, None, Bf16Master(), Sgd(lr=0.1), Backend(), model=ModelOptions(channels_last=True))
    session: Any = Single().start(parts, job, Streams(1, 0))
    weight, master = session.parameters[0], session.masters.copies[0]
    assert weight.stride() == master.stride() == (27, 1, 9, 3)
    session.close()


def test_a_trial_on_the_processor_asks_no_gpu_for_its_random_state(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: pytest.fail("it was asked"))
    states = RandomStates("cpu")
    drawn = torch.rand(3)
    RandomStates.from_plain(states.plain(), "cpu").restore()
    assert torch.equal(torch.rand(3), drawn) and states.plain()["gpu"] is None


def test_only_the_own_gpus_random_state_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all, those that are not visible at a resume could not be set."""
    states = {"cuda:1": torch.zeros(16, dtype=torch.uint8)}
    monkeypatch.setattr("repro.core.devices.random_state", lambda device: states[device])
    monkeypatch.setattr("repro.core.devices.set_random_state", states.__setitem__)
    kept = RandomStates("cuda:1").plain()
    states["cuda:1"] = torch.ones(16, dtype=torch.uint8)
    RandomStates.from_plain(kept, "cuda:1").restore()
    assert list(states) == ["cuda:1"] and not states["cuda:1"].any()


def test_the_groups_of_fsdp_are_found_as_older_versions_of_torch_keep_them() -> None:
    assert _groups_of(SimpleNamespace(_fsdp_param_groups=["one", "two"], _fsdp_param_group="one")) == ["one", "two"]
    assert _groups_of(SimpleNamespace(_fsdp_param_group="one")) == ["one"]
    assert _groups_of(SimpleNamespace(_fsdp_param_group=None)) == []


# ---- refused in the plan, with what would run


def plan(folder: Path, machine: Machine, **trial: object) -> Plan:
    return planned(folder, suite("gpus", **{"device": "auto", "processes": 1} | trial), machine=machine)


ONE, TWO = Machine("cuda", 1, 8), Machine("cuda", 2, 8)


def test_too_few_gpus_are_refused_with_what_runs(tmp_path: Path) -> None:
    with pytest.raises(SuiteError, match="this machine has 1: use -o processes=1 or -o device=cpu"):
        plan(tmp_path, ONE, processes=2)
    assert plan(tmp_path, ONE, processes=2, device="cpu").uses_gpus is False
    assert plan(tmp_path, TWO, processes=2).uses_gpus is True
    found = Local().unsupported(setting(device="cuda", processes=3, device_count=0))
    assert found is not None and found.endswith("has 0: use -o device=cpu")


def test_deepspeed_on_the_processor_is_no_cell_of_a_run_on_gpus(tmp_path: Path) -> None:
    found = planned(tmp_path, suite("both", "matrix: {engine: [ddp, deepspeed], device: [cpu, cuda]}\n", processes=1,
                                    device=None, engine=None), machine=ONE)
    assert [(item.choices.engine.kind, item.choices.device) for item in found.cells] == [
        ("ddp", "cpu"), ("ddp", "cuda"), ("deepspeed", "cuda")]
    assert [item.reason.rpartition("; ")[2] for item in found.skipped] == ["run this one apart, with -o device=cpu"]


@pytest.mark.parametrize(("workload", "layer"), [
    ("{kind: imagenet-synthetic, model: vgg16}", "AdaptiveAvgPool2d"),
    ("{kind: imagenet-synthetic, model: googlenet}", "LocalResponseNorm"),
    ("{kind: cifar10-synthetic, model: resnet9}", "AdaptiveMaxPool2d"),
    ("{kind: cifar10-synthetic, model: resnet20}", ""), ("digits", "")])
def test_bitwise_is_refused_where_a_layer_has_no_such_kernel(tmp_path: Path, workload: str, layer: str) -> None:
    choices: dict[str, object] = {"workload": workload, "determinism": "bitwise", "evaluate_every": 1000}
    assert plan(tmp_path, ONE, device="cpu", **choices).cells
    if not layer:
        assert plan(tmp_path, ONE, **choices).cells
        return
    with pytest.raises(SuiteError, match=f"no deterministic kernel for {layer} of the model on a GPU; use -o determi"):
        plan(tmp_path, ONE, **choices)


UNREPEATABLE = {"AdaptiveAvgPool2d", "AdaptiveMaxPool2d", "AvgPool3d", "LocalResponseNorm", "FractionalMaxPool2d",
                "ReflectionPad2d", "MaxUnpool2d", "CTCLoss"}
"""Layers for images that `torch.use_deterministic_algorithms` refuses; response normalisation pools in three
dimensions."""


@pytest.mark.parametrize("family", ["SMALL", "LARGE"])
def test_the_layers_that_are_named_are_those_of_the_models(family: str) -> None:
    from repro.workloads import nets
    from repro.workloads.cifar10 import Cifar10Synthetic
    from repro.workloads.imagenet import ImageNetSynthetic

    for name, make in getattr(nets, family).items():
        workload = (Cifar10Synthetic if family == "SMALL" else ImageNetSynthetic)(model=name)
        with torch.device("meta"):
            model = make(10, 16) if family == "SMALL" else make(10)
        found = {type(item).__name__ for item in model.modules() if type(item).__name__ in UNREPEATABLE
                 and not (isinstance(item, torch.nn.AdaptiveAvgPool2d) and item.output_size == 1)}  # that is a mean
        assert {workload.unrepeatable} - {""} == found, name


def test_zero_plus_plus_says_what_it_builds_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there, engine = setting(device="cuda", device_count=2), DeepSpeedZero(stage=3, quantized="weights")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    assert "nvcc is missing here" in str(engine.unsupported(there))
    for name, missing in (("nvcc", "ninja is missing here"), ("ninja", "None")):
        (tmp_path / name).touch(stat.S_IRWXU)
        assert missing in str(engine.unsupported(there))


@pytest.mark.parametrize(("visible", "kept"), [("0,1", True), ("GPU-8b0b", False), ("MIG-a4588", False), ("", True)])
def test_deepspeed_asks_nvml_only_where_gpus_have_numbers(
    monkeypatch: pytest.MonkeyPatch, visible: str, kept: bool
) -> None:
    """It reads them as numbers, and fails in ZeRO 1 and 2 where they are UUIDs."""
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    pytest.importorskip("deepspeed")
    from repro.engines.zero import session

    monkeypatch.setattr(session.cuda_accelerator, "pynvml", object())
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    session._silence_deepspeed()
    assert (session.cuda_accelerator.pynvml is not None) is kept


def test_a_trial_after_one_of_zero_3_computes_with_torchs_own_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """ZeRO 3 replaces `torch.nn.functional.linear` for good; with launcher inline the next trial is in this process."""
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    partition = pytest.importorskip("deepspeed.runtime.zero.partition_parameters")
    from repro.engines.zero import session

    before = torch.nn.functional.linear
    monkeypatch.setattr(partition, "print_rank_0", lambda *_, **__: None)  # it asks for the rank
    partition.InsertPostInitMethodToModuleSubClasses(enabled=False)._enable_mem_efficient_linear()
    assert torch.nn.functional.linear is not before
    session.end_group()
    assert torch.nn.functional.linear is before


@pytest.mark.parametrize(("algorithm", "value"), [
    ("Ring", "Ring"), ("Tree", "AllReduce:Tree"), ("PAT", "AllGather:PAT;ReduceScatter:PAT"),
    ("NVLS", "AllReduce:NVLS;AllGather:NVLS;ReduceScatter:NVLS"),
])
def test_an_algorithm_of_nccl_is_asked_for_only_where_nccl_has_it(
    monkeypatch: pytest.MonkeyPatch, algorithm: Any, value: str
) -> None:
    """By its bare name it would also be asked for in all-gathers and broadcasts, which then fail."""
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "1")
    monkeypatch.setenv("NCCL_ALGO", "")
    monkeypatch.setattr(dist, "init_process_group", lambda *args, **named: None)
    Backend(nccl_algorithm=algorithm).start(0, 1, "cpu", 60.0)
    assert os.environ["NCCL_ALGO"] == value


@pytest.mark.parametrize("engine", [Single(), DeepSpeedZero(stage=0)], ids=str)
def test_a_first_scaled_gradient_that_overflows_leaves_the_momentum_at_zero(
    monkeypatch: pytest.MonkeyPatch, engine: Engine
) -> None:
    """torch's fused SGD allocates it uninitialised, here filled with NaN, and does not write it on an overflow."""
    for name, value in {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "LOCAL_RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(rules, "kernels", lambda groups, on_divided: {"foreach": False, "fused": True})
    job = Job(0, 1, "cpu", 4, 1, None, Fp16Autocast(), Sgd(lr=0.1, momentum=0.9), Backend(), 60.0)
    parts = build_parts(batch_norm=False)
    right = parts.loss
    parts.loss = lambda outputs, targets: right(outputs, targets) * float("inf")
    session: Any = engine.start(parts, job, Streams(1, 0))
    try:
        before = session.weights()
        session.backward([images(0, 4)])
        torch.use_deterministic_algorithms(True)
        session.update(0.1)
        states = session.optimizer.state.values()
        assert len(states) == len(before)
        assert all(not state["momentum_buffer"].any() for state in states)
        assert all((session.weights()[name] == array).all() for name, array in before.items())
    finally:
        torch.use_deterministic_algorithms(False)
        session.close()
