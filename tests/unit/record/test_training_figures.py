"""Figures of training from a log: by hand on a log made by formula, and none from a log without their events."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from repro.core.events import EventLog
from repro.record.derive.derive import derive
from repro.record.log import schema
from repro.record.log.reading import read_log
from repro.record.result.results import Result
from repro.seams.launching import LaunchResult, RankEnd
from repro.suite.model import Trial
from repro.worker.steps import write_rank_steps, write_steps

BATCH, WARM, STEPS, PROCESSES = 40, 2, 5, 2
SECONDS = [9.0, 5.0, 0.1, 0.2, 0.3, 0.4, 0.5]
"""Rank 0's steps: the first two are warm-up."""
INPUT = 0.05
SLOWEST = [10.0, 6.0, 0.2, 0.2, 0.3, 0.4, 0.9]
MIB = 1 << 20
MODEL: dict[str, Any] = {"parameters": 1000, "forward_flops": 2e9, "tokens_per_sample": 128, "device": "some GPU",
                         "peak_flops": 1e12, "peak_source": "somewhere", "why": ""}
Make = Callable[..., Result]


def trial(**stop: Any) -> Trial:
    return Trial.model_validate({"suite": "s", "suite_digest": "d", "repeat": 0, "master_seed": 1, "choices": {
        "workload": "digits", "engine": "ddp", "processes": PROCESSES, "batch": BATCH, "device": "cpu",
        "optimizer": {"kind": "sgd", "lr": 0.1}, "stop": {"design": "fixed_steps", "steps": STEPS, **stop}}})


@pytest.fixture
def result(tmp_path: Path) -> Make:
    def make(
        model: dict[str, Any] | None = MODEL, memory: bool = True, whole: bool = True, lost: int = 0,
        outcome: str = "success", **stop: Any,
    ) -> Result:
        ran = trial(**{"warmup": WARM, **stop})
        now = [1_000_000_000]
        log = EventLog(tmp_path / "log", 0, lambda: now[0], anchor_ms=0.0)
        log.write(schema.InitStart())
        log.write(schema.RunStart())
        now[0] += 500_000_000  # the data are opened
        kept = SECONDS[:len(SECONDS) - lost]
        now[0] += round((sum(SECONDS) + INPUT * len(SECONDS)) * 1e9)
        write_steps(log, 0, kept, [INPUT] * len(kept), [1.0] * len(kept), now[0])
        log.write(schema.RunStop(status="success", outcome=outcome, reason="because",
                                 samples_count=BATCH * len(SECONDS)))
        log.write(schema.Phases.model_validate({"train": sum(SECONDS) + INPUT * len(SECONDS), "logging": 0.0,
                                                  "other": 0.5}))
        write_rank_steps(log, SLOWEST, SECONDS, [value + INPUT for value in SLOWEST] if whole else [])
        if memory:
            log.write(schema.MemoryPeaks(kind="allocated", init=[3 * MIB, 5 * MIB], training=[8 * MIB, 7 * MIB]))
        if model is not None:
            log.write(schema.ModelStated(value=model))
        log.close()
        return derive(ran, 1, read_log(tmp_path / "log"), LaunchResult((RankEnd(0, 0), RankEnd(1, 0)), 1.0))

    return make


def test_a_trial_without_a_target_is_ok_and_has_no_time_to_one(result: Make) -> None:
    found = result()
    assert (found.status, found.tta_wall, found.final, found.curve) == ("ok", None, None, ())
    assert found.samples == BATCH * (WARM + STEPS)
    assert found.log_faults == ()


def test_speeds_leave_out_the_declared_warm_up_and_the_opening_of_the_data(result: Make) -> None:
    found, timed = result(), sum(SECONDS[WARM:]) + STEPS * INPUT
    assert found.train_samples_per_second == pytest.approx(STEPS * BATCH / timed)
    assert found.step_seconds == pytest.approx(0.3 + INPUT)
    assert found.step_seconds_mean == pytest.approx(sum(SLOWEST[WARM:]) / STEPS + INPUT)
    assert found.steps is not None
    assert found.steps.count == STEPS
    assert found.steps.median_seconds == pytest.approx(0.3)
    assert found.samples_per_second is not None  # of the whole run, as ever
    assert found.samples_per_second == pytest.approx(found.samples / found.run_seconds)  # type: ignore[operator]


def test_without_a_warm_up_all_steps_count(result: Make) -> None:
    found = result(warmup=0, steps=STEPS + WARM)
    assert found.train_samples_per_second == pytest.approx(7 * BATCH / (sum(SECONDS) + 7 * INPUT))


def test_tokens_and_utilisation_follow_from_the_throughput(result: Make) -> None:
    found = result()
    rate = found.train_samples_per_second
    assert rate is not None
    assert found.tokens_per_second == pytest.approx(rate * 128)
    assert found.mfu == pytest.approx(3 * 2e9 * rate / (PROCESSES * 1e12))


@pytest.mark.parametrize("lacking", ["forward_flops", "peak_flops"])
def test_no_utilisation_without_a_count_or_a_peak(result: Make, lacking: str) -> None:
    found = result(model=MODEL | {lacking: None, "why": "unknown", "tokens_per_sample": None})
    assert (found.mfu, found.tokens_per_second) == (None, None)
    assert found.model is not None and found.model.why == "unknown"


def test_memory_of_training_is_apart_from_that_of_initialisation(result: Make) -> None:
    found = result()
    assert (found.memory, found.training_peak_mib, found.training_peak_mib_sum, found.init_peak_mib) == (
        "allocated", 8.0, 15.0, 5.0)


def test_a_log_without_these_events_gives_none_of_them(result: Make) -> None:
    found = result(model=None, memory=False, whole=False)
    assert {name: getattr(found, name) for name in (
        "step_seconds", "step_seconds_mean", "tokens_per_second", "memory", "training_peak_mib",
        "training_peak_mib_sum", "init_peak_mib", "model", "mfu", "joules_per_sample")} == {
        **dict.fromkeys(("step_seconds", "step_seconds_mean", "tokens_per_second", "training_peak_mib",
                         "training_peak_mib_sum", "init_peak_mib", "model", "mfu", "joules_per_sample")), "memory": ""}


def test_steps_that_the_log_lost_are_a_fault(result: Make) -> None:
    found = result(lost=1)
    assert [item.kind for item in found.log_faults] == ["steps_missing"]


def test_a_trial_whose_loss_was_not_finite_diverged(result: Make) -> None:
    assert result(outcome="diverged").status == "diverged"
