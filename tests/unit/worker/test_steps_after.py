"""Steps that are repeated after a trial: when they end, on all ranks alike, and what the optimizer was given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

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
Part = tuple[str, list[float], int]


def stepped(
    given: Sequence[Part] | None, other: Sequence[Part] = (), clip: float | None = None, ungated: str = "",
    right: Mapping[str, np.ndarray] = RIGHT,
) -> list[Apart]:
    """Return how the gradient that the optimizer was given differs, on the first of two ranks with these parts of it.
    """
    kept = KeptStep(70, (), (), {}, cast(Any, None), stepped=None if given is None else [
        Held(name, np.array(values, np.float32), start) for name, values, start in given])
    theirs = [(name, start, np.array(values, np.float32)) for name, values, start in other]
    session = SimpleNamespace(gather=lambda value: [value] if isinstance(value, bool) else [value, theirs])
    engine = SimpleNamespace(get=lambda _: SimpleNamespace(ungated_clipping=ungated))
    context = SimpleNamespace(session=session, choices=SimpleNamespace(gradient_clip=clip, engine=engine, processes=2))
    return stepped_otherwise(cast(TrialContext, context), kept, right)


def whole(factor: float = 1.0) -> list[Part]:
    return [(name, [factor * float(value) for value in array.ravel()], 0) for name, array in RIGHT.items()]


@pytest.mark.parametrize(("clip", "factor", "ungated", "apart"), [
    (None, 1, "", 0), (7, 1, "", 0), (3.5, 0.5, "", 0), (3.5, 0.25, "", 0.5), (None, 10, "", 9), (3.5, 1, "", 1),
    (3.5, 0.25, "each rank clips its own", 0)])
def test_the_optimizer_is_to_be_given_the_gradient_clipped(
    clip: float | None, factor: float, ungated: str, apart: float
) -> None:
    found, = stepped(whole(factor), clip=clip, ungated=ungated)
    assert found.apart == pytest.approx(apart, rel=1e-3, abs=1e-6) and found.ratio == pytest.approx(1 + (
        -apart if factor * 7 < min(clip or 7, 7) else apart), rel=1e-3)


def test_a_gradient_of_small_norm_is_clipped_as_torch_does() -> None:
    parameter = torch.nn.Parameter(torch.zeros(2))
    parameter.grad = torch.tensor([3e-5, 4e-5])
    right = {"w": parameter.grad.numpy().copy()}
    torch.nn.utils.clip_grad_norm_([parameter], 1e-6)
    found, = stepped([("w", parameter.grad.tolist(), 0)], clip=1e-6, right=right)
    assert found.apart < 1e-6


def test_what_an_optimizer_is_not_given_counts_as_nothing() -> None:
    found, = stepped([("w", [3.0, 0.0], 0)], [("w", [0.0, 2.0], 2), ("b", [6.0], 0)])
    assert found.apart < 1e-6, "two ranks have it in parts"
    found, = stepped([("w", [3.0, 0.0], 0)], [("b", [6.0], 0)])
    assert (found.name, found.differ) == ("w", 1) and found.apart == pytest.approx(2 / 13**0.5, rel=1e-3)
    found, = stepped([])
    assert (found.ratio, found.differ) == (0, 0) and found.apart == pytest.approx(1, rel=1e-3), "it was given nothing"
    assert not stepped(None), "nothing was read"
    assert not stepped(whole(), right=RIGHT | {"b": np.array([np.inf], np.float32)}), "a scaled gradient overflowed"
