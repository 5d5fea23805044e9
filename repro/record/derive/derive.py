"""Derives the result of a trial of any kind from the events of its log."""

from __future__ import annotations

from collections.abc import Iterable

from repro.core import registry
from repro.record.derive.program import derive_program
from repro.record.derive.training import derive_training
from repro.record.derive.trial_log import TrialLog
from repro.record.log.reading import Recorded
from repro.record.log.schema import BlockStart, BlockStop, EvalStart, EvalStop
from repro.record.result.energy import Energy
from repro.record.result.reasons import LogDamaged
from repro.record.result.results import Result
from repro.record.result.warned import OBSERVER_LIMIT, BusyTracker, EnergyOfLastAttempt
from repro.seams.launching import LaunchResult
from repro.suite.kinds.program import ProgramConfig
from repro.suite.model import Trial

UNREAD = (BlockStart, BlockStop, EvalStart, EvalStop)
"""Events that no figure uses; a reader that holds a long log may leave them out."""


def derive(trial: Trial, attempt: int, events: Iterable[Recorded], outcome: LaunchResult | None) -> Result:
    """Return the result of one attempt, from its log and from how its processes ended.

    Args:
        outcome: None if unknown (a folder found later); the log alone then decides.
    """
    log = TrialLog(events)
    if isinstance(trial.choices, ProgramConfig):
        return derive_program(trial, trial.choices, attempt, log, outcome)
    if (kind := trial.choices.kind) in registry.PARTS["derivation"]:
        found: Result = registry.part("derivation", kind)(trial, trial.choices, attempt, log, outcome)
        return found
    return derive_training(trial, attempt, log, outcome)


def damaged_log(trial: Trial, attempt: int, damage: LogDamaged) -> Result:
    """Return the result of an attempt of which every rank ended well, but whose log is damaged.

    Crashed, not invalid: the trial did what was requested, but its record is lost.
    """
    return Result(trial_id=trial.trial_id, cell_id=trial.cell_id, repeat=trial.repeat, attempt=attempt,
                  status="crashed", reasons=(damage,))


def with_energy(result: Result, energy: Energy) -> Result:
    """Return the result with its energy, and a warning if the tracker used too much of a core."""
    share, warnings = energy.observer_share, result.warnings
    if share is not None and share > OBSERVER_LIMIT:
        warnings = (*warnings, BusyTracker(share=share))
    if result.resumed:
        warnings = (*warnings, EnergyOfLastAttempt())
    return result.model_copy(update={"energy": energy, "warnings": warnings})
