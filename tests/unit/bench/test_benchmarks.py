"""`python -m benchmarks import`, `board` and `compare`: what they make is sound, what they promise is checked."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.board import DAY_MS, BoardScale, make_bundles
from benchmarks.board import measure as board_measure
from benchmarks.command import CommandCost
from benchmarks.compare_time import Size, made_plan, made_results, measure, summary
from benchmarks.imports import ImportScale, make_records, make_round, repeat_sample
from benchmarks.imports import measure as import_measure
from repro.bundle.source import open_record
from repro.bundle.verify import verify
from repro.compare import compare
from repro.core.errors import UsageError
from repro.published.mlperf.folder import import_folder
from repro.published.speedrun.folder import import_records
from repro.record.folder.store import read_record


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
                       steps=(CommandCost(command="import", seconds=1.0, cpu_seconds=1.0, peak_mebibytes=10.0),))
    assert good.broken() == () and "not measured: no browser" in good.text() and "not held" not in good.text()
    bad = good.model_copy(update={"open_seconds": 4.0, "page_megabytes": 16.0, "steps": (
        CommandCost(command="import", seconds=61.0, cpu_seconds=1.0, peak_mebibytes=2000.0),)})
    assert len(bad.broken()) == 4 and bad.text().count("not held") == 4


@pytest.mark.slow
def test_a_small_round_is_measured(tmp_path: Path) -> None:
    found = import_measure(10, 0.5)
    assert found.logs == 10 and all(step.seconds > 0.05 for step in found.steps)
    assert (found.open_seconds is None) is bool(found.not_opened)
    assert 1 < found.page_megabytes < 15 and all(20 < step.peak_mebibytes < 1024 for step in found.steps)
    for program in ("mlperf", "speedrun"):
        with pytest.raises(UsageError):
            import_measure(sample=tmp_path, program=program)
    found = import_measure(20, 4.0, program="speedrun")
    assert found.logs == 20 and found.systems == 2 and found.import_seconds == 30.0 and found.page_megabytes > 1


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


def test_a_broken_promise_of_a_board_is_named() -> None:
    cost = CommandCost(command="board", seconds=50.0, cpu_seconds=90.0, peak_mebibytes=180.0)
    good = BoardScale(bundles=500, sources=9, trials=10_000, megabytes=170.0, cores=2, build=cost,
                      site_megabytes=450.0, load=(0.1, 2.0))
    assert not good.broken and "not held" not in good.text()
    bad = good.model_copy(update={"build": cost.model_copy(update={"seconds": 61.0})})
    assert bad.broken and "not held: the build took 61.0 s" in bad.text()
    assert not bad.model_copy(update={"bundles": 501}).broken


def test_a_folder_without_bundles_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"holds no bundle \(\.zip\)"):
        board_measure(tmp_path)


@pytest.mark.slow
def test_a_small_board_is_measured() -> None:
    found = board_measure(RECORDS, 10)
    assert (found.bundles, found.sources, found.trials) == (10, 9, 219)
    assert found.build.cpu_seconds > 0 and found.site_megabytes > 5


def size(results: int, seconds: float) -> Size:
    return Size(results=results, cells=results // 20, contrasts=1, seconds=2 * seconds, cpu_seconds=seconds,
                peak_mebibytes=1.0, made_mebibytes=1.0)


def test_the_exponent_is_that_of_a_power_law():
    found = summary([size(n, 1e-9 * n**2) for n in (1000, 2000, 4000)])
    assert found.exponent == pytest.approx(2.0)
    assert found.exponent_interval == pytest.approx((2.0, 2.0))
    assert 1.0 < found.n_log_n < 1.2


def test_two_sizes_give_a_slope_and_no_interval():
    found = summary([size(1000, 1.0), size(2000, 2.0)])
    assert found.exponent == pytest.approx(1.0)
    assert found.exponent_interval is None
    assert "results^1.00;" in found.text()


def test_the_made_record_has_the_requested_cells_contrasts_and_misses():
    plan = made_plan(40, 10)
    results = made_results(plan)
    assert len(plan.cells) == len({cell.cell_id for cell in plan.cells}) == 40
    assert len(results) == 400
    assert sum(item.status == "missed" for item in results) == 5
    assert results == made_results(plan)
    found = compare(plan, results)
    assert len(found) == 40  # 20 of an engine against ddp, 20 of two processes against one
    assert {item.n for item in found} == {10}


def test_sizes_are_measured_in_processes_of_their_own():
    found = measure(16, 6, 2, 1)
    assert [item.cells for item in found.sizes] == [8, 16]
    assert [item.results for item in found.sizes] == [48, 96]
    assert all(item.seconds > 0 and item.peak_mebibytes >= item.made_mebibytes > 1 for item in found.sizes)


def test_too_few_cells_are_refused_before_anything_runs():
    with pytest.raises(ValueError, match="eight cells"):
        measure(16, 6, 3, 1)
