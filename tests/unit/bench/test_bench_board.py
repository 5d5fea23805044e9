"""`python -m benchmarks board`: the bundles it makes are sound and distinct, and a broken promise is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.board import DAY_MS, BoardScale, BuildCost, make_bundles, measure
from repro.bundle.source import open_record
from repro.bundle.verify import verify
from repro.core.errors import UsageError
from repro.record.folder.store import read_record

RECORDS = Path(__file__).parents[3] / "docs/gallery/records"


def test_copies_are_sound_and_differ_in_when_they_ran(tmp_path: Path) -> None:
    counts = make_bundles([RECORDS / "inconclusive.zip", RECORDS / "settled.zip"], tmp_path, 4)
    assert counts == [12, 28, 12, 28]
    paths = sorted(tmp_path.iterdir())
    found = [verify(path) for path in paths]
    assert [item.problems for item in found] == [[], [], [], []]
    assert len({item.identity for item in found}) == 4
    records = []
    for path in paths[:2]:
        with open_record(path) as folder:
            records.append(read_record(folder))
    first, second = records
    assert first.environment.started_ms - second.environment.started_ms == DAY_MS
    assert {first.attempts[0].started_ms - second.attempts[0].started_ms} == {DAY_MS}
    assert first.results == second.results


def test_a_broken_promise_is_named() -> None:
    cost = BuildCost(seconds=50.0, cpu_seconds=90.0, peak_mebibytes=180.0)
    good = BoardScale(bundles=500, sources=9, trials=10_000, megabytes=170.0, cores=2, first=cost, again=cost,
                      site_megabytes=450.0, load=(0.1, 2.0))
    assert not good.broken and "not held" not in good.text()
    bad = good.model_copy(update={"first": cost.model_copy(update={"seconds": 61.0})})
    assert bad.broken and "not held: the first build took 61.0 s" in bad.text()
    assert not bad.model_copy(update={"bundles": 501}).broken


def test_a_folder_without_bundles_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"holds no bundle \(\.zip\)"):
        measure(tmp_path)


@pytest.mark.slow
def test_a_small_board_is_measured() -> None:
    found = measure(RECORDS, 10)
    assert (found.bundles, found.sources, found.trials) == (10, 9, 219)
    assert found.again.cpu_seconds < found.first.cpu_seconds and found.site_megabytes > 5
