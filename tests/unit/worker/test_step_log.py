"""Blocks with many steps: every step is read back, by every reader and from every position; the traffic of a rank."""

from __future__ import annotations

import importlib
import json
import math
from pathlib import Path
from typing import Any

import pytest

from repro.bundle.verify_trials import differences
from repro.core.events import MAX_LINE, EventLog, read_events
from repro.record.derive.derive import derive
from repro.record.log import schema
from repro.record.log.reading import interpret, log_damage, read_log
from repro.record.result.parts import RankTraffic
from repro.record.result.results import Result
from repro.seams.launching import LaunchResult, RankEnd
from repro.suite.model import Trial
from repro.worker import steps as timed_steps
from repro.worker.steps import STEPS_A_LINE, TrafficLog, write_rank_steps, write_steps
from tests.unit.record.test_results import make_trial

mlflow_points = importlib.import_module("repro.reporters.tracking.metric_points")
FINE = LaunchResult((RankEnd(0, 0),), 1.0)
STEP, FED = 0.0008, 0.0002


def write_log(path: Path, steps: int) -> Trial:
    """One block of so many steps of a millisecond, one evaluation, the target reached; the trial that it is of."""
    trial = make_trial(batch=1, evaluate_every=steps)
    now = [10_000_000_000]
    log = EventLog(path, 0, lambda: now[0], anchor_ms=0.0)
    log.write(schema.CacheClear(value=True))
    log.write(schema.InitStart())
    log.write(schema.TrialStated(value=trial.model_dump(mode="json", by_alias=True)))
    log.write(schema.RunStart())
    now[0] += round(steps * (STEP + FED) * 1e9)
    write_steps(log, 0, [STEP] * steps, [FED] * steps, [1 / (index + 1) for index in range(steps)], now[0])
    log.write(schema.EvalAccuracy(value=0.95, samples_count=steps, epoch_num=steps / 1437,
                                  phases={"train": steps / 1e3}, eval_stop_ns=now[0]))
    log.write(schema.RunStop(status="success", outcome="success", reason="", samples_count=steps))
    log.write(schema.Phases.model_validate({"train": steps * (STEP + FED)}))
    write_rank_steps(log, [STEP] * steps, [STEP] * steps, [STEP + FED] * steps)
    log.write(schema.EffectiveSettings(value={}))
    log.close()
    return trial


def derived(trial: Trial, path: Path) -> Result:
    return derive(trial, 1, read_log(path), FINE)


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> tuple[Trial, Path]:
    path = tmp_path_factory.mktemp("long") / "result_1.txt"
    return write_log(path, 400_000), path


@pytest.mark.slow
def test_no_step_of_a_long_block_is_lost(long: tuple[Trial, Path]) -> None:
    trial, path = long
    assert log_damage(path) is None
    with path.open("rb") as stream:
        assert max(map(len, stream)) < MAX_LINE / 16
    result = derived(trial, path)
    assert result.status == "ok" and not result.log_faults
    assert result.steps is not None and result.steps.count == 400_000
    assert result.phases["train"] == pytest.approx(400.0) and result.tta_wall == pytest.approx(400.0)
    assert result.conservation_error is not None and result.conservation_error < 1e-6


@pytest.mark.slow
def test_its_result_is_derived_again(long: tuple[Trial, Path]) -> None:
    trial, path = long
    assert differences(trial, derived(trial, path), path) == {}


def test_its_points_are_each_there_once_and_at_their_time(tmp_path: Path) -> None:
    write_log(tmp_path / "log", 40_000)
    points = list(mlflow_points.training_points(read_log(tmp_path / "log"), 1))
    losses = [point for point in points if point.key == "curve/loss"]
    assert [point.step for point in losses] == list(range(1, 40_001))
    assert [losses[place].value for place in (0, 9_999, 10_000, 39_999)] == [1, 1 / 10_000, 1 / 10_001, 1 / 40_000]
    assert all(abs(point.time_ms - point.step) <= 1 for point in losses)
    assert len({(point.key, point.step) for point in points}) == len(points)
    speed = [point.value for point in points if point.key == "curve/samples_per_second"]
    assert speed == pytest.approx([1000.0] * 4)


def test_a_reader_may_stop_behind_any_piece(tmp_path: Path) -> None:
    write_log(tmp_path / "whole", 40_000)
    raw = (tmp_path / "whole").read_bytes()
    whole = list(mlflow_points.training_points(read_log(tmp_path / "whole"), 1))
    found, offset = [], 0
    for end in (len(raw) // 7, len(raw) // 3, len(raw)):
        (tmp_path / "log").write_bytes(raw[:end])
        events, offset = read_events(tmp_path / "log", offset)
        found += list(mlflow_points.training_points(map(interpret, events), 1))
    assert found == whole


def test_pieces_give_the_result_of_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trial = write_log(tmp_path / "pieces", 25_000)
    monkeypatch.setattr(timed_steps, "STEPS_A_LINE", 1 << 30)
    write_log(tmp_path / "one", 25_000)
    counts = [sum(event.key == "x_steps" for event in read_events(tmp_path / name)[0]) for name in ("pieces", "one")]
    assert counts == [3, 1]
    pieces, one = (derived(trial, tmp_path / name) for name in ("pieces", "one"))
    assert pieces.phases == pytest.approx(one.phases, rel=1e-11, abs=1e-9)  # a sum of sums
    same = {"phases": {}, "conservation_error": None, "train_samples_per_second": None}
    assert pieces.model_copy(update=same) == one.model_copy(update=same)


def test_a_short_block_is_one_line_with_seconds_to_the_nanosecond(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "log", 0, lambda: 5_000_000, anchor_ms=0.0)
    write_steps(log, 3, [0.1234567891234] * 2, [0.0, 0.5], [1.5, math.nan], 5_000_000)
    write_steps(log, 0, [], [], [], 5_000_000)
    log.close()
    lines = (tmp_path / "log").read_text().splitlines()
    assert [json.loads(line[9:])["value"] for line in lines] == [
        {"first": 3, "seconds": [0.123456789] * 2, "input_seconds": [0.0, 0.5], "loss": [1.5, None]},
        {"first": 0, "seconds": [], "input_seconds": [], "loss": []}]


@pytest.mark.slow
def test_a_trial_with_that_many_steps_between_evaluations_keeps_them(tmp_path: Path) -> None:
    from repro.core.machine import Machine
    from repro.runner.run import Run, prepare
    from repro.suite.file import read_suite
    from repro.suite.planning.plan import make_plan
    from tests.unit.record.scripted_runs import invented
    from tests.watcher import Silent

    text = invented().replace("global: 64", "global: 1").replace("1437", "400000").replace(
        "seeds: 2", "seeds: 1").replace("max_epochs: 40", "max_epochs: 280")
    (tmp_path / "suite.yaml").write_text(text)
    source = read_suite(str(tmp_path / "suite.yaml"), ())
    machine = Machine(device="cpu", device_count=0, cores=2)
    plan = make_plan(source.suite, machine, source.problem)
    record = Run(plan, prepare(plan, source.text, tmp_path / "run"), machine, Silent()).execute()
    for result in record.results:
        assert result.status in ("ok", "missed") and result.steps is not None
        assert result.steps.count > 400_000 - STEPS_A_LINE
        assert not result.log_faults


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
