"""Pooled cells have every metric, also one that a result computes from other fields."""

from __future__ import annotations

import pytest

from repro.compare.evidence.pooled import pool
from repro.record.result.parts import Controller, Exchange
from repro.record.result.results import Result
from repro.suite.metrics import METRICS


def result(cell: str, sent: int) -> Result:
    found = Exchange(sent_bytes=sent, received_bytes=0, sent_messages=1, received_messages=0)
    none = Exchange(sent_bytes=0, received_bytes=0, sent_messages=0, received_messages=0)
    return Result(trial_id=f"{cell}-0", cell_id=cell, repeat=0, attempt=1, status="ok", bytes_sent=sent,
                  controller=Controller(ranks=1, startup=found, training=none, log_startup_bytes=1,
                                        log_training_bytes=1))


def test_a_computed_figure_is_the_geometric_mean_over_the_cells() -> None:
    (pooled,) = pool([{0: result("a", 100)}, {0: result("b", 400)}])
    assert pooled.at(METRICS["controller_bytes"].path) == pytest.approx(200)
    assert pooled.at(METRICS["worker_bytes"].path) == pytest.approx(200)
    assert pooled.at(METRICS["busiest_bytes"].path) is None, "no traffic was counted"
    (pooled,) = pool([{0: result(cell, 1).model_copy(update={"init_seconds": seconds})}
                      for cell, seconds in (("a", 2), ("b", 8))])
    assert (pooled.init_seconds, pooled.startup_seconds) == (pytest.approx(4), None)
