"""Checkpoints without processes: what is refused and why, what is fallen back to, whose clock runs on."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from repro.bundle.verify import verify
from repro.core import registry
from repro.core.errors import CheckpointError, CheckpointRefused
from repro.core.events import EventLog
from repro.engines.fake import FakeSession
from repro.record.folder import checkpoint, resume
from repro.record.folder.checkpoint import Checkpoints
from repro.record.folder.index import file_sha256
from repro.record.result.result_warnings import CheckpointsSkipped
from repro.runner.context import Options
from repro.runner.run import Run
from repro.seams.training import Batch
from repro.worker.checkpoints import find_problem
from tests.unit.record.resumable_runs import MACHINE, Begin, Failing, begin, failing, ledger, quiet
from tests.watcher import Silent

__all__ = ["begin", "failing", "quiet"]  # fixtures


def kept(run: Run) -> Checkpoints:
    return Checkpoints(run.folder.checkpoints(next(run.plan.trials()).trial_id))


# ---- what a failure leads to


def test_a_resumed_trial_has_the_figures_of_an_undisturbed_one(begin: Begin, failing: Failing) -> None:
    whole = begin("whole").execute().results[0]
    failing(120)
    run = begin()
    record = run.execute()
    result = record.results[0]
    # 23 steps an evaluation, a checkpoint every second: 92 is the last before 120
    assert ledger(record) == [(1, "crashed", ""), (2, "ok", "step_000000092 of attempt 1")]
    assert (result.resumed[0].step, result.resumed[0].attempt, result.resumed[0].clock) == (92, 1, "monotonic")
    same = {"attempt": 1, "warnings": (), "phases": whole.phases}
    assert result.phases == {**whole.phases, "lost": 0.0}, "on a separate clock nothing was lost"
    assert result.model_copy(update=same) == whole
    assert not kept(run).root.exists(), "a trial that ended well needs none"
    assert "its last checkpoint" in record.incidents[0].text


def test_the_report_and_the_tables_mark_it(begin: Begin, failing: Failing, tmp_path: Path) -> None:
    failing(120)
    record = begin().execute()
    (page,) = registry.load("reporter", "html")().write(record, tmp_path / "page")  # type: ignore[attr-defined]
    text = " ".join(Path(page).read_text(encoding="utf-8").split())
    assert "resumed from the checkpoint of attempt 1 at step 92" in text
    assert "resumed from step_000000092 of attempt 1" in text
    assert "lost before resuming from a checkpoint" in text and "seg-lost" in text
    tables = registry.load("reporter", "csv")().write(record, tmp_path / "csv")  # type: ignore[attr-defined]
    told = {Path(path).name: Path(path).read_text(encoding="utf-8") for path in tables}
    assert "step_000000092 of attempt 1" in told["attempts.csv"]
    assert verify(record.folder.root).problems == []


def test_a_killed_run_resumes_from_the_checkpoint_too(begin: Begin) -> None:
    run, real = begin(), FakeSession.backward

    def backward(self: FakeSession, batches: Sequence[Batch]) -> float:
        if self.steps == 120:
            raise KeyboardInterrupt
        return real(self, batches)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FakeSession, "backward", backward)
        with pytest.raises(KeyboardInterrupt):
            run.execute()
    folder, plan = resume.reopen(run.folder.root)
    record = Run(plan, folder, MACHINE, Silent()).execute()
    assert ledger(record) == [(1, "interrupted", ""), (2, "ok", "step_000000092 of attempt 1")]


def test_no_more_starts_than_the_suite_allows(begin: Begin, failing: Failing) -> None:
    failing(120, 100, 99, 98)
    run = begin()
    assert [status for _, status, _ in ledger(run.execute())] == ["crashed"] * 3
    assert kept(run).names() == ["step_000000092", "step_000000046"], "--rerun-failed can still go on"
    record = Run(run.plan, run.folder, MACHINE, Silent(), Options(again=True)).execute()
    assert ledger(record)[3:] == [(4, "crashed", "step_000000092 of attempt 1")]


def test_a_damaged_checkpoint_is_replaced_by_an_earlier_one_or_a_start_from_the_beginning(
    begin: Begin, failing: Failing
) -> None:
    run = begin()

    def tear(time_: int) -> None:
        newest = kept(run).root / kept(run).names()[0]
        if time_ == 1:
            os.truncate(newest / "rank0.json", 100)
        else:
            for name in kept(run).names():
                (kept(run).root / name / "log.txt").unlink()

    failing(120, 80, then=tear)
    record = run.execute()
    assert ledger(record) == [(1, "crashed", ""), (2, "crashed", "step_000000046 of attempt 1"), (3, "ok", "")]
    passed = [item.passed_over for item in record.attempts]
    assert passed == [(), ("checkpoint step_000000092: rank0.json is damaged or was modified",),
                      ("checkpoint step_000000092: log.txt is missing",
                       "checkpoint step_000000046: log.txt is missing")]
    assert next(item.text for item in record.incidents if item.kind == "checkpoint") == passed[1][0]


def test_a_log_cut_before_a_checkpoint_copied_it_is_not_resumed(
    begin: Begin, failing: Failing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else every later attempt would have the damage, and none could end well."""
    run, real = begin(), FakeSession.update

    def update(self: FakeSession, rate: float) -> None:
        if self.steps == 60:
            os.truncate(run.folder.log(next(run.plan.trials()).trial_id, 1), 1000)
            monkeypatch.setattr(FakeSession, "update", real)
        real(self, rate)

    monkeypatch.setattr(FakeSession, "update", update)
    failing(120)
    record = run.execute()
    assert ledger(record) == [(1, "crashed", ""), (2, "ok", "step_000000046 of attempt 1")]
    said = r"checkpoint step_000000092: \d+ of \d+ lines of log.txt were damaged before the checkpoint was written"
    assert re.fullmatch(said, record.attempts[1].passed_over[0])
    assert verify(run.folder.root).problems == []


