"""What one run may be at most is asked before a folder is made, and leaves room for all that reads the record."""

from __future__ import annotations

from pathlib import Path

import pytest

from repro import limits, sums
from repro.bundle import archive, rederive
from repro.errors import UsageError
from repro.limits import MAX_EVALUATIONS, MAX_STEPS, PLANNED_FILES, files, too_large
from repro.machine import Machine
from repro.plan import Plan, make_plan
from repro.runner import prepare
from repro.store import MAX_TRIALS
from repro.suite_file import read_suite

SUITE = """\
suite: large
seeds: {seeds}
trial:
  workload: digits
  engine: ddp
  batch: {{global: 8}}
  optimizer: {{kind: sgd, lr: 0.1}}
  stop: {{metric: top1, target: 0.9, max_epochs: {epochs}}}
  evaluate_every: {every}
  device: cpu
matrix:
  processes: [1, 8]
"""
SAMPLES = 1437


def plan(folder: Path, seeds: int = 2, epochs: float = 4, every: int = SAMPLES) -> Plan:
    (folder / "suite.yaml").write_text(SUITE.format(seeds=seeds, epochs=epochs, every=every))
    return make_plan(read_suite(str(folder / "suite.yaml"), ()).suite, Machine("cpu", 0, 8))


def test_an_ordinary_plan_is_not_too_large(tmp_path: Path) -> None:
    assert too_large(plan(tmp_path)) == ""
    assert files(plan(tmp_path)) == 2 * (4 + 1) + 2 * (4 + 8) + (2 + 2) + (2 + 16)


@pytest.mark.parametrize(("asked", "said"), [
    ({"epochs": 12_000}, "is 2,155,500 steps, 2,000,000 are the most of a trial"),
    ({"epochs": 200, "every": 8}, "it would be evaluated 35,925 times in its budget, 20,000 are the most"),
])
def test_a_trial_whose_log_nobody_could_derive_a_result_from_is_refused(
    tmp_path: Path, asked: dict[str, int], said: str
) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        prepare(plan(tmp_path, **asked), "", tmp_path / "run")
    assert str(caught.value).startswith("1 process: ") and not (tmp_path / "run").exists()


def test_more_trials_or_files_than_a_record_can_be_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = plan(tmp_path)
    monkeypatch.setattr(limits, "PLANNED_FILES", files(asked) - 1)
    with pytest.raises(UsageError, match="4 trials would leave about 56 files, too many for one run"):
        prepare(asked, "", tmp_path / "run")
    monkeypatch.setattr(limits, "MAX_TRIALS", 3)
    with pytest.raises(UsageError, match="4 trials are too many for one run, 3 are the most"):
        prepare(asked, "", tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_what_is_planned_fits_what_reads_it() -> None:
    assert PLANNED_FILES < archive.MAX_MEMBERS <= sums.MAX_FILES
    assert PLANNED_FILES < MAX_TRIALS
    # A log line of an evaluation, and the line of its block of steps, as `rederive` counts them.
    assert 5_000 * MAX_EVALUATIONS + 40 * MAX_STEPS < rederive.MAX_HELD_BYTES
