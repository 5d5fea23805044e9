"""MLflow's tracking stores: checks of an address, configuration of the client, failures in words, retries, search."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import random
import re
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from repro.core.errors import TrackingError, UsageError
from repro.core.machine import NO_TELEMETRY, user_folder
from repro.core.redact import Scrubber, redacted, secrets

LOCK_SECONDS = 120.0
"""Longest wait for another process that creates the same store; its migrations take seconds."""


def store_uri() -> str:
    """Return the address of the store of this user: MLFLOW_TRACKING_URI, else one SQLite file for runs of all folders,
    `$XDG_STATE_HOME/repro/mlflow.db`; where that folder cannot be made, `mlflow.db` in the working directory.
    """
    if given := os.environ.get("MLFLOW_TRACKING_URI"):
        return given
    folder = Path.cwd()
    with suppress(OSError, UsageError):
        wanted = user_folder("XDG_STATE_HOME", ".local/state") / "repro"
        wanted.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder = wanted if os.access(wanted, os.W_OK) else folder
    return f"sqlite:///{folder / 'mlflow.db'}"


def first_words() -> str:
    """Return where a first run goes; "" if its store is there already or was chosen."""
    path = None if os.environ.get("MLFLOW_TRACKING_URI") else database(store_uri())
    return "" if path is None or path.exists() else (
        f"mlflow: runs of all folders go to one store of yours, {path}; MLFLOW_TRACKING_URI names another")


def database(uri: str) -> Path | None:
    """Return the file of a local SQLite store; None for other stores."""
    parts = urlsplit(uri)
    if parts.scheme.partition("+")[0] != "sqlite" or not parts.path.strip("/"):
        return None
    return Path(unquote(parts.path.removeprefix("/"))).absolute()


def require_store(uri: str) -> None:
    """Refuse a local SQLite store that does not exist: a client would create it.

    Raises:
        UsageError: there is no such file.
    """
    path = database(uri)
    if path is not None and not path.is_file():
        raise UsageError(f"{path}: there is no tracking store yet; create one with `repro run`, or set "
                         "MLFLOW_TRACKING_URI")


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
    with locked(handle, LOCK_SECONDS, f"{redacted(uri)}: another process is still creating it; try again later"):
        yield


@contextmanager
def locked(handle: int, wait_seconds: float, refusal: str) -> Iterator[None]:
    """Lock a file or folder and close its handle at the end; a file system without locks locks nothing.

    Raises:
        TrackingError: another process held the lock for too long; the message is `refusal`.
    """
    end = time.monotonic() + wait_seconds
    try:
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > end:
                    raise TrackingError(refusal) from None
                time.sleep(0.05)
            except OSError:
                break
            else:
                break
        yield
    finally:
        os.close(handle)


def is_server(uri: str) -> bool:
    return uri.startswith(("http://", "https://"))


def experiment_place(uri: str, experiment_id: str) -> str:
    """Return where to look at an experiment: the table of its runs on a server, or its store."""
    place = redacted(uri)
    return page(place, experiment_id, has_view=True) if is_server(uri) else place


TRAINING = "workflowType=machine_learning"
"""Without it MLflow (3.17 or later) opens pages about language models, which show no run."""
VIEW = "repro"
"""Key of the view of the table of runs that the reporter writes into an experiment."""
VIEW_TAG = f"mlflow.sharedViewState.{VIEW}"
"""The experiment's tag in which MLflow (3.17 or later) keeps a view."""


def page(base: str, experiment_id: str, has_view: bool) -> str:
    """Return the address of the table of an experiment's runs.

    MLflow refuses the key of a view that an experiment does not have.
    """
    view = f"viewStateShareKey={VIEW}&" if has_view else ""
    return f"{base.rstrip('/')}/#/experiments/{experiment_id}/runs?{view}{TRAINING}"


def run_place(experiment_id: str, run_id: str, artifact: str = "") -> str:
    """Return the address of a run inside MLflow's pages, or of one of its artifacts, wherever the server is."""
    return f"#/experiments/{experiment_id}/runs/{run_id}{f'/artifacts/{artifact}' if artifact else ''}?{TRAINING}"


def artifact_root(uri: str, experiment: str) -> str | None:
    """Return the folder for the artifacts of a new experiment; None: the server decides.

    MLflow puts the artifacts of a local SQLite store into the current directory; next to the database they are found
    again.
    """
    path = database(uri) if urlsplit(uri).scheme == "sqlite" else None
    return (path.parent / "mlruns" / experiment).as_uri() if path else None


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
    "unsupported URI": Failure("MLflow has no tracking store of this scheme",
                               "set MLFLOW_TRACKING_URI=sqlite:///mlflow.db, or to the http address of a server"),
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


FIRST_PAUSE, LONGEST_PAUSE = 0.5, 8.0
"""Seconds; each pause is up to twice the last one, randomly shortened so that several runs do not retry together."""


