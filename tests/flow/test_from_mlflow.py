"""A report from the tracking server alone: the same bytes as from the run folder, for one who does not have it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import repro
from repro.bundle.source import open_record
from repro.core import registry
from repro.core.errors import ReproError
from repro.record.folder.index import seal
from repro.record.folder.ledger import Attempt
from repro.record.folder.store import Record, read_record
from repro.record.result.remarks import stated
from tests.commands import free_port
from tests.flow.mlflow_stores import QUIET
from tests.in_process import called, succeeded
from tests.records import SUITE, Course, make_record
from tests.tracking_server import serving

pytest.importorskip("mlflow")
pytestmark = [pytest.mark.slow, *QUIET]
ROOT = Path(repro.__file__).parents[1]
NARROW = SUITE.replace("seeds: 6", "seeds: 2").replace("processes: [1, 2]", "processes: [2]")
FORMATS = "html,markdown,csv,jsonl,mllog"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving(tmp_path_factory.mktemp("server")) as site:
        yield site.uri


@pytest.fixture(scope="module")
def sent(server: str, tmp_path_factory: pytest.TempPathFactory) -> Record:
    """A record with a repeated attempt and a crash, sent to the server, its reports written."""
    root = tmp_path_factory.mktemp("sent") / "run"
    record = make_record(root, NARROW, lambda trial: Course(
        crash=trial.repeat == 1 and trial.choices.engine.kind == "deepspeed"))
    first = record.results[0]
    record.folder.log(first.trial_id, 2).write_text(record.folder.log(first.trial_id, 1).read_text())
    record.folder.append_attempt(Attempt(
        trial_id=first.trial_id, cell_id=first.cell_id, repeat=first.repeat, attempt=2, started_ms=1.61e12, seconds=1.0,
        status="crashed", reasons=stated("again, for the test")))
    record.folder.append_incident("resumed", "for the test, <b>&amp;\u202e")
    record.folder.launchers.write_text('{"preload_seconds": 1.25}')
    seal(record.folder)
    record = read_record(root)
    registry.load("reporter", "html")().write(record, record.folder.reports)
    registry.load("reporter", "mlflow")(tracking_uri=server, ended=True).write(record, record.folder.reports)
    return record


def reports(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_the_server_alone_gives_the_same_reports(
    sent: Record, server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server)
    ended = succeeded("report", "mlflow:sample", "--to", FORMATS, "--out", tmp_path / "got")
    assert "MODIFIED" not in ended.stderr, "MLflow keeps no index"
    succeeded("report", sent.folder.root, "--to", FORMATS, "--out", tmp_path / "own")
    ours, theirs = reports(tmp_path / "own"), reports(tmp_path / "got")
    assert ours.keys() == theirs.keys() and len(ours) > 10
    assert [name for name in ours if ours[name] != theirs[name]] == []
    with open_record(Path("mlflow:sample")) as root:
        again = read_record(root)
    assert (again.plan, again.results, again.attempts) == (sent.plan, sent.results, sent.attempts)


def test_an_experiment_opens_by_its_name_and_by_its_address_in_a_browser(
    sent: Record, server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow import MlflowClient

    number = MlflowClient(server).get_experiment_by_name("sample").experiment_id
    address = f"{server}/#/experiments/{number}/runs?workflowType=machine_learning"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server)
    wanted = repro.open(sent.folder.root).trials
    for source in ("mlflow:sample", address):
        found = repro.open(source)
        assert found.trials.equals(wanted) and found.state.startswith("rebuilt from MLflow, which keeps no index")
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    shown = succeeded("compare", address).stdout
    assert "sample, digest" in shown and repro.open(address).compare().verdict in shown
    monkeypatch.chdir(tmp_path)
    succeeded("report", address, "--to", "csv")
    assert (tmp_path / f"experiment-{number}-report/csv/trials.csv").is_file()
    with pytest.raises(ReproError, match=r"mlflow\.db: there is no tracking store yet"):
        repro.open("mlflow:nothing")
    assert not (tmp_path / "mlflow.db").exists()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server)
    with pytest.raises(ReproError, match="no experiment named 'nothing'"):
        repro.open("mlflow:nothing")


def test_the_store_has_tables_and_factors(sent: Record, server: str, tmp_path: Path) -> None:
    from mlflow import MlflowClient

    client = MlflowClient(server)
    experiment = client.get_experiment_by_name("sample")
    assert experiment is not None
    cells = client.search_runs([experiment.experiment_id], "tags.`repro.level` = 'cell'")
    wanted = {cell.factors["engine"] for cell in sent.plan.cells}
    assert {run.data.tags["repro.factor.engine"] for run in cells} == wanted
    artifacts = {item.path for run in cells for item in client.list_artifacts(run.info.run_id)}
    assert {"cells.csv", "comparisons.csv", "pairs.csv", "trials.csv", "report.md", "report.html"} <= artifacts
    first = next(run for run in cells if run.data.tags["repro.cell"] == sent.plan.cells[0].cell_id)
    with_report = [run for run in cells for item in client.list_artifacts(run.info.run_id)
                   if item.path == "report.html" and item.file_size < 1.5e6]
    assert with_report == [first], "one copy, which the notes of all cells name"
    notes = {run.info.run_id: run.data.tags["mlflow.note.content"] for run in cells}
    place = f"(#/experiments/{experiment.experiment_id}/runs/{first.info.run_id}/artifacts/report.html?"
    assert all(place in note for note in [*notes.values(), experiment.tags["mlflow.note.content"]])
    trials = client.search_runs([experiment.experiment_id], "tags.`repro.level` = 'trial'")
    assert all(place in run.data.tags["mlflow.note.content"] for run in trials)


@pytest.mark.parametrize(("arguments", "text"), [
    (["mlflow:nobody's", "--out", "new"], "no experiment named \"nobody's\""),
    (["mlflow:Default", "--out", "new"], "holds no run of this tool"),
    ([], "Missing argument"),
])
def test_an_impossible_request_is_one_line(
    sent: Record, server: str, arguments: list[str], text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server)
    monkeypatch.chdir(tmp_path)
    ended = called("report", *arguments)
    assert ended.exit_code != 0 and text in (str(ended.exception) + ended.output)
    assert not Path("new").exists()


def refused(monkeypatch: pytest.MonkeyPatch, folder: Path, uri: str, experiment: str) -> str:
    """The message on a request for a report of `experiment`: one line, and no files are left."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    out = folder / "new"
    ended = called("report", f"mlflow:{experiment}", "--out", out)
    assert isinstance(ended.exception, ReproError), ended.output
    text = str(ended.exception)
    assert "\n" not in text and len(text) < 400
    assert not out.exists()
    return text


