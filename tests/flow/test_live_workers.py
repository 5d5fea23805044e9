"""`repro bench workers`: real workers come and go, and what they did is counted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.flow.test_reproduce import command


@pytest.mark.slow
def test_every_number_of_workers_has_its_phase_and_its_tasks(tmp_path: Path) -> None:
    code, said, error = command(tmp_path, "bench", "workers", "--rounds", "1", "--seconds", "4", "--most", "3",
                                "--json")
    assert code == 0, error
    phases, = json.loads(said)["rounds"]
    assert sorted(phase["workers"] for phase in phases) == [1, 2, 3]
    for phase in phases:
        # A worker that sleeps 0.25 s a task cannot do more than these; the last one may have begun before.
        assert 0 < phase["tasks"] <= phase["workers"] * (phase["seconds"] / 0.25 + 1)
