"""The environment of a program: it sees the GPUs that its record names."""

from __future__ import annotations

import pytest

from repro.core.devices import SELECTORS
from repro.program.process import ALWAYS
from repro.record.environment.environment import settings


@pytest.mark.parametrize("name", SELECTORS)
def test_what_chooses_and_numbers_gpus_is_passed_on_and_recorded(name: str) -> None:
    assert ALWAYS.match(name) and settings({name: "0"}) == {name: "0"}


def test_other_variables_are_not_passed_on() -> None:
    assert not any(map(ALWAYS.match, ("AWS_SECRET_ACCESS_KEY", "CUDA_VISIBLE_DEVICES_OF_OTHERS", "XPATH")))
