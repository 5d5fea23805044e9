"""Checkpoints on disk: what is kept, damage, hostile files, clocks."""

from __future__ import annotations

import dataclasses
import pickle
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from repro.bundle.verify import verify
from repro.core.errors import CheckpointError, CheckpointRefused, ParityError, SuiteError
from repro.core.events import Event
from repro.launchers.inline import Inline
from repro.record.environment import placement
from repro.record.folder import checkpoint
from repro.record.log.schema import Launched
from repro.runner import attempt as runner_attempt
from repro.runner.launching import PARITY_WORKER, Launchers, entry_of
from repro.runner.run import Run, prepare
from repro.seams.launching import LaunchRequest, LaunchResult
from repro.suite.model import Trial
from repro.suite.planning.plan import Plan, make_plan
from repro.worker.gate.difference import Difference
from tests.unit.record.resumable_runs import LINE, MACHINE, Begin, Bomb, Failing, begin, failing, ledger, quiet, written
from tests.watcher import Silent

__all__ = ["begin", "failing", "quiet"]  # fixtures


# ---- the time limit


@pytest.mark.parametrize(("spent", "left"), [(0.0, 3600.0), (3000.0, 600.0), (3599.99, 0.01)])
def test_a_resumed_attempt_has_the_rest_of_the_limit(
    begin: Begin, failing: Failing, monkeypatch: pytest.MonkeyPatch, spent: float, left: float
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


@pytest.mark.slow
def test_the_machines_clock_gives_the_rest_of_the_limit(begin: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
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
    begin: Begin, failing: Failing, monkeypatch: pytest.MonkeyPatch
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


def test_spent_time_counts_from_the_first_launch_with_all_lost_time(tmp_path: Path) -> None:
    second = 1_000_000_000
    launched = Event(Launched.key, 5 * second, "POINT_IN_TIME", 0.0, {})
    found = written(tmp_path, 1, log=LINE + launched.line().encode())
    point = dataclasses.replace(found.open("step_000000001", "trial", 2), shift_ns=2 * second)
    assert point.spent_seconds(lambda: 103 * second) == 100.0
    assert written(tmp_path, 2).open("step_000000002", "trial", 2).spent_seconds() == 0.0, "its log does not say"


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
    if placement.boot_id():
        assert (point.shift_ns, point.clock) == (0, "monotonic")


def test_after_a_reboot_the_wall_clock_gives_the_lost_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    began = time.monotonic()
    found = written(tmp_path, 1, wall_ms=(time.time() - 100) * 1e3)
    monkeypatch.setattr(checkpoint, "boot_id", lambda: "another")
    point = found.open("step_000000001", "trial", 2)
    assert point.clock == "wall"
    now = time.monotonic_ns() + point.shift_ns
    assert 99.9 < (now - point.checkpoint.at_ns) / 1e9 < 100.1 + time.monotonic() - began


def test_a_wall_clock_that_went_back_leaves_nothing_to_go_on_by(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = written(tmp_path, 1, wall_ms=(time.time() + 100) * 1e3)
    monkeypatch.setattr(checkpoint, "boot_id", lambda: "another")
    with pytest.raises(CheckpointError, match=r"its wall clock is (9\d|100) s before the checkpoint"):
        found.open("step_000000001", "trial", 2)


# ---- hostile files


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


@pytest.mark.parametrize("outside", ["absolute", "above"])
def test_an_index_that_names_a_file_elsewhere_is_refused(tmp_path: Path, outside: str) -> None:
    torch = pytest.importorskip("torch")
    from repro.engines.plain.tensor_files import SafeReader, load_tensors, save_tensors

    folder = tmp_path / "step_000000001" / "tensors"
    save_tensors(folder, {"a": torch.ones(3)}, {}, 0, True)
    file = next(folder.glob("*.distcp"))
    secret = shutil.copy(file, tmp_path / "other.distcp")
    index = SafeReader(folder).read_metadata()
    for item in index.storage_data.values():
        item.relative_path = str(secret) if outside == "absolute" else "../../other.distcp"
    (folder / ".metadata").write_bytes(pickle.dumps(index))
    with pytest.raises(CheckpointError, match=r"its index names .*, which is no file of it"):
        load_tensors(folder, 0)


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


def test_failed_writes_of_deepspeed_are_reported_after_the_ranks_have_met(tmp_path: Path) -> None:
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


def test_checkpoints_are_part_of_a_suites_measurement(begin: Begin) -> None:
    plans: list[Plan] = [begin(f"run{number}", more=more).plan for number, more in enumerate(("", "attempts: 4"))]
    assert plans[0].digest == plans[1].digest
    other = plans[0].suite.model_copy(update={"checkpoint_every": 3})
    without = plans[0].suite.model_copy(update={"on_failure": "rerun"})
    digests = {make_plan(suite, MACHINE).digest for suite in (plans[0].suite, other, without)}
    assert len(digests) == 3, "writing them is on the clock"
    ignored = without.model_copy(update={"checkpoint_every": 3})
    assert make_plan(ignored, MACHINE).digest == make_plan(without, MACHINE).digest


@pytest.mark.parametrize("every", ["0", "1.5", "yes", "-1"])
def test_a_wrong_period_is_refused(begin: Begin, every: str) -> None:
    with pytest.raises(SuiteError, match="checkpoint_every"):
        begin(period=every)


# ---- the gate of a resumed run


class Counting(Launchers):
    """Counts launches of the gate; trials are interrupted."""

    gates = 0

    def launch(self, trial: Trial, entry: str, folder: Path, payload: dict[str, Any]) -> LaunchResult:
        if entry == entry_of(trial.choices):
            raise KeyboardInterrupt
        assert entry == PARITY_WORKER
        self.gates += 1
        return super().launch(trial, entry, folder, payload)


@pytest.mark.slow
def test_a_gate_that_was_passed_is_not_run_again(begin: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert gates == [3, 0]  # the reference without a warm-up, and both engines
    monkeypatch.setattr("repro.worker.gate.parity.STEPS", 2)  # another gate than the one that was passed
    monkeypatch.setattr("repro.runner.gate.judge", lambda *_: {"loss": Difference("loss", 1, "planted")})
    run = Run(plan, folder, MACHINE, Silent())
    run.launchers = Counting()
    with pytest.raises(ParityError, match=r"no more trials are timed\n.*planted"):
        run.execute()
