"""The benchmarks of the harness compare like with like, and their arithmetic is right."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from benchmarks import order, tracking
from benchmarks.tracking import TrackingOutcome
from repro.bench import bare_ddp, overhead, program_overhead
from repro.bench.trial import BenchOutcome, outcome
from repro.core import registry
from repro.core.errors import TrialError, UsageError
from repro.core.random_streams import Streams
from repro.program.watch_reader import WatchPipe
from tests.in_process import called


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


def test_the_cost_of_the_order_is_measured_across_a_change_of_passes() -> None:
    found = order.measure(50_000, 4)
    assert 0 < found.step_us <= found.step_p99_us
    assert found.boundary_us < 1e6 * found.draw_seconds * 50, "the second pass was drawn in the meantime"
    assert "50,000 samples" in found.text()


@pytest.mark.slow
def test_steps_of_the_harness_and_of_the_bare_loop_take_turns() -> None:
    found = overhead.measure(pairs=20, block=8, batch=4, processes=2, launches=3)
    assert len(found.ours_values) == len(found.theirs_values) == 3
    assert found.limit in (overhead.LIMIT, overhead.SHORT_LIMIT)
    assert found.log_ms > 0 and found.median_low is not None
    assert 0.2 < found.median_ratio < 5
    assert "load of the machine" in found.text()


def test_watched_and_bare_steps_take_turns_and_all_is_read() -> None:
    found = program_overhead._arm("watch", 60, 2.0)
    assert len(found.ours_values) == len(found.theirs_values) == 60
    assert 0.2 < found.median_ratio < 5
    assert 0 < found.report_us < 1000 and 0 < found.report_median_us <= found.report_p99_us
    assert found.lines >= 4, "start, the first step, the last and stop"
    assert "writes included; promised: at most 20" in found.text()


@pytest.mark.parametrize("failing", ["raise ValueError('planted')", "raise SystemExit(3)"])
def test_a_measured_program_that_fails_is_named(failing: str, tmp_path: Path) -> None:
    with WatchPipe(tmp_path) as pipe, pytest.raises(TrialError, match=r"the benchmark failed: .*(planted|no output)"):
        program_overhead._run([sys.executable, "-c", failing], pipe)


def test_options_of_the_other_overhead_are_refused() -> None:
    done = called("bench", "overhead", "--program", "--batch", "8")
    assert isinstance(done.exception, UsageError)
    assert "--batch does not go with --program" in str(done.exception)


@pytest.mark.slow
@pytest.mark.parametrize("arm", [name for name in program_overhead.ARMS if name != "watch"])
def test_the_callbacks_overhead_is_measured_in_their_frameworks(arm: str) -> None:
    package = program_overhead.ARMS[arm]
    if package and importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    found = program_overhead._arm(arm, 60, 2.0)
    assert len(found.ours_values) == len(found.theirs_values) == 60
    assert found.lines >= 4 and found.report_median_us > 0
