"""Every engine, precision, algorithm and model option on GPUs, against the plain loop on the same device.

The same cases run on a CPU as a check of this file (`make test-slow`), where what needs a GPU is left out.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from repro.core import registry
from repro.engines.deepspeed_zero import DeepSpeedZero
from repro.engines.precisions import Bf16Autocast, Bf16Master, Fp16Autocast, Fp16Master, Fp32, Tf32
from repro.engines.torch_engines import Ddp, Fsdp, Single
from repro.seams.plugin import Compilation, ModelOptions
from repro.seams.training import Comm, Engine, Precision
from tests.engine_ranks import ADAMW, ON_GPU, SCATTERED, SGD, Case, Ranks, furthest, same_bytes
from tests.gpu.cases import MACHINE, unsupported

pytest.importorskip("torch")
pytest.importorskip("deepspeed")

DEVICES = [pytest.param("cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(
    MACHINE.device != "cuda", reason="no GPU that the installed torch can use")]),
    pytest.param("cpu", marks=pytest.mark.slow)]
ENGINES: list[Engine] = [Single(), Ddp(), Fsdp(), Fsdp(wrap="model"), *(DeepSpeedZero(stage=stage)  # type: ignore
                         for stage in (0, 1, 2, 3)), SCATTERED]
PRECISIONS: list[Precision] = [Fp32(), Tf32(), Bf16Autocast(), Bf16Master(), Fp16Autocast(), Fp16Master()]
COARSE = {"float32": 1e-4, "low": 0.1}
"""Largest relative difference of a loss; kernels of a GPU add in other orders than those of another engine."""


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    """Processes for one device: the fork server keeps what DeepSpeed was told when it was loaded."""
    before = {name: os.environ.get(name) for name in ("DS_ACCELERATOR", "OMP_NUM_THREADS", ON_GPU)}
    os.environ.update(DS_ACCELERATOR=MACHINE.device, OMP_NUM_THREADS="1", **{ON_GPU: "1"})
    group = Ranks()
    yield group
    group.end()
    for name, value in before.items():
        os.environ.pop(name, None) if value is None else os.environ.update({name: value})


def possible(case: Case) -> Case:
    """The case, or a skip with the reason that a plan would give."""
    if reason := unsupported(case):
        pytest.skip(reason)
    if case.model.cudnn_benchmark and case.device == "cpu":
        pytest.skip("a CPU has no cuDNN")
    return case


def check(ranks: Ranks, case: Case, tolerance: float) -> dict[str, str]:
    """Check a case against the plain loop in float32; return what was read back."""
    plain = Case(Single(), optimizer=case.optimizer, clip=case.clip, steps=case.steps, device=case.device)
    reference, found = ranks(plain)[0], ranks(possible(case))
    np.testing.assert_allclose(found[0]["losses"], reference["losses"], rtol=tolerance, atol=tolerance)
    for rank in found:
        assert same_bytes(rank["weights"], found[0]["weights"])
    if tolerance == COARSE["float32"]:
        assert furthest(found[0]["weights"], reference["weights"]) < 1e-3
    return dict(found[0]["effective"])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize("precision", PRECISIONS, ids=lambda item: type(item).__name__)
@pytest.mark.parametrize("engine", ENGINES, ids=str)
def test_engine_and_precision(ranks: Ranks, engine: Engine, precision: Precision, world: int, device: str) -> None:
    case = Case(engine, world, 2, SGD, 0.5, precision, warm_up=True, steps=4, device=device, overlap=None)
    low = not isinstance(precision, Fp32)
    effective = check(ranks, case, COARSE["low" if low else "float32"])
    assert effective["matmul_dtype"] == (precision.autocast or precision.weights)
    assert effective["weight_dtype"] == precision.weights
    assert effective["tf32"] == ("on" if precision.tf32 else "off")
    assert effective["comm"].startswith("nccl" if device == "cuda" else "gloo") or world == 1


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("engine", [Ddp(), Fsdp(), DeepSpeedZero(stage=1)], ids=str)
@pytest.mark.parametrize("name", sorted(set(registry.names("comm")) - {"backend"}))
def test_algorithm(ranks: Ranks, name: str, engine: Engine, device: str) -> None:
    """Over NCCL's sends and receives on GPUs. Seconds of communication are those of the streams."""
    options = {"alpha_seconds": 1e-4, "beta_seconds": 1e-9} if name == "hybrid" else {}
    comm: Comm = registry.load("comm", name)(**options)
    case = possible(Case(engine, 2, 1, ADAMW, warm_up=True, steps=4, comm=comm, device=device, overlap=None))
    check(ranks, case, COARSE["float32"])
    traffic = ranks(case)[0]["traffic"]
    assert traffic["lines"]
    assert traffic["busy_seconds"] > 0
    assert traffic["exposed_seconds"] >= 0
    assert traffic["overlapped_seconds"] >= 0


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("engine", [Ddp(), Ddp(bucket_mib=0.01), Fsdp(), Fsdp(wrap="model"), DeepSpeedZero(stage=2)],
                         ids=str)
