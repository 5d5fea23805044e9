"""`python -m benchmarks workers`: real workers come and go, and what they did is counted."""

from __future__ import annotations

import pytest

from benchmarks.workers import measure


@pytest.mark.slow
def test_every_number_of_workers_has_its_phase_and_its_tasks() -> None:
    phases, = measure(rounds=1, seconds=15.0, most=3).rounds
    assert sorted(phase.workers for phase in phases) == [1, 2, 3]
    for phase in phases:
        # A worker that sleeps 0.25 s a task cannot do more than these; the last one may have begun before.
        assert 0 < phase.tasks <= phase.workers * (phase.seconds / 0.25 + 1)
