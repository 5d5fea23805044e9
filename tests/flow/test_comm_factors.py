"""Compression, fusion and overlap as factors: what is sent, what it costs in accuracy, what is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from repro.comm.algorithms.ring import Ring
from repro.engines.deepspeed_zero import DeepSpeedZero
from repro.engines.torch_engines import Ddp, Single
from repro.seams.plugin import Setting
from repro.seams.training import Engine
from tests.engine_ranks import ZERO, Case, furthest, ranks, same_bytes

pytest.importorskip("torch")
pytest.importorskip("deepspeed")

__all__ = ["ranks"]
Run = Callable[[Case], list[dict[str, Any]]]
DDP = Case(Ddp(bucket_mib=0.005), 4, 1, steps=10, comm=Ring())


def sent(found: dict[str, Any]) -> int:
    """Bytes of the rank's gradient all-reduces."""
    return sum(line["sent_bytes"] for line in found["traffic"]["lines"] if line["operation"] == "all_reduce")


def without(found: dict[str, Any], dtype: str) -> bool:
    return all(line["dtype"] != dtype for line in found["traffic"]["lines"] if line["sent_bytes"])


@pytest.mark.slow
def test_ddp_without_overlap_sends_the_same_buckets_later(ranks: Run) -> None:
    plain, late = ranks(DDP), ranks(replace(DDP, overlap=False))
    assert sent(late[0]) == sent(plain[0])
    # The hook divides before it sums, DDP's own way does too: the same bits.
    assert furthest(late[0]["weights"], plain[0]["weights"]) < 5e-7
    assert late[0]["effective"]["overlap"] == "off" and plain[0]["effective"]["overlap"] == "on"
    assert late[0]["effective"]["buckets"] == plain[0]["effective"]["buckets"] != "1"


@pytest.mark.parametrize(("compression", "overlap"), [
    ("fp16", None), ("bf16", False), ("powersgd", None),
    *(pytest.param(*rest, marks=pytest.mark.slow) for rest in (("fp16", False), ("bf16", None), ("powersgd", False))),
])
def test_compression_sends_less_and_stays_near(ranks: Run, compression: str, overlap: bool | None) -> None:
    plain = ranks(replace(DDP, steps=20))
    found = ranks(replace(DDP, steps=20, compression=compression, overlap=overlap))
    assert all(same_bytes(rank["weights"], found[0]["weights"]) for rank in found)
    assert sent(found[0]) < (0.9 if compression == "powersgd" else 0.6) * sent(plain[0])
    far = furthest(found[0]["weights"], plain[0]["weights"])
    assert 1e-6 < far < (0.3 if compression == "powersgd" else 0.02)
    assert found[0]["effective"]["compression"].startswith(compression)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ZERO, ids=lambda engine: f"zero{engine.stage}")
def test_deepspeed_sends_gradients_in_16_bits(ranks: Run, engine: Engine) -> None:
    case = Case(engine, 4, 1, steps=10, comm=Ring(), warm_up=True)
    plain, found = ranks(case), ranks(replace(case, compression="bf16"))
    assert plain[0]["effective"]["comm_dtype"] == "float32"
    assert found[0]["effective"]["comm_dtype"] == "bfloat16"
    assert any(line["dtype"] == "bfloat16" for line in found[0]["traffic"]["lines"])
    assert 1e-6 < furthest(found[0]["weights"], plain[0]["weights"]) < 0.02


@pytest.mark.slow
def test_deepspeeds_buckets_are_as_large_as_asked(ranks: Run) -> None:
    found = ranks(Case(DeepSpeedZero(stage=2, bucket_mib=0.005), 2, 1, steps=3, comm=Ring()))
    assert found[0]["effective"]["bucket_bytes"] == str(5242 // 4 * 4)


def test_powersgd_starts_with_empty_state_after_a_warm_up(ranks: Run) -> None:
    case = Case(Ddp(), 2, 1, steps=6, comm=Ring(), compression="powersgd")
    cold, warm = ranks(case), ranks(replace(case, warm_up=True))
    np.testing.assert_allclose(cold[0]["losses"], warm[0]["losses"], rtol=1e-5)


BASE = Setting("digits", "x", "ring", "fp32", "sgd", "local", 4, 1, "cpu", 0)


@pytest.mark.parametrize(("engine", "changes", "reason"), [
    (DeepSpeedZero(stage=2), {"compression": "powersgd"}, "PowerSGD hook does not reach"),
    (DeepSpeedZero(stage=2), {"compression": "fp16", "precision": "bf16-autocast", "autocast": "bfloat16"},
     "only under fp32"),
    (DeepSpeedZero(stage=2), {"overlap": True}, "block back-propagation"),
    (DeepSpeedZero(stage=0), {"overlap": True}, "needs stage 1 to 3"),
    (DeepSpeedZero(stage=0, bucket_mib=1), {}, "all gradients at once"),
    (DeepSpeedZero(stage=2, bucket_mib=1), {"overlap": False, "compression": "bf16"}, None),
    (Ddp(), {"compression": "fp16", "precision": "bf16-master", "weights": "bfloat16"}, "already have 16 bits"),
    (Ddp(), {"compression": "powersgd", "overlap": False}, None),
    (Single(), {"processes": 1, "comm": "backend", "compression": "fp16"}, "does not communicate"),
])
def test_unsupported_options_of_an_engine_are_refused_with_the_reason(
    engine: Engine, changes: dict[str, Any], reason: str | None
) -> None:
    found = engine.unsupported(replace(BASE, **changes))
    assert found is None if reason is None else reason in str(found)
