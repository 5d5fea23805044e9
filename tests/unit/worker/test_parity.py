"""Groups of the parity gate: what is compared with what; its traces on disk."""

from __future__ import annotations

import math
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from repro.core.errors import ParityError
from repro.worker.gate.parity import groups, why_not
from repro.worker.gate.trace import read_traces
from repro.worker.gate.worker import BLOCK, Measures
from repro.workloads.digits import Digits
from tests.plans import planned
from tests.records import SUITE
from tests.traces import put, trace

# ---- groups


def test_engines_are_compared_within_one_workload_batch_and_world(tmp_path: Path) -> None:
    found = groups(planned(tmp_path, SUITE))
    assert [group.title for group in found] == ["digits, batch 64, 1 process", "digits, batch 64, 2 processes"]
    for group, processes in zip(found, (1, 2), strict=True):
        assert [item.choices.engine.kind for item in group.candidates] == ["ddp", "deepspeed"]
        assert {item.choices.processes for item in group.candidates} == {processes}
        reference = group.reference.choices
        assert (reference.engine.kind, reference.processes) == ("single", 1)
        assert reference.micro_batch == group.candidates[0].choices.micro_batch
        assert reference.batch.accumulation == processes


def test_the_comparison_is_fp32_without_schedule_and_its_reference_has_no_warm_up(tmp_path: Path) -> None:
    text = SUITE.replace("  device: cpu", "  device: cpu\n  precision: bf16-autocast\n  schedule: cosine")
    found = groups(planned(tmp_path, text))
    for group in (item for item in found if item.kind == "fp32"):
        for trial in (group.reference, *group.candidates):
            assert trial.choices.precision.kind == "fp32"
            assert trial.choices.schedule.kind == "constant"
            assert trial.choices.warmup_steps is (trial is not group.reference)


def test_cells_that_differ_in_precision_only_are_judged_once_in_fp32_and_once_in_their_own(tmp_path: Path) -> None:
    text = SUITE[:SUITE.index("primary:")]
    text = text.replace("  processes: [1, 2]", "  processes: [1, 2]\n  precision: [fp32, bf16-autocast]")
    found = [(group.kind, group.title, len(group.candidates)) for group in groups(planned(tmp_path, text))]
    assert found == [("fp32", "digits, batch 64, 1 process", 2), ("fp32", "digits, batch 64, 2 processes", 2),
                     ("precision", "digits, batch 64, 1 process, bf16-autocast", 2),
                     ("precision", "digits, batch 64, 2 processes, bf16-autocast", 2)]


def test_the_gate_uses_the_smallest_rate_of_the_schedule(tmp_path: Path) -> None:
    text = SUITE.replace("  device: cpu", "  device: cpu\n  schedule: {kind: step, milestones: [0.01], gamma: 0.001}")
    assert {group.least_share for group in groups(planned(tmp_path, text))} == {0.001}


def test_one_engine_with_a_workload_of_others_has_a_gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = SUITE[:SUITE.index("baseline:")].replace("[ddp, {kind: deepspeed, stage: 1}]", "[ddp]")
    assert groups(planned(tmp_path, one)) == []
    monkeypatch.setattr(Digits, "__module__", "somebody.digits")
    assert [len(group.candidates) for group in groups(planned(tmp_path, one))] == [1, 1]


def test_workloads_that_differ_in_an_option_are_distinguished(tmp_path: Path) -> None:
    text = SUITE[:SUITE.index("primary:")]
    text = text.replace("  processes: [1, 2]", "  workload: [digits, {kind: digits, norm: batch}]")
    assert [group.title for group in groups(planned(tmp_path, text))] == [
        "digits, batch 64, 1 process", "digits (norm=batch), batch 64, 1 process"]


