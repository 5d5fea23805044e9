"""Phases and step times, on clocks that only the test moves; the bits of products."""

from __future__ import annotations

import subprocess
import sys
import time
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from repro.core import devices
from repro.core.random_streams import Streams
from repro.worker.clock import DeviceTimer, HostTimer, Stamp, Stopwatch, kernel_ns, make_clock
from repro.worker.setup import seed_libraries
from repro.worker.steps import TimedSteps

CALM = settings(max_examples=50, deadline=None, derandomize=True, database=None)


class Hand:
    """A clock moved by hand, nanoseconds."""

    def __init__(self) -> None:
        self.ns = 5_000_000_000

    def __call__(self) -> int:
        return self.ns

    def wait(self, seconds: float) -> None:
        self.ns += round(seconds * 1e9)


def test_time_is_charged_to_the_phase_it_passes_in_and_the_rest_to_other() -> None:
    hand = Hand()
    watch = Stopwatch(hand)
    hand.wait(1)
    with watch.phase("train"):
        hand.wait(10)
    hand.wait(0.5)
    with watch.phase("eval"):
        hand.wait(3)
    assert watch.seconds() == {"other": 1.5, "train": 10.0, "eval": 3.0}


def test_a_phase_inside_a_phase_interrupts_it() -> None:
    hand = Hand()
    watch = Stopwatch(hand)
    with watch.phase("train"):
        hand.wait(2)
        with watch.phase("checkpoint"):
            hand.wait(5)
        hand.wait(1)
    assert watch.seconds() == {"other": 0.0, "train": 3.0, "checkpoint": 5.0}


def test_a_failure_ends_its_phase() -> None:
    hand = Hand()
    watch = Stopwatch(hand)

    def fail() -> None:
        with watch.phase("train"):
            hand.wait(2)
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    hand.wait(1)
    assert watch.seconds() == {"other": 1.0, "train": 2.0}


def test_reading_in_the_middle_of_a_phase_loses_nothing() -> None:
    hand = Hand()
    watch = Stopwatch(hand)
    with watch.phase("train"):
        hand.wait(2)
        assert watch.seconds()["train"] == 2
        hand.wait(2)
    assert watch.seconds()["train"] == 4


def test_restart_begins_at_the_moment_it_is_given() -> None:
    hand = Hand()
    watch = Stopwatch(hand)
    with watch.phase("train"):
        hand.wait(7)
    start = hand()
    hand.wait(1)
    watch.restart(start)
    assert watch.seconds() == {"other": 1.0}


STRETCHES = st.tuples(st.sampled_from(["train", "eval", "logging"]), st.integers(0, 10**12), st.integers(0, 10**9))


@CALM
@given(st.lists(STRETCHES))
def test_phases_always_add_up_to_the_wall_clock(course: list[tuple[str, int, int]]) -> None:
    hand = Hand()
    watch, start = Stopwatch(hand), hand()
    for name, inside, between in course:
        with watch.phase(name):
            hand.ns += inside // 2
            with watch.phase("checkpoint"):
                hand.ns += inside // 3
        hand.ns += between
    assert sum(watch.seconds().values()) == pytest.approx((hand() - start) / 1e9, abs=1e-6)


def test_the_host_timer_tells_steps_from_their_input() -> None:
    hand = Hand()
    timer = HostTimer(hand)
    for steps in ([(0.1, 1.0), (0.2, 2.0)], [(0.3, 3.0)]):  # a second block forgets the first
        hand.wait(50)
        timer.start()
        for fed, stepped in steps:
            hand.wait(fed)
            timer.mark_input()
            hand.wait(stepped)
            timer.mark_step()
        seconds, inputs = timer.read()
        assert seconds == pytest.approx([stepped for _, stepped in steps])
        assert inputs == pytest.approx([fed for fed, _ in steps])


def test_a_block_without_steps_has_no_times() -> None:
    timer = HostTimer(Hand())
    timer.start()
    assert timer.read() == ([], [])


def test_the_timer_suits_the_device_and_an_engines_own_clock_wins() -> None:
    assert isinstance(make_clock("cpu", None).timer, HostTimer)
    assert isinstance(make_clock("cuda:1", None).timer, DeviceTimer)
    assert isinstance(make_clock("cuda:1", Hand()).timer, HostTimer)


def test_this_module_needs_no_torch() -> None:
    assert "torch" not in vars(sys.modules["repro.worker.clock"])


