"""Adding up one rank's traffic: training separately, unknown stays unknown."""

from __future__ import annotations

from typing import Any

from repro.record.result.parts import RankTraffic
from repro.worker.steps import TrafficLog


def taken(sent: int | None, seconds: float, operation: str = "all_reduce") -> dict[str, Any]:
    line = {"operation": operation, "dtype": "float32", "collectives": 2, "payload_bytes": 8, "sent_bytes": sent,
            "received_bytes": sent}
    return {"lines": [line], "busy_seconds": 3 * seconds, "exposed_seconds": seconds, "overlapped_seconds": 0.0}


def test_lines_add_up_and_training_is_separate() -> None:
    log = TrafficLog()
    log.add(taken(100, 1.0), training=True)
    log.add(taken(None, 0.5, "barrier (gloo)"))
    log.add(taken(11, 2.0), training=True)
    log.add(taken(None, 0.25, "barrier (gloo)"))
    found = RankTraffic.model_validate(log.total())
    assert [(line.operation, line.collectives, line.sent_bytes) for line in found.lines] == [
        ("all_reduce", 4, 111), ("barrier (gloo)", 4, None)]
    assert (found.exposed_seconds, found.busy_seconds) == (3.75, 11.25)
    assert found.training is not None
    assert (found.training.exposed_seconds, found.training.busy_seconds) == (3.0, 9.0)


def test_a_sum_with_an_unknown_part_is_unknown() -> None:
    log = TrafficLog()
    log.add(taken(5, 1.0))
    log.add(taken(None, 1.0))
    log.add(taken(5, 1.0))
    assert [line["sent_bytes"] for line in log.total()["lines"]] == [None]


def test_nothing_counted_is_nothing() -> None:
    log = TrafficLog()
    log.add({}, training=True)
    assert log.total() == {}
