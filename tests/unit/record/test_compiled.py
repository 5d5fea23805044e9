"""Seconds of compilation and graphs that came too late, from a trial's log."""

from __future__ import annotations

from typing import Any

from repro.core.events import Event
from repro.record.derive.compiled import late_graphs, read_filling, read_seconds
from repro.record.result.warned import CompiledLate


def event(value: Any) -> Event:
    return Event("x_compile", value, "POINT_IN_TIME", 0.0)


def test_the_slowest_rank_counts_and_filling_a_cache_does_not() -> None:
    found = event({"filling_seconds": 7.5, "ranks": [{"seconds": 1.0, "graphs": 2}, {"seconds": 3.0, "graphs": 2}]})
    assert (read_filling(found), read_seconds(found)) == (7.5, 3.0)
    assert (read_filling(None), read_seconds(None)) == (0.0, None)


def test_a_graph_compiled_on_the_clock_is_a_warning() -> None:
    assert late_graphs(None) == []
    assert late_graphs(event([{"seconds": 0.0, "graphs": 0}] * 2)) == []
    assert late_graphs(event([{"seconds": 0.0, "graphs": 0}, {"seconds": 4.0, "graphs": 3}])) == [
        CompiledLate(graphs=3, seconds=4.0)]
