"""Order and seconds of collectives on a GPU, on two streams that only the test moves."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402

from repro.comm.algorithms.ring import Ring  # noqa: E402
from repro.comm.runtime import meter as meter_module  # noqa: E402
from repro.comm.runtime.group import AlgorithmGroup  # noqa: E402
from repro.comm.runtime.lane import Lane  # noqa: E402
from repro.comm.runtime.meter import Meter, OnCpu, OnGpu  # noqa: E402
from repro.comm.runtime.wire import LinkBroken, MissingRankFinder  # noqa: E402
from repro.papers.jizhi.hybrid import Hybrid  # noqa: E402
from tests.memory_wire import MemoryNet, MemoryWire  # noqa: E402

SYNCHRONOUS = SimpleNamespace(asyncOp=False)


class TwoStreams(OnCpu):
    """The caller's stream and that of the collectives: each is busy up to a moment, and a stamp is that moment."""

    on_host = False

    def __init__(self) -> None:
        self.busy = {"main": 0.0, "side": 0.0}
        self.current = "main"

    def work(self, seconds: float) -> None:
        self.busy[self.current] += seconds

    def stamp(self) -> float:
        return self.busy[self.current]

    mark = stamp

    @contextmanager
    def after(self, mark: Any, tensors: Any) -> Iterator[None]:
        self.current = "side"
        self.join(mark)
        yield
        self.current = "main"

    def join(self, mark: Any) -> None:
        self.busy[self.current] = max(self.busy[self.current], mark)


@pytest.fixture
def made() -> Iterator[tuple[Lane, TwoStreams, Meter]]:
    streams, meter = TwoStreams(), Meter()
    lane = Lane(meter, "test", streams)
    yield lane, streams, meter
    lane.close()


def test_the_caller_of_a_synchronous_collective_is_blocked_for_all_of_it(made: tuple[Lane, TwoStreams, Meter]) -> None:
    lane, streams, meter = made
    streams.work(1.0)
    lane.submit(lambda: streams.work(5.0), [], SYNCHRONOUS)
    assert streams.stamp() == 6.0, "what the caller does next comes after it"
    found = meter.take()
    assert (found["busy_seconds"], found["exposed_seconds"], found["overlapped_seconds"]) == (5.0, 5.0, 0.0)


def test_nothing_is_joined_after_a_collective_that_failed(made: tuple[Lane, TwoStreams, Meter]) -> None:
    lane, *_ = made

    def fail() -> None:
        raise RuntimeError("lost")

    work = lane.submit(fail, [], SYNCHRONOUS)
    with pytest.raises(RuntimeError, match="lost"):
        work.wait()


class Event:
    """A moment, milliseconds; a distance is a float32, as the driver gives it."""

    def __init__(self, at: float) -> None:
        self.at = at

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, other: Event) -> float:
        return float(struct.unpack("f", struct.pack("f", other.at - self.at))[0])


def test_an_old_process_measures_as_finely_as_a_young_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measured from one origin, 50 us after an hour would be 0 or 250."""
    monkeypatch.setattr(meter_module.devices, "stream", lambda device: None)
    meter = Meter()
    meter.clock = OnGpu(torch.device("meta"))
    hour = 3.6e6
    meter.ran(Event(0.0), Event(0.05))
    meter.waited(Event(-0.01), Event(0.05))  # begun before the collective
    for _ in range(20):
        meter.ran(Event(hour), Event(hour + 0.05))
        meter.waited(Event(hour), Event(hour + 0.05))
        hour += 0.3
    found = meter.take()
    assert found["busy_seconds"] == pytest.approx(21 * 50e-6, rel=1e-3)
    assert found["exposed_seconds"] == pytest.approx(21 * 50e-6 + 10e-6, rel=1e-3)
    assert found["overlapped_seconds"] == pytest.approx(0.0, abs=1e-7)


def test_only_tensors_of_the_device_are_kept_for_its_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """The objects that ranks gather lie on the host, where `record_stream` raises."""

    @contextmanager
    def within(stream: Any) -> Iterator[None]:
        yield

    kept: list[object] = []
    monkeypatch.setattr(meter_module.devices, "stream", lambda device: SimpleNamespace(wait_event=lambda mark: None))
    monkeypatch.setattr(meter_module.devices, "within", within)
    there = SimpleNamespace(device="cuda:0", record_stream=lambda stream: kept.append(there))
    with OnGpu(torch.device("meta")).after(None, (torch.ones(2), there)):
        pass
    assert kept == [there]


def test_memory_that_runs_out_in_a_collective_is_called_so() -> None:
    """Not a lost rank: that would blame another one."""
    lost = MissingRankFinder(dist.HashStore(), MemoryWire(0, MemoryNet(1)), 1.0)
    for error in (torch.OutOfMemoryError("CUDA out of memory"), LinkBroken(1, RuntimeError("CUDA out of memory"))):
        with pytest.raises(RuntimeError, match="CUDA out of memory"), lost.naming_missing_rank():
            raise error


@pytest.mark.parametrize("work", [None, SimpleNamespace(wait=lambda: None)])
def test_a_synchronous_collective_of_nccl_has_no_work_to_wait_for(work: Any) -> None:
    """Since torch 2.8 it is in the caller's stream when the call returns."""
    wire = MemoryWire(0, MemoryNet(1))
    wire.inner = SimpleNamespace(barrier=lambda opts: work)
    group = AlgorithmGroup(Ring(), wire, Meter(), dist.HashStore(), 1.0)
    group.barrier(SimpleNamespace(asyncOp=False, device=torch.device("cuda", 0))).wait()
    assert group.passed == {("gloo", "barrier")}
    group.shutdown()


def test_ranks_that_measure_wait_for_one_another_on_their_own_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without device_ids NCCL takes the GPU with the number of the rank, which on a second node is another one."""
    waited: list[list[int]] = []

    def barrier(opts: Any) -> Any:
        waited.append(opts.device_ids)
        return SimpleNamespace(wait=lambda: None)

    hybrid = Hybrid()
    hybrid._group = SimpleNamespace(
        reset=lambda: None, lane=SimpleNamespace(device=OnCpu()), inner=SimpleNamespace(barrier=barrier),
        finder=SimpleNamespace(naming_missing_rank=nullcontext))
    monkeypatch.setattr(dist, "all_reduce", lambda tensor: None)
    hybrid._time_calls("ring", 64, 2, "meta:1")
    assert waited == [[1]] * 3
