"""What a verdict says of a gate of programs: only of pairs that were compared, whatever became of single trials."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from repro.compare.verdict.sentences import _ungated

YES = {"gated": "yes", "gated_against": "a"}


def side(*effective: dict[str, str]) -> Any:
    return SimpleNamespace(results=dict(enumerate(SimpleNamespace(effective=each) for each in effective)))


@pytest.mark.parametrize(("ours", "theirs", "said"), [
    ([YES, YES], [YES], "gated"),
    ([YES, {}], [YES], "gated"),  # one crashed
    ([YES | {"gated_limits": "cannot see the loss"}], [YES], "gated; cannot see the loss"),
    ([YES], [YES | {"gated_against": "b"}], "self-reported"),
    ([YES], [{"ended": "by itself"}], "self-reported"),
    ([{}], [{}], "self-reported"),
])
def test_gated_is_said_of_what_was_compared(
    ours: list[dict[str, str]], theirs: list[dict[str, str]], said: str
) -> None:
    cell = SimpleNamespace(label="a", choices=SimpleNamespace(unverified="self-reported", gated="gated", gate=None))
    item: Any = SimpleNamespace(ours=side(*ours), theirs=side(*theirs), candidate=cell, baseline=cell)
    assert {*_ungated(item)} == {said}