def test_one_engine_needs_no_gate_and_says_so(tmp_path: Path) -> None:
    one = SUITE[:SUITE.index("baseline:")].replace("[ddp, {kind: deepspeed, stage: 1}]", "[ddp]")
    assert groups(planned(tmp_path, one)) == []
    assert why_not(planned(tmp_path, one)) == "one engine and one communication algorithm only, without model options"
    fake = one.replace("[ddp]", "[fake, {kind: fake, spread: 0.1}]").replace("  device", "  launcher: inline\n  device")
    assert groups(planned(tmp_path, fake)) == []
    assert why_not(planned(tmp_path, fake)) == "no engine of this suite trains a model"


ONE = SUITE[:SUITE.index("baseline:")].replace("[ddp, {kind: deepspeed, stage: 1}]", "[ddp]").replace("[1, 2]", "[2]")


def candidates_of(folder: Path, text: str) -> list[str]:
    return [group.name(item) for group in groups(planned(folder, text)) for item in group.candidates]


@pytest.mark.parametrize("option", ["compile: true", "activation_checkpointing: true", "channels_last: true"])
def test_one_engine_with_a_model_option_is_compared_with_the_plain_loop(tmp_path: Path, option: str) -> None:
    assert candidates_of(tmp_path, ONE) == []
    (group,) = groups(planned(tmp_path, ONE.replace("  device: cpu", f"  device: cpu\n  {option}")))
    field = option.partition(":")[0]
    assert not getattr(group.reference.choices, field)
    assert [bool(getattr(item.choices, field)) for item in group.candidates] == [True]


def test_one_engine_with_offload_is_compared_with_the_plain_loop(tmp_path: Path) -> None:
    plain = ONE.replace("[ddp]", "[{kind: deepspeed, stage: 1}]")
    assert candidates_of(tmp_path, plain) == []
    offload = plain.replace("stage: 1", "stage: 1, offload: optimizer")
    assert candidates_of(tmp_path, offload) == ["deepspeed (offload=optimizer, stage=1) on 2 processes"]


def test_cells_of_one_name_are_told_apart_by_their_labels(tmp_path: Path) -> None:
    text = ONE.replace("  processes: [2]", "  processes: [2]\n  activation_checkpointing: [false, true]")
    assert candidates_of(tmp_path, text) == ["ddp on 2 processes (activation checkpointing False)",
                                             "ddp on 2 processes (activation checkpointing True)"]


def test_the_reference_s_engine_with_an_option_is_told_apart_from_the_reference(tmp_path: Path) -> None:
    text = ONE.replace("[ddp]", "[single]").replace("processes: [2]", "activation_checkpointing: [true]")
    assert candidates_of(tmp_path, text) == ["single on 1 process (activation_checkpointing)"]


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
    measures = Measures()
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    norm, projection = measures.of({"w": array}.items())["w"]
    assert norm == pytest.approx(math.sqrt(55))
    assert measures.of({"w": -array}.items())["w"] == pytest.approx((norm, -projection))
    assert measures.of({"w": array[::-1]}.items())["w"][1] != pytest.approx(projection)
    assert measures.of({"v": array}.items())["v"][1] != pytest.approx(projection)


def test_of_a_large_tensor_every_block_and_their_order_count() -> None:
    measures = Measures()
    array = np.random.default_rng(1).standard_normal(5 * BLOCK + 7, dtype=np.float32)
    norm, projection = measures.of([("w", array)])["w"]
    assert norm == pytest.approx(float(np.linalg.norm(array.astype(np.float64))), rel=1e-12)
    for first in range(5):
        changed = array.reshape(-1).copy()
        changed[first * BLOCK:(first + 1) * BLOCK] *= -1
        assert abs(measures.of([("w", changed)])["w"][1] - projection) > 1e-3 * norm
        exchanged = array.copy()
        exchanged[:5 * BLOCK] = np.roll(array[:5 * BLOCK].reshape(5, BLOCK), first + 1, axis=0).ravel()
        if first < 4:
            assert abs(measures.of([("w", exchanged)])["w"][1] - projection) > 1e-3 * norm


def test_the_memory_of_measuring_does_not_grow_with_a_tensor() -> None:
    measures = Measures()
    array = np.ones((64, BLOCK), np.float32)
    tracemalloc.start()
    measures.of([("w", array)])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < array.nbytes / 8
