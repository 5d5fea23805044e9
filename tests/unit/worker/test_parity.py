"""The parity gate's judgement, on traces made by hand: every difference is found and named, rounding is not."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from repro.core.errors import ParityError
from repro.core.machine import Machine
from repro.suite.file import read_suite
from repro.suite.plan import Plan, make_plan
from repro.worker.gate_worker import measure
from repro.worker.parity import (
    LARGEST_TOLERANCE,
    TOLERANCE,
    Trace,
    groups,
    judge,
    judge_group,
    read_traces,
    why_not,
    widen_tolerances,
)
from tests.records import SUITE

STEPS, WORLD, MICROS = 10, 2, 2
NAMES = ("first.weight", "first.bias", "last.weight")
Values = dict[str, list[tuple[float, float]]]


def trace(rank: int | None, change: Callable[[dict[str, Any]], object] = lambda _: None) -> Trace:
    """The files of a correct rank; None: the reference, which is fed everything in turn."""
    micros = range(WORLD * MICROS) if rank is None else [micro * WORLD + rank for micro in range(MICROS)]
    data: dict[str, Any] = {
        "rank": rank or 0,
        "fed": [[f"step {step} run {micro}" for micro in micros] for step in range(STEPS)],
        "loss": [2.0 / (step + 1) for step in range(STEPS)],
        "gradients": {name: [(1 / (step + 1), 0.3 + size) for step in range(STEPS)] for size, name in enumerate(NAMES)},
        "weights": {name: [(10.0 + step, 4.0 - size) for step in range(STEPS)] for size, name in enumerate(NAMES)},
        "buffers": {},
        "evaluation": 0.5,
        "effective": {},
    }
    change(data)
    return Trace.model_validate(data)


def set_norm(kind: str, name: str, step: int, norm: float) -> Callable[[dict[str, Any]], object]:
    def change(data: dict[str, Any]) -> None:
        data[kind][name][step - 1] = (norm, data[kind][name][step - 1][1])
    return change


def judged(rank: int, change: Callable[[dict[str, Any]], object]) -> str:
    """The verdict on two ranks of which one is changed."""
    return judge(trace(None), [trace(each, change if each == rank else lambda _: None) for each in range(WORLD)])


def test_ranks_that_train_alike_pass() -> None:
    assert judge(trace(None), [trace(0), trace(1)]) == ""


def put(key: str, index: int, value: object) -> Callable[[dict[str, Any]], object]:
    return lambda data: data[key].__setitem__(index, value)


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize(("change", "beginning"), [
    (lambda data: data["fed"][4].__setitem__(1, "other"),
     "step 5: rank {rank} was fed other data than the reference (micro-batch 2)"),
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
        data["fed"][0][0] = "other"

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


def test_an_evaluation_that_differs_is_found() -> None:
    both = lambda data: data.update(evaluation=0.6)  # noqa: E731
    assert judge(trace(None), [trace(0, both), trace(1, both)]) == "step 10: evaluation is 0.6, the reference's 0.5"
    assert judged(1, both) == "evaluation: rank 1 found 0.6, rank 0 0.5"
    nothing = lambda data: data.update(evaluation=math.nan)  # noqa: E731
    assert "evaluation" in judge(trace(None), [trace(0, nothing), trace(1, nothing)])


def with_buffer(value: tuple[float, float], name: str = "norm.running_mean") -> Callable[[dict[str, Any]], object]:
    return lambda data: data.update(buffers={name: value})


def test_buffers_that_are_not_synchronised_are_found() -> None:
    ranks = [trace(0, with_buffer((1.0, 0.2))), trace(1, with_buffer((1.1, 0.2)))]
    assert judge(trace(None, with_buffer((5.0, 1.0))), ranks) == (
        "after evaluation: buffer 'norm.running_mean' on rank 1 has norm 1.1, 1.1 times rank 0's 1 "
        "(buffers are not synchronised)")
    turned = [trace(0, with_buffer((1.0, 0.2))), trace(1, with_buffer((1.0, -0.2)))]
    assert "has rank 0's norm but another direction" in judge(trace(None, with_buffer((5.0, 1.0))), turned)
    odd = [trace(0), trace(1, with_buffer((1.0, 0.2)))]
    assert "'norm.running_mean' exists only on one of rank 1 and rank 0" in judge(trace(None), odd)


def test_with_batch_normalisation_the_reference_scores_with_other_statistics() -> None:
    # It saw every micro-batch where a rank saw its own; ranks must agree with one another all the same.
    def other(data: dict[str, Any]) -> None:
        data.update(buffers={"norm.running_mean": (1.0, 0.2)}, evaluation=0.4)

    assert judge(trace(None, with_buffer((5.0, 1.0))), [trace(0, other), trace(1, other)]) == ""


# ---- groups


def plan_of(folder: Path, text: str = SUITE) -> Plan:
    (folder / "s.yaml").write_text(text)
    return make_plan(read_suite(str(folder / "s.yaml")).suite, Machine("cpu", 0, 2))


def test_engines_are_compared_within_one_workload_batch_and_world(tmp_path: Path) -> None:
    found = groups(plan_of(tmp_path))
    assert [group.title for group in found] == ["digits, batch 64, 1 process", "digits, batch 64, 2 processes"]
    for group, processes in zip(found, (1, 2), strict=True):
        assert [item.choices.engine.kind for item in group.candidates] == ["ddp", "deepspeed"]
        assert {item.choices.processes for item in group.candidates} == {processes}
        reference = group.reference.choices
        assert (reference.engine.kind, reference.processes) == ("single", 1)
        assert reference.micro_batch == group.candidates[0].choices.micro_batch
        assert reference.batch.accumulation == processes


def test_the_comparison_is_fp32_without_warm_up_or_schedule(tmp_path: Path) -> None:
    text = SUITE.replace("  device: cpu", "  device: cpu\n  precision: bf16-autocast\n  schedule: cosine")
    for group in groups(plan_of(tmp_path, text)):
        for trial in (group.reference, *group.candidates):
            assert trial.choices.precision.kind == "fp32"
            assert trial.choices.schedule.kind == "constant"
            assert not trial.choices.warmup_steps


def test_cells_that_differ_in_precision_only_are_judged_once(tmp_path: Path) -> None:
    text = SUITE[:SUITE.index("primary:")]
    text = text.replace("  processes: [1, 2]", "  processes: [1, 2]\n  precision: [fp32, bf16-autocast]")
    assert [len(group.candidates) for group in groups(plan_of(tmp_path, text))] == [2, 2]


def test_workloads_that_differ_in_an_option_are_distinguished(tmp_path: Path) -> None:
    text = SUITE[:SUITE.index("primary:")]
    text = text.replace("  processes: [1, 2]", "  workload: [digits, {kind: digits, norm: batch}]")
    assert [group.title for group in groups(plan_of(tmp_path, text))] == [
        "digits, batch 64, 1 process", "digits (norm=batch), batch 64, 1 process"]


def test_one_engine_needs_no_gate_and_says_so(tmp_path: Path) -> None:
    one = SUITE[:SUITE.index("baseline:")].replace("[ddp, {kind: deepspeed, stage: 1}]", "[ddp]")
    assert groups(plan_of(tmp_path, one)) == []
    assert why_not(plan_of(tmp_path, one)) == "one engine and one communication algorithm only"
    fake = one.replace("[ddp]", "[fake, {kind: fake, spread: 0.1}]").replace("  device", "  launcher: inline\n  device")
    assert groups(plan_of(tmp_path, fake)) == []
    assert why_not(plan_of(tmp_path, fake)) == "no engine of this suite trains a model"


def test_findings_name_both_sides_and_how_close_it_was(tmp_path: Path) -> None:
    group = groups(plan_of(tmp_path))[1]
    ddp, deepspeed = group.candidates
    traces: Mapping[str, list[Trace]] = {
        group.reference.trial_id: [trace(None)],
        ddp.trial_id: [trace(0, put("loss", 1, 1.0 + 2e-6)), trace(1)],
        deepspeed.trial_id: [trace(0), trace(1, set_norm("gradients", "first.bias", 2, 0.25))],
    }
    fine, bad = judge_group(group, traces)
    assert (fine["candidate"], fine["problem"]) == ("ddp on 2 processes", "")
    assert fine["reference"] == "single on 1 process"
    assert fine["largest_difference"] == pytest.approx(2e-6, rel=1e-6)
    assert bad["candidate"] == "deepspeed (stage=1) on 2 processes"
    assert bad["problem"].startswith("step 2: gradient of 'first.bias' on rank 1")


def test_engines_whose_buffers_differ_from_one_another_are_found(tmp_path: Path) -> None:
    group = groups(plan_of(tmp_path))[0]
    ddp, deepspeed = group.candidates

    def alone(value: tuple[float, float]) -> list[Trace]:
        def change(data: dict[str, Any]) -> None:
            data.update(buffers={"running_mean": value}, fed=trace(None).model_dump()["fed"])
        return [trace(0, change)]

    traces = {group.reference.trial_id: alone((1.0, 0.1)), ddp.trial_id: alone((1.0, 0.1)),
              deepspeed.trial_id: alone((2.0, 0.1))}
    assert [item["problem"] for item in judge_group(group, traces)] == [
        "", "after evaluation: buffer 'running_mean' has norm 2, 2 times the first engine's 1"]


# ---- traces on disk


def test_traces_survive_the_file_nan_included(tmp_path: Path) -> None:
    written = trace(0, put("loss", 3, math.nan))
    (tmp_path / "trace0.json").write_text(written.model_dump_json())
    (back,) = read_traces(tmp_path, 1)
    assert math.isnan(back.loss[3])
    assert back.gradients == written.gradients


@pytest.mark.parametrize("text", [None, "", "{", '{"rank": 0}'])
def test_a_rank_that_left_no_trace_is_named(tmp_path: Path, text: str | None) -> None:
    (tmp_path / "trace0.json").write_text(trace(0).model_dump_json())
    if text is not None:
        (tmp_path / "trace1.json").write_text(text)
    with pytest.raises(ParityError, match="rank 1 left no readable trace"):
        read_traces(tmp_path, 2)


def test_a_tensor_is_measured_by_its_length_and_its_direction() -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    norm, projection = measure("w", array)
    assert norm == pytest.approx(math.sqrt(55))
    assert measure("w", -array) == pytest.approx((norm, -projection))
    assert measure("w", array[::-1])[1] != pytest.approx(projection)
    assert measure("v", array)[1] != pytest.approx(projection)


def test_tolerances_grow_with_rounding_but_not_on_the_first_step() -> None:
    def blown_up(data: dict[str, Any]) -> None:
        for step in range(STEPS):
            norm, projection = data["gradients"]["last.weight"][step]
            data["gradients"]["last.weight"][step] = (norm * (1 + 1e-6 * 3 ** step), projection)

    tolerances = widen_tolerances(trace(None), trace(None, blown_up))
    assert tolerances[0] == TOLERANCE
    assert list(tolerances) == sorted(tolerances)
    assert tolerances[-1] == LARGEST_TOLERANCE
    change = set_norm("gradients", "first.bias", 4, (1 / 4) * (1 + 1e-4))
    ranks = [trace(0, change), trace(1, change)]
    assert judge(trace(None), ranks).startswith("step 4: gradient of 'first.bias'")
    assert judge(trace(None), ranks, tolerances) == ""
