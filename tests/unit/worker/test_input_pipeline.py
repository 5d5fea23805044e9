"""The parts of the input, without processes: copies to a device, receiving, losses that are read once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from repro.core import devices
from repro.core.errors import TrialError
from repro.core.events import EventLog
from repro.core.random_streams import Streams
from repro.record.log.schema import InitStart
from repro.worker.clock import DeviceTimer
from repro.worker.input.data_order import DataOrder, SampleOrder, StreamOrder
from repro.worker.input.pipeline import Copier, Item, Reading, Receiver, Wanted, WorkerInput, describe_end
from repro.worker.input.trial_input import DirectInput
from repro.worker.steps import read_losses
from tests.waiting import until

torch = pytest.importorskip("torch")


class Calls(list[str]):
    """What was called, in turn."""

    def note(self, what: str) -> Callable[..., None]:
        return lambda *_: self.append(what)


class FakeTensor:
    """A tensor that only says what is done with it."""

    device = "cpu"

    def __init__(self, calls: Calls, name: str) -> None:
        self.calls, self.name = calls, name

    def untyped_storage(self) -> None:
        raise AssertionError("it marks a tensor and is not called")

    def pin_memory(self) -> FakeTensor:
        self.calls.append(f"pin {self.name}")
        return self

    def to(self, device: str, non_blocking: bool = False) -> FakeTensor:
        self.calls.append(f"copy {self.name} to {device}{' and go on' if non_blocking else ''}")
        return self

    def record_stream(self, stream: Any) -> None:
        self.calls.append(f"{self.name} used on {stream.name}")


class FakeStream:
    def __init__(self, calls: Calls, name: str) -> None:
        self.calls, self.name = calls, name

    def wait_stream(self, other: FakeStream) -> None:
        self.calls.append(f"{self.name} waits for {other.name}")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """A CUDA device that only says what it is asked for."""
    made = Calls()

    @contextmanager
    def on(stream: FakeStream) -> Iterator[None]:
        made.append(f"on {stream.name}")
        yield
        made.append(f"off {stream.name}")

    monkeypatch.setattr(devices, "stream", lambda device: FakeStream(made, f"side of {device}"))
    monkeypatch.setattr(devices, "current_stream", lambda device: FakeStream(made, f"main of {device}"))
    monkeypatch.setattr(devices, "within", on)
    return made


def test_on_a_gpu_copies_run_on_a_stream_of_their_own_and_computing_waits_for_them(calls: Calls) -> None:
    copier = Copier("cuda:1")
    batch = ({"ids": FakeTensor(calls, "ids")}, FakeTensor(calls, "targets"))
    moved = copier.copy(Item(batch, None))
    assert calls == ["on side of cuda:1", "pin ids", "copy ids to cuda:1 and go on", "pin targets",
                     "copy targets to cuda:1 and go on", "off side of cuda:1"]
    calls.clear()
    copier.wait([moved])
    assert calls == ["main of cuda:1 waits for side of cuda:1", "ids used on main of cuda:1",
                     "targets used on main of cuda:1"]


def test_on_a_cpu_nothing_is_copied() -> None:
    batch = torch.ones(3), torch.zeros(3)
    moved = Copier("cpu").copy(Item(batch, None))
    assert moved.batch[0] is batch[0] and moved.batch[1] is batch[1]


def test_pinning_keeps_the_shape_of_a_batch() -> None:
    calls = Calls()
    pinned = Item(((FakeTensor(calls, "a"), FakeTensor(calls, "b")), FakeTensor(calls, "c")), None).pin_memory()
    assert calls == ["pin a", "pin b", "pin c"]
    assert isinstance(pinned.batch, tuple) and isinstance(pinned.batch[0], tuple)


def test_a_gpu_s_input_time_is_the_time_it_was_idle_for_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]

    class Event:
        def __init__(self, device: str, timed: bool) -> None:
            assert (device, timed) == ("cuda:1", True)
            self.at = now[0]

        def elapsed_time(self, later: Event) -> float:
            return later.at - self.at

    monkeypatch.setattr(devices, "event", Event)
    timer = DeviceTimer("cuda:1")
    timer.start()
    for idle, computing in ((3.0, 10.0), (0.0, 20.0)):
        now[0] += idle
        timer.mark_input()
        now[0] += computing
        timer.mark_step()
        now[0] += 5.0
        timer.exclude_pause()
    assert timer.read() == ([0.010, 0.020], [0.003, 0.0])


def test_the_losses_of_a_block_are_read_from_the_device_once(monkeypatch: pytest.MonkeyPatch) -> None:
    losses = [torch.tensor(value, requires_grad=True) * 1 for value in (0.5, 1.25, float("inf"))]
    assert read_losses(losses) == [0.5, 1.25, float("inf")]
    reads = []
    monkeypatch.setattr("repro.worker.steps.on_gpu", lambda device: True)
    tolist = torch.Tensor.tolist
    monkeypatch.setattr(torch.Tensor, "tolist", lambda self: reads.append(1) or tolist(self))
    for name in ("item", "__float__"):
        monkeypatch.setattr(torch.Tensor, name, lambda self: pytest.fail("a loss was read by itself"))
    assert read_losses(losses) == [0.5, 1.25, float("inf")]
    assert reads == [1]
    assert read_losses([0.5, 2]) == [0.5, 2.0]
    assert read_losses([]) == []


def test_a_receiver_gives_everything_in_order_and_then_ends() -> None:
    assert list(Receiver(iter(range(50)), 2)) == list(range(50))


def test_a_receiver_raises_in_the_place_of_the_item() -> None:
    def items() -> Iterator[int]:
        yield 1
        raise ValueError("no second")

    found = Receiver(items(), 2)
    assert next(found) == 1
    with pytest.raises(ValueError, match="no second"):
        next(found)


def test_a_receiver_reads_no_further_than_it_has_room_and_ends_at_once() -> None:
    taken: list[int] = []
    found = Receiver((taken.append(number) or number for number in range(100)), 3)  # type: ignore[func-returns-value]
    until(lambda: len(taken) >= 4)
    time.sleep(0.05)
    assert taken == [0, 1, 2, 3], "three at hand and one in its hand"
    found.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "repro-input" and thread.is_alive()]


class Broken:
    """A reader that fails."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def train(self, epoch: int, indices: np.ndarray) -> None:
        raise self.error


