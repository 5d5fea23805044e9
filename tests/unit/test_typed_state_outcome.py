"""The end of a trial and the faults of its log are fields: no wording changes a status."""

from __future__ import annotations

from pathlib import Path

import pytest

from repro.bundle.rederive import conservation_problems, differences
from repro.core.events import Event
from repro.record.derive.derive import damaged_log, derive
from repro.record.log.reading import MalformedEvent, Recorded, interpret
from repro.record.log.schema import RunStart, RunStop
from repro.record.result.result_warnings import ENERGY_RESUMED, describe_resumed, upgrade_legacy
from repro.record.result.results import Result, Resumed
from repro.seams.launching import LaunchResult, RankEnd
from repro.worker.stop_rule import Progress, decide
from tests.unit.record.test_results import Script, make_trial, play

FINE = LaunchResult((RankEnd(0, 0),), 3.0)


@pytest.mark.parametrize("reason", ["", "missed", "diverged: no", "La perte n'est pas finie", "out of memory"])
@pytest.mark.parametrize(("outcome", "status"), [
    ("success", "invalid"), ("missed", "missed"), ("diverged", "diverged")])
def test_the_status_does_not_depend_on_the_words_of_the_reason(outcome: str, status: str, reason: str) -> None:
    """Success is invalid here: the log has no evaluation that establishes the target."""
    stop = RunStop(status="success" if outcome == "success" else "aborted", outcome=outcome, reason=reason,
                   samples_count=1)
    assert derive(make_trial(), 1, [Recorded(RunStart(), 1, 1.0), Recorded(stop, 2, 2.0)], FINE).status == status


@pytest.mark.parametrize(("value", "step", "outcome"), [
    (float("nan"), 10, "diverged"), (0.95, 10, "success"), (0.5, 100, "missed"), (0.5, 10, None)])
def test_the_stop_rule_names_its_outcome(value: float, step: int, outcome: str | None) -> None:
    _, ending = decide(make_trial().choices.stop, Progress(), value, step, budget_steps=100)
    assert (ending.outcome if ending else None) == outcome


def test_an_unknown_outcome_is_an_error_that_lists_the_known_ones() -> None:
    stop = {"status": "success", "outcome": "won", "reason": "", "samples_count": 1}
    with pytest.raises(MalformedEvent, match="run_stop: outcome: Input should be 'success', 'missed', 'diverged'"):
        interpret(Event("run_stop", None, "INTERVAL_END", 2.0, stop))


# ---- faults of a log


@pytest.fixture
def reworded(monkeypatch: pytest.MonkeyPatch) -> None:
    """All warnings in other words."""
    for name in ("describe_log_fault", "describe_resumed"):
        monkeypatch.setattr(f"repro.record.derive.training.{name}", lambda *_: "autre chose")


@pytest.mark.usefixtures("reworded")
def test_a_fault_of_a_log_does_not_depend_on_the_words_of_its_warning(tmp_path: Path) -> None:
    script = Script(values=(0.5, 0.8, 0.91), lost_block=1)
    found = derive(make_trial(), 1, play(tmp_path / "log.txt", script), FINE)
    assert "autre chose" in found.warnings
    assert found.log_faults == ("steps_missing",)
    assert conservation_problems(found) == ["step records cover another number of samples than the evaluations"]


def test_warnings_of_version_0_1_0_are_read_by_their_words() -> None:
    resumed = Resumed(attempt=1, step=60, samples=3840, lost_seconds=8.8, clock="monotonic")
    old = Result(trial_id="t", cell_id="c", repeat=0, attempt=2, status="ok", resumed=(resumed,), warnings=(
        "step records cover 2000 samples, evaluations 3000",
        "went on from the checkpoint of attempt 1 at step 60; the 8.8 s from there to the new start are on all its "
        "clocks",
        "its energy is that of the last start alone: what earlier attempts used is not in it", "other"))
    found = upgrade_legacy(old)
    assert found.log_faults == ("steps_missing",)
    assert found.warnings == (old.warnings[0], describe_resumed(resumed), ENERGY_RESUMED, "other")
    assert upgrade_legacy(found) == found


@pytest.mark.parametrize(("stored", "share", "new"), [
    ("0.5%", 0.0052, "0.52 %"), ("0.7%", 0.0071, "0.7 %"), ("3.5%", 0.0352, "3.5 %"),
])
def test_a_share_with_one_decimal_is_that_of_its_figure(stored: str, share: float, new: str) -> None:
    old = Result(trial_id="t", cell_id="c", repeat=0, attempt=1, status="ok", observer_effect=share,
                 warnings=(f"logging took {stored} of the run (limit 0.5 %)",
                           "logging took 9.9% of the run (limit 0.5 %)"))
    found = upgrade_legacy(old)
    assert found.warnings == (f"logging took {new} of the run (limit 0.5 %)", old.warnings[1])
    assert upgrade_legacy(found) == found


# ---- a damaged log


def test_a_damaged_log_is_a_field_whatever_the_reason_says() -> None:
    found = damaged_log(make_trial(), 2, "its log is torn")
    assert (found.status, found.attempt, found.log_damaged) == ("crashed", 2, True)
    other = found.model_copy(update={"reason": "autre chose"})
    assert upgrade_legacy(other).log_damaged
    said = Result.model_validate_json(other.model_copy(update={
        "log_damaged": False, "reason": "rank 0: though every rank ended well"}).model_dump_json(by_alias=True))
    assert not upgrade_legacy(said).log_damaged


@pytest.mark.parametrize(("status", "reason", "damaged"), [
    ("crashed", "its log does not go from cache_clear to x_effective, though every rank ended well", True),
    ("crashed", "rank 0: exit code 1", False), ("ok", "though every rank ended well", False),
])
def test_a_damaged_log_of_version_0_1_0_is_read_by_its_words(status: str, reason: str, damaged: bool) -> None:
    old = {"trial_id": "t", "cell_id": "c", "repeat": 0, "attempt": 1, "status": status, "reason": reason}
    assert upgrade_legacy(Result.model_validate(old)).log_damaged is damaged


def test_a_result_with_a_damaged_log_stands_in_other_words(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    log.write_text("nothing\n")
    trial = make_trial()
    stored = damaged_log(trial, 1, "its log is torn").model_copy(update={"reason": "autre chose"})
    assert differences(trial, stored, log) == []
    assert differences(trial, stored.model_copy(update={"run_seconds": 3.0}), log) != []