def test_a_dead_server_is_reported_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = refused(monkeypatch, tmp_path, f"http://me:secret@127.0.0.1:{free_port()}", "sample")
    assert "the connection is refused" in text and "secret" not in text


def test_an_experiment_of_others_is_no_record(server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mlflow import MlflowClient

    client = MlflowClient(server)
    client.create_experiment("empty")
    foreign = client.create_experiment("foreign")
    client.create_run(foreign, tags={"repro.level": "cell", "note": "<script>"})
    faked = client.create_experiment("faked")
    client.create_run(faked, tags={"repro.level": "cell", "repro.run": "<script>", "repro.key": "../../x"})
    for name in ("empty", "foreign"):
        assert "holds no run of this tool" in refused(monkeypatch, tmp_path, server, name)
    nobody = "<script>\u202e\x1b[2J" + "x" * 200
    text = refused(monkeypatch, tmp_path, server, nobody)
    assert "no experiment named '<script>\\u202e\\x1b[2Jxxx" in text
    assert "has no plan.json and environment.json" in refused(monkeypatch, tmp_path, server, "faked")


def test_a_file_that_the_store_lost_is_reported(
    sent: Record, server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the report would be of fewer trials and look complete."""
    from mlflow import MlflowClient

    client = MlflowClient(server)
    experiment = client.get_experiment_by_name("sample")
    assert experiment is not None
    runs = client.search_runs([experiment.experiment_id], "tags.`repro.level` = 'trial' AND tags.`repro.status` = 'ok'")
    run = next(item for item in runs if "result.json" in item.data.tags["repro.files"].split(", "))
    client.set_tag(run.info.run_id, "repro.files", run.data.tags["repro.files"] + ", system_1.txt")
    try:
        text = refused(monkeypatch, tmp_path, server, "sample")
        assert f"has no system_1.txt of {run.data.tags['repro.key']}" in text
    finally:
        client.set_tag(run.info.run_id, "repro.files", run.data.tags["repro.files"])
