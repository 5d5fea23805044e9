"""Checkpoints without processes: what is refused and why, what is fallen back to, whose clock runs on."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import pickle
import re
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from repro.bundle.verify import verify
from repro.core import registry
from repro.core.errors import CheckpointError, CheckpointRefused, ParityError, SuiteError
from repro.core.events import Event, EventLog
from repro.core.machine import Machine
from repro.engines.fake import FakeSession
from repro.launchers.inline import Inline
from repro.record import checkpoint, environment, resume
from repro.record.checkpoint import Checkpoints
from repro.record.index import file_sha256
from repro.record.store import Record
from repro.runner import attempt as runner_attempt
from repro.runner import preflight
from repro.runner.context import Options
from repro.runner.launching import PARITY_WORKER, Launchers
from repro.runner.run import Run, prepare
from repro.seams.launching import LaunchRequest, LaunchResult
from repro.seams.training import Batch
from repro.suite.file import read_suite
from repro.suite.model import Trial
from repro.suite.plan import Plan, make_plan
from repro.suite.training import TrainingConfig
from repro.worker.checkpoint_writer import CheckpointWriter
from repro.worker.checkpointing import find_problem
from tests.watcher import Silent

SUITE = """\
suite: invented
seeds: 1
on_failure: resume_from_checkpoint
checkpoint_every: {period}
{more}
trial:
  workload: digits
  engine: {engine}
  launcher: inline
  batch: {{global: 64}}
  optimizer: {{kind: sgd, lr: 0.1}}
  stop: {{metric: top1, target: 0.9, max_epochs: 40}}
  evaluate_every: 1437
  device: cpu
