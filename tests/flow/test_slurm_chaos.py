"""Faults on runs in jobs of a real Slurm: two of `python -m tests.chaos.slurm_faults`."""

from __future__ import annotations

import pytest

from tests.chaos.faults import Fault
from tests.chaos.slurm_faults import drive
from tests.slurm_cluster import needs_slurm

pytestmark = [pytest.mark.slow, needs_slurm]


def test_runs_survive_a_killed_agent_and_a_restarted_controller(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("faults")  # Slurm has sockets in it, whose paths must be short
    tally = drive(folder, [Fault(kind, 0, 0.5, 0.0) for kind in ("kill agent", "restart controller")])
    assert tally.broken == [] and sum(tally.faults.values()) == 2, tally.text(0)
