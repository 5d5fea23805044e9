"""`input`: what may be asked for, what is refused in one line, and which names stay as they were."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
from pydantic import ValidationError

from repro.core import registry
from repro.record.derive.effective import mismatches, requested
from repro.record.result.remarks import Unlike
from repro.suite.kinds.training import TrainingConfig
from repro.workloads.digits import DigitsMlp

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
