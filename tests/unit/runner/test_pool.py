"""A pool on invented figures: blocks that end in any order, lanes that are lost, looks, resuming, and what verify says.

The lanes run in this process, one after another, in an order that the test chooses; their clock says that they ran side
by side.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast
from unittest.mock import MagicMock

import pytest

from repro.bundle.verify import verify
from repro.compare import compare
from repro.core.errors import TrialError
from repro.core.files import write_model
from repro.core.machine import detect
from repro.launchers.nodes.channel import Channel
from repro.launchers.nodes.head import Node
from repro.record.environment.environment import Environment
from repro.record.folder import shards
from repro.record.folder.index import seal
from repro.record.folder.ledger import Attempt, Incident, append_line, read_lines
from repro.record.folder.shards import Shard
from repro.record.folder.store import Record, RunFolder, read_record
from repro.record.result.results import Result
from repro.runner.context import Options
from repro.runner.pool.agents import AgentLanes
from repro.runner.pool.coordinator import Engine, PooledRun
from repro.runner.pool.lane import begin_shard
from repro.runner.run import Run, prepare
from repro.suite.file import read_suite
from repro.suite.planning.plan import Plan, make_plan, solo_seeds
from tests.watcher import Silent

SUITE = """\
suite: pooled
seeds: 8
master_seed: 1
trial:
  workload: digits
  engine: fake
  launcher: inline
  batch: {global: 64}
  optimizer: {kind: sgd, lr: 0.1}
  stop: {metric: top1, target: 0.9, max_epochs: 10}
  evaluate_every: 192
  device: cpu
matrix:
  engine:
    - {kind: fake, step_seconds: 0.010, samples_scale: 1000}
    - {kind: fake, step_seconds: 0.013, samples_scale: 1000}
baseline: {engine: {step_seconds: 0.010}}
primary:
  candidate: {engine: {step_seconds: 0.013}}
  baseline: {engine: {step_seconds: 0.010}}
