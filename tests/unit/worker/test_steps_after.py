"""Steps after a trial end with the time that they may take, on all ranks alike."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from repro.worker.clock import Stopwatch
from repro.worker.report.steps_after import STEPS_SHARE, TIME_SHARE, _Allowance
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
