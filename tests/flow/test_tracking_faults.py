"""A tracking server that is down, slow, restarted, refusing or cut off in mid-answer: nothing lost, nothing doubled.

The server is MLflow's own, a real process with its database and its store of files; in front of it stands a proxy that
does to each request what a plan says. What the server has in the end is read from its database, not from its answers.
"""

from __future__ import annotations

import http.client
import json
import os
import random
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from repro.core import registry
from repro.core.errors import TrackingError
from repro.core.events import read_events
from repro.record.store import Record, read_record
from repro.runner import tracking
from repro.runner.tracking import Tracker
from tests.records import SUITE, make_record

pytest.importorskip("mlflow")
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # MLflow's and SQLAlchemy's own
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # MLflow keeps its connections open
]
ROOT = Path(__file__).resolve().parents[2]
SECRET, TOKEN = "hunter2secret", "tok-3141592653"
SMALL = SUITE.replace("seeds: 6", "seeds: 2").replace("processes: [1, 2]", "processes: [2]")
"""Two cells of two trials."""


def environment(**more: str) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("MLFLOW_")}
    return {**kept, "MLFLOW_DISABLE_TELEMETRY": "true", "PYTHONPATH": str(ROOT), "PYTHONSAFEPATH": "1", **more}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@dataclass
class Server:
    """MLflow's tracking server, to be killed and started again on one port, one database and one store of files."""

    folder: Path
    port: int = field(default_factory=free_port)
    child: subprocess.Popen[bytes] | None = None

    @property
    def database(self) -> Path:
        return self.folder / "mlflow.db"

    @property
    def files(self) -> Path:
        return self.folder / "art"

    def start(self) -> None:
        command = [sys.executable, "-m", "mlflow", "server", "--port", str(self.port), "--workers", "1",
                   "--backend-store-uri", f"sqlite:///{self.database}", "--artifacts-destination", str(self.files)]
        with (self.folder / "log").open("ab") as log:
            apart = environment(MLFLOW_SERVER_ENABLE_JOB_EXECUTION="false")  # no further processes that it starts
            self.child = subprocess.Popen(command, cwd=self.folder, env=apart, start_new_session=True,
                                          stdout=log, stderr=log)
        limit = time.monotonic() + 120
        while True:
            assert self.child.poll() is None, (self.folder / "log").read_text()
            assert time.monotonic() < limit, (self.folder / "log").read_text()
            try:
                with urlopen(f"http://127.0.0.1:{self.port}/health", timeout=1):
                    return
            except OSError:
                time.sleep(0.1)

    def kill(self) -> None:
        if self.child is not None:
            os.killpg(self.child.pid, signal.SIGKILL)
            self.child.wait()


Fate = str
"""What happens to a request: pass, `delay:S`, `status:CODE`, cut (before it is passed on), torn (after: the server has
done the work, half of its answer arrives), mute (no answer ever)."""


