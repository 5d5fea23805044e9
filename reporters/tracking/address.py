"""Failures of a tracking store, recognised in the errors of MLflow, its HTTP and its database layer."""

from __future__ import annotations

import fcntl
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from urllib.parse import unquote, urlsplit

from repro.core.errors import TrackingError
from repro.core.redact import Scrubber, redacted, secrets
from repro.runner.mlflow_ui import TRAINING, Shown, page

SCHEMES = ("http", "https", "sqlite", "postgresql", "mysql", "mssql", "file", "databricks", "databricks-uc", "uc")
"""Schemes of MLflow's tracking stores; installed packages add further ones by entry point."""
LOCK_SECONDS = 120.0
"""Longest wait for another process that creates the same store; its migrations take seconds."""


def check_scheme(uri: str) -> None:
    """Refuse a scheme that no tracking store has.

    Raises:
        TrackingError: no tracking store has the scheme; the message lists the valid ones.
    """
    scheme = urlsplit(uri).scheme.partition("+")[0].lower()
    if len(scheme) < 2 or scheme in SCHEMES:  # none, or a drive's letter: a folder
        return
    if scheme not in {point.name for point in entry_points(group="mlflow.tracking_store")}:
        raise TrackingError(f"{redacted(uri)}: MLflow has no tracking store of scheme {scheme!r}; "
                            f"valid schemes: {', '.join(SCHEMES)}")


def database(uri: str) -> Path | None:
    """Return the file of a local SQLite store; None for other stores."""
    parts = urlsplit(uri)
    if parts.scheme.partition("+")[0] != "sqlite" or not parts.path.strip("/"):
        return None
    return Path(unquote(parts.path.removeprefix("/"))).absolute()


@contextmanager
def exclusive_access(uri: str) -> Iterator[None]:
    """Lock a SQLite store, so that no other process of this tool creates or migrates it.

    Creation by MLflow is a race: of two processes, one finds tables that it is about to create. And if the file cannot
    be created, MLflow retries for minutes.

    Raises:
        TrackingError: the store cannot be written, or another process holds it for too long.
    """
    path = database(uri)
    if path is None:
        yield
        return
    try:
        if path.exists() and not os.access(path, os.W_OK):
            raise PermissionError(13, "Permission denied")
        handle = os.open(path.with_name(f".{path.name}.lock"), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise TrackingError(f"{redacted(uri)}: cannot be written ({error.strerror}); set MLFLOW_TRACKING_URI, for "
                            "example to sqlite:////tmp/mlflow.db") from None
    try:
        _wait(handle, uri)
        yield
    finally:
        os.close(handle)


def _wait(handle: int, uri: str) -> None:
    end = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > end:
                raise TrackingError(f"{redacted(uri)}: another process is still creating it; try again later") from None
            time.sleep(0.05)
        except OSError:  # a file system without locks
            return
        else:
            return


def is_server(uri: str) -> bool:
    return uri.startswith(("http://", "https://"))


def experiment_place(uri: str, experiment_id: str) -> str:
    """Return where to look at an experiment: the table of its runs on a server, or its store."""
    place = redacted(uri)
    return page(place, Shown(experiment_id, has_view=True)) if is_server(uri) else place


def run_place(experiment_id: str, run_id: str, artifact: str = "") -> str:
    """Return the address of a run inside MLflow's pages, or of one of its artifacts, wherever the server is."""
    return f"#/experiments/{experiment_id}/runs/{run_id}{f'/artifacts/{artifact}' if artifact else ''}?{TRAINING}"


def artifact_root(uri: str, experiment: str) -> str | None:
    """Return the folder for the artifacts of a new experiment; None: the server decides.

    MLflow puts the artifacts of a local SQLite store into the current directory; next to the database they are found
    again.
    """
    parts = urlsplit(uri)
    if parts.scheme != "sqlite" or not parts.path.strip("/"):
        return None
    database = Path(unquote(parts.path.removeprefix("/"))).absolute()
    return (database.parent / "mlruns" / experiment).as_uri()


@dataclass(frozen=True, slots=True)
class Failure:
    """A failure in one short line without credentials, and the advice for it."""

    text: str
    advice: str = ""
    """Empty: the general advice for the kind of store."""
    transient: bool = False
    """True if it may be over soon."""
    unreachable: bool = False
    """True if no answer came, not even a refusal."""


REFUSED = Failure("the connection is refused", transient=True, unreachable=True)
NO_HOST = Failure("no such host", transient=True, unreachable=True)
NO_ROUTE = Failure("no route to that host", transient=True, unreachable=True)
LATE = Failure("no answer in time", transient=True, unreachable=True)
CUT = Failure("the connection was closed", transient=True)
LOCKED = Failure("the database is locked by another process", "end the other process, or try again", transient=True)
KNOWN = {
    "Connection refused": REFUSED,
    "Name or service not known": NO_HOST,
    "Temporary failure in name resolution": NO_HOST,
    "No route to host": NO_ROUTE,
    "timed out": LATE,
    "RemoteDisconnected": CUT,
    "Connection reset": CUT,
    "Connection aborted": CUT,
    "Connection broken": CUT,
    "IncompleteRead": CUT,
    "Broken pipe": CUT,
    "database is locked": LOCKED,
    "not in a valid JSON format": Failure("the answer is not from an MLflow server"),
    "unable to open database file": Failure("the database cannot be opened"),
    "readonly database": Failure("the database cannot be written"),
    "maintenance mode": Failure("MLflow no longer writes file stores", "set MLFLOW_TRACKING_URI=sqlite:///mlflow.db"),
}
"""Words of an error -> failure."""
CODE = re.compile(r"(?:error code|too many|failed with code|^)\s*(401|403|408|429|5\d\d)\b")
"""An HTTP status in the words of MLflow, urllib3 and requests."""
LOG_IN = "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN"
BY_CODE = {
    "401": Failure("it requires a login (401)", LOG_IN),
    "403": Failure("it refuses this user (403)", LOG_IN),
    "408": Failure("it timed out (408)", transient=True),
    "429": Failure("it receives too many requests (429)", "try again later", transient=True),
}
LONGEST = 200


def diagnose(error: BaseException, uri: str) -> Failure:
    """Recognise an error; the text contains no credentials of the address or of the environment."""
    hidden = Scrubber(secrets({**os.environ, "MLFLOW_TRACKING_URI": uri}))
    text = hidden.masked(" ".join(str(error).split()))
    for words, failure in KNOWN.items():
        if words in text:
            return failure
    if code := CODE.search(text):
        server = Failure(f"it fails ({code[1]})", "see the log of the server, or try again later", transient=True)
        return BY_CODE.get(code[1], server)
    short = text if len(text) <= LONGEST else f"{text[:LONGEST - 3]}..."
    return Failure(short, transient=text.startswith("INTERNAL_ERROR"))


def advice(failure: Failure, uri: str) -> str:
    """Return the next step of the user."""
    if failure.advice:
        return failure.advice
    if is_server(uri):
        return "start the server there or correct MLFLOW_TRACKING_URI"
    return "make it writable, or set MLFLOW_TRACKING_URI"
