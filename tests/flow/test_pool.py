"""Suites in a pool on this machine: real lanes at the same time, the record of one lane, and lanes that are killed."""

from __future__ import annotations

import os
import signal
import socket
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path

import psutil
import pytest

from repro.compare import compare
from repro.core.files import write_model
from repro.record.folder.shards import ASSIGNED, Assignment
from repro.record.folder.store import Record, read_record
from repro.runner import machine_watch
from repro.runner.machine_watch import only_run_that_times
from repro.runner.run import prepare
from tests.commands import command, start
from tests.plans import plan_file
from tests.waiting import until

SUITE = """\
suite: lanes
seeds: 6
master_seed: 20151102
trial:
  workload: {kind: digits-mlp, hidden: 16, depth: 1}
  engine: ddp
  batch: {global: 64}
  optimizer: {kind: sgd, lr: 0.05}
  stop: {metric: top1, target: 0.5, max_epochs: EPOCHS, design: fixed_budget}
  evaluate_every: 2000
  determinism: bitwise
matrix:
  batch.global: [16, 64]
baseline: {batch: {global: 64}}
primary:
  candidate: {batch: {global: 16}}
  baseline: {batch: {global: 64}}
"""


def suite(folder: Path, epochs: int = 10) -> Path:
    (folder / "s.yaml").write_text(SUITE.replace("EPOCHS", str(epochs)))
    return folder / "s.yaml"


def weights(record: Record) -> dict[str, object]:
    """Hash of the final weights and the evaluations of every trial, and the hashes of what its seed drew."""
    return {item.trial_id: (item.hashes, [point.value for point in item.curve]) for item in record.results}


@pytest.mark.slow
def test_three_shards_at_once_give_the_record_of_one_lane(tmp_path: Path) -> None:
    """Started by hand, each by its own command; then the coordinator finds them."""
    written = suite(tmp_path)
    assert command(tmp_path, "run", "s.yaml", "--no-mlflow", "--out", "serial").code == 0
    alone = read_record(tmp_path / "serial")
    plan = plan_file(written).model_copy(update={"order_seed": alone.plan.order_seed, "order": alone.plan.order})
    folder = prepare(plan, written.read_text(), tmp_path / "pool")
    (folder.root / "pool.json").write_text('{"pool": {"kind": "cores", "lanes": 1}, "name": "by-hand"}')
    lanes = []
    for number in (1, 2, 3):
        (folder.shards / str(number)).mkdir(parents=True)
        write_model(folder.shards / str(number) / ASSIGNED, Assignment(seeds=(number - 1, number + 2)))
        lanes.append(start(tmp_path, "lane", "pool", str(number), REPRO_NODE=f"node{number}"))
    for lane in lanes:
        _, error = lane.communicate(timeout=300)
        assert lane.returncode == 0, error
    assert command(tmp_path, "run", "--resume", "pool", "--no-mlflow").code == 0
    record = read_record(folder.root)
    begun = [[item.started_ms for item in record.attempts if item.shard == f"{number}/1"] for number in (1, 2, 3)]
    assert max(map(min, begun)) < min(map(max, begun)), "all three ran at the same time"
    assert weights(record) == weights(alone)
    assert [item.trial_id for item in record.results] == [item.trial_id for item in alone.results]
    assert record.plan.model_copy(update={"notes": ()}) == alone.plan.model_copy(update={"notes": ()})
    assert command(tmp_path, "verify", "pool").code == 0
    (found,) = compare(record.plan, record.results, execution=record.execution)
    assert found.verdict in ("faster", "slower", "same", "inconclusive") and found.left_out == ()
    assert not any("order of execution" in text and "refus" in text for text in found.cautions)


