"""`python -m benchmarks compare`: the record it makes is a record, and the growth it reports is the slope."""

from __future__ import annotations

import pytest

from benchmarks.compare_time import Size, made_plan, made_results, measure, summary
from repro.compare import compare


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