"""
MACHINE = Machine(device="cpu", device_count=0, cores=2)


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "before", lambda *_: [])
    monkeypatch.setattr(environment, "_git", lambda *_: None)


@pytest.fixture
def begin(tmp_path: Path) -> Callable[..., Run]:
    """A new run of the invented suite in a folder of its own."""
    def make(name: str = "run", more: str = "", engine: str = "fake", period: str = "2") -> Run:
        (tmp_path / "suite.yaml").write_text(SUITE.format(more=more, engine=engine, period=period))
        source = read_suite(str(tmp_path / "suite.yaml"), ())
        plan = make_plan(source.suite, MACHINE, source.problem)
        return Run(plan, prepare(plan, source.text, tmp_path / name), MACHINE, Silent())

    return make


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """From now on trials fail at these steps, one a start, after something was done to the folder."""
    def at(*steps: int, then: Callable[[int], None] = lambda _: None) -> None:
        left, real = list(steps), FakeSession.backward

        def backward(self: FakeSession, batches: Sequence[Batch]) -> float:
            if left and self.steps == left[0]:
                left.pop(0)
                then(len(steps) - len(left))
                raise RuntimeError("lost")
            return real(self, batches)

        monkeypatch.setattr(FakeSession, "backward", backward)

    return at


def ledger(record: Record) -> list[tuple[int, str, str]]:
    return [(item.attempt, item.status, item.resumed_from) for item in record.attempts]


def kept(run: Run) -> Checkpoints:
    return Checkpoints(run.folder.checkpoints(next(run.plan.trials()).trial_id))


# ---- what a failure leads to


def test_a_trial_goes_on_with_the_figures_of_an_undisturbed_one(
    begin: Callable[..., Run], failing: Callable[..., None]
) -> None:
    whole = begin("whole").execute().results[0]
    failing(120)
    run = begin()
    record = run.execute()
    result = record.results[0]
    # 23 steps an evaluation, a checkpoint every second: 92 is the last before 120
    assert ledger(record) == [(1, "crashed", ""), (2, "ok", "step_000000092 of attempt 1")]
    assert (result.resumed[0].step, result.resumed[0].attempt, result.resumed[0].clock) == (92, 1, "monotonic")
    same = {"attempt": 1, "resumed": (), "warnings": (), "phases": whole.phases}
    assert result.phases == {**whole.phases, "lost": 0.0}, "on a clock of its own nothing was lost"
    assert result.model_copy(update=same) == whole
    assert not kept(run).root.exists(), "a trial that ended well needs none"
    assert "its last checkpoint" in record.incidents[0].text


def test_the_report_and_the_tables_mark_it(
    begin: Callable[..., Run], failing: Callable[..., None], tmp_path: Path
) -> None:
    failing(120)
    record = begin().execute()
    (page,) = registry.load("reporter", "html")().write(record, tmp_path / "page")  # type: ignore[attr-defined]
    text = " ".join(Path(page).read_text(encoding="utf-8").split())
    assert "resumed from the checkpoint of attempt 1 at step 92" in text
    assert "went on from step_000000092 of attempt 1" in text
    assert "lost before resuming from a checkpoint" in text and "seg-lost" in text
    tables = registry.load("reporter", "csv")().write(record, tmp_path / "csv")  # type: ignore[attr-defined]
    told = {Path(path).name: Path(path).read_text(encoding="utf-8") for path in tables}
    assert "step_000000092 of attempt 1" in told["attempts.csv"]
    assert verify(record.folder.root).problems == []


def test_a_run_that_was_killed_goes_on_from_the_checkpoint_too(begin: Callable[..., Run]) -> None:
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


def test_no_more_starts_than_the_suite_allows(begin: Callable[..., Run], failing: Callable[..., None]) -> None:
    failing(120, 100, 99, 98)
    run = begin()
    assert [status for _, status, _ in ledger(run.execute())] == ["crashed"] * 3
    assert kept(run).names() == ["step_000000092", "step_000000046"], "--rerun-failed can still go on"
    record = Run(run.plan, run.folder, MACHINE, Silent(), Options(again=True)).execute()
    assert ledger(record)[3:] == [(4, "crashed", "step_000000092 of attempt 1")]


def test_a_torn_checkpoint_gives_way_to_the_one_before_and_that_to_a_start_anew(
    begin: Callable[..., Run], failing: Callable[..., None]
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


def test_a_log_that_was_cut_before_a_checkpoint_copied_it_is_not_gone_on_from(
    begin: Callable[..., Run], failing: Callable[..., None], monkeypatch: pytest.MonkeyPatch
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
    begin: Callable[..., Run], failing: Callable[..., None], monkeypatch: pytest.MonkeyPatch
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


def test_what_was_being_written_when_the_trial_failed_is_none(
    begin: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_a_whole_file_with_something_else_in_it_is_refused(
    begin: Callable[..., Run], failing: Callable[..., None]
) -> None:
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


def test_too_little_disk_costs_the_checkpoint_and_not_the_trial(
    begin: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage("/")
    monkeypatch.setattr(checkpoint.shutil, "disk_usage", lambda _: usage._replace(free=1000))
    result = begin().execute().results[0]
    assert result.status == "ok"
    assert any("checkpoint(s) were not written, the first at step 46: 0 MB are free, it needs 1 MB" in text
               for text in result.warnings)


def _not_written(monkeypatch: pytest.MonkeyPatch, part: str, fails: Callable[[], bool]) -> None:
    """From now on this part of writing a checkpoint fails as long as `fails` says so."""
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
    begin: Callable[..., Run], failing: Callable[..., None], monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    """Also in an attempt that goes on: the checkpoint it began from is no worse for it."""
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
    assert any("checkpoint(s) were not written, the first at step 138: " in text and "No space left on device" in text
               for text in record.results[0].warnings)


def test_what_one_rank_could_not_write_no_rank_keeps(tmp_path: Path) -> None:
    """The others hear of it and do not wait."""
    class Two(FakeSession):
        def __init__(self) -> None:
            """Rank 0 of two; the other one could not write."""

        def total(self, values: Sequence[float]) -> list[float]:
            return [values[0] + 1.0]

        def gather(self, value: Any) -> list[Any]:
            return [value, "no space"]

    assert find_problem(Two(), lambda: None, str) == "no space"


def test_every_one_refused_is_gone_so_there_is_an_end_to_it(
    begin: Callable[..., Run], failing: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(self: FakeSession, folder: Path, own: dict[str, Any]) -> None:
        raise CheckpointError(f"checkpoint {folder.name}: no")  # an engine that does not tell the two apart

    monkeypatch.setattr(FakeSession, "load", load)
    failing(120)
    assert [status for _, status, _ in ledger(begin("one").execute())] == ["crashed", "refused", "refused", "ok"]
    monkeypatch.setattr(Checkpoints, "refuse", lambda *_: False)
    failing(120)
    record = begin("two", more="attempts: 3").execute()
    assert [status for _, status, _ in ledger(record)] == ["crashed"] * 3, "one that stays is no way round the limit"


def test_a_log_that_is_no_text_any_more_is_not_gone_on_from(
    begin: Callable[..., Run], failing: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A byte inside a string leaves every line an event: only whoever decodes it strictly stumbles."""
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


# ---- the time limit