def test_one_that_the_engine_refuses_is_fallen_back_from_and_is_no_failed_start(
    begin: Begin, failing: Failing, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = FakeSession.load

    def load(self: FakeSession, folder: Path, own: dict[str, Any]) -> None:
        if folder.name == "step_000000092":
            raise CheckpointRefused(f"checkpoint {folder.name}: holds more than tensors")
        real(self, folder, own)

    monkeypatch.setattr(FakeSession, "load", load)
    failing(120)
    record = begin(more="attempts: 2").execute()
    assert ledger(record) == [(1, "crashed", ""), (2, "refused", "step_000000092 of attempt 1"),
                              (3, "ok", "step_000000046 of attempt 1")]
    assert record.attempts[1].reason == "checkpoint step_000000092: holds more than tensors"


def test_a_checkpoint_incomplete_at_the_failure_is_ignored(begin: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    real, calls = FakeSession.save, []

    def save(self: FakeSession, folder: Path) -> dict[str, Any]:
        (folder / "half").write_text("half")
        calls.append(folder)
        if len(calls) == 2:
            raise RuntimeError("lost")
        return real(self, folder)

    monkeypatch.setattr(FakeSession, "save", save)
    run = begin()
    record = run.execute()
    assert ledger(record) == [(1, "crashed", ""), (2, "ok", "step_000000046 of attempt 1")]
    assert not any(folder.exists() for folder in calls) and record.attempts[1].passed_over == ()


def test_a_complete_file_with_other_content_is_refused(begin: Begin, failing: Failing) -> None:
    run = begin()

    def plant(_: int) -> None:
        for name in kept(run).names():
            folder = kept(run).root / name
            (folder / "rank0.json").write_text('{"session": {}, "loop": []}')
            manifest = json.loads((folder / "checkpoint.json").read_text())
            manifest["files"]["rank0.json"] = file_sha256(folder / "rank0.json")
            (folder / "checkpoint.json").write_text(json.dumps(manifest))

    failing(120, then=plant)
    record = run.execute()
    assert [(status, start) for _, status, start in ledger(record)] == [
        ("crashed", ""), ("refused", "step_000000092 of attempt 1"), ("refused", "step_000000046 of attempt 1"),
        ("ok", "")]
    assert record.attempts[1].reason == \
        "checkpoint step_000000092: holds something else than this trial wrote (KeyError: 'steps')"


def test_too_little_disk_costs_the_checkpoint_and_not_the_trial(begin: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage("/")
    monkeypatch.setattr(checkpoint.shutil, "disk_usage", lambda _: usage._replace(free=1000))
    result = begin().execute().results[0]
    assert result.status == "ok"
    skipped, = (item for item in result.warnings if isinstance(item, CheckpointsSkipped))
    assert (skipped.step, skipped.problem) == (46, "0 MB are free, it needs 1 MB")


def _not_written(monkeypatch: pytest.MonkeyPatch, part: str, fails: Callable[[], bool]) -> None:
    """From now on this part of writing a checkpoint fails as long as `fails` is set."""
    if part == "engine":
        real = FakeSession.save

        def save(self: FakeSession, folder: Path) -> dict[str, Any]:
            (folder / "half").write_text("half")
            if fails():
                raise CheckpointError("checkpoint: cannot be written: No space left on device")
            return real(self, folder)

        monkeypatch.setattr(FakeSession, "save", save)
        return
    where, name = (Path, "write_text") if part == "own" else (checkpoint, "write_model")
    written = getattr(where, name)

    def write(target: Any, *rest: Any, **more: Any) -> Any:
        path = target if isinstance(target, Path) else rest[0]
        if path.parent.name.endswith(".tmp") and path.name in ("rank0.json", checkpoint.MANIFEST) and fails():
            raise OSError(errno.ENOSPC, "No space left on device")
        return written(target, *rest, **more)

    monkeypatch.setattr(where, name, write)


@pytest.mark.parametrize("part", ["engine", "own", "keep"])
def test_one_that_cannot_be_written_costs_the_checkpoint_and_not_the_trial(
    begin: Begin, failing: Failing, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    """Also in a resumed attempt: the checkpoint that it started from is unaffected."""
    run, seen = begin(more="attempts: 3"), [0]

    def fails() -> bool:
        seen[0] += 1
        return seen[0] > 2

    def whole(_: int) -> None:
        assert kept(run).names() == ["step_000000092", "step_000000046"]
        assert not list(kept(run).root.glob(".*")), "what was half written is gone"

    _not_written(monkeypatch, part, fails)
    failing(120, 160, then=whole)
    record = run.execute()
    assert ledger(record) == [(1, "crashed", ""), (2, "crashed", "step_000000092 of attempt 1"),
                              (3, "ok", "step_000000092 of attempt 1")]
    skipped, = (item for item in record.results[0].warnings if isinstance(item, CheckpointsSkipped))
    assert skipped.step == 138 and "No space left on device" in skipped.problem


def test_a_checkpoint_that_one_rank_could_not_write_is_kept_by_none(tmp_path: Path) -> None:
    """The others hear of it and do not wait."""
    class Two(FakeSession):
        def __init__(self) -> None:
            """Rank 0 of two; the other one could not write."""

        def total(self, values: Sequence[float]) -> list[float]:
            return [values[0] + 1.0]

        def gather(self, value: Any) -> list[Any]:
            return [value, "no space"]

    assert find_problem(Two(), lambda: None, str) == "no space"


def test_a_refused_one_is_kept_under_a_name_that_is_not_resumed(tmp_path: Path) -> None:
    """It may be good, and only not readable on this machine."""
    kept = Checkpoints(tmp_path)
    for content in ("first", "written again by a later attempt"):
        (tmp_path / "step_000000046").mkdir()
        (tmp_path / "step_000000046/log.txt").write_text(content)
        assert kept.set_aside("step_000000046") and kept.names() == []
        assert (tmp_path / "refused_step_000000046/log.txt").read_text() == content
    assert not Checkpoints(tmp_path / "nothing").names()


def test_every_one_refused_is_gone_so_there_is_an_end_to_it(
    begin: Begin, failing: Failing, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(self: FakeSession, folder: Path, own: dict[str, Any]) -> None:
        raise CheckpointError(f"checkpoint {folder.name}: no")  # an engine that does not distinguish the two

    monkeypatch.setattr(FakeSession, "load", load)
    failing(120)
    assert [status for _, status, _ in ledger(begin("one").execute())] == ["crashed", "refused", "refused", "ok"]
    monkeypatch.setattr(Checkpoints, "set_aside", lambda *_: False)
    failing(120)
    record = begin("two", more="attempts: 3").execute()
    assert [status for _, status, _ in ledger(record)] == ["crashed"] * 3, "one that stays is no way round the limit"


def test_a_log_that_is_not_text_is_not_resumed(begin: Begin, failing: Failing, monkeypatch: pytest.MonkeyPatch) -> None:
    """A byte inside a string leaves every line an event: only a strict decoder fails."""
    real = EventLog.text

    def text(self: EventLog) -> bytes:
        found = real(self)
        return found.replace(b"repro-harness", b"repro-\xffarness") if found.count(b"eval_stop") > 5 else found

    monkeypatch.setattr(EventLog, "text", text)
    failing(120)
    record = begin().execute()
    assert ledger(record) == [(1, "crashed", ""), (2, "ok", "step_000000046 of attempt 1")]
    assert record.attempts[1].passed_over == (
        "checkpoint step_000000092: log.txt is not UTF-8: it was damaged before the checkpoint was written",)
