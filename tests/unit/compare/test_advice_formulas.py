"""The formulas of the advice against figures that were computed by hand or published."""

from __future__ import annotations

import pytest

from repro.papers.advise import predict
from repro.papers.advise.exchange import Estimated, estimated


@pytest.mark.parametrize(("workers", "speed_up"), [(2, 1.83), (4, 3.14), (8, 4.89), (16, 6.77)])
def test_the_lemma_gives_the_known_speed_ups(workers: int, speed_up: float) -> None:
    assert workers * predict.efficiency(0.1, workers) == pytest.approx(speed_up, abs=0.005)


def test_one_worker_has_efficiency_one() -> None:
    assert predict.efficiency(0.7, 1) == 1.0
    assert predict.speed_up(0.2, 0.2, 1) == 1.0
    assert predict.speed_up(0.2, 0.4, 4) == 2.0


def test_figures_that_differ_by_rounding_alone_have_no_interval() -> None:
    assert estimated([0.1 + 0.2, 0.3]) == Estimated(value=0.1 + 0.2, low=None, high=None)
    assert estimated([0.3]).low is None


def test_shards_by_hand() -> None:
    # 4 workers, 1 MB, 10 MB/s, 0.1 s: 2 x 4 x 0.1 / 0.1 = 8; both directions at once: 4 x 0.1 / 0.3 / 0.6 = 2.2.
    assert predict.shards_by_lemma(1e6, 4, 1e7, 0.1) == 8
    assert predict.shards_with_room(1e6, 4, 1e7, 0.1) == 3
    assert predict.shards_by_lemma(1e3, 1, 1e9, 1.0) == predict.shards_with_room(1e3, 1, 1e9, 1.0) == 1
    assert predict.shards_by_lemma(1e6, 4, float("inf"), 0.1) == 1


def test_a_batch_stops_paying_where_a_doubling_gains_less_than_a_tenth() -> None:
    assert predict.stops_paying([16, 32, 64], [(1.7, 1.9), (1.02, 1.08)]) == (32, None)
    assert predict.stops_paying([16, 32, 64], [(1.7, 1.9), (1.5, 1.8)]) == (None, None)
    assert predict.stops_paying([16, 32, 64], [(1.05, 1.15), (1.0, 1.01)]) == (None, 16), "open before it stops"
    assert predict.stops_paying([16], []) == (None, None)


def test_memory_is_linear_in_the_batch() -> None:
    assert predict.largest_batch([16, 32], [200.0, 360.0], 1000.0) == 64  # 10 a sample: 96 fit, 64 is a power of two
    assert predict.largest_batch([16, 32], [200.0, 360.0], 100.0) == 0
    assert predict.largest_batch([16, 32], [200.0, 200.0], 1000.0) is None
    assert predict.largest_batch([16], [200.0], 1000.0) is None
