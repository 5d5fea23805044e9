"""`python -m benchmarks import`: the round it makes is a round, and what it promises is checked."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.imports import CommandCost, ImportScale, make_records, make_round, measure, repeat_sample
from repro.core.errors import UsageError
from repro.published.mlperf.folder import import_folder
from repro.published.speedrun.folder import import_records


def test_the_made_round_is_one_of_valid_scores(tmp_path: Path) -> None:
    make_round(tmp_path / "in", 12, 0.6)
    found = import_folder(tmp_path / "in")
    assert len(found.results) == 15 and not found.refused
    assert len(found.cells) == 3
    assert all(cell.score.valid and cell.factors["division"] == "closed" for cell in found.cells)
    assert all(abs(path.stat().st_size - 50_000) < 100 for path in tmp_path.rglob("result_*.txt"))


def test_a_sample_is_repeated_under_other_names_and_scores_the_same(tmp_path: Path) -> None:
    make_round(tmp_path / "in", 10, 0.01)
    repeat_sample(tmp_path / "in/training_v4.0", tmp_path / "out", 30, 0.3)
    found = import_folder(tmp_path / "out")
    assert len(found.results) == 30 and len(found.cells) == 6 and not found.refused
    wanted = {cell.score.minutes for cell in import_folder(tmp_path / "in").cells}
    assert {cell.score.minutes for cell in found.cells} == wanted
    with pytest.raises(UsageError, match="no result log"):
        repeat_sample(tmp_path / "in/training_v4.0/Org00/systems", tmp_path / "none", 10, 1.0)


def test_made_records_are_records_whose_claims_hold(tmp_path: Path) -> None:
    make_records(tmp_path / "in", 40, 6.0)
    found = import_records(tmp_path / "in")
    assert len(found.results) == 40 and len(found.cells) == 4 and not found.refused
    assert all(cell.score.valid and cell.ok == 10 for cell in found.cells)
    assert all(abs(path.stat().st_size - 150_000) < 200 for path in tmp_path.rglob("*.txt"))


def test_a_broken_promise_is_named() -> None:
    good = ImportScale(made_of="x", logs=1, systems=1, megabytes=1.0, page_megabytes=1.0, open_seconds=None,
                       not_opened="no browser",
                       steps=(CommandCost(command="import", seconds=1.0, peak_mebibytes=10.0),))
    assert good.broken() == () and "not measured: no browser" in good.text() and "not held" not in good.text()
    bad = good.model_copy(update={"open_seconds": 4.0, "page_megabytes": 16.0, "steps": (
        CommandCost(command="import", seconds=61.0, peak_mebibytes=2000.0),)})
    assert len(bad.broken()) == 4 and bad.text().count("not held") == 4


@pytest.mark.slow
def test_a_small_round_is_measured(tmp_path: Path) -> None:
    found = measure(10, 0.5)
    assert found.logs == 10 and all(step.seconds > 0.05 for step in found.steps)
    assert (found.open_seconds is None) is bool(found.not_opened)
    assert 1 < found.page_megabytes < 15 and all(20 < step.peak_mebibytes < 1024 for step in found.steps)
    for program in ("mlperf", "speedrun"):
        with pytest.raises(UsageError):
            measure(sample=tmp_path, program=program)
    found = measure(20, 4.0, program="speedrun")
    assert found.logs == 20 and found.systems == 2 and found.import_seconds == 30.0 and found.page_megabytes > 1
