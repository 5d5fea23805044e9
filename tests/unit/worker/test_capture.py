"""Weights around a drawn evaluation, of a session that holds parts of them."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from repro.seams.training import Held
from repro.worker.report.final_checks import Capture

PART = Held("weight", np.arange(3, dtype=np.float32), 3)
WHOLE = Held("weight", np.arange(6, dtype=np.float32))


def capture(*states: list[Held]) -> Capture:
    """A capture on a session that holds each of `states` in turn."""
    held = iter(states)
    session: Any = SimpleNamespace(held=lambda: next(held), buffers=dict, evaluated=nullcontext)
    context: Any = SimpleNamespace(
        session=session, parts=object(), trial=SimpleNamespace(master_seed=1, repeat=0))
    return Capture(context)


@pytest.mark.parametrize(("before", "after", "moved"), [
    ([PART], [PART], []),
    ([PART], [PART, WHOLE], []),  # an engine with shards keeps what it gathered to evaluate
    ([PART, WHOLE], [PART], []),
    ([PART], [Held("weight", PART.values + 1, 3), WHOLE], [4]),
    ([WHOLE], [Held("weight", WHOLE.values * 1.0001)], [4]),
])
def test_only_weights_held_before_and_after_can_have_moved(
    before: list[Held], after: list[Held], moved: list[int],
) -> None:
    kept = capture(before, after)
    kept.before()
    kept.after(SimpleNamespace(number=4))  # type: ignore[arg-type]
    assert kept.moved == moved
