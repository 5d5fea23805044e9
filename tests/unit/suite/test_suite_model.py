"""Common properties of all records."""

from __future__ import annotations

from typing import Any

import pytest

from repro.core.frozen import Frozen, digest
from repro.engines.fake import Fake
from repro.suite.choice import Choice
from repro.suite.kinds.training import TrainingConfig


class Interrupted(Fake):
    """A plug-in whose options are being written down when the signal comes."""

    def model_dump(self, **how: object) -> dict[str, object]:
        raise KeyboardInterrupt


class Broken(Fake):
    def model_dump(self, **how: object) -> dict[str, object]:
        raise ValueError("no")


class Holder(Frozen):
    engine: Choice


def held(plugin: Fake) -> Holder:
    return Holder.model_construct(engine=Choice.model_construct(seam="engine", kind="fake", plugin=plugin))


def test_ctrl_c_while_a_record_is_written_is_ctrl_c() -> None:
    with pytest.raises(KeyboardInterrupt):
        held(Interrupted()).model_dump(mode="json")


def test_an_error_of_a_serializer_keeps_its_type() -> None:
    with pytest.raises(ValueError, match="no") as error:
        held(Broken()).model_dump(mode="json")
    assert not isinstance(error.value, KeyboardInterrupt)


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
