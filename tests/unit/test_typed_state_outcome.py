"""The end of a trial and the faults of its log are fields: no wording changes a status."""

from __future__ import annotations

from pathlib import Path

import pytest

from repro.bundle.verify_trials import differences
from repro.core.events import Event
from repro.record.derive.derive import damaged_log
from repro.record.log.reading import MalformedEvent, interpret
from repro.record.result.reasons import LogDamaged
from repro.record.result.remarks import stated
from repro.record.result.results import Result
from repro.seams.launching import LaunchResult, RankEnd
from repro.worker.stop_rule import Progress, decide
from tests.unit.record.test_results import make_trial

FINE = LaunchResult((RankEnd(0, 0),), 3.0)


@pytest.mark.parametrize(("value", "step", "outcome"), [
    (float("nan"), 10, "diverged"), (0.95, 10, "success"), (0.5, 100, "missed"), (0.5, 10, None)])
def test_the_stop_rule_names_its_outcome(value: float, step: int, outcome: str | None) -> None:
    _, ending = decide(make_trial().choices.stop, Progress(), value, step, budget_steps=100)
    assert (ending.outcome if ending else None) == outcome


def test_an_unknown_outcome_is_an_error_that_lists_the_known_ones() -> None:
    stop = {"status": "success", "outcome": "won", "reason": "", "samples_count": 1}
    with pytest.raises(MalformedEvent, match="run_stop: outcome: Input should be 'success', 'missed', 'diverged'"):
        interpret(Event("run_stop", None, "INTERVAL_END", 2.0, stop))


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
