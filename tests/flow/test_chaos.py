"""Faults on real runs: a slice of `make chaos` in every test run, the longer plans under `slow`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from repro import registry
from tests.chaos import drive, faults
from tests.chaos.drive import Drive

CHEAP = (*["kill rank"] * 5, "truncate log", "kill server", "kill parent")
"""Mostly what the run itself survives: a run that has to be started anew takes seconds to get going."""


@pytest.fixture(autouse=True)
def engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(str(drive.PLUGINS))
    registry._third_party.cache_clear()
    yield
    registry._third_party.cache_clear()


def test_eight_faults_break_nothing(tmp_path: Path) -> None:
    tally = Drive(tmp_path, seeds=4).go(faults.plan(seed=7, count=8, ranks=2, kinds=CHEAP, longest=0.3))
    assert sum(tally.faults.values()) == 8
    assert tally.attempts["ok"] == tally.trials == 8 * tally.folders
    print(tally.text(0))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "count"), [("slow", 60), ("ddp", 14)])
def test_every_kind_of_fault_breaks_nothing(tmp_path: Path, name: str, count: int) -> None:
    kinds = tuple(kind for kind in faults.KINDS if kind != "full disk")
    disturbed = Drive(tmp_path, name, seeds=4)
    disturbed.undisturbed()
    tally = disturbed.go(faults.plan(seed=11, count=count, ranks=2, kinds=kinds))
    assert sum(tally.faults.values()) == count
    print(tally.text(0))
