"""The result of a measurement from its log: figures of its operations, and what makes a fast wrong answer invalid."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from repro.core.errors import TrialError
from repro.core.events import EventLog
from repro.papers.measurement.rank import combine, findings_data
from repro.record.derive.derive import derive
from repro.record.log import schema
from repro.record.log.reading import read_log
from repro.record.result.parts import Checked
from repro.record.result.results import Result
from repro.seams.launching import LaunchResult, RankEnd
from repro.seams.measurement import Check, FigureKind, Findings
from repro.suite.model import Trial
from repro.worker.steps import write_operations
from tests.unit.suite.test_measurement_suite import plan

GOOD = {"name": "sum", "error": 1e-13, "limit": 1e-12}
RAN = {"comm": "ring", "comm_algorithm": "ring"}


@pytest.fixture
def trial(tmp_path: Path) -> Trial:
    found = plan(tmp_path, matrix="{comm: [ring, tree]}")
    return found.trial(found.cells[0], 0)


def logged(
    folder: Path, trial: Trial, checks: list[Mapping[str, Any]], effective: Mapping[str, str] = RAN,
    operations: int = 3, stopped: bool = True,
) -> Result:
    """Write a log as the ranks do, with operations of 2, 4 and 6 s, and derive its result."""
    log = EventLog(folder / "log.txt")
    log.write(schema.MeasurementStated(items="numbers", items_each=14))
    log.write(schema.RunStart())
    if stopped:
        log.write(schema.RunStop(status="success", outcome="success", reason="", samples_count=operations))
    write_operations(log, [[2.0, 1.0, 6.0][:operations], [1.0, 4.0, 5.0][:operations]])
    log.write(schema.MemoryPeaks(kind="resident", init=[1 << 20, 3 << 20], training=[2 << 20, 4 << 20]))
    line = {"operation": "all_reduce", "dtype": "float64", "collectives": 3, "payload_bytes": 30, "received_bytes": 9}
    busy = dict.fromkeys(("busy_seconds", "exposed_seconds", "overlapped_seconds"), 0.5)
    log.write(schema.TrafficCounted(value=[{"lines": [{**line, "sent_bytes": sent}], **busy, "training": busy}
                                           for sent in (30, 60)]))
    log.write(schema.MeasurementFindings(checks=checks, figures=[
        {"name": "kept", "title": "kept", "unit": "bytes", "direction": "lower", "label": "counted", "value": 8.0}]))
    log.write(schema.EffectiveSettings(value=effective))
    log.close()
    ends = (RankEnd(0, 0), RankEnd(1, 0 if stopped else 1, "ran out"))
    return derive(trial, 1, read_log(folder / "log.txt"), LaunchResult(ends, 1.0))


def test_an_operation_takes_as_long_as_its_slowest_rank(tmp_path: Path, trial: Trial) -> None:
    found = logged(tmp_path, trial, [GOOD])
    operation = found.operation
    assert (found.status, found.reason) == ("ok", "")
    assert operation is not None
    assert (operation.count, operation.median_seconds, operation.mean_seconds) == (3, 4.0, 4.0)
    assert operation.straggler_seconds == (2 - 1) + (4 - 1) + (6 - 5)
    assert operation.items_per_second == pytest.approx(3 * 14 / 12)
    assert (operation.sent_bytes, operation.busiest_sent_bytes) == (30.0, 20.0)
    assert (found.bytes_sent, found.training_peak_mib, found.peak_bytes) == (90, 4.0, 4 << 20)
    assert [(item.name, item.value) for item in operation.figures] == [("kept", 8.0)]
    assert found.tta_wall is None
    assert found.step_seconds is None


@pytest.mark.parametrize(("checks", "reason"), [
    ([GOOD, {"name": "gradient", "error": 2.0, "limit": 1e-12}], "gradient: the error is 2, the limit 1e-12"),
    ([{"name": "sum", "error": None, "limit": 1e-12}], "sum: the error is not finite, the limit 1e-12"),
    ([], "nothing was checked"),
])
def test_a_wrong_answer_is_invalid_with_its_reason(
    tmp_path: Path, trial: Trial, checks: list[Mapping[str, Any]], reason: str
) -> None:
    found = logged(tmp_path, trial, checks)
    assert (found.status, found.reason) == ("invalid", reason)


def test_another_algorithm_or_fewer_operations_than_declared_are_invalid(tmp_path: Path, trial: Trial) -> None:
    assert logged(tmp_path, trial, [GOOD], {"comm_algorithm": "tree"}).reason == "comm ring was asked for, tree ran"
    assert logged(tmp_path, trial, [GOOD], {}).reason == "comm ring was asked for, None ran"
    assert logged(tmp_path, trial, [GOOD], operations=2).reason == "2 operations were timed, not 3"


def test_a_log_without_its_end_is_a_crash_with_the_rank(tmp_path: Path, trial: Trial) -> None:
    found = logged(tmp_path, trial, [GOOD], stopped=False)
    assert (found.status, found.reason) == ("crashed", "rank 1: ran out")


KINDS = {"most": FigureKind("most"), "all": FigureKind("all", over_ranks="sum"),
         "usual": FigureKind("usual", over_ranks="mean")}


def data(error: float, **figures: float) -> dict[str, Any]:
    return findings_data(Findings((Check("sum", error, 1.0),), figures))


def test_the_worst_rank_decides_a_check_and_a_kind_says_how_figures_are_combined() -> None:
    found = combine([data(0.1, most=1, all=1, usual=1), data(-0.3, most=5, all=5, usual=5)], KINDS)
    assert found.checks == (Checked(name="sum", limit=1.0, error=0.3),)
    assert [(item.name, item.value) for item in found.figures] == [("most", 5), ("all", 6), ("usual", 3)]
    assert combine([data(0.1), data(math.nan)], KINDS).checks[0].error is None
    assert combine([data(math.inf), data(0.1)], KINDS).checks[0].error is None


def test_ranks_that_report_different_things_end_the_trial() -> None:
    with pytest.raises(TrialError, match="different checks"):
        combine([data(0.1), findings_data(Findings(()))], KINDS)
    with pytest.raises(TrialError, match="does not declare"):
        combine([data(0.1, other=1), data(0.1, other=1)], KINDS)