@pytest.mark.slow
def test_a_lane_that_is_killed_and_then_the_coordinator(tmp_path: Path) -> None:
    suite(tmp_path)
    run = start(tmp_path, "run", "s.yaml", "--no-mlflow", "--out", "pool", "--pool", "{kind: cores, lanes: 2}")
    try:
        until(lambda: len(list(tmp_path.glob("pool/shards/*/1/trials/*/system_1.txt"))) >= 2)
        lanes = [child for child in psutil.Process(run.pid).children() if "lane" in child.cmdline()]
        assert len(lanes) == 2
        lanes[0].kill()
        until(lambda: "run again as a whole" in (tmp_path / "pool/incidents.jsonl").read_text()
              if (tmp_path / "pool/incidents.jsonl").exists() else False)
        until(lambda: list(tmp_path.glob("pool/trials/*/result.json")))
        run.kill()
        run.communicate()
        until(lambda: not any(lane.is_running() for lane in lanes))
    finally:
        run.kill()
    before = {item.trial_id: item for item in read_record(tmp_path / "pool").results}
    ended = command(tmp_path, "run", "--resume", "pool", "--no-mlflow")
    assert ended.code == 0, ended.error
    record = read_record(tmp_path / "pool")
    assert [item.status for item in record.results] == ["ok"] * 12
    assert {item.trial_id: item for item in record.results}.items() >= before.items()
    assert any(item.status in ("started", "lost", "interrupted") for item in record.attempts)
    assert command(tmp_path, "verify", "pool").code == 0
    assert compare(record.plan, record.results, execution=record.execution)[0].left_out == ()


@pytest.mark.slow
def test_blocks_run_alone_before_the_pool_also_if_the_run_is_interrupted_meanwhile(tmp_path: Path) -> None:
    suite(tmp_path, epochs=2)
    run = start(tmp_path, "run", "s.yaml", "--no-mlflow", "--out", "pool", "--pool", "{kind: cores, lanes: 2, solo: 5}")
    try:
        until(lambda: len(list(tmp_path.glob("pool/solo/trials/*/result.json"))) >= 2)
        run.send_signal(signal.SIGINT)
        _, error = run.communicate(timeout=120)
    finally:
        run.kill()
    assert run.returncode == 130 and "--resume pool" in error, error
    ended = command(tmp_path, "run", "--resume", "pool", "--no-mlflow")
    assert ended.code == 0, ended.error
    part = command(tmp_path, "run", "--resume", "pool/solo", "--no-mlflow")
    assert part.code == 2 and "pool/solo: is a part of a run in a pool; resume that run" in part.error, part.error
    record, alone = read_record(tmp_path / "pool"), read_record(tmp_path / "pool/solo")
    assert [item.status for item in record.results] == ["ok"] * 12 and len(record.alone) == 10
    spans = sorted((item.started_ms, item.started_ms + 1e3 * item.seconds) for item in alone.attempts)
    assert all(end <= begin for (_, end), (begin, _) in pairwise(spans)), "one at a time"
    assert spans[-1][1] <= min(item.started_ms for item in record.attempts)
    assert {item.nodes for item in alone.attempts} == {item.nodes for item in record.attempts}, "on both lanes"
    (found,) = compare(record.plan, record.results, execution=record.execution)
    assert found.by_load is not None and found.by_load.interval is not None and found.n == 6
    assert command(tmp_path, "verify", "pool").code == 0


@pytest.mark.slow
def test_a_calibration_in_a_pool_is_that_of_records_from_a_pool(tmp_path: Path) -> None:
    """Its twins run on lanes too; a run without a pool is not calibrated by it."""
    suite(tmp_path, epochs=2)
    pool = ("--pool", "{kind: cores, lanes: 2, blocks_per_task: 3}")
    ended = command(tmp_path, "calibrate", "s.yaml", *pool, "--pairs", "6", XDG_DATA_HOME=str(tmp_path / "data"))
    assert ended.code in (0, 3) and "cores, cpu, in a pool" in ended.out, ended.error
    (stored,) = (tmp_path / "data/repro/calibration").iterdir()
    assert stored.name.endswith("-pool.json")
    (twins,) = (tmp_path / "runs").iterdir()
    record = read_record(twins)
    assert len({item.nodes for item in record.attempts}) == 2 and record.plan.has_twins
    assert command(tmp_path, "verify", str(twins)).code == 0
    for name, options, found in (("pooled", pool, True), ("serial", (), False)):
        ran = command(tmp_path, "run", "s.yaml", "--no-mlflow", "--out", name, *options, "--master-seed", "7",
                      XDG_DATA_HOME=str(tmp_path / "data"))
        assert ran.code == 0 and (tmp_path / name / "calibration.json").is_file() == found, ran.error


