"""MLflow's own UI for the store in use, served on the loopback interface."""

from __future__ import annotations

import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from base64 import b64encode
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import unquote, urlencode, urlsplit
from urllib.request import Request, urlopen

from repro.core.errors import TrackingError, UsageError
from repro.core.redact import redacted

HOST = "127.0.0.1"
START_SECONDS = 120.0
NAME = "experiment_name"
LISTED, LONGEST = 20, 100
"""Experiments, and characters of a name, in one message."""
TRAINING = "workflowType=machine_learning"
"""Without it MLflow (3.17 or later) opens pages about language models, which show no run."""
VIEW = "repro"
"""Key of the view of the table of runs that the reporter writes into an experiment."""
VIEW_TAG = f"mlflow.sharedViewState.{VIEW}"
"""The experiment's tag in which MLflow (3.17 or later) keeps a view."""


@dataclass(frozen=True, slots=True)
class Shown:
    """An experiment to show."""

    experiment_id: int | str
    has_view: bool = False


def ui_command(uri: str | None, host: str, port: int) -> list[str]:
    """Return the command that serves the store `uri` (None: MLflow's default, ./mlflow.db) with one worker."""
    command = [sys.executable, "-m", "mlflow", "ui", "--host", host, "--port", str(port), "--workers", "1",
               "--uvicorn-opts", "--log-level warning"]
    return [*command, "--backend-store-uri", uri or default_store()]


def default_store() -> str:
    return f"sqlite:///{Path.cwd() / 'mlflow.db'}"


def open_ui(
    uri: str | None, host: str = HOST, port: int | None = None, experiment: str | None = None
) -> None:
    """Print the address of the UI; unless `uri` is a server, serve the UI until Ctrl-C.

    Args:
        uri: tracking store; None: MLflow's default.
        port: None or 0: a free one.
        experiment: print the address of the table of its runs; None: of the experiment that the last run was written
            to, if the store is a local SQLite file, else of the list of experiments.

    Raises:
        UsageError: there is no such experiment, or the port is in use.
        TrackingError: the server did not start, or the server at `uri` does not answer.
    """
    if uri and uri.startswith(("http://", "https://")):
        if experiment:
            _print_line(page(redacted(uri), _server_experiment(uri, experiment)))
        else:
            _print_line(f"{page(redacted(uri), None)}  (--experiment NAME gives the table of its runs)")
        return
    store = uri or default_store()
    shown = _local_experiment(store, experiment) if experiment else _last_experiment(store)
    port = port or _free_port(host)
    _check_port(host, port)
    _serve(ui_command(uri, host, port), page(f"http://{host}:{port}", shown))


def page(base: str, shown: Shown | None) -> str:
    """Return the address of the table of an experiment's runs, or of the list of experiments.

    MLflow refuses the key of a view that an experiment does not have.
    """
    if shown is None:
        return f"{base.rstrip('/')}/#/experiments?{TRAINING}"
    view = f"viewStateShareKey={VIEW}&" if shown.has_view else ""
    return f"{base.rstrip('/')}/#/experiments/{shown.experiment_id}/runs?{view}{TRAINING}"


