"""What the worker checks itself: weights that ranks hold, evaluations that move them, the gate's model and batches."""

from __future__ import annotations

import random
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from repro.core.errors import TrialError
from repro.core.random_streams import Streams
from repro.engines.precisions import Bf16Master, Fp16Master, Fp32
from repro.seams.training import Held, TrainingParts
from repro.seams.workload import WholeSet, call_model
from repro.worker import weights as weights_module
from repro.worker.evaluation import Evaluated, OwnModel
from repro.worker.gate.model import prepare
from repro.worker.gate.trace import LEAST_RATE, SPIKE, STEPS, measured_steps
from repro.worker.gate.worker import batch_hashes
from repro.worker.report.final_checks import Capture, Captured, _evaluate_again, assemble
from repro.worker.weights import describe_held, tensor_sums, wide_share, with_others

torch = pytest.importorskip("torch")
FULL = {"w": np.linspace(0.1, 1, 6, dtype=np.float32).reshape(2, 3), "b": np.ones(2, np.float32)}


class Ranks:
    """This rank and another, which gives `others`, one after another."""

    def __init__(self, *others: Any) -> None:
        self.others = list(others)
        self.largest = 0
        """Most numbers that one rank sent at a time."""

    def gather(self, value: Any) -> list[Any]:
        if isinstance(value, bool):
            return [value, value]
        self.largest = max(self.largest, sum(part.size for _, _, part in value))
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


def test_the_tensors_in_which_two_ranks_differ_are_named() -> None:
    held = [[Held("w", FULL["w"].ravel()), Held("b", FULL["b"] + np.float32(shift))] for shift in (0, 0, 1e-6)]
    ranks = [describe_held(each, FULL, "float32") for each in held]
    found = with_others(ranks, [tensor_sums(each) for each in held])
    assert [(rank.other, rank.others) for rank in found if rank] == [("", 0), ("", 0), ("b", 1)]
    shard = describe_held([Held("w", FULL["w"].ravel()[1:], 1)], FULL, "float32")
    assert with_others([ranks[0], shard, None], [tensor_sums(held[0]), [("w", 0)], []]) == [ranks[0], shard, None]


def test_narrow_weights_are_compared_after_rounding() -> None:
    narrow = torch.from_numpy(FULL["w"].ravel()).bfloat16().float().numpy()
    assert describe_held([Held("w", narrow)], FULL, "bfloat16").different == 0
    assert describe_held([Held("w", FULL["w"].ravel())], FULL, "bfloat16").different > 0


@pytest.mark.parametrize(("gathered", "largest"), [(1, 3), (1 << 20, 5)])
def test_partitions_are_put_together_from_all_ranks(
    monkeypatch: pytest.MonkeyPatch, gathered: int, largest: int
) -> None:
    """Small ones together, but not the whole of a large model at once, which a GPU may not hold."""
    monkeypatch.setattr(weights_module, "GATHERED", gathered)
    flat = FULL["w"].ravel()
    ours = [Held("w", flat[:3]), Held("b", FULL["b"])]
    session: Any = Ranks([("w", 3, flat[3:])], [])
    made = assemble(session, ours, FULL)
    assert session.largest == largest
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
    assert batch_hashes(batch) == batch_hashes(({"mask": mask, "tokens": tokens, "more": [tokens, 3]}, tokens))
    assert batch_hashes(batch) != batch_hashes(({"tokens": mask, "mask": tokens, "more": [tokens, 3]}, tokens))
    assert batch_hashes(batch) != batch_hashes(({"tokens": tokens + 1, "mask": mask, "more": [tokens, 3]}, tokens))


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


PART = Held("weight", np.arange(3, dtype=np.float32), 3)
WHOLE = Held("weight", np.arange(6, dtype=np.float32))


def capture(*states: list[Held]) -> Capture:
    """A capture on a session that holds each of `states` in turn."""
    held = iter(states)
    session: Any = SimpleNamespace(held=lambda: next(held), buffers=dict, evaluated=nullcontext)
    context: Any = SimpleNamespace(
        session=session, parts=object(), trial=SimpleNamespace(master_seed=1, repeat=0))
    return Capture(context)


@pytest.mark.parametrize(("before", "after", "moved"), [
    ([PART], [PART], []),
    ([PART], [PART, WHOLE], []),  # an engine with shards keeps what it gathered to evaluate
    ([PART, WHOLE], [PART], []),
    ([PART], [Held("weight", PART.values + 1, 3), WHOLE], [4]),
    ([WHOLE], [Held("weight", WHOLE.values * 1.0001)], [4]),
])
def test_only_weights_held_before_and_after_can_have_moved(
    before: list[Held], after: list[Held], moved: list[int],
) -> None:
    kept = capture(before, after)
    kept.before()
    kept.after(SimpleNamespace(number=4))  # type: ignore[arg-type]
    assert kept.moved == moved


