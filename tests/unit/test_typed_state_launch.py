"""Decisions about launches and resumed runs depend on typed fields: rewording a text changes no status."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from repro.bundle.difference import between_executions
from repro.core.errors import CheckpointRefused
from repro.launchers import inline
from repro.launchers.inline import Inline
from repro.launchers.processes import rank_processes
from repro.record.derive.derive import derive
from repro.record.folder.store import read_record
from repro.seams.launching import LaunchRequest, LaunchResult, RankCause, RankEnd
from repro.suite.model import Trial
from tests.records import make_record

TEXTS = ("", "killed by SIGKILL", "after rank 1: x", "CheckpointRefused: x", "something else")


def refuse_checkpoint(folder: str, payload: Mapping[str, Any]) -> None:
    raise CheckpointRefused("checkpoint step_1: damaged")


def fail(folder: str, payload: Mapping[str, Any]) -> None:
    raise RuntimeError("CheckpointRefused: only a text")


def launched(entry: str, folder: Path) -> LaunchResult:
    request = LaunchRequest(f"{__name__}:{entry}", {}, 1, "cpu", folder, timeout_seconds=60.0)
    return Inline().launch(request)


@pytest.mark.parametrize("text", TEXTS[1:])
def test_a_refused_checkpoint_is_known_by_the_type_of_the_exception(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setattr(inline, "reason", lambda _: text)
    refused, failed = launched("refuse_checkpoint", tmp_path), launched("fail", tmp_path)
    assert (refused.ends[0].cause, refused.refused_checkpoint) == ("checkpoint_refused", text)
    assert (failed.ends[0].cause, failed.refused_checkpoint) == ("failed", "")


def test_the_reason_of_a_refusal_does_not_repeat_its_cause(tmp_path: Path) -> None:
    assert launched("refuse_checkpoint", tmp_path).refused_checkpoint == "checkpoint step_1: damaged"


def ends_of(codes: list[int | None], folder: Path, suspect: int | None, late: str) -> tuple[RankEnd, ...]:
    return rank_processes.ends(codes, rank_processes.read_reports(folder, 0, len(codes)), suspect, late)


@pytest.mark.parametrize("text", TEXTS)
def test_the_first_failure_is_known_by_the_causes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(rank_processes, "_without_report", lambda _: text)
    found = LaunchResult(ends_of([-15, -9, 0], tmp_path, 1, ""), 1.0)
    assert [end.cause for end in found.ends[:2]] == ["ended_after_another_rank", "failed"]
    assert found.first_failure == found.ends[1]


def test_a_rank_without_memory_is_the_first_although_another_reports_earlier(tmp_path: Path) -> None:
    for rank, (cause, when) in enumerate([("failed", 1), ("out_of_memory", 2)]):
        (tmp_path / f"rank{rank}.json").write_text(json.dumps({"reason": "x", "cause": cause, "nanoseconds": when}))
    found = LaunchResult(ends_of([1, 1], tmp_path, 0, ""), 1.0).first_failure
    assert found is not None
    assert (found.rank, found.cause) == (1, "out_of_memory")


@pytest.mark.parametrize("cause", ["failed", "checkpoint_refused"])
def test_the_report_of_a_rank_names_its_cause(tmp_path: Path, cause: RankCause) -> None:
    (tmp_path / "rank0.json").write_text(json.dumps({"reason": "x", "cause": cause, "nanoseconds": 1}))
    first, second = ends_of([1, -15], tmp_path, None, "")
    assert (first.cause, second.cause) == (cause, "ended_after_another_rank")


@pytest.fixture(scope="module")
def trial(tmp_path_factory: pytest.TempPathFactory) -> Trial:
    return next(make_record(tmp_path_factory.mktemp("record") / "run", only=0).plan.trials())


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize(("cause", "status"), [("failed", "crashed"), ("out_of_memory", "out_of_memory")])
def test_the_status_follows_from_the_cause(trial: Trial, text: str, cause: RankCause, status: str) -> None:
    assert derive(trial, 1, [], LaunchResult((RankEnd(0, -9, text, cause=cause),), 1.0)).status == status


@pytest.mark.parametrize("text", ["setting X 1, now 2", "library torch 1, now 2", "reworded"])
def test_the_area_of_a_difference_is_its_kind(tmp_path: Path, text: str) -> None:
    one, other = (make_record(tmp_path / name, only=0) for name in ("one", "other"))
    other.folder.append_incident("difference", text, difference="hardware")
    found = between_executions(one, read_record(other.folder.root))
    assert [(item.area, item.second) for item in found] == [("hardware", text)]
