"""Common properties of all records."""

from __future__ import annotations

import pytest

from repro.core.frozen import Frozen
from repro.engines.fake import Fake
from repro.suite.choice import Choice


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
