"""Words for the quality of a trial: accuracy, loss with perplexity and bits, tokens."""

from __future__ import annotations

import math

import pytest

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
