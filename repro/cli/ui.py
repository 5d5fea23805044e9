"""`repro ui`: MLflow's own UI on the store in use, on loopback."""

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
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import unquote, urlencode, urlsplit
from urllib.request import Request, urlopen

import click

from repro.core.errors import TrackingError, UsageError
from repro.core.redact import redacted

HOST = "127.0.0.1"
START_SECONDS = 120.0
NAME = "experiment_name"
LISTED, LONGEST = 20, 100
"""Experiments, and characters of a name, in one message."""
RUNS = "/runs?workflowType=machine_learning"
"""Without it MLflow (3.17 at least) opens an experiment on figures about language models."""


def ui_command(uri: str | None, host: str, port: int) -> list[str]:
    """The command that serves the store `uri` (None: MLflow's default, ./mlflow.db) to one person."""
    command = [sys.executable, "-m", "mlflow", "ui", "--host", host, "--port", str(port), "--workers", "1",
               "--uvicorn-opts", "--log-level warning"]
    return [*command, "--backend-store-uri", uri or default_store()]


def default_store() -> str:
    return f"sqlite:///{Path.cwd() / 'mlflow.db'}"


def open_ui(
    uri: str | None, host: str = HOST, port: int | None = None, experiment: str | None = None
) -> None:
    """Print where the UI is, and serve it until Ctrl-C where no server does already.

    Args:
        uri: tracking store; None: MLflow's default.
        port: None or 0: a free one.
        experiment: open on the page of this experiment.

    Raises:
        UsageError: no such experiment, or the port is taken.
        TrackingError: the server did not start, or the one in use does not answer.
    """
    if uri and uri.startswith(("http://", "https://")):
        click.echo(page(redacted(uri), _asked_id(uri, experiment) if experiment else None))
        return
    store = uri or default_store()
    number = _experiment_id(store, experiment) if experiment else None
    port = port or _free_port(host)
    _check_port(host, port)
    _serve(ui_command(uri, host, port), page(f"http://{host}:{port}", number))


def page(base: str, experiment_id: int | None) -> str:
    return base if experiment_id is None else f"{base.rstrip('/')}/#/experiments/{experiment_id}{RUNS}"


def _serve(command: list[str], url: str) -> None:
    """Run the server in a group of its own, so that Ctrl-C reaches this process first and ends all of it."""
    environment = {**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "true", "PYTHONSAFEPATH": "1",
                   "MLFLOW_LOGGING_LEVEL": "ERROR", "PYTHONWARNINGS": "ignore",
                   "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    child = subprocess.Popen(command, env=environment, start_new_session=True, stdout=subprocess.DEVNULL,
                             stdin=subprocess.DEVNULL)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # an orphaned server would keep its port
    try:
        _wait_until_up(child, url)
        click.echo(f"{url}  (Ctrl-C ends it)")
        child.wait()
    except KeyboardInterrupt:
        click.echo("", err=True)
    finally:
        _end(child)


def _wait_until_up(child: subprocess.Popen[bytes], url: str) -> None:
    health = f"{url.partition('/#/')[0]}/health"
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end:
        if child.poll() is not None:
            raise TrackingError(f"MLflow's UI ended at once with exit code {child.returncode}; its message is above")
        with suppress(OSError), urlopen(health, timeout=2):
            return
        time.sleep(0.2)
    raise TrackingError(f"MLflow's UI did not answer within {START_SECONDS:.0f} s at {health}")


def _end(child: subprocess.Popen[bytes]) -> None:
    """The server and its workers."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, number)
        with suppress(subprocess.TimeoutExpired):
            child.wait(timeout=5)
            if number == signal.SIGTERM:
                time.sleep(0.2)  # workers that outlive the first get the second


def _experiment_id(store: str, name: str) -> int | None:
    """The id of an experiment in a local SQLite store, without a second to import MLflow; None in other stores."""
    parts = urlsplit(store)
    if parts.scheme != "sqlite":
        return None
    path = Path(unquote(parts.path.removeprefix("/")))
    if not path.is_file():
        raise UsageError(f"{path}: no tracking store yet; `repro run` makes one, MLFLOW_TRACKING_URI names another")
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as database:
        rows = dict(database.execute("SELECT name, experiment_id FROM experiments").fetchall())
    if name not in rows:
        known = ", ".join(_said(item) for item in sorted(rows)[:LISTED])
        more = f" and {len(rows) - LISTED} more" if len(rows) > LISTED else ""
        raise UsageError(f"no experiment named {_said(name)} in {path}; there are: {known}{more}")
    return int(rows[name])


def _said(name: str) -> str:
    """A name that may be anybody's, of any length: quoted, without what a terminal would obey."""
    return repr(name if len(name) <= LONGEST else f"{name[:LONGEST]}...")


def _asked_id(uri: str, name: str) -> int:
    """The id of an experiment, from the server that has it."""
    request = Request(f"{redacted(uri).rstrip('/')}/api/2.0/mlflow/experiments/get-by-name?{urlencode({NAME: name})}")
    user, password = _credentials(uri)
    if user:
        request.add_header("Authorization", f"Basic {b64encode(f'{user}:{password}'.encode()).decode()}")
    elif token := os.environ.get("MLFLOW_TRACKING_TOKEN"):
        request.add_header("Authorization", f"Bearer {token}")
    try:
        with urlopen(request, timeout=10) as answer:
            return int(json.load(answer)["experiment"]["experiment_id"])
    except HTTPError as error:
        if error.code == 404:
            raise UsageError(f"no experiment named {_said(name)} on {redacted(uri)}") from None
        raise TrackingError(f"{redacted(uri)}: answers with {error.code} {error.reason}") from None
    except (OSError, ValueError, KeyError) as error:
        why = getattr(error, "reason", error)
        raise TrackingError(f"{redacted(uri)}: {why}; start the server there or correct MLFLOW_TRACKING_URI") from None


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
        raise UsageError(f"port {port} on {host}: {error.strerror}; give another --port, or none") from error