@pytest.fixture
def name(monkeypatch: pytest.MonkeyPatch) -> str:
    found = f"\0repro-timing-test-{os.urandom(8).hex()}"
    monkeypatch.delenv(machine_watch.VARIABLE)
    monkeypatch.setattr(machine_watch, "NAME", found)
    monkeypatch.setattr(machine_watch, "PAUSE_SECONDS", 0.01)
    return found


def bound(held: ExitStack, name: str) -> None:
    lock = held.enter_context(socket.socket(socket.AF_UNIX))
    lock.bind(name)
    lock.listen()


@pytest.mark.parametrize(("lane", "taken", "waits"), [
    (True, "-core{other}", False), (True, "-core{own}", True), (True, "", True), (False, "-core{other}", True)])
def test_lanes_of_other_cores_time_at_once_and_nothing_else_does(
    name: str, monkeypatch: pytest.MonkeyPatch, lane: bool, taken: str, waits: bool
) -> None:
    own = min(os.sched_getaffinity(0))
    other = 1 + max(os.sched_getaffinity(0))
    said: list[str] = []
    with ExitStack() as held:
        bound(held, name + taken.format(own=own, other=other))
        monkeypatch.setattr(machine_watch.time, "sleep", lambda _: held.close())
        with only_run_that_times(said.append, lane) as waited:
            assert (waited > 0, len(said)) == (waits, int(waits))


def test_a_lane_gives_its_names_back_while_it_waits(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with ExitStack() as held:
        bound(held, name)

        def see(_: float) -> None:
            names = Path("/proc/net/unix").read_text()
            assert f"@{name[1:]}\n" in names and f"@{name[1:]}-core" not in names
            held.close()

        monkeypatch.setattr(machine_watch.time, "sleep", see)
        with only_run_that_times(lambda _: None, lane=True):
            assert f"@{name[1:]}-core" in Path("/proc/net/unix").read_text()


@pytest.mark.slow
@pytest.mark.parametrize(("pool", "said"), [
    ("{kind: slurm}", "lanes: is missing; an example: '{kind: slurm, lanes: 16}'"),
    ("{kind: cloud, lanes: 2}", "kind: Input should be 'slurm', 'agents', 'gpus' or 'cores'"),
    ("{kind: cores, lanes: 4000}", "4000 lanes are too many for"),
    ("gpus", "this machine has no usable GPU"),
])
def test_a_pool_that_cannot_be_is_refused_in_one_line(tmp_path: Path, pool: str, said: str) -> None:
    suite(tmp_path)
    ended = command(tmp_path, "run", "s.yaml", "--no-mlflow", "--out", "pool", "--pool", pool,
                    CUDA_VISIBLE_DEVICES="")
    assert (ended.code, ended.error.count("\n")) == (2, 1) and said in ended.error, ended.error
    assert not (tmp_path / "pool").exists()


@pytest.mark.slow
def test_programs_of_a_suite_run_in_lanes(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import sys, time\nprint('begin')\ntime.sleep(float(sys.argv[2]))\n"
                                       "print('step 1 loss', int(sys.argv[1]) / 2**32)\n")
    (tmp_path / "s.yaml").write_text("""\
suite: programs
seeds: 2
trial:
  engine: {kind: program, run: [python, train.py, "{seed}", "{wait}"], files: [train.py]}
  parameters: {wait: 0.05}
  evaluation: {pattern: 'step (?P<step>\\d+) loss (?P<value>\\S+)', metric: loss, direction: lower, start: ^begin}
  stop: {target: 1}
matrix: {parameters.wait: [0.05, 0.1]}
""")
    done = command(tmp_path, "run", "s.yaml", "--pool", "{kind: cores, lanes: 2}", "--no-mlflow", "--out", "run")
    assert done.code == 0, done.error
    assert len(read_record(tmp_path / "run").results) == 4
