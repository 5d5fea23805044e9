"""Verdicts are invariant to the order of trials, the unit of time and the names of cells."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from repro.compare import Comparison, contrast, summarize
from repro.record.result.results import Result
from tests.made_cells import BASELINE, CANDIDATE, MadeCell, result

SECONDS = st.floats(0.01, 1e4)
TIMES = st.lists(st.tuples(SECONDS, SECONDS, st.integers(0, 9)), min_size=2, max_size=12)
MIRROR = {"faster": "slower", "slower": "faster"}


def cell_results(cell: MadeCell, rows: list[tuple[float, float, int]], column: int, scale: float = 1.0) -> list[Result]:
    """A trial a row; the baseline's rows marked 0 missed after 2e4 units, those marked 1 diverged."""
    found = []
    for repeat, row in enumerate(rows):
        status = {0: "missed", 1: "diverged"}.get(row[2], "ok") if column == 1 else "ok"
        value = row[column] * scale if status == "ok" else None
        found.append(result(cell, repeat, value, status, run_seconds=2e4 * scale))  # type: ignore[arg-type]
    return found


def made(rows: list[tuple[float, float, int]], scale: float = 1.0, seed: int | None = None) -> Comparison:
    ours, theirs = cell_results(CANDIDATE, rows, 0, scale), cell_results(BASELINE, rows, 1, scale)
    if seed is not None:
        random.Random(seed).shuffle(ours)
        random.Random(seed + 1).shuffle(theirs)
    return contrast(CANDIDATE, BASELINE, ours, theirs, "tta_wall", primary=True)


@settings(max_examples=40, deadline=None)
@given(TIMES, st.integers(0, 99))
def test_order_of_trials_never_matters(rows: list[tuple[float, float, int]], seed: int) -> None:
    assert made(rows) == made(rows, seed=seed)
    shuffled = cell_results(BASELINE, rows, 1)
    random.Random(seed).shuffle(shuffled)
    assert summarize(BASELINE, shuffled) == summarize(BASELINE, cell_results(BASELINE, rows, 1))


@settings(max_examples=40, deadline=None)
@given(TIMES)
def test_the_unit_of_time_never_matters(rows: list[tuple[float, float, int]]) -> None:
    seconds, milliseconds = made(rows), made(rows, 1024.0)  # a power of two: no rounding
    assert seconds.verdict == milliseconds.verdict
    assert seconds.p == pytest.approx(milliseconds.p)
    assert seconds.ratio == pytest.approx(milliseconds.ratio)
    if seconds.interval is not None and milliseconds.interval is not None:
        assert milliseconds.interval.low == pytest.approx(seconds.interval.low, rel=1e-6)
    if seconds.restricted is not None and milliseconds.restricted is not None:
        assert milliseconds.restricted.ratio == pytest.approx(seconds.restricted.ratio)
        assert milliseconds.restricted.horizon == pytest.approx(1024 * seconds.restricted.horizon)


@settings(max_examples=40, deadline=None)
@given(TIMES)
def test_swapping_the_cells_inverts_the_interval(rows: list[tuple[float, float, int]]) -> None:
    there = made(rows)
    back = contrast(BASELINE, CANDIDATE, cell_results(BASELINE, rows, 1), cell_results(CANDIDATE, rows, 0), "tta_wall",
                    primary=True)
    assert back.verdict == MIRROR.get(there.verdict, there.verdict)
    assert back.p == pytest.approx(there.p)
    if there.ratio is not None:
        assert back.ratio == pytest.approx(1 / there.ratio)
    if there.interval is not None and back.interval is not None:
        assert back.interval.low == pytest.approx(1 / there.interval.high)
        assert back.interval.high == pytest.approx(1 / there.interval.low)
    if there.restricted is not None and back.restricted is not None:
        assert back.restricted.ratio == pytest.approx(1 / there.restricted.ratio)
    if there.probability_less is not None and back.probability_less is not None:
        assert back.probability_less.value == pytest.approx(1 - there.probability_less.value)
