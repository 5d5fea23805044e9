"""Faults on real runs: a slice of `make chaos` in every test run, the longer plans under `slow`."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from repro.core import registry
from tests.chaos import drive, faults
from tests.chaos.drive import Lanes
from tests.chaos.worlds import WORLDS

CHEAP = (*["kill rank"] * 3, "truncate log", "kill server")
FEW = ("kill parent", "kill rank")
DEAR = ("kill parent", "cut log", "terminate", "stop rank", *["kill rank"] * 2)
"""A restarted run takes seconds to start: mostly faults that the run itself survives."""
LOCAL = dataclasses.replace(WORLDS[0], seeds=3, stall_seconds=8)
RESUMED = dataclasses.replace(LOCAL, on_failure="resume_from_checkpoint")


@pytest.fixture(autouse=True)
def engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(str(drive.PLUGINS))
    registry._third_party.cache_clear()
    yield
    registry._third_party.cache_clear()


def test_a_killed_run_and_a_killed_rank_break_nothing(tmp_path: Path) -> None:
    tally = Lanes(tmp_path, control=False).run([(RESUMED, faults.plan(8, len(FEW), 2, FEW, longest=0.3))], lanes=1)
    assert tally.broken == []
    assert tally.faults == Counter(FEW)
    assert sum(tally.resumed.values()) >= 1, tally.text(0)
    assert tally.attempts["ok"] == tally.trials == 6 * tally.folders


@pytest.mark.slow
def test_some_faults_break_nothing(tmp_path: Path) -> None:
    plans = [(LOCAL, faults.plan(7, len(CHEAP), 2, CHEAP, longest=0.3)),
             (RESUMED, faults.plan(8, len(DEAR), 2, DEAR, longest=0.3))]
    tally = Lanes(tmp_path, control=False).run(plans, lanes=2)
    print(tally.text(0))
    assert tally.broken == []
    assert tally.faults == Counter(CHEAP) + Counter(DEAR) and sum(tally.faults.values()) == 11
    assert sum(tally.resumed.values()) >= 1, tally.text(0)
    assert tally.attempts["ok"] == tally.trials == 6 * tally.folders


@pytest.mark.slow
@pytest.mark.parametrize("world", WORLDS, ids=lambda world: world.name)
def test_every_kind_of_fault_breaks_nothing(tmp_path: Path, world: drive.World) -> None:
    if why := world.why_not():
        pytest.skip(why)
    tally = Lanes(tmp_path).run([(world, faults.plan(11, len(world.kinds), 2, world.kinds))], lanes=1)
    print(tally.text(0))
    assert tally.broken == []
    assert tally.faults == Counter(world.kinds)
    assert bool(tally.resumed) == world.resumes
