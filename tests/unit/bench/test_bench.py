"""The benchmarks of the harness compare like with like, and their arithmetic is right."""

from __future__ import annotations

import pytest

from benchmarks import tracking
from benchmarks.tracking import TrackingOutcome
from repro.bench import bare_ddp, overhead
from repro.bench.trial import BenchOutcome, outcome
from repro.core import registry
from repro.core.random_streams import Streams


def test_the_bare_script_trains_the_workload_s_network() -> None:
    parts = registry.load("workload", "digits")().build(Streams(0, 0), "cpu")
    assert str(bare_ddp.network()) == str(parts.model)
    theirs = [tuple(p.shape) for p in bare_ddp.network().parameters()]
    assert theirs == [tuple(p.shape) for p in parts.model.parameters()]


def test_the_ratio_is_ours_over_theirs_pair_by_pair() -> None:
    found = outcome("x", ("ours", [2.0, 4.0, 8.0]), ("theirs", [1.0, 2.0, 4.0]), "s", 3.0)
    assert found.ratio == pytest.approx(2.0)
    assert found.median_ratio == 2.0
    assert found.low == pytest.approx(2.0)
    assert found.high == pytest.approx(2.0)
    assert "at most 3" in found.text()


def test_a_promise_holds_only_if_the_complete_interval_does() -> None:
    def of(*ratios: float) -> BenchOutcome:
        return outcome("x", ("dead", list(ratios)), ("none", [1.0] * len(ratios)), "ms a step", 1.01)

    near, far, wide = of(1.001, 0.999, 1.002, 0.998), of(1.101, 1.099, 1.102, 1.098), of(0.8, 1.25, 0.9, 1.1)
    found = TrackingOutcome(control=near, dead=far, slow=wide, rounds=4, steps=25, seconds=1.0,
                            replays={"dead": 3, "slow": 2}, requests=7, cpu_seconds={"dead": 0.1, "slow": 0.2})
    assert [found.verdict(item) for item in (near, far, wide)] == [
        "holds", "does not hold", "inconclusive, the interval is too wide"]
    assert "7 requests were sent to the slow server" in found.text()


@pytest.mark.slow
def test_step_times_with_and_without_a_tracking_server_are_measured() -> None:
    found = tracking.measure(rounds=3, steps=4, processes=2, delay=0.2, every=0.0)
    assert len(found.slow.ours_values) == found.rounds == 3
    assert found.requests >= 3
    assert found.replays["dead"] >= 1 and found.replays["slow"] >= 1
    assert min(found.slow.ours_values + found.slow.theirs_values) > 0


@pytest.mark.slow
def test_steps_of_the_harness_and_of_the_bare_loop_take_turns() -> None:
    found = overhead.measure(pairs=20, block=8, batch=4, processes=2, launches=3)
    assert len(found.ours_values) == len(found.theirs_values) == 3
    assert found.limit in (overhead.LIMIT, overhead.SHORT_LIMIT)
    assert found.log_ms > 0 and found.low < found.ratio < found.high
    assert 0.2 < found.median_ratio < 5
    assert "load of the machine" in found.text()