@pytest.mark.parametrize(("spent", "left"), [(0.0, 3600.0), (3000.0, 600.0), (3599.99, 0.01)])
def test_an_attempt_that_goes_on_has_what_is_left_of_the_limit(
    begin: Callable[..., Run], failing: Callable[..., None], monkeypatch: pytest.MonkeyPatch, spent: float, left: float
) -> None:
    given, real = [], Inline.launch

    def launch(self: Inline, order: LaunchRequest) -> LaunchResult:
        given.append(order.timeout_seconds)
        return real(self, dataclasses.replace(order, timeout_seconds=3600.0))

    monkeypatch.setattr(Inline, "launch", launch)
    monkeypatch.setattr(runner_attempt, "spent_seconds", lambda _, point: spent if point else 0.0)
    failing(120)
    begin().execute()
    assert given == [3600.0, pytest.approx(left, rel=1e-6)]


def test_the_machine_s_clock_says_what_is_left(
    begin: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    from repro.engines.plain.session import TorchSession

    given, real, evaluate, calls = [], Inline.launch, TorchSession.evaluate, []

    def launch(self: Inline, order: LaunchRequest) -> LaunchResult:
        given.append(order.timeout_seconds)
        return real(self, order)

    def lost(self: TorchSession, *rest: Any) -> tuple[float, int]:
        calls.append(1)
        if len(calls) == 4:
            raise RuntimeError("lost")
        return evaluate(self, *rest)

    monkeypatch.setattr(Inline, "launch", launch)
    monkeypatch.setattr(TorchSession, "evaluate", lost)
    began = time.monotonic()
    record = begin(engine="single").execute()
    assert ledger(record)[1][2] == "step_000000046 of attempt 1"
    assert given[0] == 3600.0 and 0.0 < 3600.0 - given[1] < time.monotonic() - began


def test_an_attempt_that_has_nothing_left_is_not_started(
    begin: Callable[..., Run], failing: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner_attempt, "spent_seconds", lambda _, point: 4000.0 if point else 0.0)
    failing(120)
    record = begin().execute()
    assert ledger(record) == [(1, "crashed", ""), (2, "timed_out", "step_000000092 of attempt 1")]
    result = record.results[0]
    assert result.reason == ("nothing was left of its time limit of 3600 s when it was resumed: 4000 s had "
                             "passed since its first start")
    assert len(result.curve) == 4, "what is known of it up to the checkpoint"
    assert verify(record.folder.root).problems == []


def test_what_is_spent_counts_from_the_first_launch_with_all_that_was_lost(tmp_path: Path) -> None:
    second = 1_000_000_000
    launched = Event(checkpoint.LAUNCHED, 5 * second, "POINT_IN_TIME", 0.0, {})
    found = written(tmp_path, 1, log=LINE + launched.line().encode())
    point = dataclasses.replace(found.open("step_000000001", "trial", 2), shift_ns=2 * second)
    assert point.spent_seconds(lambda: 103 * second) == 100.0
    assert written(tmp_path, 2).open("step_000000002", "trial", 2).spent_seconds() == 0.0, "its log does not say"


# ---- the folder


LINE = f"{Event('cache_clear', True, 'POINT_IN_TIME', 0.0, {}).line()}".encode()


def written(root: Path, step: int, **changes: Any) -> Checkpoints:
    writer = CheckpointWriter(Checkpoints(root), 1, "trial", 1, 0, 2)
    assert writer.prepare(step, 0) == ""
    writer.write_own(step, {"step": step}, changes.pop("log", LINE))
    writer.keep(step, 64 * step, 5_000_000_000, changes.pop("wall_ms", time.time() * 1e3))
    return writer.folder


def test_the_last_two_are_kept_and_halves_are_taken_away(tmp_path: Path) -> None:
    for step in (1, 2, 30):
        found = written(tmp_path, step)
    found.partial(31).mkdir()
    found.tidy()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step_000000002", "step_000000030"]
    point, passed = found.newest("trial", 2)
    assert point is not None and (point.checkpoint.step, point.own(0), point.log(), passed) == (
        30, {"step": 30}, LINE, [])


def test_those_of_later_steps_go_when_an_earlier_one_is_written(tmp_path: Path) -> None:
    """They were passed over, or the trial would not be there again."""
    for step in (30, 40, 10):
        found = written(tmp_path, step)
    assert found.names() == ["step_000000010"]


@pytest.mark.parametrize(("world", "trial", "said"), [
    (4, "trial", r"checkpoint step_000000001: was written by 2 rank\(s\), this trial has 4; "
                 "with another number of ranks it would be another trial"),
    (2, "other", "checkpoint step_000000001: is of another trial, trial"),
])
def test_another_number_of_ranks_and_another_trial_are_refused(
    tmp_path: Path, world: int, trial: str, said: str
) -> None:
    found = written(tmp_path, 1)
    with pytest.raises(CheckpointError, match=said) as caught:
        found.open("step_000000001", trial, world)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("damage", "said"), [
    (lambda path: (path / "rank0.json").write_bytes(b"{}"), "rank0.json is damaged or was modified"),
    (lambda path: (path / "rank0.json").unlink(), "rank0.json is missing"),
    (lambda path: (path / "more").write_bytes(b""), "more does not belong to it"),
    (lambda path: (path / "checkpoint.json").write_bytes(b"{"), "checkpoint.json: "),
    (lambda path: (path / "checkpoint.json").unlink(), "checkpoint.json: cannot be read"),
    (lambda path: ((path / "log.txt").unlink(), (path / "log.txt").symlink_to("/etc/hostname")),
     "log.txt does not belong to it"),
])
def test_damage_is_named(tmp_path: Path, damage: Callable[[Path], object], said: str) -> None:
    found = written(tmp_path, 1)
    damage(tmp_path / "step_000000001")
    point, passed = found.newest("trial", 2)
    assert point is None
    assert len(passed) == 1 and said in passed[0] and passed[0].startswith("checkpoint step_000000001: ")
    assert "\n" not in passed[0] and str(tmp_path) not in passed[0]