def _print_line(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()  # the process stays, so a reader of a pipe would wait for the address


def _serve(command: list[str], url: str) -> None:
    """Run the server in its own process group, so that Ctrl-C reaches this process first, which ends the group."""
    environment = {**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "true", "PYTHONSAFEPATH": "1",
                   "MLFLOW_LOGGING_LEVEL": "ERROR", "PYTHONWARNINGS": "ignore",
                   "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    child = subprocess.Popen(command, env=environment, start_new_session=True, stdout=subprocess.DEVNULL,
                             stdin=subprocess.DEVNULL)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # an orphaned server would keep the port
    try:
        _wait_until_up(child, url)
        _print_line(f"{url}  (Ctrl-C stops it)")
        child.wait()
    except KeyboardInterrupt:
        sys.stderr.write("\n")  # ends the line of the ^C
    finally:
        _end(child)


def _wait_until_up(child: subprocess.Popen[bytes], url: str) -> None:
    health = f"{url.partition('/#/')[0]}/health"
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end:
        if child.poll() is not None:
            raise TrackingError(f"MLflow's UI exited at start with exit code {child.returncode}; its message is above")
        with suppress(OSError), urlopen(health, timeout=2):
            return
        time.sleep(0.2)
    raise TrackingError(f"MLflow's UI did not answer within {START_SECONDS:.0f} s at {health}")


def _end(child: subprocess.Popen[bytes]) -> None:
    """End the server and its workers."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, number)
        with suppress(subprocess.TimeoutExpired):
            child.wait(timeout=5)
            if number == signal.SIGTERM:
                time.sleep(0.2)  # workers that survive SIGTERM get SIGKILL


def _database(store: str) -> Path | None:
    """Return the file of a local SQLite store; None for others."""
    parts = urlsplit(store)
    return Path(unquote(parts.path.removeprefix("/"))) if parts.scheme == "sqlite" else None


def _last_experiment(store: str) -> Shown | None:
    """Return the experiment with the run written last in a local SQLite store; None if there is none."""
    path = _database(store)
    if path is None or not path.is_file():
        return None
    with suppress(sqlite3.Error), closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as database:
        row = database.execute("SELECT r.experiment_id FROM runs r JOIN experiments e USING (experiment_id) WHERE "
                               "r.lifecycle_stage = 'active' AND e.lifecycle_stage = 'active' ORDER BY r.rowid DESC "
                               "LIMIT 1").fetchone()
        return None if row is None else _shown(database, int(row[0]))
    return None  # no tables yet, or none that this version knows: MLflow says so


def _local_experiment(store: str, name: str) -> Shown | None:
    """Return an experiment of a local SQLite store; None for other stores. MLflow takes a second to import."""
    path = _database(store)
    if path is None:
        return None
    if not path.is_file():
        raise UsageError(f"{path}: there is no tracking store yet; create one with `repro run`, or set "
                         "MLFLOW_TRACKING_URI")
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as database:
        rows = dict(database.execute("SELECT name, experiment_id FROM experiments").fetchall())
        if name in rows:
            return _shown(database, int(rows[name]))
    known = ", ".join(_quoted(item) for item in sorted(rows)[:LISTED])
    more = f" and {len(rows) - LISTED} more" if len(rows) > LISTED else ""
    raise UsageError(f"no experiment named {_quoted(name)} in {path}; known: {known}{more}")


def _shown(database: sqlite3.Connection, experiment_id: int) -> Shown:
    row = database.execute("SELECT 1 FROM experiment_tags WHERE experiment_id = ? AND key = ?",
                           (experiment_id, VIEW_TAG)).fetchone()
    return Shown(experiment_id, row is not None)


def _quoted(name: str) -> str:
    """Quote a name of unknown origin: shortened, with control characters escaped."""
    return repr(name if len(name) <= LONGEST else f"{name[:LONGEST]}...")


def _server_experiment(uri: str, name: str) -> Shown:
    """Ask a tracking server for an experiment."""
    request = Request(f"{redacted(uri).rstrip('/')}/api/2.0/mlflow/experiments/get-by-name?{urlencode({NAME: name})}")
    user, password = _credentials(uri)
    if user:
        request.add_header("Authorization", f"Basic {b64encode(f'{user}:{password}'.encode()).decode()}")
    elif token := os.environ.get("MLFLOW_TRACKING_TOKEN"):
        request.add_header("Authorization", f"Bearer {token}")
    try:
        with urlopen(request, timeout=10) as answer:
            found = json.load(answer)["experiment"]
            return Shown(int(found["experiment_id"]), any(tag.get("key") == VIEW_TAG for tag in found.get("tags", [])))
    except HTTPError as error:
        if error.code == 404:
            raise UsageError(f"no experiment named {_quoted(name)} on {redacted(uri)}") from None
        raise TrackingError(f"{redacted(uri)}: answered {error.code} {error.reason}") from None
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        why = getattr(error, "reason", error)
        raise TrackingError(f"{redacted(uri)}: {why}; start the server or correct MLFLOW_TRACKING_URI") from None


def _credentials(uri: str) -> tuple[str, str]:
    parts = urlsplit(uri)
    if parts.username:
        return unquote(parts.username), unquote(parts.password or "")
    return os.environ.get("MLFLOW_TRACKING_USERNAME", ""), os.environ.get("MLFLOW_TRACKING_PASSWORD", "")


def _free_port(host: str) -> int:
    with socket.create_server((host, 0)) as server:
        return int(server.getsockname()[1])


def _check_port(host: str, port: int) -> None:
    try:
        with socket.create_server((host, port)):
            pass
    except OSError as error:
        raise UsageError(f"port {port} on {host}: {error.strerror}; choose another --port, or omit --port for a free "
                         "one") from error
