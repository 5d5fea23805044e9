"""A slice of `make fuzz`: every target takes some damaged inputs; what was found once is never found again."""

from __future__ import annotations

import random
import signal
from collections.abc import Iterator
from types import FrameType

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz.drive import LONGEST_SECONDS
from tests.fuzz.names import NAMES
from tests.fuzz.targets import Target, targets

INPUTS = {
    "run folder: page, figures": 1,
    "run folder: tables": 8,
    "import": 3,
    "import of speed-runs": 3,
    "run folder: verify, compare, audit, resume": 10,
}
"""Inputs of a test run; MANY for targets that are not named."""
MANY = 20


@pytest.fixture(scope="module", params=NAMES)
def target(request: pytest.FixtureRequest) -> Iterator[Target]:
    found = next(item for item in targets() if item.name == request.param)
    yield found
    found.close()


def test_names_are_those_of_the_targets() -> None:
    made = list(targets())
    assert tuple(item.name for item in made) == NAMES
    for item in made:
        item.close()


def test_damaged_inputs_give_a_result_or_one_line(target: Target) -> None:
    tried = {"inputs": 0}

    @settings(
        max_examples=INPUTS.get(target.name, MANY),
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.sampled_from(target.valid), st.randoms(use_true_random=False))
    def feed(data: bytes, rng: random.Random) -> None:
        damaged = target.mutate(data, rng)
        signal.signal(signal.SIGVTALRM, late)
        signal.setitimer(signal.ITIMER_VIRTUAL, LONGEST_SECONDS)
        try:
            target.feed(damaged)
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        tried["inputs"] += 1

    feed()
    print(f"{target.name}: {tried['inputs']} inputs tried")


def late(number: int, frame: FrameType | None) -> None:
    raise TimeoutError(f"an input took more than {LONGEST_SECONDS:g} s of the processor")
