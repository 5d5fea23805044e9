"""Derives the result of a trial of any kind from the events of its log."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from repro.core import registry
from repro.record.derive.training import derive_training
from repro.record.derive.trial_log import (
    TrialLog,
    common_fields,
    find_stop,
    read_clocks,
    read_curve,
    read_init_seconds,
    read_quality,
    read_status,
)
from repro.record.log import schema
from repro.record.log.reading import Recorded
from repro.record.log.schema import BlockStart, BlockStop, EvalStart, EvalStop
from repro.record.result.parts import Energy
from repro.record.result.reasons import LogDamaged, NoSuccess, Silent
from repro.record.result.remarks import Stated
from repro.record.result.result_warnings import OBSERVER_LIMIT, BusyTracker, EnergyOfLastAttempt
from repro.record.result.results import Point, Result
from repro.record.result.status import meaning
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


def derive_program(
    trial: Trial, choices: ProgramConfig, attempt: int, log: TrialLog, outcome: LaunchResult | None
) -> Result:
    """Return the result of one attempt.

    Its wall clock is ours: the arrival of what the program states. Its training clock is the program's own, if it has
    one. Phases, weights and data of a program are unknown.
    """
    base = common_fields(trial, attempt, log) | {"hashes": log.mapping(schema.Hashes)}
    status, reasons = read_status(log, outcome)
    if status == "hung":
        reasons = (Silent(seconds=choices.stall_seconds),)
    if meaning(status).logged and (wrong := _findings(log, void=True)):
        status, reasons = "invalid", wrong
    warnings = _findings(log, void=False)
    if log.run_start is None:
        return Result(**base, status=status, reasons=reasons, warnings=warnings)
    points = read_curve(log)
    crossing = find_stop(points, choices.stop)
    clocks = read_clocks(log, points, choices.stop, crossing) if status == "ok" and crossing is not None else {}
    if status == "ok" and crossing is None and choices.stop.has_target:
        status, reasons = "invalid", (NoSuccess(contest=choices.stop.judges == "mean"),)
    evaluations, compared = log.all(schema.Evaluation), log.last(schema.ClocksCompared)
    if clocks and crossing is not None:
        clocks["tta_wall_bounds"] = _wall_bounds(log, crossing[1], clocks["tta_wall"])
        # The program's own clock counts if it states one there and could be compared with ours: by two statements.
        if evaluations[crossing[1]].own_seconds is None or compared is None or compared.own_share is None:
            clocks["tta_train"] = None
    if "epochs_to_target" in clocks and not any(event.epochs_known for event in evaluations):
        clocks["epochs_to_target"] = None
    if "samples_to_target" in clocks and not all(event.counted for event in evaluations):
        clocks["samples_to_target"] = None
    return Result(**base, **_measured(choices, log, points), **clocks, status=status, reasons=reasons, curve=points,
                  warnings=warnings)


def _findings(log: TrialLog, void: bool) -> tuple[Stated, ...]:
    """Return the findings of the supervisor: those that make the trial invalid, or the rest."""
    return tuple(Stated(text=event.text) for event in log.all(schema.ProgramFinding) if event.void == void)


def _wall_bounds(log: TrialLog, at: int, wall: float) -> tuple[float, float] | None:
    """Return between which times the target was reached, if the start or this evaluation may have been read late."""
    compared = log.last(schema.ClocksCompared)
    since = dict(compared.late).get(at) if compared is not None else None
    began = compared.start_since_ns if compared is not None else None
    if log.run_start is None or (since is None and began is None):
        return None
    arrived = [item.at_ns for item in log.recorded if isinstance(item.event, schema.Evaluation)][at]
    late = 0.0 if since is None or arrived is None else (arrived - since) / 1e9
    return max(0.0, wall - late), wall + (0.0 if began is None else (log.run_start - began) / 1e9)


def _measured(choices: ProgramConfig, log: TrialLog, points: Sequence[Point]) -> dict[str, Any]:
    """Return the figures that need no target."""
    found: dict[str, Any] = {
        "init_seconds": read_init_seconds(log), **read_quality(points, choices.stop),
        "curve_in_steps": bool(points) and all(
            not event.counted and event.step == event.samples_count for event in log.all(schema.Evaluation)),
    }
    if (compared := log.last(schema.ClocksCompared)) is not None:
        found["startup_seconds"] = compared.startup_seconds
    if log.run_stop is None or log.run_start is None:
        return found
    wall = (log.run_stop - log.run_start) / 1e9
    counted = all(event.counted for event in log.all(schema.Evaluation))
    samples = points[-1].samples if points and counted else None
    found |= {"run_seconds": wall, "samples": samples}
    if samples and wall > 0 and choices.batch is not None:
        found["samples_per_second"] = samples / wall
    return found
