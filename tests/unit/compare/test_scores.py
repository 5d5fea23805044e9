"""Scores over workloads: by hand, bands by another computation, misses as infinity, and what is not ranked."""

from __future__ import annotations

import dataclasses
import json
import math
import statistics
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from repro.core.errors import UsageError
from repro.core.files import write_model
from repro.core.random_streams import Streams
from repro.record.folder.store import Record, RunFolder, read_record
from repro.scores.runs import score_runs
from repro.scores.scores import Scores, record_scores, scores
from repro.suite.model import Trial
from tests.in_process import called, refusal, succeeded
from tests.made_scores import SCORES, scores_course
from tests.records import SUITE, Course, make_record


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Record:
    return make_record(tmp_path_factory.mktemp("scores") / "run", SCORES, scores_course)


def seconds(record: Record, optimizer: str, workload: str) -> list[float | None]:
    """The wall clocks of a cell, None for a miss."""
    (cell,) = [item for item in record.plan.cells
               if item.choices.optimizer.label == optimizer and item.choices.workload.kind == workload]
    return [item.tta_wall if item.status == "ok" else None for item in record.of_cell(cell.cell_id)]


def test_a_sequential_run_is_scored_by_the_seeds_of_its_first_look(tmp_path: Path) -> None:
    text = SCORES.replace("seeds: 6", "sequential: {looks: [8, 12], power: 1.0}") + """\
primary:
  candidate: {workload: digits, optimizer.lr: 0.05}
  baseline: {workload: digits, optimizer.lr: 0.1}
"""
    found = scores([make_record(tmp_path / "run", text, scores_course)])
    assert {(item.n, item.planned) for item in found.outcomes} == {(8, 8)}


SGD, ADAM, SLOW = "sgd (lr=0.1)", "adamw (lr=0.003)", "sgd (lr=0.05)"
TASKS = ("digits", "digits-mlp", "mnist1d")


def test_medians_profiles_and_means_by_hand(record: Record) -> None:
    found = scores([record])
    assert (found.metric, found.by, found.reference) == ("tta_wall", ("optimizer",), SGD)
    assert [item.name for item in found.contenders] == [SGD, ADAM, SLOW]
    medians = {name: {task: statistics.median(math.inf if value is None else value
                                              for value in seconds(record, name, task)) for task in TASKS}
               for name in (SGD, ADAM, SLOW)}
    assert medians[SLOW]["mnist1d"] == math.inf
    for item in found.outcomes:
        wanted = medians[item.contender][item.workload]
        assert item.median == (None if math.isinf(wanted) else pytest.approx(wanted))
    assert found.outcome(SLOW, "mnist1d").reached == 2
    best = {task: min(row[task] for row in medians.values()) for task in TASKS}
    for item in found.contenders:
        ratios = [medians[item.name][task] / best[task] for task in TASKS]
        wanted = [sum(ratio <= tau * (1 + 1e-12) for ratio in ratios) / 3 for tau in found.taus]
        assert list(item.profile) == pytest.approx(wanted)
        assert item.score.value == pytest.approx(sum(max(0.0, 4 - ratio) for ratio in ratios) / 9)
    logs = [math.log(medians[ADAM][task] / medians[SGD][task]) for task in TASKS]
    assert found.contenders[1].mean_ratio is not None
    assert found.contenders[1].mean_ratio.value == pytest.approx(math.exp(sum(logs) / 3))
    assert found.contenders[0].mean_ratio is not None and found.contenders[0].mean_ratio.value == 1


def test_a_miss_is_infinite_and_withholds_the_mean(record: Record) -> None:
    found = scores([record]).contenders[2]
    assert (found.solved, found.mean_ratio) == (2, None)
    assert found.withheld == ("it missed mnist1d (2 of 6 seeds reached it): infinite, so there is no geometric mean")
    assert found.profile[-1] == pytest.approx(2 / 3)
    other = scores([record], baseline={"optimizer.lr": 0.05})
    assert other.reference == SLOW
    assert all(item.mean_ratio is None for item in other.contenders)
    assert other.contenders[0].withheld.startswith(f"{SLOW} missed mnist1d")