@pytest.fixture
def plugin(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "plugins"))
    import random_layers

    yield random_layers.RandomLayers
    sys.modules.pop("random_layers")


def losses(parts: TrainingParts) -> list[float]:
    inputs, targets = parts.synthetic_batch(8)
    return [float(parts.loss(call_model(parts.model.train(), inputs), targets).detach()) for _ in range(2)]


def test_the_hook_turns_random_layers_off_in_the_gate_only(plugin: Any) -> None:
    trial, gate = (plugin().build(Streams(1, 0), "cpu") for _ in range(2))
    prepare(gate, 1, "cpu")
    assert losses(gate)[0] == losses(gate)[1]
    assert losses(trial)[0] != losses(trial)[1], "a trial trains with them"


def test_a_model_that_is_still_random_is_told_the_hook(plugin: Any) -> None:
    with pytest.raises(TrialError, match=r"still random in the gate.*TrainingParts\.without_randomness"):
        prepare(plugin(hook=False).build(Streams(1, 0), "cpu"), 1, "cpu")
    prepare(plugin(hook=False, drop=0.0).build(Streams(1, 0), "cpu"), 1, "cpu")


@pytest.mark.parametrize("draw", [lambda: torch.rand(()), lambda: random.random(), lambda: np.random.random()])
def test_small_noise_of_any_generator_is_found(draw: Any) -> None:
    class Noisy(torch.nn.Linear):
        def forward(self, value: Any) -> Any:
            return super().forward(value) * (1 + 1e-4 * float(draw()))

    # Two losses in float32 may be equal by chance: these are not.
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    with pytest.raises(TrialError, match="still random"):
        prepare(parts_of(Noisy(3, 1)), 1, "cpu")


def test_draws_without_effect_are_no_randomness_and_leave_no_trace() -> None:
    class Draws(torch.nn.Sequential):
        def forward(self, value: Any) -> Any:
            return super().forward(value) + 0 * torch.rand(()) * random.random()

    model = Draws(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Dropout(0.5), torch.nn.Linear(4, 1)).eval()
    before = torch.get_rng_state(), random.getstate()
    prepare(parts_of(model), 1, "cpu")
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]
    assert int(model[1].num_batches_tracked) == 0
    assert torch.equal(model[1].running_mean, torch.zeros(4))
    assert not model.training


def parts_of(model: Any) -> TrainingParts:
    def unused(*_: Any) -> Any:
        raise AssertionError

    batch = torch.arange(6.0).reshape(2, 3), torch.ones(2, 1)
    return TrainingParts(model, torch.nn.functional.mse_loss, {}, unused, unused, lambda n: batch, unused)


@pytest.mark.parametrize("last", [4, 1])
def test_an_evaluation_in_training_mode_is_named_and_one_that_fails_leaves_nothing_behind(last: int) -> None:
    torch.manual_seed(1)
    inputs, targets = torch.randn(8 + last, 5) + 1, torch.randint(2, (8 + last,))

    def batches() -> list[Any]:
        return [*zip(inputs.split(4), targets.split(4), strict=True)]

    own: Any = object.__new__(OwnModel)  # of a model that is none of a trial
    own.model = torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2))
    own.functions = SimpleNamespace(scores={"f1": WholeSet(lambda outputs, _: float(outputs.square().mean()))})
    own.numerics = SimpleNamespace(autocast=nullcontext, inputs=lambda value: value, outputs=lambda value: value)
    own.load = lambda *_: None
    choices = SimpleNamespace(stop=SimpleNamespace(metric="f1"), precision=SimpleNamespace(get=lambda _: Fp32()),
                              workload=SimpleNamespace(get=lambda _: SimpleNamespace(ranges={})))
    alone = SimpleNamespace(gather=lambda value: [value], total=lambda values: values)
    context: Any = SimpleNamespace(session=alone, choices=choices, begin_check=lambda _: None)

    def again(value: float) -> tuple[str, float | None]:
        found = _evaluate_again(context, own, Captured(Evaluated(1, 8 + last, value), (), {}), {}, batches)
        return found.like, found.own

    right = again(0.0)[1]
    training = 2.0 if last == 1 else own.score(batches(), "f1", training=True)[0] / (8 + last)
    assert right is not None and training != right
    own.model[1].reset_running_stats()
    assert again(training) == ("training" if last == 4 else "", right)
    own.model[1].reset_running_stats()
    assert again(right) == ("", right), "a batch of one sample has no variance, so the last call ended in the middle"
