"""Where a tracking store is, as people and MLflow name it; no credentials ever leave this module."""

from __future__ import annotations

import os
import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

from repro.core.redact import Scrubber, redacted, secrets

REFUSED, NO_HOST, NO_ROUTE = "the connection is refused", "no such host", "no route to that host"
LATE, CUT = "no answer in time", "the connection was cut"
LOCKED = "the database is locked by another process"

RUNS = "/runs?workflowType=machine_learning"
"""Without it MLflow (3.17 at least) opens an experiment on figures about language models."""


def is_server(uri: str) -> bool:
    return uri.startswith(("http://", "https://"))


def experiment_place(uri: str, experiment_id: str) -> str:
    """Where a person looks at an experiment: its page on a server, or the store it lies in."""
    place = redacted(uri)
    return f"{place.rstrip('/')}/#/experiments/{experiment_id}{RUNS}" if is_server(uri) else place


def artifact_root(uri: str, experiment: str) -> str | None:
    """Folder for the artifacts of an experiment to be created; None: the server decides.

    MLflow puts those of a local SQLite store under the current directory, wherever the database lies; beside the
    database they are found again.
    """
    parts = urlsplit(uri)
    if parts.scheme != "sqlite" or not parts.path.strip("/"):
        return None
    database = Path(unquote(parts.path.removeprefix("/"))).absolute()
    return (database.parent / "mlruns" / experiment).as_uri()


def reason(error: BaseException, uri: str) -> str:
    """What went wrong, in one short line without credentials: those of the address and of the environment."""
    hidden = Scrubber(secrets({**os.environ, "MLFLOW_TRACKING_URI": uri}))
    text = hidden.masked(" ".join(str(error).split()))
    for sign, meaning in KNOWN.items():
        if sign in text:
            return meaning
    if code := CODE.search(text):
        return MEANINGS.get(code[1], f"it fails ({code[1]})")
    return text if len(text) <= 200 else f"{text[:197]}..."


def passing(why: str) -> bool:
    """Whether what `reason` said may be over soon."""
    return why in PASSING or bool(re.search(r"\((?:408|429|5\d\d)\)$", why)) or why.startswith("INTERNAL_ERROR")


KNOWN = {
    "Connection refused": REFUSED,
    "Name or service not known": NO_HOST,
    "Temporary failure in name resolution": NO_HOST,
    "No route to host": NO_ROUTE,
    "timed out": LATE,
    "Read timed out": LATE,
    "RemoteDisconnected": CUT,
    "Connection reset": CUT,
    "Connection aborted": CUT,
    "Connection broken": CUT,
    "IncompleteRead": CUT,
    "Broken pipe": CUT,
    "database is locked": LOCKED,
    "not in a valid JSON format": "what answers there is no MLflow server",
    "unable to open database file": "the database cannot be opened",
    "readonly database": "the database cannot be written",
    "maintenance mode": "MLflow no longer writes stores made of files",
}
CODE = re.compile(r"(?:error code|too many|failed with code|^)\s*(401|403|408|429|5\d\d)\b")
"""An HTTP status in the words of MLflow, urllib3 and requests."""
MEANINGS = {
    "401": "it wants a log-in (401)", "403": "it refuses this user (403)", "408": "it waited too long (408)",
    "429": "it is asked too often (429)",
}
NOBODY = (REFUSED, NO_HOST, NO_ROUTE, LATE)
PASSING = (*NOBODY, CUT, LOCKED)
ADVICE = {
    "429": "try again later",
    "(5": "see the server's log, or try again later",
    "401": "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN",
    "403": "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN",
    "files": "set MLFLOW_TRACKING_URI=sqlite:///mlflow.db",
    "locked": "end the other process, or try again",
}


def advice(why: str, uri: str) -> str:
    """What to do about a reason."""
    for sign, text in ADVICE.items():
        if sign in why:
            return text
    if is_server(uri):
        return "start the server there or correct MLFLOW_TRACKING_URI"
    return "see that it can be written, or set MLFLOW_TRACKING_URI"