def test_the_bands_are_those_of_another_computation(record: Record) -> None:
    """Loops over draws with Python's median and numpy's percentiles."""
    found = scores([record])
    known, picks = {}, {}
    for cell in record.plan.cells:
        place = cell.choices.optimizer.label, cell.choices.workload.kind
        known[place] = [math.inf if value is None else value for value in seconds(record, *place)]
        stream = Streams(record.plan.master_seed, 0).generator("scores", zlib.crc32(cell.cell_id.encode()))
        picks[place] = stream.integers(0, 6, (2000, 6))
    draws = [{name: [statistics.median(known[name, task][index] for index in picks[name, task][draw])
                     for task in TASKS] for name in (SGD, ADAM, SLOW)} for draw in range(2000)]
    best = [[min(row[place] for row in times.values()) for place in range(3)] for times in draws]
    at = found.taus.index(2.0)
    for item in found.contenders:
        ratios = [[value / one for value, one in zip(times[item.name], least, strict=True)]
                  for times, least in zip(draws, best, strict=True)]
        areas = [sum(max(0.0, 4 - ratio) for ratio in row) / 9 for row in ratios]
        assert item.score.interval is not None
        assert [item.score.interval.low, item.score.interval.high] == pytest.approx(
            np.percentile(areas, [2.5, 97.5]), abs=1e-3)
        shares = [sum(ratio <= 2 for ratio in row) / 3 for row in ratios]
        assert [item.low[at], item.high[at]] == pytest.approx(np.percentile(shares, [2.5, 97.5], method="nearest"))
    means = [math.exp(sum(math.log(one / other) for one, other in zip(times[ADAM], times[SGD], strict=True)) / 3)
             for times in draws]
    mean = found.contenders[1].mean_ratio
    assert mean is not None and mean.interval is not None
    assert [mean.interval.low, mean.interval.high] == pytest.approx(np.percentile(means, [2.5, 97.5]), abs=1e-3)


def test_the_same_record_gives_the_same_bytes_and_a_cell_draws_alone(record: Record) -> None:
    assert scores([record]).model_dump_json() == scores([record]).model_dump_json()
    fewer = record.plan.model_copy(update={"cells": tuple(
        cell for cell in record.plan.cells if cell.choices.optimizer.label != SLOW)})
    alone = scores([_with_plan(record, fewer)])
    assert alone.contenders[1].mean_ratio == scores([record]).contenders[1].mean_ratio


def _with_plan(record: Record, plan: Any) -> Record:
    return dataclasses.replace(record, plan=plan)


# ---- what is not ranked


@pytest.mark.parametrize(("text", "by", "problem"), [
    (SUITE, (), "only one by engine, processes"),
    (SCORES, ("engine",), "by engine there is 1"),
    (SCORES, ("optimizer.kind",), "two cells are sgd on digits"),
    (SCORES, ("nothing",), "--by nothing: the cell"),
    (SCORES.replace(", mnist1d]", "]\n  stop.target: [0.9, 0.95]"), ("optimizer", "stop.target"), "do not compare"),
])
def test_what_does_not_compare_is_refused(tmp_path: Path, text: str, by: tuple[str, ...], problem: str) -> None:
    made = make_record(tmp_path / "run", text, lambda trial: Course(evals=1, hits_at=1), only=1)
    with pytest.raises(UsageError, match=problem):
        scores([made], by=by)


def test_targets_of_one_task_are_workloads_of_their_own(tmp_path: Path) -> None:
    text = SCORES.replace("workload: [digits, digits-mlp, mnist1d]", "workload: [digits]\n  stop.target: [0.9, 0.95]")
    found = scores([make_record(tmp_path / "run", text)])
    assert [item.name for item in found.workloads] == ["digits, top1 of at least 0.9", "digits, top1 of at least 0.95"]
    assert found.by == ("optimizer",)


def test_metrics_without_a_target_are_refused(record: Record) -> None:
    with pytest.raises(UsageError, match="--metric throughput: scores take a time or samples"):
        scores([record], "throughput")
    assert scores([record], "samples").metric == "samples"


@pytest.mark.parametrize("count", [None, 0])
def test_a_reached_target_without_a_usable_count_is_no_miss(record: Record, count: int | None) -> None:
    """Of a program that states no step, or whose first evaluation is before one."""
    adamw = next(cell.cell_id for cell in record.plan.cells if "adamw" in cell.label)
    results = tuple(item.model_copy(update={"samples_to_target": count}) if item.cell_id == adamw else item
                    for item in record.results)
    with pytest.raises(UsageError, match="reached the target, but has no samples to the target that a score can be"):
        scores([dataclasses.replace(record, results=results)], "samples")


