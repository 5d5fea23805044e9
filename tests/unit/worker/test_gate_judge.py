"""The parity gate's judgement, on traces made by hand: every difference is found and named, rounding is not."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from repro.engines.precisions import Bf16Autocast, Bf16Master
from repro.record.log.facts import Apart, StepAgain
from repro.record.result.step_causes import LIKE, NO_FACTOR, UPDATE_CAUSE
from repro.worker.gate import judge as gate_judge
from repro.worker.gate.causes import FIRST_UPDATE, LATE_UPDATE, likely_cause
from repro.worker.gate.difference import LARGEST_TOLERANCE, TOLERANCE, Difference
from repro.worker.gate.judge import SENSITIVE, culprit, judge_precision, sentence, widen_tolerances
from repro.worker.gate.trace import Trace
from tests.traces import MICROS, NAMES, STEPS, WORLD, evaluated, put, set_norm, trace

Change = Callable[[dict[str, Any]], object]


def judge(reference: Trace, ranks: Sequence[Trace], tolerances: Sequence[float] | None = None) -> str:
    """The difference that explains the others, in words; "" if there is none."""
    found = culprit(gate_judge.judge(reference, ranks, tolerances))
    return found.text if found else ""


def judged(rank: int, change: Callable[[dict[str, Any]], object]) -> str:
    """The verdict on two ranks of which one is changed."""
    return judge(trace(None), [trace(each, change if each == rank else lambda _: None) for each in range(WORLD)])


def test_ranks_that_train_alike_pass() -> None:
    assert judge(trace(None), [trace(0), trace(1)]) == ""


CHOICES: Any = SimpleNamespace(processes=4, batch=SimpleNamespace(accumulation=2))


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize(("change", "beginning"), [
    (lambda data: data["fed"][4].__setitem__(1, ("other", data["fed"][4][1][1])),
     "step 5: rank {rank} was fed other data than the reference (micro-batch 2): the targets are right and the inputs"),
    (lambda data: data["fed"][4].__setitem__(1, (data["fed"][4][1][0], "other")),
     "step 5: rank {rank} was fed other data than the reference (micro-batch 2): the inputs are right and the targets"),
    (lambda data: data["fed"][4].__setitem__(1, data["fed"][3][0]),
     "step 5: rank {rank} was fed other data than the reference (micro-batch 2): it is another micro-batch"),
    (lambda data: data["fed"][4].__setitem__(1, ("other", "others")),
     "step 5: rank {rank} was fed other data than the reference (micro-batch 2): inputs and targets, so it has other"),
    (put("loss", 2, 0.66668), "step 3: loss is 0.66668, the reference's 0.66666667"),
    (put("loss", 2, -math.inf), "step 3: loss is -inf, the reference's 0.66666667"),
    (put("loss", 2, math.nan), "step 3: loss is nan, the reference's 0.66666667"),
    (set_norm("gradients", "first.bias", 3, 2 / 3),
     "step 3: gradient of 'first.bias' on rank {rank} has norm 0.66666667, 2 times the reference's 0.33333333"),
    (set_norm("gradients", "last.weight", 10, 0.0), "step 10: gradient of 'last.weight' on rank {rank} has norm 0"),
    (set_norm("gradients", "last.weight", 1, math.nan),
     "step 1: gradient of 'last.weight' on rank {rank} has norm nan"),
    (set_norm("weights", "first.weight", 7, 16.001), "step 7: weight of 'first.weight' on rank {rank} has norm 16.001"),
    (set_norm("weights", "first.weight", 7, math.inf), "step 7: weight of 'first.weight' on rank {rank} has norm inf"),
    (lambda data: data["gradients"]["first.weight"].__setitem__(0, (1.0, -0.3)),
     "step 1: gradient of 'first.weight' on rank {rank} has the reference's norm but another direction"),
    (lambda data: data["weights"]["first.weight"].__setitem__(0, (10.0, math.nan)),
     "step 1: weight of 'first.weight' on rank {rank} has the reference's norm but another direction"),
    (lambda data: data["gradients"].pop("last.weight"),
     "step 1: gradient 'last.weight' exists in only one of the two"),
    (lambda data: data["weights"].update(extra=data["weights"]["first.bias"]),
     "step 1: weight 'extra' exists in only one of the two"),
])
def test_every_difference_is_named_with_its_step_and_tensor(
    rank: int, change: Callable[[dict[str, Any]], object], beginning: str
) -> None:
    assert judged(rank, change).startswith(beginning.format(rank=rank))


def test_the_first_difference_is_the_one_that_is_named() -> None:
    def change(data: dict[str, Any]) -> None:
        set_norm("weights", "first.bias", 2, 99)(data)
        set_norm("gradients", "first.bias", 3, 99)(data)
        put("loss", 4, 99.0)(data)

    assert judged(0, change).startswith("step 2: weight of 'first.bias'")


def test_a_cause_is_named_before_its_effects() -> None:
    # Rank 1 is fed other data: in the same step the loss and the gradients of rank 0 differ too.
    def effects(data: dict[str, Any]) -> None:
        put("loss", 0, 3.0)(data)
        set_norm("gradients", "first.bias", 1, 3.0)(data)

    def cause(data: dict[str, Any]) -> None:
        effects(data)
        data["fed"][0][0] = ("other", "others")

    assert judge(trace(None), [trace(0, effects), trace(1, cause)]).startswith("step 1: rank 1 was fed other data")


@pytest.mark.parametrize("kind", ["gradients", "weights"])
def test_rounding_passes_and_ten_times_the_tolerance_does_not(kind: str) -> None:
    right = getattr(trace(None), kind)["first.weight"][4][0]
    assert judged(1, set_norm(kind, "first.weight", 5, right * (1 + TOLERANCE / 10))) == ""
    assert judged(1, put("loss", 5, 2.0 / 6 * (1 + TOLERANCE / 10))) == ""
    assert judged(1, set_norm(kind, "first.weight", 5, right * (1 + TOLERANCE * 10))) != ""


def test_a_gradient_that_is_zero_but_for_rounding_compares_as_zero() -> None:
    def noise(size: float) -> Callable[[dict[str, Any]], object]:
        return lambda data: data["gradients"].update({"last.weight": [(size, size)] * STEPS})

    assert judge(trace(None, noise(0.0)), [trace(0, noise(5e-8)), trace(1, noise(3e-8))]) == ""
    assert judge(trace(None, noise(0.0)), [trace(0, noise(0.0)), trace(1, noise(1e-4))]) != ""


@pytest.mark.parametrize(("change", "found"), [
    (evaluated(0, value=0.6, own=0.6), "step 9: evaluation is 0.6, the reference's 0.5"),
    (evaluated(0, value=0.501, own=0.5), "step 9: evaluation is 0.501, the harness's of the same weights 0.5"),
    (evaluated(1, value=0.5, own=0.52), "step 10: evaluation is 0.5, the harness's of the same weights 0.52"),
    (evaluated(1, value=0.6, own=0.6), ""),  # weights have moved apart: only the harness's own evaluation judges
    (evaluated(1, value=0.6), "step 10: evaluation is 0.6, the reference's 0.52"),  # it cannot evaluate them itself
], ids=["differs", "other weights", "one behind", "further apart", "averages"])
def test_an_evaluation_that_differs_on_all_ranks_is_found(change: Change, found: str) -> None:
    assert judge(trace(None), [trace(0, change), trace(1, change)]) == found


def test_an_evaluation_without_a_number_is_found() -> None:
    nothing = evaluated(0, value=math.nan)
    assert "evaluation is nan, the reference's" in judge(trace(None), [trace(0, nothing), trace(1, nothing)])
    assert judged(1, nothing) == "after step 9: the evaluation is nan on rank 1, 0.5 on rank 0"


def test_an_evaluation_that_differs_on_one_rank_is_found() -> None:
    assert judged(1, evaluated(0, value=0.6, own=0.6)) == "after step 9: the evaluation is 0.6 on rank 1, 0.5 on rank 0"


def test_what_an_evaluation_leaves_behind_or_leaves_out_is_found() -> None:
    assert judged(1, evaluated(0, moved="first.bias")) == (
        "after step 9: the evaluation changed the weights, the first of them 'first.bias' on rank 1")
    assert judged(1, evaluated(0, resting=3)) == (
        "after step 9: the evaluation left 3 layers of rank 1 in evaluation mode")
    assert judged(0, evaluated(1, counted=358, samples=360)) == "after step 10: 358 samples were evaluated, not 360"


@pytest.mark.parametrize(("check", "step", "ratio", "cause"), [
    ("gradient", 1, 4.0, "it is summed over the ranks and not averaged"),
    ("gradient", 60, 0.5, "it is averaged over the micro-batches twice"),
    ("gradient", 1, 0.0, "it is not trained"),
    ("gradient", 1, 1.3, "1.3 times it"),
    ("gradient", 1, math.nan, NO_FACTOR),
    ("loss", 1, math.nan, "the model computes in another mode or type, or it is the loss of other samples"),
    ("weight", 1, math.nan, FIRST_UPDATE),
    ("update", 3, math.nan, UPDATE_CAUSE),
    ("ranks", 9, math.nan, ""),
    ("initial weights", 0, math.nan, "of another seed, or changed before the first step, as by a warm-up"),
])
def test_a_difference_has_its_likely_cause(check: str, step: int, ratio: float, cause: str) -> None:
    assert likely_cause(Difference(check, step, "", ratio=ratio), CHOICES) == cause


@pytest.mark.parametrize(("check", "cause"), [
    ("gradient", "it is that of rank 1 alone"), ("update", "it is that of rank 1 alone"), ("ranks", "")])
def test_what_the_harness_found_in_the_same_step_is_the_cause(check: str, cause: str) -> None:
    again = StepAgain(number=2, apart=(Apart(what="loss", apart=1e-8, ratio=1.0),
                                       Apart(what="gradient", name="a", apart=0.3, ratio=1.1, like="rank 1")))
    assert likely_cause(Difference(check, 2, "", tolerance=1e-3, again=again), CHOICES) == cause


def test_what_the_ledger_contradicts_up_to_the_step_is_the_cause() -> None:
    def other(data: dict[str, Any]) -> None:
        data["loss"][6] = 3.0
        data["ledger"] = {"steps": 10, "forwarded": 0, "losses": 0, "compared": 0, "updates": 1, "notes": [
            {"kind": kind, "step": step, "times": 1, "cause": cause} for kind, step, cause in (
                ("inputs", 6, "repeated"), ("targets", 8, ""))]}

    told = sentence(culprit(gate_judge.judge(trace(None), [trace(0, other), trace(1)])), [TOLERANCE], CHOICES)
    assert told == ("step 7: loss is 3, the reference's 0.28571429: rank 0: the model saw other inputs than were "
                    "dealt, first seen in step 7: some of them twice, others not at all")


def test_what_follows_from_other_data_says_so() -> None:
    def other(data: dict[str, Any]) -> None:
        data["fed"][4][1] = ("other", "others")
        data["loss"][7] = 3.0

    found = gate_judge.judge(trace(None), [trace(0, other), trace(1)])["loss"]
    assert found is not None and likely_cause(found, CHOICES) == "it was fed other data, first in step 5"


def test_weights_that_change_between_two_steps_are_the_cause() -> None:
    def other(data: dict[str, Any]) -> None:
        data["loss"][7], data["moved_between"] = 3.0, (8, "first.bias")

    def evaluated_too(data: dict[str, Any]) -> None:
        other(data)
        data["evaluations"][0]["moved"] = "first.bias"

    found, evaluation = (gate_judge.judge(trace(None), [trace(0, change), trace(1, change)])["loss"]
                         for change in (other, evaluated_too))
    assert found is not None and likely_cause(found, CHOICES) == (
        "the weights changed between step 7 and step 8, first in 'first.bias': by an update, or a write, beside the "
        "steps")
    assert evaluation is not None and "beside the steps" not in likely_cause(evaluation, CHOICES)


def test_a_loss_that_follows_from_other_weights_says_so() -> None:
    def other(data: dict[str, Any]) -> None:
        set_norm("weights", "first.bias", 6, 0.5)(data)
        data["loss"][7] = 3.0

    found = gate_judge.judge(trace(None), [trace(0, other), trace(1, other)])["loss"]
    assert found is not None and likely_cause(found, CHOICES) == (
        "the weights differ since step 6, so this is what follows")
    assert likely_cause(replace(found, since=0), CHOICES) != likely_cause(found, CHOICES)


DRAWN = np.random.default_rng(5).normal(size=(4, 6))


@pytest.mark.parametrize(("change", "gradient", "like"), [
    (lambda update, gradient, weight: update * 0, True, LIKE["left out"]),
    (lambda update, gradient, weight: 1.5 * update, True, LIKE["factor"].format(1.5)),
    (lambda update, gradient, weight: update - 0.1 * weight, True, LIKE["decayed"]),
    (lambda update, gradient, weight: -0.8 * gradient, True, LIKE["forgotten"]),
    (lambda update, gradient, weight: update - 0.02 * gradient, True, LIKE["other gradient"]),
    (lambda update, gradient, weight: 0.5 * update - 0.4 * gradient, True, LIKE["momentum"].format(0.5)),
    (lambda update, gradient, weight: update + DRAWN[3], True, LATE_UPDATE),
    (lambda update, gradient, weight: update + DRAWN[3], False, LATE_UPDATE),
], ids=["left out", "factor", "decayed", "forgotten", "gradient", "momentum", "unknown", "not split"])
def test_a_late_update_is_like_what_the_projections_of_its_tensors_fit(
    change: Callable[..., Any], gradient: bool, like: str
) -> None:
    names, at = [f"layer {number}" for number in range(6)], 5

    def changed(update: Any) -> Change:
        def put_in(data: dict[str, Any]) -> None:
            for key, size, values in (("gradients", 2.0, DRAWN[1] if gradient else None), ("updates", 1.0, update),
                                      ("weights", 4.0, DRAWN[2] + update)):
                data[key] = {name: [(size, 0.1 * place)] * STEPS for place, name in enumerate(names)}
                for place, name in enumerate(names):
                    data[key][name][at] = None if values is None else (size, values[place])

        return put_in

    reference, ours = (late(trace(rank, changed(update))) for rank, update in (
        (None, DRAWN[0]), (0, change(DRAWN[0], DRAWN[1], DRAWN[2]))))
    other = ours.model_copy(update={"rank": 1, "fed": trace(1).fed})
    found = gate_judge.judge(reference, [ours, other])["update"]
    assert found is not None and found.step == 54 and likely_cause(found, CHOICES) == like


def test_a_factor_is_one_of_norm_and_direction() -> None:
    twice = lambda data: data["gradients"]["first.bias"].__setitem__(2, (2 / 3, 2.6))  # noqa: E731
    turned = set_norm("gradients", "first.bias", 3, 2 / 3)
    for change, ratio in ((twice, 2.0), (turned, math.nan)):
        found = culprit(gate_judge.judge(trace(None), [trace(0, change), trace(1, change)]))
        assert found is not None and found.ratio == pytest.approx(ratio, nan_ok=True)


def test_a_rule_that_amplifies_rounding_gets_its_own_tolerance_after_the_first_gradient() -> None:
    def judge_with(change: Change, rounding: float) -> str:
        found = culprit(gate_judge.judge(trace(None), [trace(0, change), trace(1, change)], None, rounding))
        return found.check if found else ""

    weight = set_norm("weights", "first.weight", 7, 16.001)
    assert (judge_with(weight, 0.0), judge_with(weight, 0.3)) == ("weight", "")
    first = set_norm("gradients", "first.bias", 1, 1.001)
    assert judge_with(first, 0.3) == "gradient"
    far = trace(None, set_norm("weights", "first.weight", 3, 30.0))
    assert widen_tolerances(trace(None), [far], 0.3)[0] == TOLERANCE
    assert widen_tolerances(trace(None), [far], 0.3)[-1] == 0.3
    assert widen_tolerances(trace(None), [far])[-1] == LARGEST_TOLERANCE


def with_buffer(value: tuple[float, float], name: str = "norm.running_mean") -> Callable[[dict[str, Any]], object]:
    return lambda data: data.update(buffers={name: value})


def test_buffers_are_compared_with_the_reference() -> None:
    right, wrong = with_buffer((1.0, 0.2)), with_buffer((1.1, 0.2))
    reference = trace(None, right)
    assert judge(reference, [trace(0, right), trace(1, right)]) == ""
    assert judge(reference, [trace(0, right), trace(1, wrong)]) == (
        "after evaluation: buffer 'norm.running_mean' on rank 1 has norm 1.1, 1.1 times the reference's 1 "
        "(buffers are not synchronised)")
    assert judge(reference, [trace(0, wrong), trace(1, wrong)]) == (
        "after evaluation: buffer 'norm.running_mean' on rank 0 has norm 1.1, 1.1 times the reference's 1")
    turned = [trace(0, right), trace(1, with_buffer((1.0, -0.2)))]
    assert "has the reference's norm but another direction" in judge(reference, turned)
    assert "buffer 'norm.running_mean' exists in only one of the two" in judge(reference, [trace(0), trace(1, right)])


def test_steps_at_rate_zero_must_change_nothing() -> None:
    aged = lambda data: data.update(aged_loss=[0.3] * 48)  # noqa: E731
    reference = trace(None, aged)
    assert judge(reference, [trace(0, aged), trace(1, aged)]) == ""

    def other(data: dict[str, Any]) -> None:
        data["aged_loss"] = [0.3] * 28 + [0.31] * 20

    assert judge(late(reference), [late(trace(0, other)), late(trace(1, other))]) == (
        "step 34: loss is 0.31, the reference's 0.3")
    checks = gate_judge.judge(late(reference), [late(trace(rank, other)) for rank in range(WORLD)])
    assert [name for name, found in checks.items() if found] == ["loss"]  # the rate is not the culprit

    def moved(data: dict[str, Any]) -> None:
        data.update(aged_loss=[0.3] * 48, moved_at_rate_zero="last.weight")

    assert judge(late(reference), [late(trace(0, aged)), late(trace(1, moved))]) == (
        "steps 6 to 53: weight of 'last.weight' on rank 1 changed at rate 0")


def test_other_data_at_rate_zero_are_named_with_their_step() -> None:
    def aged(rank: int | None) -> Change:
        micros = range(WORLD * MICROS) if rank is None else range(rank, WORLD * MICROS, WORLD)
        return lambda data: data.update(aged_fed=[[(f"in {step} {micro}", "out") for micro in micros]
                                                  for step in range(48)])

    def other(data: dict[str, Any]) -> None:
        aged(1)(data)
        data["aged_fed"][5][1] = ("in 5 0", "out")

    reference = late(trace(None, aged(None)))
    assert judge(reference, [late(trace(0, aged(0))), late(trace(1, aged(1)))]) == ""
    assert judge(reference, [late(trace(0, aged(0))), late(trace(1, other))]) == (
        "step 11: rank 1 was fed other data than the reference (micro-batch 2): it is another micro-batch of the "
        "reference's, so their order or their ranks differ")


def late(found: Trace) -> Trace:
    """The same trace with 48 unmeasured steps after the fifth."""
    return found.model_copy(update={"steps": (*range(1, 6), *range(54, 59))})


def test_a_missing_update_at_a_small_rate_is_found_where_the_weights_hide_it() -> None:
    small = {name: [(1e-6, 1e-6)] * STEPS for name in ("first.weight", "first.bias", "last.weight")}
    right = lambda data: data.update(  # noqa: E731
        updates=small, weights={name: [(1e-2, 1e-2)] * STEPS for name in small})

    def skipped(data: dict[str, Any]) -> None:
        right(data)
        data["updates"] = {**small, "first.bias": [(1e-6, 1e-6)] * 7 + [(0.0, 0.0)] * 3}

    reference = trace(None, right)
    assert judge(reference, [trace(0, right), trace(1, right)]) == ""
    assert judge(reference, [trace(0, right), trace(1, skipped)]).startswith("step 8: update of 'first.bias' on rank 1")


def test_every_rank_must_hold_the_same() -> None:
    holds = lambda values: lambda data: data.update(parts="all", held=values)  # noqa: E731
    assert judge(trace(None), [trace(0, holds("a")), trace(1, holds("a"))]) == ""
    assert judge(trace(None), [trace(0, holds("a")), trace(1, holds("b"))]) == (
        "after step 10: rank 1 holds other weights than rank 0")
    shards = [trace(0, lambda data: data.update(parts="first half", held="a")),
              trace(1, lambda data: data.update(parts="second half", held="b"))]
    assert judge(trace(None), shards) == ""
    assert judged(1, lambda data: data.update(different=3, first_different="first.bias")) == (
        "after step 10: 3 weights that rank 1 holds differ from the full weights, the first in 'first.bias'")


def test_the_optimizer_that_steps_must_be_the_requested_one() -> None:
    def other(data: dict[str, Any]) -> None:
        data.update(optimizer={"optimizer": "torch.optim.sgd.SGD"}, effective={"optimizer": "apex.FusedSGD"})

    assert judged(0, other) == "optimizer torch.optim.sgd.SGD was asked for, apex.FusedSGD ran"


def test_initial_weights_are_named_before_their_effects() -> None:
    weights = {"first.weight": (1.0, 0.5)}

    def wrong(data: dict[str, Any]) -> None:
        data["initial"] = {"first.weight": (1.1, 0.5)}
        put("loss", 0, 3.0)(data)

    right = lambda data: data.update(initial=weights)  # noqa: E731
    assert judge(trace(None, right), [trace(0, wrong), trace(1, wrong)]).startswith(
        "before step 1: weight of 'first.weight' on rank 0")


def test_every_failing_check_is_kept() -> None:
    def both(data: dict[str, Any]) -> None:
        put("loss", 4, 99.0)(data)
        evaluated(0, moved="first.bias")(data)

    found = gate_judge.judge(trace(None), [trace(0, both), trace(1)])
    assert [name for name, item in found.items() if item] == ["loss", "evaluation"]
    loss = found["loss"]
    assert loss is not None
    assert (loss.step, loss.tolerance) == (5, TOLERANCE)


def test_tolerances_grow_with_rounding_but_not_on_the_first_step() -> None:
    def blown_up(data: dict[str, Any]) -> None:
        for step in range(STEPS):
            norm, projection = data["gradients"]["last.weight"][step]
            data["gradients"]["last.weight"][step] = (norm * (1 + 1e-6 * 3 ** step), projection)

    tolerances = widen_tolerances(trace(None), [trace(None), trace(None, blown_up)])
    assert tolerances[0] == TOLERANCE
    assert list(tolerances) == sorted(tolerances)
    assert tolerances[-1] == LARGEST_TOLERANCE
    change = set_norm("gradients", "first.bias", 4, (1 / 4) * (1 + 1e-4))
    ranks = [trace(0, change), trace(1, change)]
    assert judge(trace(None), ranks).startswith("step 4: gradient of 'first.bias'")
    assert judge(trace(None), ranks, tolerances) == ""
    last = len(tolerances)
    late = [trace(each, set_norm("gradients", "first.bias", last, (1 / last) * 1.05)) for each in range(WORLD)]
    found = culprit(gate_judge.judge(trace(None), late, tolerances))
    assert found is not None and sentence(found, tolerances) == found.text + SENSITIVE
    assert sentence(culprit(gate_judge.judge(trace(None), late)), ()).endswith(found.text)
    assert sentence(None, tolerances) == ""


def moving(*changes: Change) -> Change:
    """Traces with an update in every step."""

    def change(data: dict[str, Any]) -> None:
        data["updates"] = {name: [(0.1, 0.03)] * STEPS for name in NAMES}
        for item in changes:
            item(data)

    return change


def judged_narrow(change: Change, precision: Any = None) -> str:
    ranks: Sequence[Trace] = [trace(0, moving(change)), trace(1, moving(change))]
    found = culprit(judge_precision(precision or Bf16Autocast(), trace(None, moving()), ranks))
    return found.text if found else ""


def no_update(step: int) -> Change:
    return lambda data: data.update(updates={
        name: [(0.0, 0.0) if index == step - 1 else (0.1, 0.03) for index in range(STEPS)] for name in NAMES})


@pytest.mark.parametrize("change", [
    lambda _: None,
    set_norm("gradients", "first.bias", 1, 1.0005),
    set_norm("gradients", "first.bias", 5, 0.25),  # later steps may differ: rounding has grown
    put("loss", 3, 0.51),
])
def test_rounding_of_the_format_passes(change: Change) -> None:
    assert judged_narrow(change) == ""


@pytest.mark.parametrize(("change", "beginning"), [
    (set_norm("gradients", "first.bias", 1, 2.0), "step 1: gradient of 'first.bias' on rank 0 has norm 2"),
    (put("loss", 0, 2.1), "step 1: loss is 2.1, the reference's 2"),
    (no_update(9), "step 9: the update on rank 0 has norm 0, the reference's 0.17320508"),
    (lambda data: data.update(wide_share=0.0), "after step 10: 0.0% of the master weights on rank 0 are wider than"),
    (evaluated(0, value=0.6, own=0.5), "step 9: evaluation is 0.6, the harness's of the same weights 0.5"),
    (evaluated(1, value=0.5, own=0.52), "step 10: evaluation is 0.5, the harness's of the same weights 0.52"),
    (evaluated(0, moved="last.weight"),
     "after step 9: the evaluation changed the weights, the first of them 'last.weight' on rank 0"),
])
def test_a_defect_is_named(change: Change, beginning: str) -> None:
    assert judged_narrow(change).startswith(beginning)


def test_gradients_of_16_bits_have_a_wider_tolerance() -> None:
    change = set_norm("gradients", "first.bias", 1, 1.02)
    assert judged_narrow(change, Bf16Master()) == ""
    assert judged_narrow(change, Bf16Autocast()) != ""
