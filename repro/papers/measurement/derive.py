"""Derives the result of a trial of kind measurement from the events of its log."""

from __future__ import annotations

import numpy as np

from repro.papers.measurement.config import MeasurementConfig
from repro.record.derive.training_figures import MIB, memory_figures, read_traffic
from repro.record.derive.trial_log import TrialLog, common_fields, read_init_seconds, read_status
from repro.record.log import schema
from repro.record.result.parts import Operation, Traffic
from repro.record.result.reasons import CheckFailed, OtherOperations, Reason, Unlike
from repro.record.result.result_warnings import LongInitialisation, init_excess
from repro.record.result.results import Result
from repro.record.result.status import meaning
from repro.seams.launching import LaunchResult
from repro.seams.training import BACKEND, Comm
from repro.suite.model import Trial


def derive_measurement(
    trial: Trial, choices: MeasurementConfig, attempt: int, log: TrialLog, outcome: LaunchResult | None
) -> Result:
    """Return the result of one attempt; wrong answers, or other operations than declared, make it invalid."""
    found = common_fields(trial, attempt, log) | {
        "network": outcome.network if outcome else None, "init_seconds": read_init_seconds(log),
    }
    status, reasons = read_status(log, outcome)
    traffic = read_traffic(log)
    operation = _operation(log, traffic)
    if meaning(status).logged and (wrong := _wrong(choices, operation, found["effective"])):
        status, reasons = "invalid", tuple(wrong)
    if log.run_start is not None and log.run_stop is not None:
        found["run_seconds"] = (log.run_stop - log.run_start) / 1e9
    if traffic is not None:
        found |= {"traffic": traffic, "bytes_sent": sum(rank.sent_bytes for rank in traffic.ranks)}
    memory = memory_figures(log)
    if memory:
        found["peak_bytes"] = round(memory["training_peak_mib"] * MIB)
    excess = init_excess(found["init_seconds"])
    return Result(**found, **memory, status=status, reasons=reasons, operation=operation,
                  warnings=(LongInitialisation(excess_seconds=excess),) if excess else ())


def _operation(log: TrialLog, traffic: Traffic | None) -> Operation | None:
    """Return the figures of the timed operations; None if the log does not have all of them."""
    described, found = log.last(schema.MeasurementStated), log.last(schema.MeasurementFindings)
    slowest = np.asarray([value for block in log.all(schema.Operations) for value in block.slowest_seconds])
    fastest = np.asarray([value for block in log.all(schema.Operations) for value in block.fastest_seconds])
    if described is None or found is None or not slowest.sum() > 0:
        return None
    each = described.items_each
    return Operation(
        items=described.items, items_each=each, count=len(slowest), median_seconds=float(np.median(slowest)),
        mean_seconds=float(slowest.mean()), p95_seconds=float(np.quantile(slowest, 0.95)),
        straggler_seconds=float(np.sum(slowest - fastest)),
        items_per_second=float(each * len(slowest) / slowest.sum()),
        checks=found.checks, figures=found.figures, **_sent(traffic, len(slowest)),
    )


def _sent(traffic: Traffic | None, operations: int) -> dict[str, float]:
    """Return the bytes of one operation; empty if a collective ran whose bytes are not counted."""
    if traffic is None or traffic.uncounted:
        return {}
    sent = [rank.sent_bytes for rank in traffic.ranks]
    return {"sent_bytes": sum(sent) / operations, "busiest_sent_bytes": max(sent) / operations}


def _wrong(choices: MeasurementConfig, operation: Operation | None, effective: dict[str, str]) -> list[Reason]:
    """Return why a measurement that ended well does not count."""
    if operation is None:
        return [OtherOperations(wanted=choices.stop.repeats)]
    found: list[Reason] = [CheckFailed(name=item.name, error=item.error, limit=item.limit)
                           for item in operation.checks if not item.passed]
    if not operation.checks:
        found.append(CheckFailed())
    if operation.count != choices.stop.repeats:
        found.append(OtherOperations(timed=operation.count, wanted=choices.stop.repeats))
    comm = choices.comm.get(Comm)
    wanted = (comm.title or choices.comm.kind) if comm.own_algorithm else BACKEND
    if choices.processes > 1 and (ran := effective.get("comm_algorithm")) != wanted:
        found.append(Unlike(name="comm", wanted=choices.comm.label, ran=ran))
    return found