def test_a_contender_without_a_cell_on_a_workload_is_left_out(tmp_path: Path) -> None:
    text = SCORES + "exclude:\n  - {workload: mnist1d, optimizer.kind: adamw}\n"
    found = scores([make_record(tmp_path / "run", text, scores_course)])
    assert found.left_out == ((ADAM, "it has no cell on mnist1d"),)
    assert [item.name for item in found.contenders] == [SGD, SLOW]


def test_few_seeds_give_no_bands_and_an_unfinished_run_a_caution(tmp_path: Path) -> None:
    found = scores([make_record(tmp_path / "run", SCORES.replace("seeds: 6", "seeds: 2"), scores_course)])
    assert (found.draws, found.contenders[0].low, found.contenders[0].score.interval) == (0, (), None)
    assert any("at least 3 seeds" in text for text in found.cautions)
    part = scores([make_record(tmp_path / "part", SCORES, scores_course, only=40)])
    assert any("fewer seeds than planned" in text for text in part.cautions)


def test_a_record_without_a_ranking_has_none(tmp_path: Path, record: Record) -> None:
    assert record_scores(make_record(tmp_path / "one", SUITE, only=1)) is None
    assert isinstance(record_scores(record), Scores)
    begun = record_scores(make_record(tmp_path / "begun", SCORES, scores_course, only=1))
    assert isinstance(begun, str) and "no trial has run" in begun


# ---- several runs


def split(tmp_path: Path, name: str, tasks: str, course: Callable[[Trial], Course] = scores_course, **changes: Any
          ) -> Path:
    text = SCORES.replace("suite: contenders", f"suite: {name}").replace("[digits, digits-mlp, mnist1d]", tasks)
    text = text.replace("seeds: 6", "seeds: 6\nmaster_seed: 3")
    return make_record(tmp_path / name, text, course, **changes).folder.root


def test_runs_of_other_suites_add_their_workloads(tmp_path: Path, record: Record) -> None:
    runs = [split(tmp_path, "one", "[digits, digits-mlp]"), split(tmp_path, "two", "[mnist1d]")]
    found = score_runs(runs, by=["optimizer"]).scores
    whole = scores([record])
    assert [item.name for item in found.workloads] == [*TASKS]
    assert [item.score.value for item in found.contenders] == [item.score.value for item in whole.contenders]


@pytest.mark.slow
def test_runs_of_one_workload_and_of_other_machines_are_refused(tmp_path: Path) -> None:
    runs = [split(tmp_path, "one", "[digits, digits-mlp]"), split(tmp_path, "two", "[digits, mnist1d]")]
    with pytest.raises(UsageError, match="both have digits"):
        score_runs(runs, by=["optimizer"])
    other = split(tmp_path, "three", "[mnist1d]")
    folder = RunFolder(other)
    write_model(folder.environment, read_record(other).environment.model_copy(update={"cpu": "Another CPU"}))
    with pytest.raises(UsageError, match="another machine, Another CPU"):
        score_runs([runs[0], other], by=["optimizer"])


def test_repeated_runs_of_one_experiment_are_merged(tmp_path: Path) -> None:
    first = split(tmp_path, "one", "[digits, mnist1d]", only=20)
    again = split(tmp_path / "later", "one", "[digits, mnist1d]", lambda trial: dataclasses.replace(
        scores_course(trial), step_seconds=0.011), started_ms=1_600_000_900_000)
    found = score_runs([first, again])
    assert {item.n for item in found.scores.outcomes} == {6}
    assert any("one record of 2 runs" in text for text in found.notes)


# ---- the command


def test_the_command_prints_what_it_computes(record: Record) -> None:
    root = str(record.folder.root)
    ran = succeeded("scores", root, "--json")
    assert json.loads(ran.stdout)["scores"] == json.loads(scores([record]).model_dump_json())
    text = called("scores", root).stdout
    assert "missed (2/6)" in text and "withheld: sgd (lr=0.05): it missed mnist1d" in text
    assert "measured on Sample CPU" in text and "caution: 3 workloads" in text
    assert "matches no contender" in refusal("scores", root, "--baseline", "optimizer=lion", kind=UsageError)