class TransientError(TrackingError):
    """A failure that may be over soon: a restarting server, a busy database, too many requests."""

    def __init__(self, text: str, unreachable: bool = False) -> None:
        """`unreachable`: no answer came, not even a refusal."""
        super().__init__(text)
        self.unreachable = unreachable


@dataclass(slots=True)
class RequestTally:
    """The answers of a store, counted over all connections of one reporter."""

    taken: int = 0
    """Confirmed changes."""
    contacts: int = 0
    """Connections with an answer to the first request."""
    doubt: bool = False
    """True if a run was requested and no answer came: the store may have one more than is known."""
    listener: Callable[[int], None] | None = None
    """Called with `taken` whenever it grows."""

    def count(self) -> None:
        """Count one confirmed change."""
        self.taken += 1
        if self.listener:
            self.listener(self.taken)


@dataclass(slots=True)
class Backoff:
    """The pauses while a store fails; every confirmed change restarts the count of `seconds`."""

    seconds: float
    tally: RequestTally
    _initial: tuple[int, int] = field(init=False)
    _taken: int = field(init=False)
    _since: float = field(default=-1.0, init=False)
    _pause: float = field(default=FIRST_PAUSE, init=False)

    def __post_init__(self) -> None:
        self._initial, self._taken = (self.tally.contacts, self.tally.taken), self.tally.taken

    def pause(self, error: TrackingError) -> float | None:
        """Return the seconds until the next attempt; None: give up.

        A store that never answered is given up at once: the user waits for that message.
        """
        met = (self.tally.contacts, self.tally.taken) != self._initial
        if not isinstance(error, TransientError) or (error.unreachable and not met):
            return None
        if self.tally.taken > self._taken or self._since < 0:
            self._since, self._pause, self._taken = time.monotonic(), FIRST_PAUSE, self.tally.taken
        left = self._since + self.seconds - time.monotonic()
        if left <= 0:
            return None
        pause = min(self._pause * random.uniform(0.5, 1.0), left)  # neither a secret nor a result
        self._pause = min(2 * self._pause, LONGEST_PAUSE)
        return pause


@contextmanager
def translated(uri: str) -> Iterator[None]:
    """Turn the errors of MLflow, its HTTP and its database layer into a TrackingError: one line without credentials."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # deprecations inside MLflow do not concern our users
            yield
    except ImportError as error:
        raise TrackingError(f"mlflow cannot be imported ({error}); pip install mlflow") from error
    except _failures() as error:
        failure = diagnose(error, uri)
        text = f"{redacted(uri)}: {failure.text}; {advice(failure, uri)}"
        raise (TransientError(text, failure.unreachable) if failure.transient else TrackingError(text)) from None


def _failures() -> tuple[type[Exception], ...]:
    from alembic.util import CommandError
    from google.protobuf.json_format import ParseError
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    return MlflowException, SQLAlchemyError, CommandError, ParseError, json.JSONDecodeError, OSError


def configure_mlflow(timeout_seconds: float) -> None:
    """Configure MLflow before its import: no telemetry, few messages, and short time-outs for a dead server."""
    try:
        Path.home()
    except RuntimeError:  # MLflow cannot be imported by a user without a home folder, though it reads nothing there
        os.environ["HOME"] = "/nonexistent"
    os.environ.update(NO_TELEMETRY)
    os.environ["MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT"] = "true"
    os.environ["MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR"] = "false"  # two bars per file, for hundreds of files
    os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "CRITICAL")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", str(max(1, round(timeout_seconds))))
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR", "1")
    os.environ.setdefault("MLFLOW_HTTP_RESPECT_RETRY_AFTER_HEADER", "false")  # the server can request an hour
    logging.getLogger("urllib3.connectionpool").setLevel(logging.ERROR)


def new_client(uri: str, timeout_seconds: float) -> Any:
    """Return MLflow's client of a store; configured as `configure_mlflow` does."""
    configure_mlflow(timeout_seconds)
    from mlflow import MlflowClient

    return MlflowClient(uri)


def each_once() -> AbstractContextManager[None]:
    """Keep MLflow from repeating requests, even if the environment says otherwise.

    If an answer is lost, the request may have succeeded; what the store holds must be read before the next request.
    """
    return setting({"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0"})


@contextmanager
def setting(wanted: Mapping[str, str]) -> Iterator[None]:
    """Set variables of the environment meanwhile."""
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


PAGE = 1000


def search(client: Any, experiment: str, wanted: str, order: str, view: int = 1) -> Iterator[Any]:
    """Yield the runs of an experiment by their start, page by page.

    Args:
        wanted: a filter of MLflow's.
        order: `ASC` or `DESC`.
        view: MLflow's ViewType; by default the active runs.
    """
    token: str | None = None
    while True:
        page = client.search_runs([experiment], wanted, view, max_results=PAGE, page_token=token,
                                  order_by=[f"attributes.start_time {order}"])
        yield from page
        token = page.token
        if not token:
            return