@pytest.mark.parametrize(("error", "reason"), [
    (TrialError("/d/17.jpg: cannot be decoded"), "/d/17.jpg: cannot be decoded"),
    (KeyError("x\ny"), "an input worker failed: KeyError: 'x\\ny'"),
    (ValueError("first\nsecond"), "an input worker failed: ValueError: first"),
    (MemoryError(), "an input worker failed: MemoryError"),
])
def test_a_failure_is_one_line(error: Exception, reason: str) -> None:
    reader: Any = Broken(error)
    found = Reading(reader)[Wanted(0, np.arange(2))]
    assert isinstance(found, TrialError) and str(found) == reason


def test_the_end_of_a_worker_in_words() -> None:
    assert describe_end(-9) == "was killed by SIGKILL (by the kernel when memory runs out, or by hand)"
    assert "/dev/shm" in describe_end(-7)
    assert describe_end(3) == "ended with exit code 3"


def test_a_log_that_is_left_to_the_parent_is_not_written(tmp_path: Any) -> None:
    log = EventLog(tmp_path / "log.txt")
    log.write(InitStart())
    log.flush()
    log.write(InitStart())
    log.leave_to_parent()
    log.write(InitStart())
    log.flush()
    log.close()
    assert (tmp_path / "log.txt").read_text().count("\n") == 1


@pytest.mark.parametrize(("raised", "reason"), [
    ("DataLoader worker (pid 253) is killed by signal: Killed. ", "an input worker was killed by SIGKILL (by the"),
    ("DataLoader worker (pid 7) is killed by signal: Bus error. It is ...", "was killed by SIGBUS (the batches"),
])
def test_a_worker_that_ends_before_it_is_known_is_named_by_what_torch_says(raised: str, reason: str) -> None:
    found = object.__new__(WorkerInput)
    found._workers = ()
    with pytest.raises(TrialError) as caught, found.explained():
        raise RuntimeError(raised)
    assert reason in str(caught.value)
    with pytest.raises(RuntimeError, match="another"), found.explained():
        raise RuntimeError("another failure")


@pytest.mark.parametrize(("order", "told"), [
    (StreamOrder(8, 4, 1, 1), {"input_order": "stream"}), (SampleOrder(Streams(0, 0), 8, 4), {})])
def test_an_order_of_its_own_is_read_back_of_data_in_memory_too(order: DataOrder, told: dict[str, str]) -> None:
    """By it two trials are pairs although they saw other samples first."""
    parts = SimpleNamespace(selection=None, reader=None)
    assert DirectInput(SimpleNamespace(job=None), order, parts).effective() == told  # type: ignore[arg-type]
