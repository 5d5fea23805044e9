"""The end of a trial and the faults of its log are fields: no wording changes a status."""

from __future__ import annotations

from pathlib import Path

import pytest

from repro.bundle.verify_trials import differences
from repro.core.events import Event
from repro.record.derive.derive import damaged_log, derive
from repro.record.log.reading import MalformedEvent, Recorded, interpret
from repro.record.log.schema import RunStart, RunStop
from repro.record.result.reasons import LogDamaged
from repro.record.result.remarks import Worded, stated
from repro.record.result.results import Result
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


def test_a_fault_of_a_log_does_not_depend_on_the_words_of_its_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Worded, "words", property(lambda self: "autre chose"))
    script = Script(values=(0.5, 0.8, 0.91), lost_block=1)
    found = derive(make_trial(), 1, play(tmp_path / "log.txt", script), FINE)
    assert [item.kind for item in found.log_faults] == ["steps_missing"]


# ---- a damaged log


def test_a_damaged_log_is_a_kind_whatever_another_reason_says() -> None:
    found = damaged_log(make_trial(), 2, LogDamaged(problem="torn"))
    assert (found.status, found.attempt, found.log_damaged) == ("crashed", 2, True)
    said = Result.model_validate_json(found.model_copy(update={
        "reasons": stated("rank 0: though every rank ended well")}).model_dump_json(by_alias=True))
    assert not said.log_damaged


def test_a_result_with_a_damaged_log_stands_by_its_kind(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    log.write_text("nothing\n")
    trial = make_trial()
    stored = damaged_log(trial, 1, LogDamaged(problem="lines", bad=1, lines=1))
    assert differences(trial, stored, log) == {}
    assert differences(trial, stored.model_copy(update={"run_seconds": 3.0}), log)