# ---- the clock


def test_within_one_start_of_the_machine_the_monotonic_clock_runs_on(tmp_path: Path) -> None:
    point = written(tmp_path, 1).open("step_000000001", "trial", 2)
    if checkpoint.boot_id():
        assert (point.shift_ns, point.clock) == (0, "monotonic")


def test_after_a_reboot_the_wall_clock_gives_the_lost_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = written(tmp_path, 1, wall_ms=(time.time() - 100) * 1e3)
    monkeypatch.setattr(checkpoint, "boot_id", lambda: "another")
    point = found.open("step_000000001", "trial", 2)
    assert point.clock == "wall"
    now = time.monotonic_ns() + point.shift_ns
    assert (now - point.checkpoint.at_ns) / 1e9 == pytest.approx(100, abs=1)


def test_a_wall_clock_that_went_back_leaves_nothing_to_go_on_by(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = written(tmp_path, 1, wall_ms=(time.time() + 100) * 1e3)
    monkeypatch.setattr(checkpoint, "boot_id", lambda: "another")
    with pytest.raises(CheckpointError, match=r"its wall clock is (99|100) s before the checkpoint"):
        found.open("step_000000001", "trial", 2)


# ---- hostile files


class Bomb:
    """Runs code where it is unpickled without care."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.mark),)


def test_a_bomb_in_the_index_does_not_go_off(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from repro.engines.plain.tensor_files import load_tensors, save_tensors

    folder = tmp_path / "step_000000001" / "tensors"
    save_tensors(folder, {"a": torch.arange(6.0).view(2, 3)}, {"b": torch.ones(2, dtype=torch.float16)}, 0, True)
    shared, own = load_tensors(folder, 0)
    assert shared["a"].tolist() == [[0, 1, 2], [3, 4, 5]] and own["b"].dtype is torch.float16
    assert load_tensors(folder, 1)[1] == {}
    assert str(tmp_path).encode() not in (folder / ".metadata").read_bytes()
    (folder / ".metadata").write_bytes(pickle.dumps(Bomb(tmp_path / "gone-off")))
    with pytest.raises(CheckpointError, match="checkpoint step_000000001: tensors cannot be read: it holds more than "
                       r"tensors and plain values .*mkdir") as caught:
        load_tensors(folder, 0)
    assert not (tmp_path / "gone-off").exists() and "\n" not in str(caught.value)


def test_a_bomb_among_the_tensors_does_not_go_off(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from torch.distributed import checkpoint as dcp

    from repro.engines.plain.tensor_files import load_tensors, save_tensors

    folder = tmp_path / "step_000000001" / "tensors"
    save_tensors(folder, {"a": torch.ones(3)}, {}, 0, True)
    file = next(folder.glob("*.distcp"))
    torch.save(Bomb(tmp_path / "gone-off"), file)
    with pytest.raises(CheckpointError, match="checkpoint step_000000001: tensors cannot be read") as caught:
        load_tensors(folder, 0)
    assert not (tmp_path / "gone-off").exists() and "\n" not in str(caught.value)
    shutil.rmtree(folder)
    with pytest.warns(UserWarning, match="no_dist|single process"):
        dcp.save({"a": Bomb(tmp_path / "gone-off")}, checkpoint_id=folder, no_dist=True)
    with pytest.raises(CheckpointError, match="holds more than tensors and plain values"):
        load_tensors(folder, 0)
    assert not (tmp_path / "gone-off").exists()


def test_a_bomb_in_deepspeed_s_files_does_not_go_off(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("deepspeed")
    from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler

    from repro.engines.zero.checkpoint_files import SafeFiles

    folder = tmp_path / "step_000000001" / "model"
    folder.mkdir(parents=True)
    fine, bad = folder / "fine.pt", folder / "bad.pt"
    scaler = DynamicLossScaler(2.0**16, 2.0, 1000, 1.0, 1, False)
    SafeFiles().save({"loss_scaler": scaler, "dtype": torch.bfloat16, "a": torch.ones(2)}, str(fine))
    assert SafeFiles().load(str(fine))["loss_scaler"].cur_scale == 65536
    torch.save({"a": Bomb(tmp_path / "gone-off")}, bad)
    with pytest.raises(CheckpointError, match="checkpoint step_000000001: model cannot be read: it holds more than "
                       "tensors and plain values") as caught:
        SafeFiles().load(str(bad))
    assert not (tmp_path / "gone-off").exists() and "\n" not in str(caught.value)
    bad.write_bytes(fine.read_bytes()[:200])
    with pytest.raises(CheckpointError, match="model cannot be read: "):
        SafeFiles().load(str(bad))


def test_what_deepspeed_cannot_write_is_told_when_the_ranks_have_met(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("deepspeed")
    from repro.engines.zero.checkpoint_files import SafeFiles

    files, folder = SafeFiles(), tmp_path / "step_000000001" / "model"
    files.save({"a": torch.ones(2)}, str(folder / "a.pt"))  # there is no such folder: RuntimeError by torch
    with pytest.raises(CheckpointError, match="checkpoint step_000000001: model cannot be written: ") as caught:
        files.raise_failure(folder)
    assert not isinstance(caught.value, CheckpointRefused)
    files.makedirs(str(folder), exist_ok=True)
    files.save({"a": torch.ones(2)}, str(folder / "a.pt"))
    files.raise_failure(folder)


# ---- the suite


def test_checkpoints_are_part_of_what_a_suite_measures(begin: Callable[..., Run]) -> None:
    plans: list[Plan] = [begin(f"run{number}", more=more).plan for number, more in enumerate(("", "attempts: 4"))]
    assert plans[0].digest == plans[1].digest
    other = plans[0].suite.model_copy(update={"checkpoint_every": 3})
    without = plans[0].suite.model_copy(update={"on_failure": "rerun"})
    digests = {make_plan(suite, MACHINE).digest for suite in (plans[0].suite, other, without)}
    assert len(digests) == 3, "writing them is on the clock"
    ignored = without.model_copy(update={"checkpoint_every": 3})
    assert make_plan(ignored, MACHINE).digest == make_plan(without, MACHINE).digest


@pytest.mark.parametrize("every", ["0", "1.5", "yes", "-1"])
def test_a_wrong_period_is_refused(begin: Callable[..., Run], every: str) -> None:
    with pytest.raises(SuiteError, match="checkpoint_every"):
        begin(period=every)


# ---- the gate, when a run goes on


class Counting(Launchers):
    """Counts launches of the gate; trials are interrupted."""

    gates = 0

    def launch(self, trial: Trial, entry: str, folder: Path, payload: dict[str, Any]) -> LaunchResult:
        if entry == TrainingConfig.entry:
            raise KeyboardInterrupt
        assert entry == PARITY_WORKER
        self.gates += 1
        return super().launch(trial, entry, folder, payload)


def test_a_gate_that_was_passed_is_not_run_again(begin: Callable[..., Run], monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    first = begin(engine="single")
    matrix = first.plan.suite.model_copy(update={"matrix": {"engine": ["single", "ddp"]}})
    plan = make_plan(matrix, MACHINE)
    folder = prepare(plan, "", first.folder.root.parent / "gate")
    gates = []
    for _ in range(2):
        run = Run(plan, folder, MACHINE, Silent())
        run.launchers = launchers = Counting()
        with pytest.raises(KeyboardInterrupt):
            run.execute()
        gates.append(launchers.gates)
    assert gates == [2, 0]
    monkeypatch.setattr("repro.worker.parity.STEPS", 2)  # another gate than the one that was passed
    monkeypatch.setattr("repro.worker.parity.judge", lambda *_: "planted")
    run = Run(plan, folder, MACHINE, Silent())
    run.launchers = Counting()
    with pytest.raises(ParityError, match="planted; no more trials are timed"):
        run.execute()
