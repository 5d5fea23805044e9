"""What the worker checks itself: weights that ranks hold, the bytes of any batch, buffers, dropout."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from repro.engines.precisions import Bf16Master, Fp16Master, Fp32
from repro.seams.training import Held
from repro.worker.gate.trace import LEAST_RATE, SPIKE, STEPS, measured_steps
from repro.worker.gate.worker import batch_sha256
from repro.worker.report.final_checks import assemble
from repro.worker.weights import describe_held, wide_share

torch = pytest.importorskip("torch")
FULL = {"w": np.linspace(0.1, 1, 6, dtype=np.float32).reshape(2, 3), "b": np.ones(2, np.float32)}


class Ranks:
    """This rank and another, which gives `others`, parameter after parameter."""

    def __init__(self, *others: Any) -> None:
        self.others = list(others)
        self.largest = 0
        """Most numbers that one rank sent at a time."""

    def gather(self, value: Any) -> list[Any]:
        if isinstance(value, bool):
            return [value, value]
        self.largest = max(self.largest, sum(part.size for _, part in value))
        return [value, self.others.pop(0)]


def test_what_a_rank_holds_is_compared_with_the_full_weights() -> None:
    held = [Held("w", FULL["w"].ravel()), Held("b", FULL["b"])]
    right = describe_held(held, FULL, "float32")
    assert (right.different, right.first) == (0, "")
    assert right == describe_held(held[::-1], FULL, "float32")
    moved = [held[0], Held("b", FULL["b"] + np.float32(1e-6))]
    wrong = describe_held(moved, FULL, "float32")
    assert (wrong.different, wrong.first) == (2, "b")
    assert wrong.parts == right.parts
    assert wrong.sha256 != right.sha256


def test_narrow_weights_are_compared_after_rounding() -> None:
    narrow = torch.from_numpy(FULL["w"].ravel()).bfloat16().float().numpy()
    assert describe_held([Held("w", narrow)], FULL, "bfloat16").different == 0
    assert describe_held([Held("w", FULL["w"].ravel())], FULL, "bfloat16").different > 0


def test_partitions_are_put_together_from_all_ranks() -> None:
    flat = FULL["w"].ravel()
    ours = [Held("w", flat[:3]), Held("b", FULL["b"])]
    session: Any = Ranks(*([(3, flat[3:])] if name == "w" else [] for name in FULL))
    made = assemble(session, ours, FULL)
    assert session.largest == max(3, FULL["b"].size), "not the whole model at once, which a GPU may not hold"
    assert all(np.array_equal(made[name], FULL[name]) for name in FULL)
    whole: Any = Ranks()
    assert np.array_equal(assemble(whole, [Held("w", flat), Held("b", FULL["b"])], FULL)["w"], FULL["w"])


@pytest.mark.parametrize(("precision", "kind"), [
    (Bf16Master(), "bfloat16"), (Fp32(), "bfloat16"), (Fp16Master(), "float16")])
def test_rounded_master_weights_are_narrow(precision: Any, kind: str) -> None:
    weights = {"w": np.random.default_rng(1).standard_normal(1000, dtype=np.float32)}
    rounded = {"w": torch.from_numpy(weights["w"]).to(getattr(torch, kind)).float().numpy()}
    assert wide_share(weights, precision) > 0.99
    assert wide_share(rounded, precision) == 0


def test_batches_of_any_structure_have_a_hash() -> None:
    tokens, mask = torch.arange(6).reshape(2, 3), torch.ones(2, 3, dtype=torch.bfloat16)
    batch = ({"tokens": tokens, "mask": mask, "more": [tokens, 3]}, tokens)
    assert batch_sha256(batch) == batch_sha256(({"mask": mask, "tokens": tokens, "more": [tokens, 3]}, tokens))
    assert batch_sha256(batch) != batch_sha256(({"tokens": mask, "mask": tokens, "more": [tokens, 3]}, tokens))
    assert batch_sha256(batch) != batch_sha256(({"tokens": tokens + 1, "mask": mask, "more": [tokens, 3]}, tokens))


def test_the_reference_keeps_the_buffers_of_rank_0() -> None:
    from repro.worker.gate.model import keep_rank_0_buffers

    batches = [torch.randn(8, 3) for _ in range(4)]
    reference, rank_0 = torch.nn.BatchNorm1d(3), torch.nn.BatchNorm1d(3)
    keep_rank_0_buffers(reference, 2)
    for batch in batches:
        reference(batch).square().sum().backward()
    for batch in batches[::2]:
        rank_0(batch)
    assert torch.equal(reference.running_var, rank_0.running_var)
    assert int(reference.num_batches_tracked) == 2


def test_dropout_is_off_in_the_gate() -> None:
    from repro.worker.gate.model import cut_dropout

    model = torch.nn.Sequential(torch.nn.Dropout(0.5), torch.nn.MultiheadAttention(4, 1, dropout=0.3))
    cut_dropout(model)
    assert (model[0].p, model[1].dropout) == (0.0, 0.0)


def test_the_gate_ends_at_the_smallest_rate_that_shows() -> None:
    steps = measured_steps("fp32", 1e-9)
    assert min(step.share for step in steps) == LEAST_RATE
    assert [step.number for step in steps] == [1, 2, 3, 4, 5, 54, 55, 56, 57, 58, 59]
    assert steps[-1].number == STEPS
    assert [step.before_evaluation for step in steps[-3:]] == [True, False, False]


def test_only_the_last_step_in_fp32_has_a_larger_loss() -> None:
    steps = measured_steps("fp32", 1e-9)
    assert [step.factor for step in steps] == [1.0] * 10 + [SPIKE]
    assert steps[-1].share == 1 / SPIKE
    assert {step.factor for step in measured_steps("precision", 1e-9)} == {1.0}


def test_a_scaled_loss_is_the_workloads_times_the_factor() -> None:
    from repro.worker.gate.model import ScaledLoss

    loss = ScaledLoss(torch.nn.functional.mse_loss)
    ones = torch.ones(3)
    assert float(loss(2 * ones, ones)) == 1.0
    loss.factor = SPIKE
    assert float(loss(2 * ones, ones)) == SPIKE