"""
LOOKS = "sequential: {looks: [7, 9, 11], power: 1}\n"


def planned(folder: Path, text: str) -> Plan:
    (folder / "s.yaml").write_text(text)
    source = read_suite(str(folder / "s.yaml"))
    return make_plan(source.suite, detect(), source.problem)


@dataclass
class Lanes(Engine):
    """An engine whose lanes run here: the last shard that it was given ends first."""

    folder: RunFolder
    plan: Plan
    monkeypatch: pytest.MonkeyPatch
    lanes: int = 3
    lost: Callable[[int], int | None] = lambda shard: None
    """Shard -> trials after which its lane is lost; None: it is not."""
    avoids: bool = False
    period_seconds: float = 0.0
    waiting: list[int] = field(default_factory=list)
    started: list[int] = field(default_factory=list)

    def room(self) -> int:
        return self.lanes - len(self.waiting)

    def start(self, shards: Sequence[int]) -> None:
        self.waiting += shards
        self.started += shards

    def running(self) -> set[int] | None:
        if self.waiting:
            self.run(self.waiting.pop())
        return set(self.waiting)

    def run(self, shard: int) -> None:
        self.monkeypatch.setenv("REPRO_NODE", f"node{shard % self.lanes}")
        begun = begin_shard(self.folder.root, self.plan, shard)
        assert begun is not None
        folder, part = begun
        Run(part, folder, detect(), Silent(), Options()).execute()
        if (kept := self.lost(shard)) is not None:
            cut(folder, part, kept)

    def avoid(self, shard: int) -> bool:
        return self.avoids

    def cancel(self) -> None:
        self.waiting.clear()

    def said(self, shard: int) -> Path:
        return self.folder.shards / str(shard) / "output.log"


def cut(folder: RunFolder, part: Plan, kept: int) -> None:
    """Leave what a lane has that was killed in the trial after so many: no index, a start without an end."""
    (folder.root / "sha256sums.txt").unlink()
    lines = folder.ledger.read_text().splitlines(keepends=True)
    folder.ledger.write_text("".join(lines[:2 * kept + 1]))
    for trial in list(part.trials())[kept:]:
        folder.result(trial.trial_id).unlink()
    for trial in list(part.trials())[kept + 1:]:
        shutil.rmtree(folder.trial(trial.trial_id))


class Pooled:
    """A run in a pool of the lanes above."""

    def __init__(self, folder: Path, text: str, monkeypatch: pytest.MonkeyPatch, seeds_per_shard: int = 1) -> None:
        self.plan = planned(folder, text)
        self.folder = prepare(self.plan, text, folder / "run")
        self.lanes = Lanes(self.folder, self.plan, monkeypatch)
        self.seeds_per_shard = seeds_per_shard
        self.watcher = Silent()

    def execute(self) -> Record:
        return PooledRun(self.plan, self.folder, self.watcher, self.lanes, self.seeds_per_shard).execute()

    def problems(self) -> list[str]:
        found = verify(self.folder.root)
        return [item.text() for item in found.problems] + found.missing


@pytest.fixture
def pooled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pooled:
    return Pooled(tmp_path, SUITE, monkeypatch)


def figures(record: Record) -> list[object]:
    """What results say but for times of real clocks."""
    drop = {"launch_seconds", "run_seconds", "init_seconds", "peak_bytes", "warnings", "tta_cold", "end_cold"}
    return [item.model_dump(exclude=drop & Result.model_fields.keys())["curve"] for item in record.results]


def serial(folder: Path, text: str) -> Record:
    plan = planned(folder, text)
    return Run(plan, prepare(plan, text, folder / "serial"), detect(), Silent(), Options()).execute()


@pytest.mark.parametrize("seeds_per_shard", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_the_record_is_that_of_one_lane(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seeds_per_shard: int
) -> None:
    pool = Pooled(tmp_path, SUITE, monkeypatch, seeds_per_shard)
    record, alone = pool.execute(), serial(tmp_path, SUITE)
    assert [item.trial_id for item in record.results] == [item.trial_id for item in alone.results]
    assert figures(record) == figures(alone)
    assert {(item.trial_id, item.attempt, item.status) for item in record.starts} == {
        (item.trial_id, item.attempt, item.status) for item in alone.starts}
    assert len({item.nodes for item in record.attempts}) == 3
    one, other = (compare(item.plan, item.results, execution=item.execution)[0] for item in (record, alone))
    assert (one.verdict, one.ratio, one.left_out) == (other.verdict, other.ratio, ())
    assert one.verdict == "slower"
    assert any("on 3 lanes, each pair on one" in text for text in one.cautions)
    assert pool.problems() == []
    assert record.parity is not None
    assert pool.execute().incidents == record.incidents, "nothing is left to resume"


def test_blocks_enter_the_record_in_the_order_of_seeds_before_each_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = Pooled(tmp_path, SUITE.replace("seeds: 8\n", "") + LOOKS, monkeypatch)
    pool.lanes.lanes = 9  # so that blocks 7 and 8 end before block 0
    record, alone = pool.execute(), serial(tmp_path, SUITE.replace("seeds: 8\n", "") + LOOKS)
    assert [look.model_copy(update={"at_ms": 0}) for look in record.looks] == [
        look.model_copy(update={"at_ms": 0}) for look in alone.looks]
    assert record.looks[0].decision == "settled" and {item.repeat for item in record.results} == set(range(7))
    (left,) = (item.text for item in record.incidents if item.kind == "lane")
    assert left.startswith("the blocks of seeds 7 to 10 had begun on other lanes when a look ended the run")
    assert pool.problems() == []


def test_a_run_that_a_look_has_ended_is_resumed_without_another_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = Pooled(tmp_path, SUITE.replace("seeds: 8\n", "") + LOOKS, monkeypatch)
    before = pool.execute()
    after = pool.execute()
    assert before.looks[0].decision == "settled"
    assert (after.looks, after.results, after.starts) == (before.looks, before.results, before.starts)
    assert not [item for item in after.incidents if item.kind == "resumed"]
    damaged = next(item for item in pool.plan.trials() if item.repeat == 3)
    pool.folder.result(damaged.trial_id).unlink()
    again = pool.execute()
    assert len(again.results) == len(before.results) and again.looks[0].decision == "settled", "its block ran again"
    assert pool.problems() == []


def test_a_clock_that_is_set_back_on_a_lane_changes_no_order(pooled: Pooled) -> None:
    run, plan = pooled.lanes.run, pooled.plan

    def set_back(shard: int) -> None:
        run(shard)
        ledger = pooled.folder.shards / str(shard) / "1" / "ledger.jsonl"
        lines = read_lines(ledger, Attempt)
        ledger.write_text("".join(
            item.model_copy(update={"started_ms": item.started_ms - 3.6e6 * (item.trial_id == lines[-1].trial_id)})
            .model_dump_json() + "\n" for item in lines))
        append_line(ledger.with_name("incidents.jsonl"), Incident(at_ms=0, kind="clock", text="set back"))
        seal(RunFolder(ledger.parent))

    pooled.lanes.run = set_back  # type: ignore[method-assign]
    record = pooled.execute()
    assert [item.trial_id for item in sorted(record.starts, key=lambda item: item.repeat)] == [
        item.trial_id for item in plan.trials()]
    assert pooled.problems() == []


def test_a_lost_lane_runs_its_whole_block_again_and_its_trials_stay_in_the_ledger(pooled: Pooled) -> None:
    pooled.lanes.lost = {2: 1, 3: 0}.get
    record = pooled.execute()
    lost = [item for item in record.attempts if item.shard in ("2/1", "3/1")]
    assert [item.status for item in sorted(lost, key=lambda item: item.shard)] == ["lost", "started", "started"]
    again = {item.repeat: item.shard for item in record.attempts if item.repeat in (1, 2) and item.status == "ok"}
    assert len(again) == 2 and not {"2/1", "3/1"} & set(again.values())
    assert {item.attempt for item in record.results if item.repeat in (1, 2)} == {1, 2}
    assert sorted(item.text for item in record.incidents if item.kind == "lane") == [
        "shard 2 ended without the blocks of seeds 1; they run again as a whole",
        "shard 3 ended without the blocks of seeds 2; they run again as a whole"]
    found = compare(record.plan, record.results, execution=record.execution)[0]
    assert (found.verdict, found.left_out) == ("slower", ())
    assert pooled.problems() == []


@pytest.mark.slow
def test_a_block_that_is_always_lost_ends_the_run_and_its_starts_are_in_the_ledger(pooled: Pooled) -> None:
    plan = pooled.plan
    pooled.lanes.lanes = 1
    pooled.lanes.lost = lambda shard: 1 if shard >= 3 else None
    with pytest.raises(TrialError, match="the block of seed 2 was lost 3 times, last: nothing was said"):
        pooled.execute()
    record = read_record(pooled.folder.root)
    assert [item.status for item in record.attempts if item.repeat == 2] == ["lost", "started"] * 3
    pooled.lanes.lost = lambda shard: None
    record = pooled.execute()
    assert len(record.results) == len(plan.order) and pooled.problems() == []
    assert sorted(item.attempt for item in record.results if item.repeat == 2) == [4, 4]


def test_an_agent_that_ends_shards_before_their_first_trial_gets_no_other(
    pooled: Pooled, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A computer of another class refuses each shard at once, so it would take one after another."""
    monkeypatch.setenv("REPRO_SECRET", "0123456789abcdef")
    monkeypatch.setenv("REPRO_LISTEN", "127.0.0.1:0")
    with closing(AgentLanes(pooled.folder, 2, (), pooled.watcher.stage)) as lanes:
        good, other = (Node(cast(Channel, MagicMock()), host, 1, {}) for host in ("good", "other"))
        lanes._head.nodes = [other, good]
        lanes._ran = {1: other, 2: good}
        assert lanes.room() == 2 and lanes.avoid(1)
        assert lanes._free() == [good]
        assert not lanes.avoid(2), "the last one: its losses count"
        good.leave("gone")
        assert lanes._free() == [other]


