"""Seconds of communication on a GPU: moments are events of streams, read when the steps are over."""

from __future__ import annotations

from dataclasses import dataclass
from unittest.mock import MagicMock

import pytest

from repro.comm.runtime.meter import Meter, OnCpu
from repro.papers.jizhi.hybrid import Hybrid


@dataclass
class Event:
    """A moment that the stream reaches only later."""

    at: float
    reached: bool = False


class Streams(OnCpu):
    """Stands for `OnGpu`: a stamp has no time before the stream has reached it."""

    on_host = False

    def __init__(self) -> None:
        self.now = 0.0

    def stamp(self) -> Event:
        return Event(self.now)

    def seconds(self, stamp: Event) -> float:
        assert stamp.reached, "read before the block was over"
        return stamp.at


def test_moments_of_a_stream_are_read_after_the_block() -> None:
    meter, streams = Meter(), Streams()
    meter.clock = streams
    events = [Event(at) for at in (1.0, 2.0, 5.0, 4.0, 6.0)]
    submitted, start, stop, wait, go_on = events
    meter.submitted(submitted)
    meter.ran(start, stop)  # 2 to 5
    meter.waited(wait, go_on)  # 4 to 6
    for event in events:
        event.reached = True
    found = meter.take()
    assert (found["busy_seconds"], found["exposed_seconds"], found["overlapped_seconds"]) == (3.0, 2.0, 2.0)
    assert meter.take()["busy_seconds"] == 0.0


def test_a_return_after_futures_ignores_the_hosts_clock_on_a_gpu() -> None:
    """DDP waits in C++: the caller's stream is blocked from its last submission to the end of the last run."""
    meter, streams = Meter(), Streams()
    meter.clock = streams
    meter.submitted(Event(3.0, reached=True))
    meter.ran(Event(2.0, reached=True), Event(7.0, reached=True))
    streams.now = 7.0
    meter.returned(since=123456.0)
    meter._notes[-1][2].reached = True
    found = meter.take()
    assert found["exposed_seconds"] == pytest.approx(4.0)
    assert found["overlapped_seconds"] == pytest.approx(1.0)


def test_hybrid_times_its_candidates_by_moments_of_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU the host may be done with a call long before the stream is."""
    dist = pytest.importorskip("torch.distributed")
    streams, group = Streams(), MagicMock()
    group.lane.device = streams
    notes: list[Event] = []
    monkeypatch.setattr(streams, "stamp", lambda: notes.append(Event(streams.now)) or notes[-1])

    def all_reduce(_: object) -> None:
        assert not any(event.reached for event in notes), "waited between two calls"
        streams.now += 7.0

    def seconds(event: Event) -> float:
        event.reached = True
        return event.at

    monkeypatch.setattr(streams, "seconds", seconds)
    monkeypatch.setattr(dist, "all_reduce", all_reduce)
    hybrid = Hybrid()
    hybrid._group = group
    assert hybrid._time_calls("ring", 4096, 3, "cpu") == [7.0, 7.0, 7.0]