class Proxy:
    """Between client and server; `plan` decides by the number of the request and by what it asks."""

    def __init__(self, server: Server, plan: Callable[[int, str], Fate] = lambda number, what: "pass") -> None:
        self.plan, self.seen, self.fates = plan, [], Counter[str]()
        self.seen: list[str]
        proxy, lock = self, threading.Lock()

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            own = ("host", "authorization", "transfer-encoding", "content-length")

            def handle_one_request(self) -> None:
                try:
                    super().handle_one_request()
                except OSError:
                    self.close_connection = True

            def _pass(self) -> None:
                body = self._body()
                with lock:
                    number, what = len(proxy.seen), f"{self.command} {self.path}"
                    proxy.seen.append(what)
                fate = proxy.plan(number, what)
                proxy.fates[fate] += 1
                kind, _, value = fate.partition(":")
                if kind == "delay":
                    time.sleep(float(value))
                elif kind == "mute":
                    time.sleep(30)
                if kind in ("cut", "mute"):
                    self._hang_up()
                elif kind == "status":
                    said = f"no: {self.headers.get('Authorization')} {SECRET} {TOKEN}".encode()
                    self._answer(int(value), [("Retry-After", "3600")], said)
                else:
                    self._hand_on(body, half=kind == "torn")

            def _body(self) -> bytes:
                if self.headers.get("Transfer-Encoding") != "chunked":  # as an empty file is sent
                    return self.rfile.read(int(self.headers.get("Content-Length") or 0))
                pieces = []
                while size := int(self.rfile.readline(), 16):
                    pieces.append(self.rfile.read(size))
                    self.rfile.readline()
                self.rfile.readline()
                return b"".join(pieces)

            def _hand_on(self, body: bytes, half: bool) -> None:
                link = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
                kept = {key: text for key, text in self.headers.items() if key.lower() not in self.own}
                try:
                    link.request(self.command, self.path, body, {**kept, "Connection": "close"})
                    got = link.getresponse()
                    data = got.read()
                except (OSError, http.client.HTTPException):
                    self._hang_up()
                    return
                finally:
                    link.close()
                names = ("content-type",)
                headers = [(key, text) for key, text in got.getheaders() if key.lower() in names]
                self._answer(got.status, headers, data, half)

            def _answer(self, status: int, headers: Sequence[tuple[str, str]], data: bytes, half: bool = False) -> None:
                self.send_response(status)
                for key, text in headers:
                    self.send_header(key, text)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data[:len(data) // 2] if half else data)
                if half:
                    self._hang_up()

            def _hang_up(self) -> None:
                self.wfile.flush()
                self.close_connection = True
                self.connection.shutdown(socket.SHUT_RDWR)

            do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _pass  # noqa: N815  # names of http.server

            def log_message(self, *_: Any) -> None:
                pass

        self._httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._httpd.daemon_threads = True
        self.uri = f"http://127.0.0.1:{self._httpd.server_address[1]}"
        self._thread = threading.Thread(target=self._httpd.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._httpd.shutdown()
        self._httpd.server_close()
        self._thread.join(10)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    found = Server(tmp_path_factory.mktemp("server"))
    found.start()
    yield found
    found.kill()


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    found = Proxy(server)
    yield found
    found.close()


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [key for key in os.environ if key.startswith("MLFLOW_")]:
        monkeypatch.delenv(name)


def reporter(uri: str, **options: Any) -> Any:
    return registry.load("reporter", "mlflow")(tracking_uri=uri, **options)


def record_of(root: Path, name: str, only: int | None = None) -> Record:
    return make_record(root / "run", SMALL.replace("suite: sample", f"suite: {name}"), only=only)


def rows(server: Server, experiment: str) -> dict[str, list[tuple[str, list[tuple[str, int, int, float]], str]]]:
    """repro.key -> (run, its points, its status) of every run that is not deleted, from the server's database."""
    with closing(sqlite3.connect(server.database, timeout=60)) as database:
        runs = database.execute(
            "SELECT runs.run_uuid, tags.value, runs.status FROM runs JOIN tags ON tags.run_uuid = runs.run_uuid "
            "JOIN experiments ON experiments.experiment_id = runs.experiment_id WHERE tags.key = 'repro.key' "
            "AND runs.lifecycle_stage = 'active' AND experiments.name = ?", (experiment,)).fetchall()
        found: dict[str, list[tuple[str, list[tuple[str, int, int, float]], str]]] = {}
        for run, key, status in runs:
            points = database.execute("SELECT key, step, timestamp, value FROM metrics WHERE run_uuid = ?", (run,))
            found.setdefault(key, []).append((run, points.fetchall(), status))
    return found


def expected(record: Record, trial_id: str) -> dict[tuple[str, int], float]:
    """(key, step) -> value of the series of a trial, reckoned here from its log alone (batch 64)."""
    found: dict[tuple[str, int], float] = {}
    for event in read_events(record.folder.log(trial_id, 1))[0]:
        if event.key == "x_steps":
            for index, loss in enumerate(event.value["loss"], event.value["first"] + 1):
                found["train/loss", index] = loss
            last = event.value["first"] + len(event.value["loss"])
            found["train/step_seconds", last] = sum(event.value["seconds"]) / len(event.value["seconds"])
        elif event.key == "eval_accuracy":
            step = round(event.metadata["samples_count"] / 64)
            found["eval/top1", step] = event.value
            found["eval/samples", step] = event.metadata["samples_count"]
    return found


def check_exactly_once(server: Server, record: Record, proxied: Proxy | None = None) -> None:
    """Each run there once, each point of it there once, every point of the record there, every file whole."""
    there = rows(server, record.plan.suite.suite)
    keys = {f"trial:{item.trial_id}/{item.attempt}" for item in record.results}
    keys |= {f"cell:{item.cell_id}" for item in record.results}
    assert there.keys() == keys, proxied and proxied.fates
    for key, runs in there.items():
        assert len(runs) == 1, f"{key} is there {len(runs)} times"
        counts = Counter((name, step) for name, step, _, _ in runs[0][1])
        assert set(counts.values()) == {1}, (key, [item for item, count in counts.items() if count > 1])
        assert runs[0][2] == "FINISHED" or (key.startswith("cell") and record.missing())
    for result in record.results:
        run, points, _ = there[f"trial:{result.trial_id}/{result.attempt}"][0]
        values = {(name, step): value for name, step, _, value in points}
        wanted = expected(record, result.trial_id)
        assert len(wanted) > 50
        assert {place: values.get(place) for place in wanted} == wanted
        series = ("train/loss", "train/step_seconds", "eval/top1", "eval/samples")
        assert {place for place in values if place[0] in series} == wanted.keys()
        assert [value for (name, _), value in values.items() if name == "tta_wall"] == [result.tta_wall]
        log = record.folder.log(result.trial_id, result.attempt)
        copies = list(server.files.rglob(f"{run}/artifacts/{log.name}"))
        assert [copy.read_bytes() for copy in copies] == [log.read_bytes()]
    assert reporter(proxied.uri if proxied else f"http://127.0.0.1:{server.port}").left(record) == ""


def seeded(seed: int, fates: Sequence[Fate], share: float) -> Callable[[int, str], Fate]:
    """A plan: this share of all requests meets one of `fates`, drawn by the number of the request."""
    return lambda number, what: (lambda dice: dice.choice(list(fates)) if dice.random() < share else "pass")(
        random.Random(f"{seed}/{number}"))


ALL: tuple[Fate, ...] = ("cut", "torn", "status:429", "status:500", "status:503", "delay:0.3")


@pytest.mark.parametrize(
    "seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 7))])
def test_whatever_befalls_requests_all_is_there_once(
    seed: int, proxy: Proxy, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if seed == 1:  # the same requests meet the same fates, only what is waited in between is less
        monkeypatch.setattr("repro.reporters.tracking.retries.FIRST_PAUSE", 0.05)
        monkeypatch.setattr("repro.reporters.tracking.retries.LONGEST_PAUSE", 0.4)
    record = record_of(tmp_path, f"seeded-{seed}", only=1 if seed == 1 else None)
    proxy.plan = seeded(seed, ALL, 0.25)
    for _ in range(10):  # the first contact is not insisted on
        try:
            reporter(proxy.uri).write(record, tmp_path)
        except TrackingError:
            continue
        break
    assert sum(proxy.fates.values()) - proxy.fates["pass"] > 10
    proxy.plan = lambda number, what: "pass"
    reporter(proxy.uri).write(record, tmp_path)
    check_exactly_once(server, record, proxy)


@pytest.mark.slow
def test_runs_whose_creation_was_not_confirmed_are_there_once(proxy: Proxy, server: Server, tmp_path: Path) -> None:
    torn = set[int]()

    def plan(number: int, what: str) -> Fate:
        if "runs/create" in what and number - max(torn, default=-99) > 5:
            torn.add(number)
            return "torn"
        return "pass"

    record = record_of(tmp_path, "torn")
    proxy.plan = plan
    reporter(proxy.uri).write(record, tmp_path)
    assert len(torn) >= 4
    check_exactly_once(server, record, proxy)


@pytest.mark.slow
def test_a_run_that_was_made_twice_is_made_one(proxy: Proxy, server: Server, tmp_path: Path) -> None:
    """As when a request that was given up for lost arrives after its repetition."""
    doubled = []

    def plan(number: int, what: str) -> Fate:
        return "pass"

    record = record_of(tmp_path, "twice")
    target = reporter(proxy.uri)
    target.write(record, tmp_path)
    from mlflow import MlflowClient

    client = MlflowClient(proxy.uri)
    for runs in rows(server, "twice").values():
        first = client.get_run(runs[0][0])
        doubled.append(client.create_run(first.info.experiment_id, start_time=1, tags=first.data.tags).info.run_id)
    assert all(len(runs) == 2 for runs in rows(server, "twice").values())
    reporter(proxy.uri).write(record, tmp_path)
    check_exactly_once(server, record, proxy)
    record.folder.tracking.unlink()
    for runs in rows(server, "twice").values():
        first = client.get_run(runs[0][0])
        client.create_run(first.info.experiment_id, start_time=1, tags=first.data.tags)
    reporter(proxy.uri).write(record, tmp_path)
    check_exactly_once(server, record, proxy)


@pytest.mark.slow
def test_a_server_killed_in_mid_replay_and_started_again_has_all_once(
    proxy: Proxy, server: Server, tmp_path: Path
) -> None:
    record = record_of(tmp_path, "restarted")
    again: list[threading.Thread] = []

    def plan(number: int, what: str) -> Fate:
        if number in (25, 60):
            server.kill()
            again.append(threading.Thread(target=server.start))
            again[-1].start()
        return "pass"

    proxy.plan = plan
    reporter(proxy.uri, patience_seconds=120).write(record, tmp_path)
    for thread in again:
        thread.join()
    assert len(again) == 2
    check_exactly_once(server, record, proxy)


@pytest.mark.slow
@pytest.mark.parametrize(("code", "said"), [
    (401, r"requires a login \(401\); set MLFLOW_TRACKING_USERNAME"), (403, r"refuses this user \(403\)"),
    (429, r"too many requests \(429\)"), (500, r"it fails \(500\)"), (503, r"it fails \(503\)"),
])
def test_a_refusal_is_said_in_one_line_soon_and_costs_nothing(
    code: int, said: str, proxy: Proxy, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", TOKEN)
    record = record_of(tmp_path, f"refused-{code}")
    proxy.plan = lambda number, what: "pass" if number < 7 else f"status:{code}"
    started = time.monotonic()
    with pytest.raises(TrackingError, match=said) as caught:
        reporter(proxy.uri, patience_seconds=2).write(record, tmp_path)
    assert time.monotonic() - started < 15  # the server asks for an hour
    # Where it begins with a file, the next call is tried too.
    assert proxy.fates[f"status:{code}"] <= 2 if code in (401, 403) else proxy.fates[f"status:{code}"] > 2
    assert TOKEN not in str(caught.value) and SECRET not in str(caught.value) and "\n" not in str(caught.value)
    assert reporter(proxy.uri).left(record) == "4 of 4 trials"
    proxy.plan = lambda number, what: "pass"
    reporter(proxy.uri).write(record, tmp_path)
    check_exactly_once(server, record, proxy)


@pytest.mark.slow
def test_a_database_that_another_holds_is_waited_for(proxy: Proxy, server: Server, tmp_path: Path) -> None:
    record = record_of(tmp_path, "held")
    held = threading.Event()

    def hold() -> None:
        with closing(sqlite3.connect(server.database, timeout=60, isolation_level=None)) as other:
            other.execute("BEGIN EXCLUSIVE")
            held.set()
            time.sleep(25)
            other.execute("ROLLBACK")

    thread = threading.Thread(target=hold)

    def plan(number: int, what: str) -> Fate:
        if number == 20:
            thread.start()
            held.wait(60)
        return "pass"

    proxy.plan = plan
    reporter(proxy.uri, patience_seconds=60).write(record, tmp_path)
    thread.join()
    check_exactly_once(server, record, proxy)


@pytest.mark.slow
def test_a_local_database_that_another_holds_is_named(tmp_path: Path) -> None:
    uri, record = f"sqlite:///{tmp_path}/local.db", record_of(tmp_path, "local-held")
    target = reporter(uri, patience_seconds=1)
    target.check("local-held")
    with closing(sqlite3.connect(tmp_path / "local.db", isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        started = time.monotonic()
        with pytest.raises(TrackingError, match="the database is locked by another process; end the other"):
            target.write(record, tmp_path)
        assert time.monotonic() - started < 60
        other.execute("ROLLBACK")
    target.write(record, tmp_path)
    assert target.left(record) == ""


@pytest.mark.slow
def test_files_that_are_not_taken_hold_no_figure_up(proxy: Proxy, server: Server, tmp_path: Path) -> None:
    record = record_of(tmp_path, "no-files")
    server.files.mkdir(exist_ok=True)
    server.files.rename(server.folder / "aside")
    server.files.write_text("a file where the folder of all files should be")
    try:
        with pytest.raises(TrackingError, match=r"it fails \(500\).*\(the file "):
            reporter(proxy.uri, patience_seconds=1).write(record, tmp_path)
    finally:
        server.files.unlink()
        (server.folder / "aside").rename(server.files)
    there = rows(server, "no-files")
    for result in record.results:
        points = there[f"trial:{result.trial_id}/1"][0][1]
        assert expected(record, result.trial_id).keys() <= {(name, step) for name, step, _, _ in points}
    assert reporter(proxy.uri).left(record) == "4 of 4 trials"
    reporter(proxy.uri).write(record, tmp_path)
    check_exactly_once(server, record, proxy)


def command(record: Record, uri: str, **more: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "repro", "report", str(record.folder.root), "--to", "mlflow"], text=True,
        env=environment(MLFLOW_TRACKING_URI=uri, **more), stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def complete(record: Record, uri: str) -> str:
    """Let the command finish it; what it printed. On a machine with much else to do the first contact may be late."""
    for _ in range(5):
        child = command(record, uri)
        out, said = child.communicate(timeout=300)
        if child.returncode == 0:
            return out
        assert "no answer in time" in said
    raise AssertionError(said)


@pytest.mark.slow
def test_the_replaying_process_killed_in_the_middle_goes_on(proxy: Proxy, server: Server, tmp_path: Path) -> None:
    record = record_of(tmp_path, "killed")
    for target in (1, 1, 2, 1):  # which batch of points it is killed in: when the server has it, before it answers
        batches, child = [0], [command(record, proxy.uri)]

        def plan(number: int, what: str) -> Fate:
            if "log-batch" in what:
                batches[0] += 1  # noqa: B023
                if batches[0] == target:  # noqa: B023
                    threading.Timer(random.Random(target).choice((0.0, 0.02, 0.05)), child[0].kill).start()  # noqa: B023
            return "pass"

        proxy.plan = plan
        child[0].communicate(timeout=120)
        assert child[0].returncode == -signal.SIGKILL
    proxy.plan = lambda number, what: "pass"
    assert "/#/experiments/" in complete(record, proxy.uri)
    check_exactly_once(server, record, proxy)


@pytest.mark.slow
def test_a_run_starts_its_killed_tracking_process_again(
    proxy: Proxy, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", proxy.uri)
    record = record_of(tmp_path, "child-killed")
    followed = Tracker(record.folder.root)
    pids: list[int] = []

    def plan(number: int, what: str) -> Fate:
        if "log-batch" in what and len(pids) < 2 and followed.pid and followed.pid not in pids:
            pids.append(followed.pid)
            os.kill(followed.pid, signal.SIGKILL)
        return "pass"

    proxy.plan = plan
    followed.sync(wait_seconds=60.0)
    assert len(pids) == 1
    assert "the tracking process ended" in followed.problem
    ended = followed.finish(120.0)
    assert len(pids) == 2
    assert (ended.problem, ended.pending, ended.left) == ("", False, "")
    check_exactly_once(server, record, proxy)


@pytest.mark.slow
def test_a_slow_server_holds_no_run_up_and_the_printed_command_completes_it(
    proxy: Proxy, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", proxy.uri)
    proxy.plan = lambda number, what: "delay:2"
    record = record_of(tmp_path, "slow")
    followed = Tracker(record.folder.root)
    followed.sync(wait_seconds=6.0)  # not done in that time
    started = time.monotonic()
    for _ in range(5):
        followed.sync(wait_seconds=5.0)
    assert time.monotonic() - started < 0.5, "it is not waited for twice"
    said: list[str] = []
    started = time.monotonic()
    ended = followed.finish(8.0, said.append)
    assert 7 < time.monotonic() - started < 11
    assert ended.pending and re.fullmatch(r"[1-4] of 4 trials", ended.left)
    assert re.fullmatch(r"mlflow: [1-4] of 4 trials still to be replayed, waiting 8 s at most; Ctrl-C leaves it for "
                        r"later", said[0])
    assert len(said) == 1
    proxy.plan = lambda number, what: "pass"
    complete(record, proxy.uri)
    check_exactly_once(server, record, proxy)


@pytest.mark.slow
def test_two_seconds_a_request_only_take_longer(proxy: Proxy, server: Server, tmp_path: Path) -> None:
    proxy.plan = lambda number, what: "delay:2"
    record = record_of(tmp_path, "slow-whole", only=1)
    reporter(proxy.uri).write(record, tmp_path)
    assert proxy.fates == {"delay:2": len(proxy.seen)}
    check_exactly_once(server, record, proxy)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["dead", "mute", "dies"])
def test_the_end_of_a_run_does_not_hang_on_a_server(
    kind: str, proxy: Proxy, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = f"http://127.0.0.1:{free_port()}" if kind == "dead" else proxy.uri
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    monkeypatch.setattr(tracking, "STILL_SECONDS", 10.0)
    proxy.plan = lambda number, what: "mute" if kind == "mute" or number > 20 else "pass"
    record = record_of(tmp_path, f"end-{kind}")
    followed = Tracker(record.folder.root)
    if kind != "dies":  # what is slow at first has been, as at the end of a run
        limit = time.monotonic() + 300
        while not followed.problem and time.monotonic() < limit:
            followed.sync(wait_seconds=60.0)
            time.sleep(0.1)
        assert followed.problem
    started = time.monotonic()
    ended = followed.finish(60.0)
    took = time.monotonic() - started
    assert ended.pending and re.fullmatch("[34] of 4 trials", ended.left)
    assert took < {"dead": 5, "mute": 9, "dies": 30}[kind], (took, ended)


@pytest.mark.slow
def test_ctrl_c_leaves_the_last_replay_for_later(proxy: Proxy, server: Server, tmp_path: Path) -> None:
    proxy.plan = lambda number, what: "delay:3"
    suite = tmp_path / "suite.yaml"
    suite.write_text(SMALL.replace("suite: sample", "suite: left-for-later").replace(
        "engine: [ddp, {kind: deepspeed, stage: 1}]", "engine: [fake, {kind: fake, samples_scale: 500}]").replace(
        "  engine: ddp\n", "").partition("baseline:")[0])
    child = subprocess.Popen([sys.executable, "-m", "repro", "run", str(suite), "--out", "run"], cwd=tmp_path,
                             env=environment(MLFLOW_TRACKING_URI=proxy.uri), stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT, text=True)
    try:
        assert child.stdout is not None
        seen = []
        for line in child.stdout:
            seen.append(line)
            if "Ctrl-C leaves it" in " ".join("".join(seen[-3:]).split()):
                break
        interrupted = time.monotonic()
        child.send_signal(signal.SIGINT)
        rest = child.communicate(timeout=60)[0]
        assert time.monotonic() - interrupted < 20
    finally:
        child.kill()
    flat = " ".join(("".join(seen) + rest).split())
    assert re.search(r"warning: mlflow: [1-4] of 4 trials still to be replayed: .*; nothing is lost, to replay: "
                     r"\S*repro report run --to mlflow", flat), flat
    proxy.plan = lambda number, what: "pass"
    record = read_record(tmp_path / "run")
    assert len(record.results) == 4
    complete(record, proxy.uri)
    assert reporter(proxy.uri).left(record) == ""
    assert {len(runs) for runs in rows(server, "left-for-later").values()} == {1}


@pytest.mark.slow
def test_no_credential_is_written_or_said(
    proxy: Proxy, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = proxy.uri.replace("://", f"://me:{SECRET}@")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", TOKEN)
    record = record_of(tmp_path, "secret")
    proxy.plan = lambda number, what: "pass" if number < 15 else "status:401"  # which says the credentials again
    followed = Tracker(record.folder.root)
    followed.sync(wait_seconds=60.0)
    said = repr(followed.finish(60.0)) + followed.problem
    assert "(401)" in said
    ended = command(record, uri, MLFLOW_TRACKING_TOKEN=TOKEN)
    out, errors = ended.communicate(timeout=120)
    assert ended.returncode == 1
    proxy.plan = lambda number, what: "pass"
    reporter(uri).write(record, tmp_path)
    everything = "".join([said, out, errors])
    assert SECRET not in everything and TOKEN not in everything
    written = [path for place in (record.folder.root, server.folder) for path in place.rglob("*") if path.is_file()]
    assert len(written) > 20
    for path in written:
        data = path.read_bytes()
        assert SECRET.encode() not in data and TOKEN.encode() not in data, path


def test_what_is_left_is_told_from_the_folder_alone(tmp_path: Path) -> None:
    record, uri = record_of(tmp_path, "left"), "http://127.0.0.1:1"
    assert reporter(uri).left(record) == "4 of 4 trials"
    runs = {f"trial:{item.trial_id}/1": {"run_id": "a", "done": [1, 2]} for item in record.results}
    state = {"stores": {uri: {"runs": dict(list(runs.items())[:3])}}}
    record.folder.tracking.write_text(json.dumps(state))
    assert reporter(uri).left(record) == "1 of 4 trials"
    assert reporter("http://elsewhere").left(record) == "4 of 4 trials"
    state["stores"][uri]["runs"] = runs
    record.folder.tracking.write_text(json.dumps(state))
    assert reporter(uri).left(record) == "the cells' last figures and files"
    state["stores"][uri]["whole"] = True  # type: ignore[assignment]
    record.folder.tracking.write_text(json.dumps(state))
    assert reporter(uri).left(record) == ""
    shutil.rmtree(record.folder.trial(record.results[0].trial_id))  # as before it ran
    assert reporter(uri).left(read_record(record.folder.root)) == ""


def test_patience_ends_and_progress_renews_it(monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib

    module: Any = importlib.import_module("repro.reporters.tracking.retries")
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    tally = module.Tally()
    patience = module.Backoff(10.0, tally)
    assert patience.pause(TrackingError("no")) is None
    assert patience.pause(module.TransientError("no answer", unreachable=True)) is None
    tally.contacts += 1
    pauses: list[float] = []
    while (pause := patience.pause(module.TransientError("no answer", unreachable=True))) is not None:
        pauses.append(pause)
        now[0] += pause
    assert sum(pauses) == pytest.approx(10.0)
    assert pauses[0] <= 0.5 and max(pauses) <= 8.0 and len(pauses) >= 5
    tally.taken += 1
    assert patience.pause(module.TransientError("busy")) == pytest.approx(0.4, abs=0.15)
    assert module.Backoff(0.0, tally).pause(module.TransientError("busy")) is None
