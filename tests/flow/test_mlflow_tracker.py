"""The tracker of a run, stores that are unreachable, and `repro ui`, with real processes."""

from __future__ import annotations

import fcntl
import importlib
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path
from urllib.request import urlopen

import pytest

from repro.core.errors import TrackingError, UsageError
from repro.core.redact import redacted
from repro.record.folder.store import RunFolder
from repro.runner import mlflow_ui
from repro.runner.mlflow_ui import open_ui, ui_command
from repro.runner.tracking import Tracker
from tests.commands import environment, free_port
from tests.flow.mlflow_stores import QUIET, SMALL, later, named, reporter
from tests.records import make_record
from tests.tracking_server import Site
from tests.waiting import LONG_SECONDS, until

pytest.importorskip("mlflow")
pytestmark = QUIET
SECRET = "hunter2secret"


@pytest.mark.slow
def test_only_one_process_at_a_time_sends_a_record(store: str, tmp_path: Path) -> None:
    record = make_record(tmp_path / "run", named(SMALL, "locked"), only=1)
    handle = os.open(record.folder.root, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        with pytest.raises(TrackingError, match="another process is replaying it"):
            reporter(store, timeout_seconds=0.3).write(record, tmp_path)
    finally:
        os.close(handle)
    reporter(store).write(record, tmp_path)


@pytest.mark.slow
def test_a_deleted_experiment_is_reported_as_deleted(store: str, tmp_path: Path) -> None:
    from mlflow import MlflowClient

    record = make_record(tmp_path / "run", named(SMALL, "away"), only=1)
    reporter(store).write(record, tmp_path)
    client = MlflowClient(store)
    experiment = client.get_experiment_by_name("away")
    assert experiment is not None
    client.delete_experiment(experiment.experiment_id)
    with pytest.raises(TrackingError, match="was deleted there; restore it with"):
        reporter(store).write(record, tmp_path)


def test_an_unreachable_server_is_reported_soon_and_without_the_password(tmp_path: Path) -> None:
    record = make_record(tmp_path / "run", SMALL, only=1)
    uri = f"http://me:{SECRET}@127.0.0.1:{free_port()}"
    with pytest.raises(TrackingError, match=r"the connection is refused; start the server") as caught:
        reporter(uri).write(record, tmp_path)
    assert SECRET not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_server_that_never_answers_is_given_up_soon(tmp_path: Path) -> None:
    record = make_record(tmp_path / "run", SMALL, only=1)
    with socket.create_server(("127.0.0.1", 0)) as mute, pytest.raises(TrackingError, match="no answer in time"):
        reporter(f"http://127.0.0.1:{mute.getsockname()[1]}").write(record, tmp_path)


@pytest.mark.parametrize(("uri", "said"), [
    ("foo://somewhere/x", "foo://somewhere/x: MLflow has no tracking store of this scheme; set MLFLOW_TRACKING_URI="),
    ("sqlite:////proc/mlflow.db", "////proc/mlflow.db: cannot be written (No such file or directory); set MLFLOW"),
    ("sqlite:////no/such/folder/mlflow.db", "cannot be written (No such file or directory)"),
])
def test_an_impossible_store_is_reported_at_once(tmp_path: Path, uri: str, said: str) -> None:
    record = make_record(tmp_path / "run", SMALL, only=1)
    with pytest.raises(TrackingError) as caught:
        reporter(uri).write(record, tmp_path)
    assert said in str(caught.value)
    assert len(str(caught.value)) < 200 and "..." not in str(caught.value)


def test_a_new_store_is_created_by_one_process_at_a_time(tmp_path: Path) -> None:
    access = importlib.import_module("repro.runner.tracking_store")
    uri, order = f"sqlite:///{tmp_path}/new.db", []

    def second() -> None:
        with access.exclusive_access(uri):
            order.append("second")

    with access.exclusive_access(uri):
        thread = threading.Thread(target=second)
        thread.start()
        time.sleep(0.3)
        order.append("first")
    thread.join(10)
    assert order == ["first", "second"]


@pytest.mark.slow
def test_runs_that_start_at_once_share_a_new_store(tmp_path: Path) -> None:
    code = ("import sys, time; from repro.core import registry; import mlflow\n"
            "while time.time() < float(sys.argv[2]): pass\n"
            "registry.load('reporter', 'mlflow')(tracking_uri=sys.argv[1]).check(sys.argv[3])")
    start = str(time.time() + 10)
    children = [subprocess.Popen([sys.executable, "-c", code, f"sqlite:///{tmp_path}/new.db", start, f"suite-{number}"],
                                 env=environment(), stderr=subprocess.PIPE, text=True) for number in range(3)]
    ended = [child.communicate(timeout=120)[1] for child in children]
    assert [child.returncode for child in children] == [0, 0, 0], ended


def with_password(uri: str) -> str:
    return uri.replace("://", f"://me:{SECRET}@")


@pytest.mark.slow
def test_tracker_replays_in_a_separate_process(
    served: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = served.uri
    monkeypatch.setenv("MLFLOW_TRACKING_URI", with_password(server))
    record = make_record(tmp_path / "run", named(SMALL, "tracked"), only=2)
    tracker = Tracker(record.folder.root)
    for _ in range(20):
        tracker.sync()
    tracker.sync(wait_seconds=60.0)
    assert tracker._child is not None
    assert os.getpriority(os.PRIO_PROCESS, tracker._child.pid) == 19
    with closing(sqlite3.connect(served.database)) as database:
        found = database.execute("SELECT value FROM tags WHERE key = 'repro.trial'").fetchall()
    assert {result.trial_id for result in record.results} <= {value for value, in found}
    later(record, 8)
    ended = tracker.finish(60.0)
    assert (ended.problem, ended.pending) == ("", False)
    assert ended.uri.startswith(f"{server}/#/experiments/")
    number = ended.uri.partition("/#/experiments/")[2].partition("/")[0]
    with closing(sqlite3.connect(served.database)) as database:
        statuses = database.execute("SELECT status FROM runs WHERE experiment_id = ?", (number,)).fetchall()
    assert statuses == [("FINISHED",)] * 12
    for path in record.folder.root.rglob("*"):
        assert not path.is_file() or SECRET.encode() not in path.read_bytes(), path


def test_tracker_survives_a_server_that_is_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://me:{SECRET}@127.0.0.1:{free_port()}")
    record = make_record(tmp_path / "run", SMALL, only=1)
    tracker = Tracker(record.folder.root)
    tracker.sync(wait_seconds=60.0)
    started = time.monotonic()
    tracker.sync(wait_seconds=2 * LONG_SECONDS)
    assert time.monotonic() - started < LONG_SECONDS, "it is not waited for twice"
    ended = tracker.finish(20.0)
    assert ended.pending
    assert "the connection is refused" in ended.problem
    assert SECRET not in ended.problem + ended.uri
    assert not record.folder.tracking.exists()


@pytest.mark.slow
def test_tracker_has_nothing_to_do_before_the_record_begins(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store)
    record = make_record(tmp_path / "run", SMALL, only=0)
    record.folder.environment.unlink()
    tracker = Tracker(record.folder.root)
    tracker.sync(wait_seconds=60.0)
    ended = tracker.finish(30.0)
    assert (ended.problem, ended.pending) == ("", False)


def test_tracker_never_waits_longer_than_requested_and_leaves_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{mute.getsockname()[1]}")
        tracker = Tracker(make_record(tmp_path / "run", SMALL, only=1).folder.root)
        child = tracker._child
        assert child is not None
        started = time.monotonic()
        tracker.sync(wait_seconds=0.3)
        ended = tracker.finish(0.5)
        assert time.monotonic() - started < LONG_SECONDS, "the server never answers"
        assert ended.pending
        assert "no answer within" in ended.problem
        assert child.returncode is not None


def test_a_run_goes_on_when_its_tracking_process_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{free_port()}")
    tracker = Tracker(make_record(tmp_path / "run", SMALL, only=1).folder.root)
    child = tracker._child
    assert child is not None
    child.kill()
    child.wait()
    tracker.sync(wait_seconds=5.0)
    assert "the tracking process ended" in tracker.problem
    ended = tracker.finish(30.0)
    assert ended.pending
    assert ended.left == "1 of 1 trials"
    assert "the tracking process ended" in ended.problem


def test_the_child_ends_with_its_parent(store: str, tmp_path: Path) -> None:
    folder = make_record(tmp_path / "run", SMALL, only=1).folder
    code = (f"from pathlib import Path; from repro.runner.tracking import Tracker; import os\n"
            f"t = Tracker(Path({str(folder.root)!r})); t.sync(60.0); print(t._child.pid, flush=True); os._exit(9)")
    found = subprocess.run([sys.executable, "-c", code], env=environment(MLFLOW_TRACKING_URI=store), check=False,
                           capture_output=True, text=True, timeout=60)
    assert found.returncode == 9, found.stderr
    until(lambda: not Path(f"/proc/{found.stdout.strip()}").exists() or _is_zombie(int(found.stdout)))


def _is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_redacted_drops_user_password_and_query() -> None:
    assert redacted("postgresql://me:pw@host/db?password=pw") == "postgresql://host/db"
    assert redacted("sqlite:////tmp/a.db") == "sqlite:////tmp/a.db"


@pytest.mark.slow
def test_ui_of_a_server_is_its_own(server: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = make_record(tmp_path / "run", named(SMALL, "looked-at"), only=1)
    place, = reporter(server).write(record, tmp_path)
    open_ui(with_password(server), experiment="looked-at")
    assert capsys.readouterr().out.strip() == place
    with pytest.raises(UsageError, match="no experiment named 'nothing'"):
        open_ui(server, experiment="nothing")


@pytest.mark.slow
def test_ui_of_a_file_is_served_until_it_is_interrupted(store: str, tmp_path: Path) -> None:
    reporter(store).write(make_record(tmp_path / "run", named(SMALL, "shown"), only=1), tmp_path)
    code = f"from repro.runner.mlflow_ui import open_ui; open_ui({store!r}, experiment='shown')"
    child = subprocess.Popen([sys.executable, "-c", code], env=environment(), stdout=subprocess.PIPE,
                             stderr=subprocess.DEVNULL, start_new_session=True, cwd=tmp_path)
    watchdog = threading.Timer(120, child.kill)
    watchdog.start()
    try:
        assert child.stdout is not None
        line = child.stdout.readline().decode()
        url = line.split()[0]
        assert "/#/experiments/" in url
        with urlopen(url.partition("/#/")[0] + "/health", timeout=5) as answer:
            assert answer.status == 200
        child.send_signal(signal.SIGINT)
        assert child.wait(timeout=20) == 0
        with pytest.raises(OSError, match="refused"), urlopen(url.partition("/#/")[0] + "/health", timeout=2):
            pass
    finally:
        watchdog.cancel()
        child.kill()
        child.communicate()


def test_ui_without_an_experiment_addresses_the_runs_written_last(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MLflow's own start page and that of an experiment are about language models and show no run."""
    from mlflow import MlflowClient

    served: list[str] = []
    monkeypatch.setattr(mlflow_ui, "_serve", lambda _, url: served.append(url.partition("/#/")[2]))
    open_ui(store)
    for name in ("first", "last"):
        reporter(store).write(make_record(tmp_path / name, named(SMALL, name), only=1), tmp_path)
        MlflowClient(store).create_run(str(1 + (name == "last")))  # begins now; made records begin together
    open_ui(store)
    open_ui(store, experiment="first")
    open_ui(f"sqlite:///{tmp_path}/none.db")
    MlflowClient(store).create_experiment("of others")
    open_ui(store, experiment="of others")
    listed, query = "experiments?workflowType=machine_learning", "runs?workflowType=machine_learning"
    view = "runs?viewStateShareKey=repro&workflowType=machine_learning"
    assert served == [listed, f"experiments/2/{view}", f"experiments/1/{view}", listed, f"experiments/3/{query}"]


def test_ui_names_its_store_without_obeying_it(store: str, tmp_path: Path) -> None:
    from mlflow import MlflowClient

    MlflowClient(store).create_experiment("\x1b[2J<script>\u202e" + "x" * 300)
    with pytest.raises(UsageError) as caught:
        open_ui(store, experiment="y" * 10_000)
    text = str(caught.value)
    assert "'\\x1b[2J<script>\\u202exxx" in text and "'Default'" in text
    assert len(text) < 600 and text.isprintable()


def test_ui_command_names_the_store() -> None:
    command = ui_command("sqlite:////a/b.db", 5001)
    assert command[1:4] == ["-m", "mlflow", "ui"]
    assert command[command.index("--backend-store-uri") + 1] == "sqlite:////a/b.db"
    assert ui_command(None, 1)[-1] == f"sqlite:///{Path.cwd()}/mlflow.db"
    assert RunFolder(Path("x")).tracking == Path("x/tracking.json")