def test_a_pause_after_a_step_counts_as_neither_input_nor_step() -> None:
    hand = Hand()
    timer = HostTimer(hand)
    timer.start()
    for pause in (5.0, 0.0):
        hand.wait(0.1)
        timer.mark_input()
        hand.wait(0.2)
        timer.mark_step()
        hand.wait(pause)
        timer.exclude_pause()
    assert timer.read() == (pytest.approx([0.2, 0.2]), pytest.approx([0.1, 0.1]))


PRODUCTS = """
from repro.core.random_streams import Streams
from repro.worker.setup import seed_libraries
seed_libraries(Streams(1, 0), "bitwise", with_torch=True)
import torch
for rows, columns in ((10, 13), (6, 9), (13, 216)):
    values, room = torch.randn(rows, columns), torch.empty(rows * columns + 32)
    found = []
    for place in range(16):
        moved = room[place:place + rows * columns].view(rows, columns).copy_(values)
        found.append(moved @ moved.T)
    assert all(torch.equal(product, found[0]) for product in found), (rows, columns)
"""


@pytest.mark.slow
def test_a_product_has_the_same_bits_wherever_its_factors_lie() -> None:
    """Without the setting this fails on processors with AVX-512, where MKL depends on the place in memory."""
    pytest.importorskip("torch")
    ended = subprocess.run([sys.executable, "-c", PRODUCTS], capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr


def test_the_determinism_of_a_trial_ends_with_it() -> None:
    """With launcher inline a later trial of the process would run deterministic kernels that it has not asked for."""
    found = []
    for determinism in ("bitwise", "seeded"):
        seed_libraries(Streams(1, 0), determinism, with_torch=True)
        found.append(torch.are_deterministic_algorithms_enabled())
    assert found == [True, False]


def test_phases_end_at_the_reading_that_is_returned() -> None:
    """A busy machine may halt the process between any two readings of the clock."""
    readings = iter(range(0, 1_000_000_000, 7_000_000))
    watch = Stopwatch(lambda: next(readings))
    watch.restart(0)
    with watch.phase("train"):
        pass
    seconds, at_ns = watch.stop()
    assert sum(seconds.values()) == pytest.approx(at_ns / 1e9)


def test_a_trials_clock_is_compared_with_the_kernels() -> None:
    begin = Stamp(1_000, 7_000, 2_000)  # the process was halted between two readings
    assert begin.counted(Stamp(10**9, 10**9 + 6_000, 10**9 + 1_000)) == pytest.approx((0.999999, 0.999999))
    own, kernel = begin.counted(Stamp(2 * 10**9, 10**9, 2 * 10**9 + 1_000))
    assert (own, kernel) == pytest.approx((0.999993, 1.999998))
    assert Stamp(None, 0, None).counted(Stamp(5, 10**9, 6)) == (1.0, 1.0)
    first = kernel_ns()
    assert first is None or first <= time.monotonic_ns()


@pytest.mark.parametrize("pause", ["_paused", "_watch_weights", "_log_weights_hash"])
def test_what_a_gpu_has_still_to_train_is_no_logging(monkeypatch: pytest.MonkeyPatch, pause: str) -> None:
    """The host is ahead by 3 s when it copies for 2 s: the device's work is training in every engine."""
    hand, behind = Hand(), [3.0]
    monkeypatch.setattr(devices, "wait", lambda device: hand.wait(behind.pop()) if device == "cuda:0" else None)

    def copy(*_: Any) -> dict[str, Any]:
        hand.wait(2 + (behind.pop() if behind else 0))
        return {}

    watch = Stopwatch(hand)
    steps: Any = object.__new__(TimedSteps)
    steps.context = SimpleNamespace(clock=SimpleNamespace(watch=watch), job=SimpleNamespace(device="cuda:0"))
    steps.timer, steps.traffic, steps.step = HostTimer(hand), SimpleNamespace(add=lambda *_, **__: None), 1
    steps.session = SimpleNamespace(traffic=dict, evaluated=lambda: watch.phase("logging"), weights=copy,
                                    held=lambda: copy() or [])
    steps.timer.start()
    with watch.phase("train"):
        if pause == "_paused":
            with steps._paused():
                copy()
        else:
            getattr(steps, pause)(SimpleNamespace(hold=lambda held: None, write=lambda event: None))
    assert {name: watch.seconds()[name] for name in ("train", "logging")} == {"train": 3.0, "logging": 2.0}
