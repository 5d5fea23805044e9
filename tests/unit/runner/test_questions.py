"""Questions that were asked before on this machine: kept for each user, counted, and stated in the record."""

from __future__ import annotations

import logging
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from repro.cli.main import cli
from repro.compare.findings import findings
from repro.compare.runs.asked import asked_before, keep_answers
from repro.core.machine import detect
from repro.record.folder.store import Record, read_record
from repro.record.questions import questions_file
from repro.runner.run import Run, prepare
from repro.suite.file import read_suite
from repro.suite.planning.plan import Drawn, Plan, make_plan
from tests.watcher import Silent

SUITE = """\
suite: NAME
seeds: 7
trial:
  workload: digits
  engine: fake
  launcher: inline
  batch: {global: 64}
  optimizer: {kind: sgd, lr: 0.1}
  stop: {metric: top1, target: TARGET, max_epochs: 10}
  evaluate_every: 192
  device: cpu
matrix:
  engine:
    - {kind: fake, step_seconds: 0.010, samples_scale: 1000}
    - {kind: fake, step_seconds: RATE, samples_scale: 1000}
primary:
  candidate: {engine: {step_seconds: RATE}}
  baseline: {engine: {step_seconds: 0.010}}
"""
SECOND = "second run of this question on this machine; together they spend up to 10 %; earlier answers: slower"


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "repro" / "questions.jsonl"


def planned(folder: Path, number: int, name: str = "one", target: float = 0.9, rate: float = 0.013) -> tuple[Plan, str]:
    place = folder / f"{name}-{number}.yaml"
    place.write_text(SUITE.replace("NAME", name).replace("TARGET", str(target)).replace("RATE", str(rate)))
    source = read_suite(str(place))
    return make_plan(source.suite, detect(), source.problem, drawn=Drawn(number, number)), source.text


def ran(folder: Path, number: int, **changes: object) -> Record:
    """Run a suite and end it as `repro run` does."""
    plan, text = planned(folder, number, **changes)  # type: ignore[arg-type]
    record = Run(plan, prepare(plan, text, folder / f"run-{number}"), detect(), Silent()).execute()
    keep_answers(record, findings(record).comparisons)
    return record


def asked(record: Record) -> list[str]:
    return [item.text for item in record.incidents if item.kind == "asked"]


def test_a_second_run_of_a_question_says_so_in_its_record(tmp_path: Path, state: Path) -> None:
    assert asked(ran(tmp_path, 1)) == []
    other = ran(tmp_path, 2, name="renamed", target=0.85)
    assert asked(other) == [SECOND]
    assert [item.line for item in findings(other).warnings if item.title == "Asked before"] == [
        f"Asked before: {SECOND}"]
    assert asked_before(planned(tmp_path, 3)[0]) == (
        "third run of this question on this machine; together they spend up to 14 %; earlier answers: slower, slower")
    assert asked_before(planned(tmp_path, 3, rate=0.02)[0]) == "", "another question"
    state.unlink()
    assert asked(read_record(other.folder.root)) == [SECOND], "the record alone decides what is shown"


def test_a_resumed_run_and_a_run_without_a_test_count_once_and_never(tmp_path: Path, state: Path) -> None:
    record = ran(tmp_path, 1)
    keep_answers(record, findings(record).comparisons)
    assert len(state.read_text().splitlines()) == 2
    assert asked_before(planned(tmp_path, 2)[0]) == SECOND
    shutil.rmtree(state.parent)
    untested = {"verdict": "inconclusive", "advice": None}
    keep_answers(record, [item.model_copy(update=untested) for item in findings(record).comparisons])
    assert not state.exists()


def test_a_run_that_was_interrupted_after_a_pair_counts(tmp_path: Path, state: Path) -> None:
    """Who leaves runs that do not look well chooses among more than have ended."""
    record = ran(tmp_path, 1)
    state.unlink()
    short = replace(record, results=record.results[:4])
    keep_answers(short, findings(short).comparisons)
    assert asked_before(planned(tmp_path, 2)[0]).endswith("earlier answers: not finished")
    assert asked_before(planned(tmp_path, 1)[0]) == "", "the run itself, resumed"
    keep_answers(record, findings(record).comparisons)
    assert asked_before(planned(tmp_path, 2)[0]) == SECOND, "it ended"


def test_plan_says_that_the_question_was_asked(tmp_path: Path, state: Path) -> None:
    ran(tmp_path, 1)
    ended = CliRunner().invoke(cli, ["plan", str(tmp_path / "one-1.yaml")], catch_exceptions=False)
    assert f"warning: this would be the {SECOND}" in ended.stderr


@pytest.mark.parametrize("damage", ["no folder", "a line", "a link"])
def test_a_state_that_cannot_be_used_fails_no_run(
    tmp_path: Path, state: Path, damage: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    state.parent.mkdir(parents=True)
    if damage == "no folder":
        monkeypatch.setenv("XDG_STATE_HOME", "/dev/null")
    elif damage == "a line":
        state.write_text("{\n")
    else:
        (tmp_path / "kept").write_text("")
        state.symlink_to(tmp_path / "kept")
    caplog.set_level(logging.DEBUG, logger="repro.record.questions")
    assert asked(ran(tmp_path, 1)) == []
    assert caplog.records and all(item.levelno == logging.DEBUG for item in caplog.records)
    if damage == "a link":
        assert (tmp_path / "kept").read_text() == ""


def test_tests_keep_no_questions_of_the_user() -> None:
    assert not questions_file().is_relative_to(Path.home())


def test_a_pilot_of_the_same_data_with_another_target_is_refused(tmp_path: Path, state: Path) -> None:
    pilot = ran(tmp_path, 1)
    for seed, target, problem in ((1, 0.85, "another target"), (2, 0.9, ""), (1, 0.9, "")):
        planned(tmp_path, 1, target=target)
        ended = CliRunner().invoke(cli, ["plan", str(tmp_path / "one-1.yaml"), "--master-seed", str(seed), "--pilot",
                                         str(pilot.folder.root)])
        assert (problem in str(ended.exception)) if problem else (ended.exception is None), ended.output
