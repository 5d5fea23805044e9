"""A record replayed to MLflow and read back through MLflow's own client: a real server, a local SQLite file."""

from __future__ import annotations

import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from repro.reporters.tracking.state import identity

from repro.compare import compare, summarize
from repro.core.events import EventLog, read_events
from repro.core.markdown import escaped
from repro.record.folder.ledger import Attempt
from repro.record.folder.store import Record, read_record
from repro.record.log.schema import SystemSample
from repro.record.result.remarks import stated
from repro.runner import tracking as tracking
from tests.flow.mlflow_stores import NARROW, QUIET, SMALL, dump, dump_run, later, named, reporter
from tests.records import Course, default_course, make_record, write_log
from tests.tracking_server import Site

pytest.importorskip("mlflow")
pytestmark = QUIET
ROOT = Path(__file__).resolve().parents[2]


def tables(site: Site) -> dict[str, list[Any]]:
    """Every row of every table that holds runs: what must not change when there is nothing new."""
    names = ("experiments", "runs", "tags", "params", "metrics", "latest_metrics", "datasets", "inputs", "input_tags")
    with closing(sqlite3.connect(site.database)) as database:
        return {name: sorted(map(repr, database.execute(f"SELECT * FROM {name}"))) for name in names}


@pytest.mark.parametrize("kind", ["local", pytest.param("served", marks=pytest.mark.slow)])
def test_everything_of_a_record_is_there_and_a_second_replay_changes_nothing(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    site: Site = request.getfixturevalue(kind)
    uri = site.uri
    suite = SMALL if kind == "local" else NARROW.replace("seeds: 2", "seeds: 1")
    record = make_record(tmp_path / "run", named(suite, f"whole-{kind}"))
    name = record.plan.suite.suite
    record.folder.reports.mkdir()
    (record.folder.reports / "report.html").write_text("<p>a report</p>")
    places = reporter(uri).write(record, record.folder.reports)
    assert places[0].startswith(uri)
    cells = [record.plan.cells[-1].cell_id]
    if kind == "local":
        cells.append(record.plan.cells[0].cell_id)
    trials = [record.of_cell(cell_id)[-1].trial_id for cell_id in cells]
    keys = [f"cell:{cell_id}" for cell_id in cells] + [f"trial:{trial_id}/1" for trial_id in trials]
    dumped = dump(uri, name, keys)
    for cell_id in cells:
        check_cell(record, cell_id, dumped)
    for trial_id in trials:
        check_trial(record, trial_id, dumped)
    before, uploads = tables(site), stamps(site)
    again = reporter(uri)
    again.write(record, record.folder.reports)
    again.write(record, record.folder.reports)
    assert tables(site) == before
    assert stamps(site) == uploads


def stamps(site: Site) -> dict[str, int]:
    """When each artifact was last written."""
    return {str(path): path.stat().st_mtime_ns for path in site.database.parent.rglob("artifacts/**/*")}


def check_cell(record: Record, cell_id: str, dumped: dict[str, Any]) -> None:
    run, cell = dumped[f"cell:{cell_id}"], record.cell(cell_id)
    summary = summarize(cell, record.of_cell(cell_id))
    last = {key: points[-1][2] for key, points in run["metrics"].items()}
    number = record.plan.cells.index(cell) + 1
    assert run["name"] == f"{number}: {cell.label}"
    assert run["status"] == "FINISHED"
    assert last["answer/median_tta_wall"] == summary.median
    assert last["interval/trials"] == last["answer/reached"] == summary.n
    assert summary.success is not None
    assert last["interval/success_probability_low"] == summary.success.low
    assert json.loads(run["tags"]["repro.intervals"])["success_probability"] == f"{summary.success.level:g}"
    assert last["median/epochs_to_target"] == summary.median_epochs
    comparison = next((item for item in compare(record.plan, record.results) if item.candidate == cell_id), None)
    if comparison is not None and comparison.interval is not None:
        assert last["answer/ratio"] == comparison.ratio
        bounds = comparison.interval
        assert (last["interval/ratio_low"], last["interval/ratio_high"]) == (bounds.low, bounds.high)
        assert last["contrast/pairs"] == comparison.n
        assert run["tags"]["repro.verdict"] == comparison.verdict
        assert f"Why: {escaped(comparison.because)}." in run["tags"]["mlflow.note.content"]
        assert run["tags"]["repro.baseline"] == comparison.baseline
    assert run["tags"]["repro.suite_digest"] == record.plan.digest
    assert run["tags"]["repro.label"] == "measured"
    assert run["params"]["Cell"] == cell.label
    assert next(iter(run["metrics"])) == "answer/median_tta_wall"  # what MLflow's comparison draws first
    assert min(key.partition("/")[0] for key in last) == "answer"  # what MLflow's charts show first
    assert {point[0] for points in run["metrics"].values() for point in points} == {0}  # steps: drawn as bars
    assert run["params"]["batch.global"] == "64"
    assert "channels_last" not in run["params"] and "engine.offload" not in run["params"]  # their defaults
    assert run["params"]["engine"] == cell.factors["engine"]
    wanted = {"plan.json", "environment.json", "ledger.jsonl", "suite.yaml", "parity.json"}
    assert wanted <= {path for path, _ in run["artifacts"]}
    if cell is record.plan.cells[0]:
        assert "report.html" in {path for path, _ in run["artifacts"]}


def sample(used: float) -> SystemSample:
    return SystemSample(cpu_utilization_percentage=used, system_memory_usage_megabytes=1.0,
                        system_memory_usage_percentage=1.0)


def check_trial(record: Record, trial_id: str, dumped: dict[str, Any]) -> None:
    run = dumped[f"trial:{trial_id}/1"]
    result = next(item for item in record.results if item.trial_id == trial_id)
    events = read_events(record.folder.log(trial_id, 1))[0]
    evaluations = [event for event in events if event.key == "eval_accuracy"]
    metrics = run["metrics"]
    assert metrics["curve/eval_top1"] == [
        (event.metadata["samples_count"] // 64, round(event.time_ms), event.value) for event in evaluations
    ]
    samples = [item.metadata["samples_count"] for item in evaluations]
    assert [point[2] for point in metrics["progress/samples"]] == samples
    losses = [loss for event in events if event.key == "x_steps" for loss in event.value["loss"]]
    assert [(step, value) for step, _, value in metrics["curve/loss"]] == list(enumerate(losses, 1))
    moments = [moment for _, moment, _ in metrics["curve/loss"]]
    assert moments == sorted(moments)
    assert moments[-1] - moments[0] < (events[-1].time_ms - events[0].time_ms)
    seconds = [sum(event.value["seconds"]) / len(event.value["seconds"]) for event in events if event.key == "x_steps"]
    assert [value for _, _, value in metrics["curve/step_seconds"]] == seconds
    assert metrics["answer/tta_wall"][0][2] == result.tta_wall
    assert metrics["phase/train_seconds"][0][2] == result.phases["train"]
    assert run["status"] == "FINISHED"
    assert (run["start"], run["end"]) == (round(events[0].time_ms), round(events[-1].time_ms))
    assert run["tags"]["mlflow.parentRunId"] == dumped[f"cell:{result.cell_id}"]["id"]
    assert run["tags"]["repro.status"] == "ok"
    assert json.loads(run["tags"]["repro.hashes"]) == result.hashes
    assert run["params"]["repeat"] == str(result.repeat)
    data, = run["data"]
    assert data[:2] == ("sample digits", "0" * 36)
    assert json.loads(data[2])["sha256"] == data[3]["repro.sha256"] == "0" * 64
    assert {"result_1.txt", "result.json", "trial.json", "rank0.log"} == {path for path, _ in run["artifacts"]}


@pytest.mark.slow
def test_replays_in_parts_come_to_the_same_trials_as_one_replay(store: str, tmp_path: Path) -> None:
    record = make_record(tmp_path / "run", named(SMALL, "parts"), only=3)
    reporter(store).write(record, tmp_path)
    early = dump(store, "parts")
    assert {run["status"] for key, run in early.items() if key.startswith("cell")} == {"RUNNING"}
    record = later(record, 8)
    live = reporter(store)
    live.write(record, tmp_path)
    live.write(record, tmp_path)
    parts = dump(store, "parts")
    assert len(parts) == len(record.plan.cells) + len(record.results)
    assert {run["status"] for run in parts.values()} == {"FINISHED"}
    assert {key: parts[key]["id"] for key in early} == {key: run["id"] for key, run in early.items()}
    make_record(tmp_path / "once", named(SMALL, "once"))
    reporter(store).write(read_record(tmp_path / "once"), tmp_path)
    once = dump(store, "once")
    trials = {key.rpartition("-")[0]: run for key, run in parts.items() if key.startswith("trial")}
    for key, run in once.items():
        if key.startswith("trial"):  # ids carry the suite's name; cells keep a history of how they settled
            assert trials[key.rpartition("-")[0]]["metrics"] == run["metrics"]


@pytest.mark.slow
@pytest.mark.parametrize("kept", ["nothing", "an older state"])
def test_after_a_crash_between_answer_and_state_no_point_is_there_twice(
    kept: str, served: Site, tmp_path: Path
) -> None:
    name, server = f"crash-{kept.split()[-1]}", served.uri
    record = make_record(tmp_path / "run", named(SMALL, name), only=2)
    reporter(server).write(record, tmp_path)
    old = record.folder.tracking.read_bytes()
    record = later(record, 5)
    reporter(server).write(record, tmp_path)
    before = tables(served)
    if kept == "nothing":
        record.folder.tracking.unlink()
    else:
        record.folder.tracking.write_bytes(old)
    reporter(server).write(record, tmp_path)
    assert tables(served) == before


def test_a_store_made_of_files_which_keeps_doubles_gets_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A database drops a point that it has; files do not, so here only what is sent counts."""
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    uri = (tmp_path / "files").as_uri()
    record = make_record(tmp_path / "run", named(SMALL, "files"), only=2)
    reporter(uri).write(record, tmp_path)
    before = dump(uri, "files")
    record.folder.tracking.unlink()
    reporter(uri).write(record, tmp_path)
    assert dump(uri, "files") == before


def test_runs_that_are_gone_are_made_again(store: str, tmp_path: Path) -> None:
    from mlflow import MlflowClient

    record = make_record(tmp_path / "run", named(SMALL, "gone"), only=2)
    reporter(store).write(record, tmp_path)
    before = dump(store, "gone")
    victim = next(key for key in before if key.startswith("trial"))
    MlflowClient(store).delete_run(before[victim]["id"])
    reporter(store).write(record, tmp_path)
    after = dump(store, "gone")
    assert after[victim]["id"] != before[victim]["id"]
    assert after[victim]["metrics"] == before[victim]["metrics"]


def test_a_running_trial_appears_and_ends(store: str, tmp_path: Path) -> None:
    record = make_record(tmp_path / "run", named(SMALL, "live"), only=0)
    folder, trial = record.folder, next(iter(record.plan.trials()))
    folder.trial(trial.trial_id).mkdir(parents=True)
    full = tmp_path / "full.txt"
    write_log(full, trial, default_course(trial))
    lines = full.read_text().splitlines(keepends=True)
    folder.append_attempt(Attempt(trial_id=trial.trial_id, cell_id=trial.cell_id, repeat=trial.repeat, attempt=1,
                                  started_ms=0, seconds=0, status="started", reasons=stated("as before every launch")))
    record = read_record(folder.root)
    log = folder.log(trial.trial_id, 1)
    cut = next(index for index, line in enumerate(lines) if '"eval_accuracy"' in line) + 1
    log.write_text("".join(lines[:cut]) + lines[cut][:20])
    system = EventLog(folder.system_log(trial.trial_id, 1))
    system.write(sample(50.0))
    system.flush()
    live, key = reporter(store), f"trial:{trial.trial_id}/1"
    live.write(record, tmp_path)
    run = dump(store, "live")[key]
    assert (run["status"], run["end"], run["tags"]["repro.status"]) == ("RUNNING", None, "running")
    assert len(run["metrics"]["curve/eval_top1"]) == 1
    assert [point[::2] for point in run["metrics"]["system/cpu_utilization_percentage"]] == [(0, 50.0)]
    log.write_text("".join(lines))
    system.write(sample(60.0))
    system.close()
    live.write(record, tmp_path)
    run = dump(store, "live")[key]
    assert len(run["metrics"]["curve/eval_top1"]) == 4
    assert [point[::2] for point in run["metrics"]["system/cpu_utilization_percentage"]] == [(0, 50.0), (1, 60.0)]
    reporter(store, ended=True).write(record, tmp_path)
    run = dump(store, "live")[key]
    assert (run["status"], run["tags"]["repro.status"]) == ("KILLED", "killed")
    assert run["end"] == round(read_events(full)[0][-1].time_ms)
    record = later(record, 1)
    reporter(store).write(record, tmp_path)
    assert dump(store, "live")[key]["status"] == "FINISHED"


def test_a_crashed_trial_is_a_failed_run_with_its_reason(store: str, tmp_path: Path) -> None:
    record = make_record(tmp_path / "run", named(SMALL, "crashed"), lambda trial: Course(crash=trial.repeat == 1))
    reporter(store).write(record, tmp_path)
    dumped = dump(store, "crashed")
    failed = [run for key, run in dumped.items() if key.startswith("trial") and run["status"] == "FAILED"]
    assert len(failed) == 4
    assert {run["tags"]["repro.reason"] for run in failed} == {"rank 0: RuntimeError: made to fail"}
    assert {run["status"] for key, run in dumped.items() if key.startswith("cell")} == {"FAILED"}


def test_two_runs_of_one_suite_are_two_sets_of_runs(store: str, tmp_path: Path) -> None:
    for started_ms, name in enumerate(("one", "two")):
        record = make_record(tmp_path / name, named(SMALL, "twice"), only=1, started_ms=started_ms)
        reporter(store).write(record, tmp_path)
    from mlflow import MlflowClient

    client = MlflowClient(store)
    experiment = client.get_experiment_by_name("twice")
    assert experiment is not None
    assert len(client.search_runs([experiment.experiment_id])) == 4


def test_a_record_that_names_the_runs_of_another_writes_to_none_of_them(
    local: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    suite = named(NARROW.replace("seeds: 2", "seeds: 1"), "stranger")
    mine = make_record(tmp_path / "mine", suite)
    reporter(local.uri).write(mine, tmp_path)
    before = dump(local.uri, "stranger")
    theirs = make_record(tmp_path / "theirs", suite, lambda _: Course(crash=True), started_ms=1_700_000_000_000)
    shutil.copy(mine.folder.tracking, theirs.folder.tracking)
    assert reporter(local.uri).left(theirs) != ""
    capsys.readouterr()
    reporter(local.uri).write(theirs, tmp_path)
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 1 and "tracking.json: names the MLflow runs of another record" in told[0]
    ids = {run["id"] for run in before.values()}
    with closing(sqlite3.connect(local.database)) as database:
        after = {row[0]: row[1:] for row in database.execute("SELECT run_uuid, status, lifecycle_stage FROM runs")}
        points = database.execute("SELECT run_uuid, count(*) FROM metrics GROUP BY run_uuid").fetchall()
    assert len(after) == 2 * len(ids) and {after[name] for name in ids} == {("FINISHED", "active")}
    assert {name: count for name, count in points if name in ids} == {
        run["id"]: sum(len(series) for series in run["metrics"].values()) for run in before.values()}
    reporter(local.uri).write(theirs, tmp_path)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("signed", [True, False])
def test_run_ids_that_a_record_claims_as_its_own_are_not_believed(store: str, tmp_path: Path, signed: bool) -> None:
    """A stranger can compute a record's identity; a run is the record's only if the store's tags say so."""
    suite = named(NARROW.replace("seeds: 2", "seeds: 1"), "forged")
    mine = make_record(tmp_path / "mine", suite)
    reporter(store).write(mine, tmp_path)
    before = dump(store, "forged")
    theirs = make_record(tmp_path / "theirs", suite, lambda _: Course(crash=True), started_ms=1_700_000_000_000)
    forged = json.loads(mine.folder.tracking.read_text()) | {"run": identity(theirs) if signed else ""}
    theirs.folder.tracking.write_text(json.dumps(forged))
    reporter(store).write(theirs, tmp_path)
    from mlflow import MlflowClient

    client = MlflowClient(store)
    assert {run["id"]: dump_run(client, client.get_run(run["id"])) for run in before.values()} == {
        run["id"]: run for run in before.values()}
    sent = json.loads(theirs.folder.tracking.read_text())["stores"]
    used = {run["run_id"] for place in sent.values() for run in place["runs"].values()}
    assert used and not used & {run["id"] for run in before.values()}


def test_long_values_are_cut_and_kept_complete_as_an_artifact(store: str, tmp_path: Path) -> None:
    text = named(SMALL, "long").replace("device: cpu", f"device: cpu\n  launcher: local\n  schedule: {schedule()}")
    record = make_record(tmp_path / "run", text, only=1)
    reporter(store).write(record, tmp_path)
    from mlflow.artifacts import load_dict

    run = next(run for key, run in dump(store, "long").items() if key.startswith("cell"))
    assert len(run["params"]["schedule.milestones"]) == 6000
    uri = f"file://{tmp_path}/mlruns/long/{run['id']}/artifacts/params.json"
    assert json.loads(load_dict(uri)["schedule.milestones"]) == milestones()


def milestones() -> list[float]:
    return [index + 0.5 for index in range(1500)]


def schedule() -> str:
    return json.dumps({"kind": "step", "milestones": milestones()})
