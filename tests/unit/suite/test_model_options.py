"""compile, activation_checkpointing, channels_last, cudnn_benchmark and offload in suites, plans and results."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from repro.core import registry
from repro.core.errors import SuiteError
from repro.core.machine import Machine
from repro.record.derive.effective import mismatches, requested
from repro.record.result.reasons import Unlike
from repro.suite.kinds.training import TrainingConfig
from repro.suite.kinds.training_options import Constant, Cosine, Polynomial, Scaling, Schedule, Step
from repro.suite.planning.plan import Plan
from repro.worker.setup import _warm_up_once
from repro.workloads.digits import DigitsMlp
from tests.plans import planned, suite

HERE = Machine("cpu", 0, 2)


def plan(folder: Path, more: str, machine: Machine = HERE) -> Plan:
    return planned(folder, suite(
        "options", more, seeds=5, batch=64, optimizer="{kind: adamw, lr: 0.01}", evaluate_every=720, processes=2,
        stop="{metric: top1, target: 0.9, max_epochs: 1}", device=None), machine=machine)


def test_levels_have_words_and_defaults_change_no_cell(tmp_path: Path) -> None:
    found = plan(tmp_path, "matrix:\n  compile: [false, true, {cache: warm}]\nbaseline: {compile: false}\n"
                           "primary:\n  candidate: {compile: {cache: warm}}\n  baseline: {compile: false}\n"
                           "  metric: tta_wall\n")
    assert [cell.label for cell in found.cells] == ["not compiled", "compiled", "compiled (cache=warm)"]
    assert found.cells[0].cell_id == plan(tmp_path, "").cells[0].cell_id
    assert found.cells[1].choices.setting("cpu", 0).model.compile is not None


@pytest.mark.parametrize(("more", "machine", "reason"), [
    ("  cudnn_benchmark: [false, true]", HERE, "a CPU has none"),
    ("  compile: [false, {mode: reduce-overhead}]", HERE, "CUDA graphs"),
    ("  batch: [{global: 64}, {global: 64, accumulation: 2}]\n  compile: [{mode: max-autotune}]",
     Machine("cuda", 2, 2), "overwrite the gradient"),
    ("  engine: [ddp, fsdp]\n  compile: [{mode: reduce-overhead}]", Machine("cuda", 2, 2), "FSDP gathers weights"),
    ("  engine: [{kind: deepspeed, stage: 2}, {kind: deepspeed, stage: 3}]\n  compile: [{mode: max-autotune}]",
     Machine("cuda", 2, 2), "ZeRO 3 gathers weights"),
    ("  compile: [false, true]", Machine("cpu", 0, 2, cpp_compiler=False), "needs a C++ compiler"),
    ("  engine: [ddp, {kind: deepspeed, offload: optimizer}]", Machine("cpu", 0, 2, cpp_compiler=False),
     "builds DeepSpeed's Adam"),
    ("  engine: [ddp, {kind: deepspeed, stage: 0, offload: optimizer}]", HERE, "stage 0 divides nothing"),
    ("  engine: [ddp, {kind: deepspeed, stage: 2, offload: optimizer+weights}]", HERE, "only stage 3"),
    ("  engine: [ddp, fake]\n  channels_last: [true]", HERE, "fake does not carry out channels_last"),
])
def test_cells_that_cannot_run_are_skipped_with_the_reason(
    tmp_path: Path, more: str, machine: Machine, reason: str
) -> None:
    found = plan(tmp_path, f"matrix:\n{more}\n", machine)
    skipped, = found.skipped
    assert reason in skipped.reason
    assert found.cpp_compiler is machine.cpp_compiler


def test_on_a_gpu_benchmarking_excludes_bitwise(tmp_path: Path) -> None:
    more = "  cudnn_benchmark: true\nmatrix:\n  determinism: [seeded, bitwise]\n"
    found = plan(tmp_path, more, Machine("cuda", 2, 2))
    assert "no run repeats another bit for bit" in found.skipped[0].reason


@pytest.mark.parametrize(("compile_", "passes"), [
    ("false", 1), ("true", 1), ("{mode: reduce-overhead}", 2), ("{mode: max-autotune}", 2)])
def test_cuda_graphs_of_an_evaluation_are_recorded_before_the_clock_starts(
    tmp_path: Path, compile_: str, passes: int
) -> None:
    """torch runs a shape as it is at its first call, and records it at the second."""
    cell, = plan(tmp_path, f"  compile: {compile_}\n", Machine("cuda", 2, 2)).cells
    job: Any = SimpleNamespace(micro_batch=32, accumulation=1, rank=0, world=2, eval_batch=100)
    parts: Any = SimpleNamespace(synthetic_batch=lambda samples: samples, scores={"top1": None})
    seen: list[Any] = []
    session: Any = SimpleNamespace(
        warm_up=lambda batches: None, evaluate=lambda batches, metric: seen.append(batches), synchronize=lambda: None)
    assert isinstance(cell.choices, TrainingConfig)
    _warm_up_once(session, parts, job, cell.choices)
    assert seen == [[100, 80]] * passes


def test_compiling_needs_the_warm_up(tmp_path: Path) -> None:
    with pytest.raises(SuiteError, match="compile needs the warm-up"):
        plan(tmp_path, "  compile: true\n  warmup_steps: false\n")


@pytest.mark.parametrize(("more", "ran", "phrase"), [
    ("  compile: true", {"compile": "off"}, "compile default, dynamic auto was asked for, off ran"),
    ("  compile: {cache: warm}", {"compile": "default, dynamic auto", "compile_cache": "cold"},
     "compile_cache warm was asked for, cold ran"),
    ("  channels_last: true", {"channels_last": "off"}, "channels_last on was asked for, off ran"),
    ("", {"activation_checkpointing": "on"}, "activation_checkpointing off was asked for, on ran"),
])
def test_what_ran_is_compared_with_what_was_asked_for(
    tmp_path: Path, more: str, ran: dict[str, Any], phrase: str
) -> None:
    choices = plan(tmp_path, more).cells[0].choices
    assert [item.words for item in mismatches(choices, ran, {})] == [phrase]
    assert mismatches(choices, {}, {}) == [], "what was not read back is not judged"


CALM = settings(max_examples=50, deadline=None, derandomize=True, database=None)


@pytest.mark.parametrize(("schedule", "budget", "shares"), [
    (Constant(warmup_epochs=4, warmup_start=0.2), 10, {0: 0.2, 1: 0.4, 2: 0.6, 3: 0.8, 4: 1, 9: 1}),
    (Step(milestones=(3.0, 6.0), gamma=0.1), 9, {0: 1, 2.99: 1, 3: 0.1, 5.99: 0.1, 6: 0.01, 9: 0.01}),
    (Polynomial(), 10, {2.5: 0.75}), (Polynomial(power=2, end=0.1), 10, {5: 0.1 + 0.9 * 0.25}),
    (Polynomial(end=0.1), 10, {10: 0.1, 12: 0.1}),  # past the budget
    (Cosine(), 20, {0: 1, 10: 0.5, 20: 0}), (Cosine(end=0.2), 20, {5: 0.2 + 0.8 * (1 + math.sqrt(0.5)) / 2}),
    (Cosine(warmup_epochs=2), 12, {2: 1, 7: 0.5}),  # it begins at the end of the warm-up
    (Cosine(warmup_epochs=5), 5, {5: 0}),
])
def test_schedules_by_hand(schedule: Constant, budget: float, shares: dict[float, float]) -> None:
    assert {epoch: schedule.factor(epoch, budget) for epoch in shares} == pytest.approx(shares)


@CALM
@given(st.floats(0, 100), st.sampled_from([Constant(), Cosine(), Polynomial(), Step(milestones=(1.0,))]))
def test_a_share_of_the_rate_stays_between_0_and_1(epoch: float, schedule: Constant) -> None:
    assert 0 <= schedule.factor(epoch, 50) <= 1


@pytest.mark.parametrize("given", [
    {"kind": "step", "milestones": [5, 3]}, {"kind": "step", "milestones": [3, 3]}, {"kind": "step", "milestones": []},
    {"kind": "cosine", "end": 2}, {"kind": "constant", "gamma": 0.1}, {"kind": "exponential"},
    {"kind": "cosine", "warmup_epochs": math.inf}, {"kind": "polynomial", "power": math.nan},
])
def test_schedules_that_make_no_sense_are_refused(given: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter[object](Schedule).validate_python(given)


@pytest.mark.parametrize(("rule", "factor"), [("none", 1.0), ("linear", 4.0), ("sqrt", 2.0)])
def test_scaling_rules(rule: str, factor: float) -> None:
    assert Scaling.model_validate({"rule": rule, "base_batch": 64}).scale(256) == factor


def test_a_rule_without_its_base_batch_is_refused_with_the_missing_field() -> None:
    with pytest.raises(ValidationError, match="needs base_batch"):
        Scaling(rule="linear")


CHOICES: dict[str, Any] = {
    "workload": "digits-mlp", "engine": "ddp", "processes": 2, "batch": 64, "optimizer": {"kind": "sgd", "lr": 0.1},
    "evaluate_every": 640, "stop": {"metric": "top1", "target": 0.9, "max_epochs": 1}, "device": "cpu",
}


class Reads(DigitsMlp):
    """It says that it reads samples."""

    reads_samples: ClassVar[bool] = True


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.BUILT_IN["workload"], "reads", f"{__name__}:Reads")


def config(**changes: Any) -> TrainingConfig:
    return TrainingConfig.model_validate({**CHOICES, "workload": "reads", **changes})


@pytest.mark.parametrize(("asked", "path", "problem"), [
    ({"workers": 2, "workload": "digits-mlp"}, "input.workers", "has no samples to read"),
    ({"workers": -1}, "input.workers", "greater than or equal to 0"),
    ({"workers": True}, "input", "must be a number"),
    ({"workers": 0, "ahead": 3}, "input", "nothing is read ahead"),
    ({"workers": 2, "ahead": 0}, "input.ahead", "greater than or equal to 1"),
    ({"order": "shuffled"}, "input.order", "'planned' or 'stream'"),
    ({"order": "stream", "processes": 2048, "batch": 2048}, "input.order", "1437 samples, 2048 processes"),
    ({"threads": 2}, "input.threads", "Extra inputs"),
])
def test_what_cannot_be_is_refused_where_it_is(asked: dict[str, Any], path: str, problem: str) -> None:
    outside = {key: asked.pop(key) for key in ("workload", "processes", "batch") if key in asked}
    with pytest.raises(ValidationError) as caught:
        config(**outside, input=asked)
    error = caught.value.errors()[0]
    cause = error.get("ctx", {}).get("error")
    found = ".".join(map(str, (*error["loc"], *getattr(cause, "path", ()))))
    assert found.startswith(path) and problem in error["msg"]


def test_a_trial_that_says_nothing_keeps_its_name() -> None:
    before = config()
    assert config(input={"workers": 0, "order": "planned"}).cell_id == before.cell_id
    assert len({config(input=asked).cell_id for asked in (
        {}, {"workers": 1}, {"workers": 2}, {"workers": 2, "ahead": 5}, {"order": "stream"})}) == 5


def test_what_was_asked_for_is_compared_with_what_ran() -> None:
    four = config(input={"workers": 4})
    assert {name: value for name, value in requested(four).items() if name.startswith("input")} == {
        "input_workers": "4", "input_ahead": "2", "input_order": "planned"}
    ran = {"input_workers": "4", "input_ahead": "2", "input_order": "planned"}
    assert mismatches(four, ran, {"OMP_NUM_THREADS": "1"}) == []
    assert mismatches(four, {**ran, "input_workers": "3"}, {}) == [Unlike(name="input_workers", wanted="4", ran="3")]
    assert mismatches(config(), {}, {}) == [], "a workload that looks its batches up reads nothing back"


@pytest.mark.parametrize(("written", "problem"), [
    ("maybe", "matrix.compile[0]: must be false, true or a mapping"),
    ("{moda: default}", "matrix.compile[0].moda: unknown key; did you mean 'mode'?"),
    ("{cache: 3}", "matrix.compile[0].cache: must be 'cold' or 'warm' (given: 3)"),
])
def test_a_wrong_compile_is_named_as_it_is_written(tmp_path: Path, written: str, problem: str) -> None:
    with pytest.raises(SuiteError) as caught:
        plan(tmp_path, f"matrix:\n  compile: [{written}]\n")
    assert problem in str(caught.value)
