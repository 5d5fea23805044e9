"""A real MLflow server behind a proxy that fails as planned."""

from __future__ import annotations

import http.client
import os
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
from repro.core.events import read_events
from repro.record.folder.store import Record
from tests.commands import free_port
from tests.records import SUITE, make_record

pytest.importorskip("mlflow")
ROOT = Path(__file__).resolve().parents[2]
SECRET, TOKEN = "hunter2secret", "tok-3141592653"
SMALL = SUITE.replace("seeds: 6", "seeds: 2").replace("processes: [1, 2]", "processes: [2]")
"""Two cells of two trials."""


def environment(**more: str) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("MLFLOW_")}
    return {**kept, "MLFLOW_DISABLE_TELEMETRY": "true", "PYTHONPATH": str(ROOT), "PYTHONSAFEPATH": "1", **more}


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
"""Treatment of a request: pass, `delay:S`, `status:CODE`, cut (before it is passed on), torn (after: the server has
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
    """repro.key -> (run, its points, its status) of every existing run, from the server's database."""
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
    """(key, step) -> value of the series of a trial, computed here from its log alone (batch 64)."""
    found: dict[tuple[str, int], float] = {}
    for event in read_events(record.folder.log(trial_id, 1))[0]:
        if event.key == "x_steps":
            for index, loss in enumerate(event.value["loss"], event.value["first"] + 1):
                found["curve/loss", index] = loss
            last = event.value["first"] + len(event.value["loss"])
            found["curve/step_seconds", last] = sum(event.value["seconds"]) / len(event.value["seconds"])
        elif event.key == "eval_accuracy":
            step = round(event.metadata["samples_count"] / 64)
            found["curve/eval_top1", step] = event.value
            found["progress/samples", step] = event.metadata["samples_count"]
    return found


def check_exactly_once(server: Server, record: Record, proxied: Proxy | None = None) -> None:
    """Each run there once, each point of it there once, every point of the record there, every file complete."""
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
        series = ("curve/loss", "curve/step_seconds", "curve/eval_top1", "progress/samples")
        assert {place for place in values if place[0] in series} == wanted.keys()
        assert [value for (name, _), value in values.items() if name == "answer/tta_wall"] == [result.tta_wall]
        log = record.folder.log(result.trial_id, result.attempt)
        copies = list(server.files.rglob(f"{run}/artifacts/{log.name}"))
        assert [copy.read_bytes() for copy in copies] == [log.read_bytes()]
    assert reporter(proxied.uri if proxied else f"http://127.0.0.1:{server.port}").left(record) == ""


def command(record: Record, uri: str, **more: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "repro", "report", str(record.folder.root), "--to", "mlflow"], text=True,
        env=environment(MLFLOW_TRACKING_URI=uri, **more), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
