"""MLflow's own UI for the store in use, served on the loopback interface."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from typing import Any
from urllib.request import urlopen

from repro.core.errors import TrackingError, UsageError
from repro.core.machine import NO_TELEMETRY
from repro.core.redact import redacted
from repro.runner.tracking_store import (
    TRAINING,
    VIEW_TAG,
    database,
    is_server,
    new_client,
    page,
    require_store,
    store_uri,
    translated,
)

HOST = "127.0.0.1"
START_SECONDS, ANSWER_SECONDS = 120.0, 10.0
LISTED, LONGEST = 20, 100
"""Experiments, and characters of a name, in one message."""


def ui_command(uri: str | None, port: int) -> list[str]:
    """Return the command that serves the store `uri` (None: that of this user) with one worker."""
    return [sys.executable, "-m", "mlflow", "ui", "--host", HOST, "--port", str(port), "--workers", "1",
            "--uvicorn-opts", "--log-level warning", "--backend-store-uri", uri or store_uri()]


def open_ui(uri: str | None, port: int | None = None, experiment: str | None = None) -> None:
    """Print the address of the UI; unless `uri` is a server, serve the UI until Ctrl-C.

    Args:
        uri: tracking store; None: that of this user.
        port: None or 0: a free one.
        experiment: print the address of the table of its runs; None: of the experiment that the last run was written
            to, if the store is a local SQLite file, else of the list of experiments.

    Raises:
        UsageError: there is no such experiment, or the port is in use.
        TrackingError: the server did not start, or the server at `uri` does not answer.
    """
    if uri and is_server(uri):
        hint = "" if experiment else "  (--experiment NAME gives the table of its runs)"
        _print_line(f"{_address(redacted(uri), _named(uri, experiment) if experiment else None)}{hint}")
        return
    store = uri or store_uri()
    shown = _named(store, experiment) if experiment else _last_experiment(store)
    port = _take_port(port or 0)
    _serve(ui_command(uri, port), _address(f"http://{HOST}:{port}", shown))


def _address(base: str, experiment: Any) -> str:
    """Return the address of the table of an experiment's runs; None: of the list of experiments."""
    if experiment is None:
        return f"{base.rstrip('/')}/#/experiments?{TRAINING}"
    return page(base, experiment.experiment_id, VIEW_TAG in experiment.tags)


def _print_line(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()  # the process stays, so a reader of a pipe would wait for the address


def _serve(command: list[str], url: str) -> None:
    """Run the server in its own process group, so that Ctrl-C reaches this process first, which ends the group."""
    environment = {**os.environ, **NO_TELEMETRY, "PYTHONSAFEPATH": "1",
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
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, number)
        with suppress(subprocess.TimeoutExpired):
            child.wait(timeout=5)
            if number == signal.SIGTERM:
                time.sleep(0.2)  # workers that survive SIGTERM get SIGKILL


def _last_experiment(store: str) -> Any:
    """Return the experiment of the newest run in a local SQLite store; None if there is none, or for other stores."""
    path = database(store)
    if path is None or not path.is_file():
        return None
    with suppress(TrackingError), translated(store):  # none that this version knows: its server says so
        client = new_client(store, ANSWER_SECONDS)
        every = [item.experiment_id for item in client.search_experiments()]
        for run in client.search_runs(every, order_by=["attributes.start_time DESC"], max_results=1):
            return client.get_experiment(run.info.experiment_id)
    return None


def _named(store: str, name: str) -> Any:
    require_store(store)
    with translated(store):
        client = new_client(store, ANSWER_SECONDS)
        if (found := client.get_experiment_by_name(name)) is not None:
            return found
        known = client.search_experiments(order_by=["name ASC"], max_results=LISTED)
    names = ", ".join(_quoted(item.name) for item in known)
    raise UsageError(f"no experiment named {_quoted(name)} in {redacted(store)}; known: {names}"
                     f"{' and more' if known.token else ''}")


def _quoted(name: str) -> str:
    """Quote a name of unknown origin: shortened, with control characters escaped."""
    return repr(name if len(name) <= LONGEST else f"{name[:LONGEST]}...")


def _take_port(wanted: int) -> int:
    """Return a port that can be opened; 0: any."""
    try:
        with socket.create_server((HOST, wanted)) as server:
            return int(server.getsockname()[1])
    except OSError as error:
        advice = "; choose another --port, or omit --port for a free one" if wanted else ""
        raise UsageError(f"port {wanted or 'of any number'} on {HOST}: {error.strerror}{advice}") from error
