"""FSDP trains like one plain process and like DDP: real processes, gloo on loopback, weights divided over the ranks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from repro.comm.algorithms.doubling import HalvingDoubling
from repro.comm.algorithms.ring import Ring
from repro.engines.precisions import Bf16Autocast, Bf16Master, Fp16Autocast, Fp16Master
from repro.engines.torch_engines import Ddp, Fsdp, Single
from repro.optimizers.rules import Sgd
from repro.worker.weights import describe_held
from tests.engine_ranks import ADAMW, Case, check_warm_up, furthest, ranks, same_bytes, thorough
from tests.flow.test_checkpoints import alone, begin, fail_once, hashes

pytest.importorskip("torch")
pytest.importorskip("deepspeed")  # the processes load it

__all__ = ["alone", "ranks"]
Run = Callable[[Case], list[dict[str, Any]]]
MODEL = Fsdp(wrap="model")
CLASSES = Fsdp(wrap=("Linear",), reshard_after_forward=True)
PLAIN = Case(Fsdp(), 2, 4, ADAMW, 0.5, steps=8)
MASTER = Case(Fsdp(), 2, 4, clip=0.5, precision=Bf16Master(), steps=6)
NORMED = Case(MODEL, 2, 2, batch_norm=True, steps=4)
ON_RING = Case(Fsdp(reshard_after_forward=False), 2, 1, steps=4, comm=Ring())

FP32 = [PLAIN, Case(Fsdp(), 2, 4), Case(Fsdp(), 1, 4, clip=0.5), Case(MODEL, 2, 4, clip=0.5), Case(CLASSES, 2, 4),
        Case(Fsdp(wrap="model", reshard_after_forward=True), 2, 4, ADAMW), Case(Fsdp(), 4, 1, ADAMW, 0.5),
        Case(Fsdp(reshard_after_forward=False), 4, 2)]


@pytest.mark.parametrize("case", thorough(FP32, [PLAIN]), ids=str)
def test_float32_training_is_the_same(ranks: Run, case: Case) -> None:
    reference = ranks(Case(Single(), optimizer=case.optimizer, clip=case.clip, steps=case.steps))[0]
    found = ranks(case)
    assert same_bytes(found[0]["initial"], reference["initial"])
    for rank in found:
        assert same_bytes(rank["weights"], found[0]["weights"])
        np.testing.assert_allclose(rank["losses"][:10], reference["losses"][:10], rtol=1e-5)
        np.testing.assert_allclose(rank["norms"], reference["norms"], rtol=1e-5)
    tolerance = 5e-7 if isinstance(case.optimizer, Sgd) else 2e-6
    assert furthest(found[0]["weights"], reference["weights"]) < tolerance


LOW = [MASTER, *(Case(Fsdp(), 2, 4, clip=clip, precision=precision)
                 for precision in (Bf16Autocast(), Bf16Master(), Fp16Autocast(), Fp16Master()) for clip in (None, 0.5)
                 if (precision, clip) != (Bf16Master(), 0.5))]


@pytest.mark.parametrize("case", thorough(LOW, [MASTER]), ids=str)
def test_low_precision_is_ddps(ranks: Run, case: Case) -> None:
    """The same types are multiplied, added, sent and stepped: only the order of sums in the norm differs."""
    reference, found = ranks(replace(case, engine=Ddp()))[0], ranks(case)[0]
    np.testing.assert_allclose(found["losses"], reference["losses"], rtol=1e-5)
    assert furthest(found["weights"], reference["weights"]) < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("compression", ["bf16", "fp16"])
def test_compressed_gradients_are_rounded_as_by_ddps_hooks(ranks: Run, compression: str) -> None:
    case = Case(Fsdp(), 2, 1, compression=compression, warm_up=True)
    reference, found = ranks(replace(case, engine=Ddp()))[0], ranks(case)[0]
    full = ranks(Case(Ddp(), 2, 1, warm_up=True))[0]
    assert found["effective"]["compression"] == compression
    assert found["effective"]["comm_dtype"] == {"bf16": "bfloat16", "fp16": "float16"}[compression]
    away = furthest(full["weights"], reference["weights"])
    assert furthest(found["weights"], reference["weights"]) < away


@pytest.mark.parametrize("case", thorough([PLAIN, *FP32[1:6], *LOW], [PLAIN]), ids=str)
def test_training_after_a_warm_up_is_bit_identical(ranks: Run, case: Case) -> None:
    check_warm_up(ranks, case)


def test_every_rank_holds_its_rows_and_nothing_else(ranks: Run) -> None:
    for case in (PLAIN, MASTER, NORMED):
        found = ranks(case)
        described = [describe_held(rank["held"], rank["weights"], case.precision.weights) for rank in found]
        assert [item.different for item in described] == [0, 0]
        assert described[0].parts != described[1].parts
        sizes = {name: array.size for name, array in found[0]["weights"].items()}
        for name, size in sizes.items():
            first, second = (next(item for item in rank["held"] if item.name == name) for rank in found)
            assert (first.start, first.values.size) == (0, second.start)
            assert second.start + second.values.size == size


def test_ranks_with_unequal_batches_evaluate_and_batch_norm_is_rank_0s(ranks: Run) -> None:
    """Rank 1 brings two batches, rank 0 one: a rank that is done early must not leave the other waiting."""
    found, reference = ranks(NORMED), ranks(replace(NORMED, engine=Ddp()))[0]
    assert [rank["scored"][1] for rank in found] == [24, 48]
    assert found[0]["totals"] == reference["totals"]
    assert same_bytes(found[0]["buffers"], found[1]["buffers"])
    assert int(found[0]["buffers"]["1.num_batches_tracked"]) == 8
    assert furthest(found[0]["buffers"], reference["buffers"]) < 1e-6


COMM = [ON_RING, Case(Fsdp(), 4, 1, steps=10, comm=Ring()), Case(Fsdp(), 4, 1, steps=10, comm=HalvingDoubling())]


@pytest.mark.parametrize("case", thorough(COMM, [ON_RING]), ids=str)
def test_weights_and_gradients_go_by_the_algorithm(ranks: Run, case: Case) -> None:
    reference, found = ranks(Case(Single(), 1, 4, steps=case.steps))[0], ranks(case)
    assert all(same_bytes(rank["weights"], found[0]["weights"]) for rank in found)
    assert furthest(found[0]["weights"], reference["weights"]) < 5e-7
    assert "all_gather+all_reduce+reduce_scatter" in found[0]["effective"]["comm"].partition(";")[0]
    sent = {line["operation"]: line for line in found[0]["traffic"]["lines"]}
    assert sent["reduce_scatter"]["collectives"] == case.steps * 4, "four groups, in every step"


@pytest.mark.parametrize(("case", "expected"), [
    (replace(PLAIN, warm_up=True), {
        "zero_stage": "3", "reshard_after_forward": "4 of 4 groups", "comm": "gloo", "comm_dtype": "float32",
        "weight_dtype": "float32", "master_dtype": "float32", "overlap": "off", "compression": "none",
        "optimizer": "torch.optim.adamw.AdamW", "buckets": "4", "bucket_bytes": "240,48,12152,560"}),
    (MASTER, {"weight_dtype": "bfloat16", "gradient_dtype": "bfloat16", "master_dtype": "float32",
              "matmul_dtype": "bfloat16", "bucket_bytes": "120,24,6076,280"}),
    (NORMED, {"zero_stage": "2", "reshard_after_forward": "0 of 1 groups", "buckets": "1"}),
    pytest.param(Case(CLASSES, 2, 4), {"zero_stage": "3", "reshard_after_forward": "3 of 3 groups"},
                 marks=pytest.mark.slow),
], ids=lambda value: str(value) if isinstance(value, Case) else "")
def test_effective_settings_are_read_back(ranks: Run, case: Case, expected: dict[str, str]) -> None:
    effective = ranks(case)[0]["effective"]
    assert {key: effective[key] for key in expected} == expected
    assert effective["zero_stage"] == str(case.engine.zero_stage())


@pytest.mark.slow
def test_a_trial_that_failed_resumes_to_the_same_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process: the second attempt starts a group where the first one's has ended."""
    import torch.distributed as dist

    from repro.engines.plain.session import TorchSession

    more = ("  launcher: inline\n  optimizer: {kind: adamw, lr: 0.002}\n"
            "matrix:\n  engine: [fsdp]\n  stop.max_epochs: [2]\n")
    whole = begin(tmp_path / "whole", 1, more).execute()
    fail_once(monkeypatch, TorchSession, "micro_loss", 20)
    record = begin(tmp_path / "failed", 1, more).execute()
    assert [(item.status, bool(item.resumed_from)) for item in record.attempts] == [
        ("crashed", False), ("missed", True)], [item.reason for item in record.attempts]
    assert hashes(record) == hashes(whole)
    assert not dist.is_initialized()
