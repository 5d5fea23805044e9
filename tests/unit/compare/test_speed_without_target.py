"""A verdict on a speed says that trials missed their target."""

from __future__ import annotations

from pathlib import Path

import pytest

from repro.compare import compare
from repro.suite.model import Trial
from tests.records import SUITE, Course, make_record


def course(trial: Trial) -> Course:
    """Two processes are faster a step; seeds 0 and 1 of deepspeed on them never reach the target."""
    misses = trial.choices.processes == 2 and trial.choices.engine.kind == "deepspeed" and trial.repeat < 2
    return Course(0.02 / trial.choices.processes, hits_at=None if misses else 4)


@pytest.mark.parametrize("metric", ["throughput", "train_throughput"])
def test_missed_targets_are_a_caution_of_a_speed(tmp_path: Path, metric: str) -> None:
    record = make_record(tmp_path / "run", SUITE, course)
    found = compare(record.plan, record.results, metric=metric)
    said = {(item.candidate_label, item.baseline_label): [text for text in item.cautions if "missed the target" in text]
            for item in found if item.ratio is not None}
    assert said, "speeds are known whether or not the target was reached"
    for labels, texts in said.items():
        missing = [label for label in labels if label.startswith("deepspeed") and "2 processes" in label]
        assert [text.partition(":")[0] for text in texts] == missing
        assert all("2 of 6 trials missed the target; " in text and "says nothing about the time to it" in text
                   for text in texts)
    assert any(said.values())


def test_a_time_to_the_target_needs_no_such_caution(tmp_path: Path) -> None:
    record = make_record(tmp_path / "run", SUITE, course)
    found = compare(record.plan, record.results, metric="tta_wall")
    assert not [text for item in found for text in item.cautions if "says nothing about the time to it" in text]


def test_a_program_that_counts_no_samples_has_not_missed_its_target(tmp_path: Path) -> None:
    record = make_record(tmp_path / "run", SUITE, course)
    results = [item.model_copy(update={"samples_to_target": None}) for item in record.results]
    said = [text for item in compare(record.plan, results, metric="run_time") for text in item.cautions]
    missed = [text for text in said if "missed the target" in text]
    assert missed and all("2 of 6 trials missed the target; " in text for text in missed)