def test_a_block_that_an_avoided_lane_has_refused_is_not_lost(
    pooled: Pooled, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, refused = pooled.lanes.run, list[int]()

    def refusing(shard: int) -> None:
        if shard > 3 and len(refused) < 4:
            refused.append(shard)
        else:
            run(shard)

    monkeypatch.setattr(pooled.lanes, "run", refusing)
    pooled.lanes.lanes, pooled.lanes.avoids = 1, True
    record = pooled.execute()
    assert len(refused) == 4 and len(record.results) == 16


def test_a_coordinator_that_was_killed_is_resumed(pooled: Pooled) -> None:
    def killed(shards: Sequence[int]) -> None:
        if len(pooled.lanes.started) >= 4:
            raise KeyboardInterrupt
        pooled.lanes.waiting += shards
        pooled.lanes.started += shards

    pooled.lanes.start = killed  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        pooled.execute()
    before = read_record(pooled.folder.root).results
    assert 0 < len(before) < 16
    del pooled.lanes.start  # type: ignore[method-assign]
    record = pooled.execute()
    assert {item.trial_id: item for item in record.results}.items() >= {item.trial_id: item for item in before}.items()
    assert len(record.attempts) == len(record.results) == 16, "nothing ran twice"
    assert compare(record.plan, record.results, execution=record.execution)[0].left_out == ()
    assert pooled.problems() == []


@pytest.mark.slow
def test_a_lane_of_another_class_is_refused(pooled: Pooled) -> None:
    run = pooled.lanes.run

    def other(shard: int) -> None:
        run(shard)
        place = pooled.folder.shards / str(shard) / "1" / "environment.json"
        if shard == 2:
            found = Environment.model_validate_json(place.read_text())
            write_model(place, found.model_copy(update={"cpu": "another"}))

    pooled.lanes.run = other  # type: ignore[method-assign]
    record = pooled.execute()
    (text,) = (item.text for item in record.incidents if item.kind == "lane")
    assert "shard 2/1 ran on another class of machine: cpu" in text and "now another" in text
    assert len(record.results) == 16 and pooled.problems() == []


@pytest.mark.slow
def test_a_result_that_is_damaged_has_its_whole_block_run_again(pooled: Pooled) -> None:
    record = pooled.execute()
    damaged = next(item for item in record.results if item.repeat == 5)
    record.folder.result(damaged.trial_id).write_text("{")
    record = pooled.execute()
    assert sorted(item.attempt for item in record.results if item.repeat == 5) == [2, 2]
    assert {item.attempt for item in record.results if item.repeat != 5} == {1}
    assert pooled.problems() == []


def changed(pooled: Pooled, change: Callable[[dict[str, object]], None]) -> list[str]:
    """Return what verify says of a sealed record with a changed ledger."""
    lines = [json.loads(line) for line in pooled.folder.ledger.read_text().splitlines()]
    for line in lines:
        change(line)
    pooled.folder.ledger.write_text("".join(json.dumps(line) + "\n" for line in lines))
    seal(pooled.folder)
    return pooled.problems()


def test_verify_names_a_block_that_is_divided_and_comparisons_leave_it_out(pooled: Pooled) -> None:
    record = pooled.execute()
    first = next(item for item in record.results if item.repeat == 4)
    line = next(item for item in read_lines(pooled.folder.lanes, Shard) if item.seeds == (4,))
    append_line(pooled.folder.lanes, line.model_copy(update={"shard": "99/1"}))
    found = changed(pooled, lambda item: item.update(shard="99/1") if item["trial_id"] == first.trial_id else None)
    assert any(text.startswith("ledger.jsonl: the block of seed 4 is divided among the shards") for text in found)
    record = read_record(pooled.folder.root)
    assert compare(record.plan, record.results, execution=record.execution)[0].left_out == (4,)


@pytest.mark.slow
def test_verify_names_starts_of_an_unknown_shard_and_a_wrong_order(pooled: Pooled) -> None:
    pooled.execute()
    places = {trial.trial_id: place for place, trial in enumerate(pooled.plan.trials())}
    found = changed(pooled, lambda item: item.update(shard="7/7") if item["repeat"] == 0 else None)
    assert "is of the shard '7/7', which lanes.jsonl does not have" in found[0]
    found = changed(pooled, lambda item: item.update(started_ms=2e12 - 1e4 * int(places[item["trial_id"]])))
    assert any("in shard 2/1, which started later" in text for text in found)


@pytest.mark.slow
def test_verify_names_a_shard_that_was_altered(pooled: Pooled) -> None:
    record = pooled.execute()
    name = record.attempts[0].shard
    (pooled.folder.shards / name / "sha256sums.txt").write_text("")
    assert pooled.problems() == [f"shards/{name}/sha256sums.txt: is not the index that lanes.jsonl names"]


def test_shards_state_their_part_of_the_plan(pooled: Pooled) -> None:
    record = pooled.execute()
    name = record.attempts[0].shard
    path = pooled.folder.shards / name / "plan.json"
    data = json.loads(path.read_text())
    data["order"] = data["order"][:1]
    path.write_text(json.dumps(data))
    assert f"shards/{name}/plan.json: is not the part of plan.json that its seeds give" in pooled.problems()


class Stop:
    """Ends a coordinator when it puts a file of a block into the record."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, files: int, error: type[BaseException]) -> None:
        self.left, self.error, self.put = files, error, shards._put
        monkeypatch.setattr(shards, "_put", self)

    def __call__(self, source: Path, target: Path, linked: bool) -> None:
        self.left -= 1
        if self.left == -1 or (self.left < 0 and self.error is SystemExit):
            raise self.error
        self.put(source, target, linked)


@pytest.mark.slow
@pytest.mark.parametrize("files", range(0, 14, 3))
def test_a_coordinator_that_is_killed_while_it_takes_a_block_finishes_that(
    pooled: Pooled, monkeypatch: pytest.MonkeyPatch, files: int
) -> None:
    with monkeypatch.context() as patch:
        Stop(patch, files, SystemExit)
        with pytest.raises(SystemExit):
            pooled.execute()
    (pooled.folder.root / "sha256sums.txt").unlink(missing_ok=True)  # as SIGKILL leaves it
    record = pooled.execute()
    assert len(record.attempts) == len(record.results) == 16
    assert pooled.problems() == []


@pytest.mark.slow
@pytest.mark.parametrize("files", [0, 4, 11])
def test_a_signal_while_a_block_is_taken_waits_for_all_of_it(
    pooled: Pooled, monkeypatch: pytest.MonkeyPatch, files: int
) -> None:
    with monkeypatch.context() as patch:
        Stop(patch, files, KeyboardInterrupt)
        with pytest.raises(KeyboardInterrupt):
            pooled.execute()
    before = read_record(pooled.folder.root)
    assert before.results and not any(item.status == "lost" for item in before.attempts)
    assert len(before.results) % 2 == 0
    assert len(pooled.execute().attempts) == 16 and pooled.problems() == []


@pytest.fixture
def solo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pooled:
    found = Pooled(tmp_path, SUITE, monkeypatch)
    found.plan = found.plan.model_copy(update={"solo": solo_seeds(found.plan, 5)})
    write_model(found.folder.plan, found.plan)
    return found


@pytest.mark.slow
def test_blocks_that_run_alone_come_first_and_count_in_no_verdict(
    solo: Pooled, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    busy: list[int] = []
    start = solo.lanes.start

    def started(shards: Sequence[int]) -> None:
        start(shards)
        busy.append(len(solo.lanes.waiting))

    solo.lanes.start = started  # type: ignore[method-assign]
    record = solo.execute()
    assert busy[:5] == [1] * 5 and busy[5] == 3
    assert sorted({item.repeat for item in record.alone}) == list(solo.plan.solo) and len(record.alone) == 10
    assert len(record.results) == len(record.attempts) == 16
    below = read_record(solo.folder.solo.root)
    assert max(item.started_ms for item in below.attempts) < min(item.started_ms for item in record.attempts)
    assert not {item.shard for item in below.attempts} & {item.shard for item in record.attempts}
    assert solo.problems() == []
    (tmp_path / "without").mkdir()
    without = Pooled(tmp_path / "without", SUITE, monkeypatch)
    without.plan = without.plan.model_copy(update={"order_seed": solo.plan.order_seed, "order": solo.plan.order})
    other = without.execute()
    ours, theirs = (compare(item.plan, item.results, execution=item.execution)[0] for item in (record, other))
    assert ours.by_load is not None and theirs.by_load is None
    changes = {"by_load": None, "by_node": None, "cautions": ()}  # other lanes run other seeds
    assert ours.model_copy(update=changes) == theirs.model_copy(update=changes)
    assert (ours.by_load.alone.pairs, ours.by_load.ratio, ours.by_load.interval) == (5, 1.0, None), "no spread"
    assert '"solo"' not in without.folder.plan.read_text()
    assert not without.folder.solo.root.exists()


@pytest.mark.slow
def test_the_gate_ran_alone_and_not_again_on_every_lane(solo: Pooled) -> None:
    record = solo.execute()
    assert record.parity is not None and not record.folder.parity.exists()
    assert not list(solo.folder.shards.glob("[6-9]/1/parity"))


@pytest.mark.slow
def test_a_lane_that_is_lost_alone_runs_its_block_again_alone(solo: Pooled) -> None:
    solo.lanes.lost = {2: 1}.get
    record = solo.execute()
    below = read_record(solo.folder.solo.root)
    assert [item.status for item in below.attempts if item.shard == "2/1"] == ["lost", "started"]
    assert len(below.results) == 10 and {item.attempt for item in record.results} == {1}
    assert any("they run again as a whole" in item.text for item in below.incidents)
    assert solo.problems() == []


@pytest.mark.slow
def test_blocks_alone_that_are_missing_run_when_the_run_is_resumed(solo: Pooled) -> None:
    start = solo.lanes.start

    def killed(shards: Sequence[int]) -> None:
        if len(solo.lanes.started) >= 3:
            raise KeyboardInterrupt
        start(shards)

    solo.lanes.start = killed  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        solo.execute()
    assert len(read_record(solo.folder.solo.root).results) == 6 and not solo.folder.environment.exists()
    solo.lanes.start = start  # type: ignore[method-assign]
    record = solo.execute()
    assert len(record.alone) == 10 and len(record.results) == 16 and solo.problems() == []
    assert len(read_record(solo.folder.solo.root).attempts) == 10, "nothing ran twice"
    record.folder.solo.result(record.alone[-1].trial_id).unlink()
    again = solo.execute()
    assert len(again.alone) == 10 and {item.attempt for item in again.results} == {1} and solo.problems() == []


@pytest.mark.slow
def test_verify_names_blocks_that_were_chosen_to_run_alone(solo: Pooled) -> None:
    solo.execute()
    chosen = solo.plan.model_copy(update={"solo": tuple(range(5))})
    assert chosen.solo != solo.plan.solo
    write_model(solo.folder.plan, chosen)
    seal(solo.folder)
    found = solo.problems()
    assert "plan.json: solo: are not the seeds that its master seed draws" in found
    assert "solo/plan.json: is not the part of plan.json that its solo seeds give" in found


def test_blocks_alone_are_drawn_over_the_seeds_before_the_first_look(tmp_path: Path) -> None:
    plan = planned(tmp_path, SUITE)
    assert solo_seeds(plan, 8) == tuple(range(8)) and solo_seeds(plan, 9) == ()
    found = solo_seeds(plan, 5)
    assert all(8 * part // 5 <= seed < 8 * (part + 1) // 5 for part, seed in enumerate(found))
    looks = planned(tmp_path, SUITE.replace("seeds: 8\n", "") + LOOKS)
    assert max(solo_seeds(looks, 7)) == 6 and solo_seeds(looks, 8) == ()
