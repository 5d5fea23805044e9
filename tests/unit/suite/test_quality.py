"""Words for the quality of a trial: accuracy, loss with perplexity and bits, tokens."""

from __future__ import annotations

import math

import pytest

from repro.suite.metrics import METRICS
from repro.suite.quality import PLAIN, common_noun, quality_of
from repro.suite.recorded import WorkloadFacts, stand_in
from repro.workloads.digits import Digits
from repro.workloads.gpt_synthetic import GptSynthetic
from repro.workloads.text import Text


def test_a_loss_of_bytes_has_perplexity_and_bits() -> None:
    quality = quality_of(Text(), "val_loss")
    assert (quality.noun, quality.direction, quality.unit) == ("loss", "lower", "windows")
    assert quality.derived(2.2) == {"perplexity": pytest.approx(math.exp(2.2)),
                                    "bits per byte": pytest.approx(2.2 / math.log(2))}
    assert quality.words(2.2) == "perplexity 9.03, 3.17 bits per byte"
    assert quality.tokens(10) == 640
    assert list(quality.columns("final_", 2.2)) == ["final_perplexity", "final_bits_per_byte"]
    assert quality.columns("final_", None) == {"final_perplexity": None, "final_bits_per_byte": None}


def test_a_loss_of_other_tokens_has_no_bits_per_byte() -> None:
    assert quality_of(GptSynthetic(), "val_loss").words(3.28) == "perplexity 26.6"


@pytest.mark.parametrize("value", [None, math.nan, math.inf, 1e6])
def test_a_loss_without_a_perplexity_has_none(value: float | None) -> None:
    quality = quality_of(Text(), "val_loss")
    assert quality.derived(value) == {}
    assert quality.words(value) == ""


def test_an_accuracy_stays_one() -> None:
    quality = quality_of(Digits(), "top1")
    assert (quality.noun, quality.words(0.97), quality.tokens(10)) == ("accuracy", "", None)
    assert quality.columns("", 0.9) == {}
    assert common_noun([quality, quality]) == "accuracy"
    assert common_noun([quality, quality_of(Text(), "val_loss")]) == "quality"
    assert common_noun([PLAIN]) == common_noun([]) == "quality"


def test_a_record_describes_it_without_the_plug_in() -> None:
    from repro.suite.recorded import facts_of

    facts = facts_of("workload", Text())
    assert isinstance(facts, WorkloadFacts)
    read = WorkloadFacts.model_validate_json(facts.model_dump_json())
    absent = stand_in("workload", {}, read, "text", "is not installed")
    assert quality_of(absent, "val_loss") == quality_of(Text(), "val_loss")  # type: ignore[arg-type]
    old = WorkloadFacts.model_validate({"metrics": {"val_loss": "lower"}})
    assert quality_of(stand_in("workload", {}, old, "x", "y"), "val_loss").noun == "quality"  # type: ignore[arg-type]


CLOCKED = {"tta_wall": 1, "tta_train": 1, "tta_cold": 1, "end_wall": 1, "end_train": 1, "end_cold": 1, "run_time": 1,
           "throughput": -1, "train_throughput": -1, "tokens": -1,
           "step_time": 1, "mfu": -1, "input_wait": 1, "energy": 1, "gpu_energy": 1, "operation_time": 1,
           "operation_throughput": -1}
OTHERS = {"samples", "accuracy", "peak_memory", "traffic", "controller_bytes", "worker_bytes", "busiest_bytes"}


def test_every_metric_is_a_figure_of_a_clock_or_is_not() -> None:
    assert {name: int(spec.drift_sign) for name, spec in METRICS.items() if spec.clocked} == CLOCKED
    assert {name for name, spec in METRICS.items() if not spec.clocked} <= OTHERS


def test_time_lost_before_a_resume_is_in_no_figure_of_steps_alone() -> None:
    assert {name for name, spec in METRICS.items() if spec.has_lost_time} == {
        "tta_wall", "tta_train", "tta_cold", "end_wall", "end_train", "end_cold", "run_time", "throughput",
        "energy", "gpu_energy"}
