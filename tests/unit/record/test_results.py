"""A log -> a result: every figure worked out by hand on logs made by formula."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from repro.core.events import EventLog
from repro.record.derive.derive import derive
from repro.record.log import schema
from repro.record.log.reading import Recorded, read_log
from repro.record.log.schema import Compilation, Compiled, CompiledLate
from repro.record.result import result_warnings
from repro.record.result.remarks import joined
from repro.record.result.result_warnings import LongInitialisation, StepsMissing, Unassigned, Unexplained
from repro.record.result.results import Bracket, Result
from repro.seams.launching import LaunchResult, RankEnd
from repro.suite.model import Trial
from repro.worker.stop_rule import Ending, Progress, decide
from tests.records import Course, write_log

FINE = LaunchResult((RankEnd(0, 0),), 3.0)


def make_trial(**changes: Any) -> Trial:
    """10 steps of 100 samples between evaluations; target 0.9 unless `changes` say otherwise."""
    choices = {
        "workload": "digits", "engine": "ddp", "batch": 100, "optimizer": {"kind": "sgd", "lr": 0.1},
        "stop": {"metric": "top1", "target": 0.9, "max_epochs": 8, **changes.pop("stop", {})}, "evaluate_every": 1000,
        "device": "cpu", **changes,
    }
    return Trial.model_validate(
        {"suite": "s", "suite_digest": "d", "choices": choices, "repeat": 2, "master_seed": 1})


@dataclass
class Script:
    """The content of a log. Each evaluation comes after 10 steps of 0.1 s (0.02 s of it input), 0.25 s of
    evaluation and 0.05 s of logging; 0.1 s pass outside every phase."""

    values: Sequence[float | None] = (0.5, 0.8, 0.91)
    reason: str = ""
    outcome: str = "success"
    event: type[schema.Evaluation] = schema.EvalAccuracy
    stop: bool = True
    lost_block: int | None = None
    """A block whose step record is missing."""
    lost_phase: str = ""
    logging_seconds: float = 0.05
    init_seconds: float = 2.0
    other_seconds: float = 0.1
    after: Callable[[EventLog], object] = field(default=lambda _: None)


def play(path: Path, script: Script) -> list[Recorded]:
    """The events of `script`, by way of a file."""
    now = {"ns": 10_000_000_000}
    phases = {"train": 0.0, "eval": 0.0, "logging": 0.0, "checkpoint": 0.0, "other": 0.0}
    log = EventLog(path, 0, lambda: now["ns"], anchor_ms=0.0)

    def spend(phase: str, seconds: float) -> None:
        now["ns"] += round(seconds * 1e9)
        phases[phase] += seconds

    log.write(schema.Launched(value=now["ns"]))
    now["ns"] += 500_000_000
    log.write(schema.InitStart())
    log.write(schema.Hashes(value={"init_weights": "w", "data_order": "o"}))
    now["ns"] += round(script.init_seconds * 1e9)
    log.write(schema.InitStop())
    log.write(schema.RunStart())
    for number, value in enumerate(script.values):
        spend("other", script.other_seconds)
        spend("train", 1.0)
        spend("checkpoint", 0.02)
        spend("logging", script.logging_seconds)
        if number != script.lost_block:
            log.write(schema.StepBlock(first=number * 10, seconds=[0.08] * 10, input_seconds=[0.02] * 10,
                                       loss=[1.0] * 10))
        spend("eval", 0.25)
        samples = (number + 1) * 1000
        at = log.write(schema.EvalStop(epoch_num=samples / 2000, samples_count=samples))
        log.write(script.event(value=value, samples_count=samples, epoch_num=samples / 2000, phases=dict(phases),
                               eval_stop_ns=at, train_loss=None if value is None else 1.0))
    if script.stop:
        log.write(schema.RunStop(status="success" if script.outcome == "success" else "aborted", outcome=script.outcome,
                          reason=script.reason, samples_count=1000 * len(script.values)))
        log.write(schema.Phases.model_validate({name: seconds for name, seconds in phases.items()
                                         if name != script.lost_phase}))
        log.write(schema.RankSteps(slowest_seconds=[0.1, 0.2, 0.3, 0.4], fastest_seconds=[0.1, 0.1, 0.25, 0.1],
                                   whole_seconds=[]))
        log.write(schema.MemoryPeaks(kind="resident", init=[100, None, 300], training=[None, None, None]))
        log.write(schema.Hashes(value={"final_weights": "f"}))
        log.write(schema.EffectiveSettings(value={"zero_stage": "1"}))
    script.after(log)
    log.close()
    return read_log(path)


@pytest.fixture
def result(tmp_path: Path) -> Callable[..., Result]:
    def make(script: Script, outcome: LaunchResult | None = FINE, **changes: Any) -> Result:
        return derive(make_trial(**changes), 1, play(tmp_path / "log", script), outcome)

    return make


Make = Callable[..., Result]


# ---- clocks


def test_all_clocks_of_a_trial_that_reaches_its_target(result: Make) -> None:
    found = result(Script())
    # one evaluation takes 0.1 + 1.0 + 0.02 + 0.05 + 0.25 = 1.42 s, of which 0.32 s are no training
    assert (found.status, found.reason) == ("ok", "")
    assert found.tta_wall == pytest.approx(3 * 1.42)
    assert found.tta_train == pytest.approx(3 * 1.1)
    assert found.tta_cold == pytest.approx(0.5 + 2.0 + 3 * 1.42)
    assert found.init_seconds == pytest.approx(2.0)
    assert found.run_seconds == pytest.approx(3 * 1.42)
    assert (found.samples_to_target, found.epochs_to_target) == (3000, 1.5)
    assert found.bracket is not None
    assert found.bracket.model_dump() == pytest.approx({
        "miss_samples": 2000, "hit_samples": 3000, "miss_wall_seconds": 2 * 1.42, "hit_wall_seconds": 3 * 1.42})
    assert found.samples == 3000
    assert found.samples_per_second == pytest.approx(3000 / 4.26)
    assert found.train_samples_per_second == pytest.approx(3000 / 3.0)
    assert found.phases == pytest.approx(
        {"train": 3.0, "eval": 0.75, "checkpoint": 0.06, "logging": 0.15, "other": 0.3})
    assert found.conservation_error == pytest.approx(0, abs=1e-9)
    assert found.observer_effect == pytest.approx(0.05 / 1.42)
    assert (found.final, found.best) == (0.91, 0.91)
    assert [point.value for point in found.curve] == [0.5, 0.8, 0.91]
    assert [point.train_seconds for point in found.curve] == pytest.approx([1.1, 2.2, 3.3])


def test_step_times_memory_and_hashes(result: Make) -> None:
    found = result(Script())
    assert found.steps is not None
    assert found.steps.model_dump() == pytest.approx(
        {"count": 4, "median_seconds": 0.25, "p95_seconds": 0.385, "straggler_seconds": 0.1 + 0.05 + 0.3})
    assert found.peak_bytes == 300
    assert found.hashes == {"init_weights": "w", "data_order": "o", "final_weights": "f"}
    assert found.effective == {"zero_stage": "1"}
    assert (found.trial_id, found.cell_id) == (make_trial().trial_id, make_trial().cell_id)
    assert (found.repeat, found.attempt) == (2, 1)


def test_the_golden_log_of_the_sample_record(tmp_path: Path) -> None:
    # 23 steps of 64 samples and 0.01 s, then 0.02 s of evaluation; the fourth evaluation hits; 0.5 s to initialise.
    trial = make_trial(batch=64, evaluate_every=1437)
    write_log(tmp_path / "log", trial, Course())
    found = derive(trial, 1, read_log(tmp_path / "log"), FINE)
    assert (found.tta_wall, found.tta_train, found.tta_cold) == pytest.approx((1.0, 0.92, 1.5))
    assert found.samples_to_target == 4 * 23 * 64
    assert found.warnings == ()


def test_a_hit_at_the_first_evaluation_is_bracketed_by_the_start(result: Make) -> None:
    found = result(Script(values=(0.95,)))
    assert found.bracket == Bracket(miss_samples=0, hit_samples=1000, miss_wall_seconds=0.0, hit_wall_seconds=1.42)


def test_the_target_itself_is_a_hit(result: Make) -> None:
    assert result(Script(values=(0.8999999, 0.9))).samples_to_target == 2000


def test_confirming_evaluations_move_the_clock_but_not_the_bracket(result: Make) -> None:
    found = result(Script(values=(0.5, 0.91, 0.5, 0.91, 0.92)), stop={"confirm_evals": 2})
    assert found.tta_wall == pytest.approx(5 * 1.42)
    assert found.samples_to_target == 5000
    assert found.bracket is not None
    assert (found.bracket.miss_samples, found.bracket.hit_samples) == (3000, 4000)


def test_if_lower_is_better_the_target_is_reached_from_above(tmp_path: Path) -> None:
    trial = make_trial()  # no workload here has such a metric, so the checked trial is turned round
    stop = trial.choices.stop.model_copy(update={"metric": "error", "target": 0.3, "direction": "lower"})
    trial = trial.model_copy(update={"choices": trial.choices.model_copy(update={"stop": stop})})
    found = derive(trial, 1, play(tmp_path / "log", Script(values=(0.9, 0.2, 0.4), event=schema.EvalError)), FINE)
    assert found.samples_to_target == 2000
    assert (found.final, found.best) == (0.4, 0.2)


def test_a_fixed_budget_continues_and_the_clock_stops_at_the_target(result: Make) -> None:
    found = result(Script(values=(0.5, 0.95, 0.97, 0.96)), stop={"design": "fixed_budget"})
    assert found.status == "ok"
    assert found.tta_wall == pytest.approx(2 * 1.42)
    assert found.run_seconds == pytest.approx(4 * 1.42)
    assert (found.final, found.best, found.samples) == (0.96, 0.97, 4000)


def test_without_a_launch_time_there_is_no_cold_clock(tmp_path: Path) -> None:
    events = [item for item in play(tmp_path / "log", Script()) if not isinstance(item.event, schema.Launched)]
    assert derive(make_trial(), 1, events, FINE).tta_cold is None


# ---- how a trial ended


def test_without_run_stop_a_trial_crashed_whatever_its_exit_code(result: Make) -> None:
    for outcome in (FINE, None):
        found = result(Script(stop=False), outcome)
        assert (found.status, found.reason) == ("crashed", "ended without run_stop in its log")
        assert (found.tta_wall, found.run_seconds, found.samples_per_second) == (None, None, None)
        assert len(found.curve) == 3


@pytest.mark.parametrize(("ends", "reason"), [
    ((RankEnd(0, 1, "KeyError: 'x'"),), "rank 0: KeyError: 'x'"),
    ((RankEnd(0, -9),), "rank 0: killed by signal 9"),
    ((RankEnd(0, 7),), "rank 0: exit code 7"),
    ((RankEnd(0, -15, "after rank 1: killed", cause="ended_after_another_rank"), RankEnd(1, 1, "ValueError: y")),
     "rank 1: ValueError: y"),
])
def test_a_crash_names_the_rank_and_its_reason(result: Make, ends: tuple[RankEnd, ...], reason: str) -> None:
    found = result(Script(stop=False), LaunchResult(ends, 1.0))
    assert (found.status, found.reason) == ("crashed", reason)


def test_an_exit_code_after_run_stop_is_a_crash(result: Make) -> None:
    found = result(Script(), LaunchResult((RankEnd(0, 0), RankEnd(1, -11)), 1.0))
    assert (found.status, found.reason) == ("crashed", "after run_stop: rank 1: killed by signal 11")
    assert found.tta_wall is None


@pytest.mark.parametrize("reason", [
    "OutOfMemoryError: CUDA out of memory. Tried to allocate", "MemoryError: ", "RuntimeError: DefaultCPUAllocator: "
    "can't allocate memory: out of memory",
])
def test_out_of_memory_is_a_separate_status(result: Make, reason: str) -> None:
    found = result(Script(stop=False), LaunchResult((RankEnd(0, 1, reason),), 1.0))
    assert found.status == "out_of_memory"
    assert reason in found.reason


def test_a_trial_over_its_time_limit_timed_out(result: Make) -> None:
    found = result(Script(stop=False), LaunchResult((RankEnd(0, -9),), 61.2, timed_out=True))
    assert (found.status, found.reason) == ("timed_out", "ended at its time limit, after 61 s")


@pytest.mark.parametrize(("reason", "status"), [
    ("top1 0.8 after 8 epochs", "missed"), ("loss is not finite at step 20", "diverged"),
    ("diverged", "missed"), ("out of memory", "diverged"), ("", "missed")])
def test_misses_and_divergence_keep_their_reason_and_have_no_clock(result: Make, reason: str, status: str) -> None:
    found = result(Script(values=(0.5, None), outcome=status, reason=reason))
    assert (found.status, found.reason) == (status, reason)
    assert (found.tta_wall, found.tta_train, found.tta_cold, found.samples_to_target) == (None, None, None, None)
    assert (found.final, found.best) == (None, 0.5)
    assert found.run_seconds == pytest.approx(2 * 1.42)


def test_success_that_no_evaluation_shows_is_invalid(result: Make) -> None:
    found = result(Script(values=(0.5, 0.6)))
    assert found.status == "invalid"
    assert "no evaluation establishes the target" in found.reason
    assert found.tta_wall is None


def test_an_empty_log_is_a_crash(tmp_path: Path) -> None:
    assert derive(make_trial(), 1, [], None).status == "crashed"
    found = derive(make_trial(), 1, [], LaunchResult((RankEnd(0, 1, "ImportError: torch"),), 1.0))
    assert (found.status, found.reason) == ("crashed", "rank 0: ImportError: torch")


# ---- doubts


def test_a_clean_log_raises_no_doubt(result: Make) -> None:
    assert result(Script(logging_seconds=0.001)).warnings == ()


def test_phases_that_do_not_add_up_are_found(result: Make) -> None:
    found = result(Script(lost_phase="eval", logging_seconds=0.001))
    assert found.conservation_error == pytest.approx(0.25 / 1.371)
    assert found.warnings == (Unexplained(share=found.conservation_error),)


def test_phases_that_were_never_written_are_found(result: Make, tmp_path: Path) -> None:
    events = [item for item in play(tmp_path / "log", Script()) if not isinstance(item.event, schema.Phases)]
    found = derive(make_trial(), 1, events, FINE)
    assert found.conservation_error == pytest.approx(0.42 / 1.42)


def test_a_missing_block_of_steps_is_found(result: Make) -> None:
    found = result(Script(lost_block=1, logging_seconds=0.001))
    assert found.log_faults == (StepsMissing(counted=2000, wanted=3000),)
    assert (found.phases["train"], found.phases["other"]) == pytest.approx((2.0, 1.3))


def test_steps_longer_than_the_training_they_are_part_of_are_found(result: Make) -> None:
    def claim(log: EventLog) -> None:
        log.write(schema.StepBlock(first=30, seconds=[5.0], input_seconds=[0.0], loss=[1.0]))

    found = result(Script(after=claim))
    assert any(item.kind == "unexplained" for item in found.warnings)


def test_an_observer_that_is_too_slow_is_found(result: Make) -> None:
    found = result(Script(logging_seconds=0.05))
    assert joined(found.warnings) == "logging took 3.5 % of the run (limit 0.5 %)"


def test_initialisation_beyond_its_cap_is_charged(result: Make) -> None:
    usual, late = (result(Script(init_seconds=seconds, logging_seconds=0.001)) for seconds in (1800.0, 1900.0))
    assert usual.warnings == ()
    assert late.warnings == (LongInitialisation(excess_seconds=100),)
    assert usual.tta_wall is not None and usual.tta_train is not None and usual.tta_cold is not None
    assert late.tta_wall == pytest.approx(usual.tta_wall + 100)
    assert late.tta_train == pytest.approx(usual.tta_train + 100)
    assert late.tta_cold == pytest.approx(usual.tta_cold + 100), "it counts from the launch and has it already"
    assert late.run_seconds == usual.run_seconds


@pytest.mark.parametrize(("other", "share"), [
    (0.1, None), (0.3, 0.19)])
def test_time_that_no_phase_accounts_for_is_found(result: Make, other: float, share: float | None) -> None:
    found = result(Script(logging_seconds=0.001, other_seconds=other)).warnings
    assert [item.share for item in found if isinstance(item, Unassigned)] == (
        [] if share is None else [pytest.approx(share, abs=0.005)])


def test_events_of_others_without_monotonic_time_are_left_aside(tmp_path: Path) -> None:
    stop = schema.RunStop(status="success", outcome="success", reason="", samples_count=1)
    foreign = Recorded(stop, None, 0.0)
    found = derive(make_trial(), 1, [*play(tmp_path / "log", Script(stop=False)), foreign], None)
    assert found.status == "crashed"


def test_a_result_survives_json(result: Make) -> None:
    for script in (Script(), Script(stop=False), Script(values=(0.5, None), outcome="diverged", reason="x")):
        found = result(script)
        assert Result.model_validate_json(found.model_dump_json(by_alias=True)) == found


# ---- contests


CONTEST = {"design": "contest"}


@pytest.mark.parametrize("values", [(0.5, 0.8, 0.6), (0.5, 0.95, 0.6), (0.95, 0.5, 0.91)])
def test_a_contest_is_ok_at_its_end_whatever_its_quality(result: Make, values: tuple[float, ...]) -> None:
    found = result(Script(values), stop=CONTEST)
    assert (found.status, found.reason, found.final) == ("ok", "", values[-1])
    assert found.tta_wall == pytest.approx(3 * 1.42)
    assert found.tta_train == pytest.approx(3 * 1.1)
    assert found.tta_cold == pytest.approx(0.5 + 2.0 + 3 * 1.42)
    assert (found.bracket, found.samples_to_target, found.epochs_to_target) == (None, None, None)


@pytest.mark.parametrize("values", [(0.5, None), ()])
def test_a_contest_without_a_finite_quality_at_its_end_is_no_success(
    result: Make, values: tuple[float | None, ...]
) -> None:
    found = result(Script(values), stop=CONTEST)
    assert (found.status, found.tta_wall) == ("invalid", None)
    assert found.reason == "the log ends in success but its last evaluation has no finite quality"


def test_the_worker_ends_a_contest_at_its_budget_alone() -> None:
    contest, fixed = (make_trial(stop={"design": design}).training.stop for design in ("contest", "fixed_budget"))
    for value in (0.5, 0.95):
        assert decide(contest, Progress(), value, 10, 20)[1] is None
        assert decide(contest, Progress(), value, 20, 20)[1] == Ending("success")
    below = decide(fixed, Progress(), 0.5, 20, 20)[1]
    assert below is not None and below.outcome == "missed"
    ended = decide(contest, Progress(), float("nan"), 10, 20)[1]
    assert ended is not None and ended.outcome == "diverged"


def test_the_slowest_rank_counts_and_filling_a_cache_does_not(tmp_path: Path) -> None:
    def after(log: EventLog) -> None:
        log.write(Compilation(filling_seconds=1.5, ranks=[Compiled(seconds=each, graphs=2) for each in (1.0, 3.0)]))

    plain, found = (derive(make_trial(), 1, play(tmp_path / "log", script), FINE)
                    for script in (Script(), Script(after=after)))
    assert (plain.compile_seconds, found.compile_seconds) == (None, 3.0)
    assert plain.tta_cold is not None and found.tta_cold == plain.tta_cold - 1.5


def test_a_graph_compiled_on_the_clock_is_a_warning(tmp_path: Path) -> None:
    def warnings(*late: Compiled) -> list[result_warnings.CompiledLate]:
        script = Script(after=lambda log: log.write(CompiledLate(value=late)))
        found = derive(make_trial(), 1, play(tmp_path / "log", script), FINE)
        return [item for item in found.warnings if isinstance(item, result_warnings.CompiledLate)]

    assert warnings() == warnings(*[Compiled(seconds=0.0, graphs=0)] * 2) == []
    assert warnings(Compiled(seconds=0.0, graphs=0), Compiled(seconds=4.0, graphs=3)) == [
        result_warnings.CompiledLate(graphs=3, seconds=4.0)]
