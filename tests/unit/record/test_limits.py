"""Limits of one run are checked before a folder is made, and fit the limits of every reader of the record."""

from __future__ import annotations

from pathlib import Path

import pytest

from repro.bundle import source, verify_trials
from repro.cli.workflows.calibrate import calibrate
from repro.cli.workflows.reproduce import Wanted, reproduce
from repro.cli.workflows.run import run_suite
from repro.core.errors import UsageError
from repro.core.machine import Machine
from repro.record.folder import index, limits
from repro.record.folder.limits import (
    BUNDLE_BYTES,
    MAX_EVALUATIONS,
    MAX_STEPS,
    PLANNED_FILES,
    check_size,
    files,
    too_large,
    warnings,
)
from repro.record.folder.store import MAX_TRIALS
from repro.suite.planning.plan import Plan
from tests.plans import planned, suite
from tests.records import make_record

SAMPLES = 1437


def plan(
    folder: Path, seeds: int = 2, epochs: float = 4, every: int = SAMPLES, design: str = "stop_at_target"
) -> Plan:
    return planned(folder, large(seeds, epochs, every, design), machine=Machine("cpu", 0, 8))


def large(seeds: int = 2, epochs: float = 4, every: int = SAMPLES, design: str = "stop_at_target") -> str:
    return suite("large", "matrix:\n  processes: [1, 8]\n", seeds=seeds, batch="{global: 8}", evaluate_every=every,
                 stop=f"{{metric: top1, target: 0.9, max_epochs: {epochs}, design: {design}}}")


def test_an_ordinary_plan_is_not_too_large(tmp_path: Path) -> None:
    assert too_large(plan(tmp_path)) == ""
    assert files(plan(tmp_path)) == 2 * (4 + 1) + 2 * (4 + 8) + (2 + 2) + (2 + 16)


def test_a_cell_of_a_narrow_format_is_started_twice_by_the_parity_gate(tmp_path: Path) -> None:
    text = large().replace("[1, 8]", "[8]").replace("  device", "  precision: bf16-autocast\n  device")
    narrow = planned(tmp_path, text, machine=Machine("cpu", 0, 8))
    assert files(narrow) == 2 * (4 + 8) + 2 * (2 + 16)


def test_a_record_larger_than_one_run_is_not_reproduced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("repro.cli.workflows.reproduce.execute",
                        lambda *_, **__: pytest.fail("2,155,500 steps were started"))
    text = large(epochs=12_000, design="fixed_budget")
    make_record(tmp_path / "source", text.replace("[1, 8]", "[1, 2]"), only=1)
    with pytest.raises(UsageError, match="is 2,155,500 steps; a record can show at most 2,000,000 of a trial"):
        reproduce(tmp_path / "source", None, tmp_path / "again", force=True, wanted=Wanted(undecided=True))
    assert not (tmp_path / "again").exists()


LONG = [
    ({"epochs": 12_000}, "is 2,155,500 steps; a record can show at most 2,000,000 of a trial"),
    ({"epochs": 200, "every": 8}, "has 35,925 evaluations; a record can show at most 20,000 of a trial"),
]


@pytest.mark.parametrize(("asked", "said"), LONG)
def test_a_trial_with_a_log_too_large_to_derive_a_result_from_is_refused(
    tmp_path: Path, asked: dict[str, int], said: str
) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        check_size(plan(tmp_path, design="fixed_budget", **asked))
    assert str(caught.value).startswith("1 process: its budget of ")


@pytest.mark.parametrize(("asked", "said"), LONG)
def test_a_trial_that_may_reach_its_target_long_before_is_a_warning(
    tmp_path: Path, asked: dict[str, int], said: str
) -> None:
    assert too_large(plan(tmp_path, **asked)) == ""
    assert said in warnings(plan(tmp_path, **asked))[0]


def test_more_than_a_bundle_holds_is_a_warning(tmp_path: Path) -> None:
    (told,) = warnings(plan(tmp_path, seeds=4, epochs=5_000))
    # 8 trials of 898,125 steps at 80 bytes and 5,000 evaluations at 1,200.
    assert told == "logs of about 623 MB if every trial uses its whole budget: more than a bundle holds (512 MiB)"


def test_more_trials_or_files_than_a_record_can_be_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = plan(tmp_path)
    monkeypatch.setattr(limits, "PLANNED_FILES", files(asked) - 1)
    with pytest.raises(UsageError, match="4 trials would leave about 56 files, too many for one run"):
        run_suite(asked, "", tmp_path / "run", track=False)
    with pytest.raises(UsageError, match="trials would leave about"):
        calibrate(asked, "", None, 6, 1, to=None)
    monkeypatch.setattr(limits, "MAX_TRIALS", 3)
    with pytest.raises(UsageError, match=r"4 trials are too many for one run \(3 at most\)"):
        run_suite(asked, "", tmp_path / "run", track=False)
    assert not (tmp_path / "run").exists()


def test_planned_sizes_fit_the_readers_limits() -> None:
    assert PLANNED_FILES < source.MAX_MEMBERS <= index.MAX_FILES
    assert PLANNED_FILES < MAX_TRIALS and BUNDLE_BYTES == source.MAX_TOTAL_BYTES
    # A log line of an evaluation, and the line of its block of steps, as `rederive` counts them.
    assert 5_000 * MAX_EVALUATIONS + 40 * MAX_STEPS < verify_trials.MAX_HELD_BYTES
