"""Steps that are repeated after a trial: when they end, on all ranks alike, and what the optimizer was given."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from repro.record.log.facts import Apart
from repro.seams.training import Held
from repro.worker.clock import Stopwatch
from repro.worker.kept_steps import KeptStep
from repro.worker.report.steps_after import STEPS_SHARE, TIME_SHARE, _Allowance, stepped_otherwise
from repro.worker.setup import TrialContext


class Rank:
    """A rank whose trial took 100 seconds, and whose repetitions take what the test says."""

    def __init__(self, others: float = 0) -> None:
        self.at_ns, self.others = 0, others
        self.clock = SimpleNamespace(watch=Stopwatch(lambda: self.at_ns))
        self.session = SimpleNamespace(total=lambda values: [value + self.others for value in values])
        self.at_ns = 100 * 10**9
        self.allowance = _Allowance(cast(TrialContext, self))

    def repeated(self, seconds: float, most: int = 100) -> int:
        """Return how many repetitions of so many seconds there was time for."""
        for number in range(most):
            if not self.allowance.allows(STEPS_SHARE) and number:
                return number
            self.at_ns += int(seconds * 10**9)
        return most


@pytest.mark.parametrize(("seconds", "count"), [(1, 9), (3, 3), (5, 1), (20, 1), (0.01, 100)])
def test_repetitions_end_within_their_share_of_the_trial(seconds: float, count: int) -> None:
    rank = Rank()
    assert rank.repeated(seconds) == count
    assert rank.at_ns <= 109 * 10**9 or count == 1  # first is made however long it takes


def test_a_rank_that_has_no_time_ends_those_of_all_ranks() -> None:
    assert Rank(others=1).repeated(0.01) == 1


def test_a_second_evaluation_is_made_if_there_is_time_for_another_like_the_first() -> None:
    rank = Rank()
    assert rank.repeated(3) == 3
    rank.allowance.begin()
    rank.at_ns += 10**9 // 2
    assert rank.allowance.allows(TIME_SHARE), "steps took longer, and do not count"
    rank.at_ns += 10**9 // 2
    assert not rank.allowance.allows(TIME_SHARE)


def test_the_time_of_a_trial_counts_its_earlier_attempts() -> None:
    rank = Rank()
    found: dict[str, Any] = {"phases": {"train": 900 * 10**9}, "at_ns": rank.at_ns}
    rank.clock.watch.resume(found)
    rank.allowance = _Allowance(cast(TrialContext, rank))
    assert rank.repeated(8.5) == 9


RIGHT = {"w": np.array([[3.0, 0.0], [0.0, 2.0]], np.float32), "b": np.array([6.0], np.float32)}
"""Its norm is 7."""


def stepped(given: list[Held], clip: float | None = None, ungated: str = "") -> list[Apart]:
    """Return how a gradient that the optimizer was given differs, on the second of two ranks with the same parts."""
    kept = KeptStep(70, (), (), {}, cast(Any, None), 0.0, [Held(name, array.ravel()) for name, array in RIGHT.items()],
                    given)
    engine = SimpleNamespace(get=lambda _: SimpleNamespace(ungated_clipping=ungated))
    context = SimpleNamespace(session=SimpleNamespace(total=lambda values: [2 * value for value in values]),
                              choices=SimpleNamespace(gradient_clip=clip, engine=engine, processes=2))
    return stepped_otherwise(cast(TrialContext, context), kept, RIGHT)


@pytest.mark.parametrize(("clip", "factor", "ungated", "apart"), [
    (None, 1, "", 0), (7, 1, "", 0), (3.5, 0.5, "", 0), (3.5, 0.25, "", 0.5), (None, 10, "", 9), (3.5, 1, "", 1),
    (3.5, 0.25, "each rank clips its own", 0)])
def test_the_optimizer_is_to_be_given_the_gradient_clipped(
    clip: float | None, factor: float, ungated: str, apart: float
) -> None:
    given = [Held(name, factor * array.ravel()) for name, array in RIGHT.items()]
    found, = stepped(given, clip, ungated)
    assert found.apart == pytest.approx(apart, rel=1e-3, abs=1e-6) and found.ratio == pytest.approx(1 + (
        -apart if factor * 7 < min(clip or 7, 7) else apart))


def test_of_what_the_optimizer_is_given_those_parts_are_compared_that_a_rank_has_of_both() -> None:
    found, = stepped([Held("w", np.array([0.0, 0.0, 2.0], np.float32), 1), Held("b", np.array([6.0], np.float32))])
    assert found.apart < 1e-6
    found, = stepped([Held("w", np.array([0.5, 0.0, 2.0], np.float32), 1), Held("b", np.array([6.0], np.float32))])
    assert (found.name, found.apart, found.differ) == ("w", pytest.approx(0.25, rel=1e-3), 1)
    assert not stepped([]), "nothing was read"
    assert not stepped([Held("b", np.array([np.inf], np.float32))]), "a scaled gradient overflowed"
