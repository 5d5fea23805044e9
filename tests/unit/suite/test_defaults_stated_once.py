"""A cell has one digest, whether a default is written out or left to the harness."""

from __future__ import annotations

from typing import Any

import pytest

from repro.core.frozen import digest
from repro.suite.kinds.training import TrainingConfig

CELL: dict[str, Any] = {
    "workload": {"kind": "text"}, "engine": "ddp", "batch": {"global": 16}, "optimizer": {"kind": "sgd", "lr": 0.1},
    "stop": {"metric": "val_loss", "target": 2.2, "max_epochs": 1}, "evaluate_every": 1600,
}


@pytest.mark.parametrize(("stated", "left"), [
    ({"gate": {}}, {}), ({"eval_batch": 512}, {}),
    ({"input": {"workers": 2, "ahead": 2}}, {"input": {"workers": 2}}),
])
def test_a_stated_default_changes_no_digest(stated: dict[str, Any], left: dict[str, Any]) -> None:
    one, other = (TrainingConfig.model_validate(CELL | more) for more in (stated, left))
    assert digest(one) == digest(other)


def test_another_value_does() -> None:
    plain = digest(TrainingConfig.model_validate(CELL))
    for more in ({"gate": {"micro": 4}}, {"eval_batch": 100}, {"input": {"workers": 1}}):
        assert digest(TrainingConfig.model_validate(CELL | more)) != plain