@pytest.mark.parametrize("overlap", [True, False])
def test_overlap(ranks: Ranks, engine: Engine, overlap: bool, device: str) -> None:
    effective = check(ranks, Case(engine, 2, 2, warm_up=True, steps=4, overlap=overlap, device=device),
                      COARSE["float32"])
    assert effective["overlap"] == ("on" if overlap else "off")


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("engine", [Ddp(), Fsdp(), DeepSpeedZero(stage=1)], ids=str)
@pytest.mark.parametrize("compression", ["fp16", "bf16", "powersgd"])
def test_compression(ranks: Ranks, engine: Engine, compression: str, device: str) -> None:
    case = Case(engine, 2, 1, warm_up=True, steps=4, compression=compression, overlap=None, device=device)
    effective = check(ranks, case, COARSE["low"])
    assert effective["comm_dtype"] == {"fp16": "float16", "bf16": "bfloat16", "powersgd": "float32"}[compression]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("engine", [Ddp(), Fsdp(), DeepSpeedZero(stage=0), DeepSpeedZero(stage=1),
                                    DeepSpeedZero(stage=2), SCATTERED], ids=str)
def test_no_code_of_ours_reads_back_in_a_step(ranks: Ranks, engine: Engine, device: str) -> None:
    case = possible(Case(engine, 2, 2, body="readbacks", device=device, overlap=None))
    ours = [place for rank in ranks(case) for place in rank["readbacks"] if "/site-packages/deepspeed/" not in place]
    assert ours == []


def test_ranks_of_one_process_differ_from_two() -> None:
    """Cases differ by device, so that a CPU's answer never stands for a GPU's."""
    assert repr(Case(Ddp(), 1, device="cuda")) != repr(replace(Case(Ddp(), 1), device="cpu"))


OPTIONS = [ModelOptions(compile=Compilation()), ModelOptions(compile=Compilation(mode="reduce-overhead")),
           ModelOptions(activation_checkpointing=True), ModelOptions(channels_last=True),
           ModelOptions(cudnn_benchmark=True)]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize("engine", [Single(), Ddp(), Fsdp(), DeepSpeedZero(stage=1), SCATTERED], ids=str)
@pytest.mark.parametrize("model", OPTIONS, ids=lambda item: "-".join(map(str, (*item.chosen(), item.compile or ""))))
def test_model_option(ranks: Ranks, model: ModelOptions, engine: Engine, world: int, device: str) -> None:
    if device == "cpu" and model.compile:
        pytest.skip("tests/flow/test_model_option_runs.py compiles on a CPU")
    accumulation = 1 if model.compile and model.compile.records_graphs else 2  # as a plan refuses
    case = Case(engine, world, accumulation, warm_up=True, steps=4, model=model, device=device, overlap=None)
    effective = check(ranks, case, COARSE["float32"])
    for name in ("activation_checkpointing", "channels_last", "cudnn_benchmark"):
        assert effective[name] == ("on" if getattr(model, name) else "off")
    assert effective["compile"] == (str(model.compile) if model.compile else "off")
    assert ranks(case)[0]["late"].get("graphs", 0) == 0
