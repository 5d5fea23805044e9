"""The warnings of a result: text for readers, and the faults of its log that other code acts on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from repro.core.numbers import percent_above
from repro.record.result.energy import OBSERVER_LIMIT
from repro.record.result.results import CONSERVATION_TOLERANCE, OTHER_SHARE, LogFault, Point, Result, Resumed

LOGGING_LIMIT = 0.005
"""Share of the run that logging may take without a warning."""
INIT_SECONDS = 1800.0
"""Initialisation time off the clock; the excess is charged to the time to the target (MLPerf)."""
ENERGY_RESUMED = "its energy covers the last attempt only; that of earlier attempts is not included"


def init_excess(init_seconds: float | None) -> float:
    """Return the seconds of initialisation that are charged to the time to the target."""
    return max(0.0, (init_seconds or 0.0) - INIT_SECONDS)


def find_log_faults(
    points: Sequence[Point], counted: int | None, wanted: int | None
) -> tuple[LogFault, ...]:
    """Return the faults that an unmodified log never has.

    Args:
        counted: samples of all step records; None: not to be compared, because the run did not end.
        wanted: samples by the last evaluation or, without evaluations, by the end of the run; None: unknown.
    """
    faults: list[LogFault] = []
    if counted is not None and wanted is not None and counted != wanted:
        faults.append("steps_missing")
    if any(later.wall_seconds < earlier.wall_seconds for earlier, later in pairwise(points)):
        faults.append("clock_backwards")
    return tuple(faults)


def describe_log_fault(fault: LogFault, counted: int | None, wanted: int | None) -> str:
    """Return a fault in words."""
    if fault == "clock_backwards":
        return "the clock went backwards between evaluations"
    return f"step records cover {counted} samples, evaluations {wanted}"


def describe_measurement(measured: Mapping[str, Any]) -> list[str]:
    """Return the warnings about shares of the wall clock."""
    found = []
    error, observer = measured.get("conservation_error"), measured.get("observer_effect")
    if error is not None and error > CONSERVATION_TOLERANCE:
        found.append(f"phases explain the wall clock only to {error:.1%} (limit {CONSERVATION_TOLERANCE:.0%})")
    if observer is not None and observer > LOGGING_LIMIT:
        found.append(describe_logging(observer))
    return found


def describe_logging(share: float) -> str:
    """Return the warning about logging that took too large a share of the run."""
    return f"logging took {percent_above(share, LOGGING_LIMIT)} of the run (limit {100 * LOGGING_LIMIT:.1f} %)"


def describe_energy_tracking(share: float) -> str:
    """Return the warning about energy tracking that took too large a share of a core."""
    return f"energy tracking took {percent_above(share, OBSERVER_LIMIT)} of a core (limit {100 * OBSERVER_LIMIT:.1f} %)"


def describe_initialisation(init_seconds: float | None) -> list[str]:
    """Return the warning about a long initialisation."""
    if not (excess := init_excess(init_seconds)):
        return []
    return [f"initialisation took {excess:.0f} s more than its {INIT_SECONDS:.0f} s; they are charged to the time to "
            "the target"]


def describe_resumed(item: Resumed) -> str:
    """Return the warning about one resumption."""
    by = "" if item.clock == "monotonic" else ", measured by the wall clock because the machine was rebooted"
    return (f"resumed from the checkpoint of attempt {item.attempt} at step {item.step}; the {item.lost_seconds:.1f} s "
            f"since the checkpoint are on all its clocks{by}")


def describe_skipped(skipped: Sequence[tuple[int, str]]) -> list[str]:
    """Return the warning about checkpoints that were not written: (step, reason) of each."""
    if not skipped:
        return []
    step, reason = skipped[0]
    return [f"{len(skipped)} checkpoint(s) were not written, the first at step {step}: {reason}"]


def describe_unassigned(measured: Mapping[str, Any]) -> list[str]:
    """Return the warning about time outside of all phases."""
    wall, other = measured.get("run_seconds"), measured.get("phases", {}).get("other", 0.0)
    if not wall or other <= OTHER_SHARE * wall:
        return []
    return [f"{other / wall:.0%} of the wall clock went to neither training, evaluation, checkpoints nor logging "
            f"(limit {OTHER_SHARE:.0%})"]


# ---- results of earlier versions

LEGACY_FAULTS: dict[str, LogFault] = {
    "step records cover": "steps_missing", "the clock went backwards": "clock_backwards"}
LEGACY_DAMAGED = "though every rank ended well"
"""Last words of the reason of a trial that counts as crashed because its log was damaged."""
LEGACY_ENERGY = "its energy is that of the last start alone: what earlier attempts used is not in it"


def upgrade_legacy(result: Result) -> Result:
    """Return a result of an earlier version with what it says in sentences in the fields and words of this version.

    The only place that reads the words of a warning or of a damaged log; later results come back unchanged.
    """
    faults = tuple(fault for start, fault in LEGACY_FAULTS.items()
                   if any(text.startswith(start) for text in result.warnings))
    words = {_legacy_resumed(item): describe_resumed(item) for item in result.resumed} | {LEGACY_ENERGY: ENERGY_RESUMED}
    words |= _legacy_shares(result)
    warnings = tuple(words.get(text, text) for text in result.warnings)
    damaged = result.log_damaged if "log_damaged" in result.model_fields_set else \
        result.status == "crashed" and result.reason.endswith(LEGACY_DAMAGED)
    return result.model_copy(update={"log_faults": result.log_faults or faults, "warnings": warnings,
                                     "log_damaged": damaged})


def _legacy_resumed(item: Resumed) -> str:
    by = "" if item.clock == "monotonic" else ", by the wall clock, as the machine was started anew"
    return (f"went on from the checkpoint of attempt {item.attempt} at step {item.step}; the {item.lost_seconds:.1f} s "
            f"from there to the new start are on all its clocks{by}")


def _legacy_shares(result: Result) -> dict[str, str]:
    """Return the warnings that had one decimal for every share, and no space before `%`, with their new words."""
    found = {}
    if (share := result.observer_effect) is not None:
        found[f"logging took {share:.1%} of the run (limit 0.5 %)"] = describe_logging(share)
    if result.energy is not None and (share := result.energy.observer_share) is not None:
        found[f"energy tracking took {share:.1%} of a core (limit 0.5%)"] = describe_energy_tracking(share)
    return found
