"""Facts of a finished trial that make it invalid, or give a reader a warning."""

from __future__ import annotations

from typing import Any

import pytest

from repro.record.derive.effective import (
    block_gap,
    covers_every_rank,
    find_failures,
    slow_evaluation,
    unchecked,
)
from repro.record.log.facts import FinalFacts
from repro.record.result.reasons import (
    MovedByEvaluation,
    NarrowMasters,
    OtherEvaluation,
    RankWeightsDiffer,
    Reason,
    Unlike,
)
from repro.record.result.result_warnings import BlockGap, NotChecked
from repro.suite.kinds.training import TrainingConfig

CHOICES: dict[str, Any] = {
    "workload": "digits", "engine": "ddp", "processes": 2, "batch": {"global": 48}, "evaluate_every": 480,
    "optimizer": {"kind": "sgd", "lr": 0.05}, "stop": {"metric": "top1", "target": 0.9, "max_epochs": 1},
    "device": "cpu",
}


def rank(values: str = "a", parts: str = "all", different: int = 0) -> dict[str, Any]:
    return {"parts": parts, "sha256": values, "different": different, "first": "layer.weight" if different else ""}


def facts(**changes: Any) -> FinalFacts:
    return FinalFacts.model_validate({
        "ranks": [rank(), rank()], "wide_share": 0.99, "moved_by_evaluation": [], "problem": "", "optimizer": {},
        "evaluations": [{"number": 3, "samples": 1440, "reported": 0.75, "own": 0.75, "problem": ""}], **changes})


def failures(found: FinalFacts, effective: dict[str, str] | None = None, **choices: Any) -> list[Reason]:
    return find_failures(TrainingConfig.model_validate({**CHOICES, **choices}), found, effective or {})


def evaluation(reported: float | None, own: float | None) -> dict[str, Any]:
    return {"evaluations": [{"number": 3, "samples": 1440, "reported": reported, "own": own}]}


def test_a_trial_that_is_well_passes_and_covers_every_rank() -> None:
    assert failures(facts()) == []
    assert covers_every_rank(facts())
    assert not covers_every_rank(facts(ranks=[rank(), None]))


@pytest.mark.parametrize(("changes", "reason"), [
    ({"ranks": [rank("a"), rank("b")]}, RankWeightsDiffer(rank=1, than=0)),
    ({"ranks": [rank(), rank(different=7)]}, RankWeightsDiffer(rank=1, different=7, first="layer.weight")),
    ({"wide_share": 0.0}, NarrowMasters(share=0.0, dtype="bfloat16")),
    ({"moved_by_evaluation": [2, 5]}, MovedByEvaluation(evaluation=2)),
    (evaluation(0.78, 0.75), OtherEvaluation(evaluation=3, metric="top1", reported=0.78, own=0.75)),
])
def test_each_fact_makes_a_trial_invalid(changes: dict[str, Any], reason: Reason) -> None:
    assert failures(facts(**changes)) == [reason]


def test_ranks_that_hold_different_parts_need_not_be_equal() -> None:
    shards = facts(ranks=[rank("a", "first half"), rank("b", "second half")])
    assert failures(shards) == []
    assert covers_every_rank(shards)


@pytest.mark.parametrize(("reported", "own"), [(0.75, 0.75 + 1 / 360), (None, 0.1), (0.5, None)])
def test_one_sample_and_evaluations_without_a_value_pass(reported: float | None, own: float | None) -> None:
    assert failures(facts(**evaluation(reported, own))) == []


def test_another_optimizer_than_requested_is_named() -> None:
    wanted = {"optimizer": "torch.optim.sgd.SGD", "optimizer_options": "[{\"momentum\": 0.9}]"}
    assert failures(facts(optimizer=wanted), wanted) == []
    assert failures(facts(optimizer=wanted)) == []  # not read back: not judged
    ran = {**wanted, "optimizer_options": "[{\"momentum\": 0.8}]"}
    assert failures(facts(optimizer=wanted), ran) == [
        Unlike(name="optimizer options", wanted='[{"momentum": 0.9}]', ran='[{"momentum": 0.8}]')]


@pytest.mark.parametrize(("wanted", "ran", "words"), [
    ('[{"decay": 0.01, "momentum": 0.9}, {"decay": 0.0, "momentum": 0.9}]', '[{"decay": 0.0, "momentum": 0.9}]',
     "decay 0.0 and 0.01 was asked for, decay 0.0 ran"),
    ('[{"momentum": 0.9}]', '[{"momentum": 0.9, "more": 1}]',
     '[{"momentum": 0.9}] was asked for, [{"momentum": 0.9, "more": 1}] ran'),
    ("decay 0", "decay 0.3", "decay 0 was asked for, decay 0.3 ran")])
def test_only_the_options_that_differ_are_named(wanted: str, ran: str, words: str) -> None:
    assert Unlike(name="optimizer options", wanted=wanted, ran=ran).words == f"optimizer options {words}"


def test_what_could_not_be_checked_is_a_warning() -> None:
    found = facts(evaluations=[{"number": 1, "samples": 4, "reported": 0.5, "own": None, "problem": "out of memory"}])
    assert unchecked(found) == [NotChecked(evaluation=1, problem="out of memory")]


def test_evaluations_that_are_dearer_than_training_are_a_warning() -> None:
    choices = TrainingConfig.model_validate(CHOICES)
    assert slow_evaluation(choices, {"train": 1.0, "eval": 0.1}, 1437, 3) == []
    (found,) = slow_evaluation(choices, {"train": 0.01, "eval": 2.0}, 1437, 3)
    assert (found.ratio, found.limit) == (pytest.approx(266.1, abs=0.1), 3)


def test_blocks_that_their_steps_do_not_explain_are_a_warning() -> None:
    assert block_gap(0.4, 10.0) == []
    assert block_gap(2.0, 10.0) == [BlockGap(share=0.2)]
    assert block_gap(-2.0, 10.0) == [BlockGap(share=-0.2)]
