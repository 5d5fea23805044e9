"""Where a tracking store is, as people and MLflow name it; no credentials ever leave this module."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit

from repro.uri import USERINFO, redacted

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
    """What went wrong, in one short line without credentials."""
    password = urlsplit(uri).password if "@" in uri else None
    text = USERINFO.sub("", " ".join(str(error).split()))
    text = text.replace(password, "***") if password else text
    for sign, meaning in KNOWN.items():
        if sign in text:
            return meaning
    return text if len(text) <= 200 else f"{text[:197]}..."


KNOWN = {
    "Connection refused": "the connection is refused",
    "Name or service not known": "no such host",
    "Temporary failure in name resolution": "no such host",
    "No route to host": "no route to that host",
    "timed out": "no answer in time",
    "Read timed out": "no answer in time",
    "error code 401": "it wants a log-in (401)",
    "error code 403": "it refuses this user (403)",
    "database is locked": "the database is locked by another process",
    "unable to open database file": "the database cannot be opened",
    "readonly database": "the database cannot be written",
    "maintenance mode": "MLflow no longer writes stores made of files",
}
ADVICE = {
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
