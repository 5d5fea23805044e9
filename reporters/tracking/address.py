"""Addresses of tracking stores, without credentials."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit

from repro.core.redact import redacted

RUNS = "/runs?workflowType=machine_learning"
"""Without it MLflow (at least 3.17) opens an experiment on a page about language models."""


def is_server(uri: str) -> bool:
    return uri.startswith(("http://", "https://"))


def experiment_place(uri: str, experiment_id: str) -> str:
    """Return where to look at an experiment: its page on a server, or its store."""
    place = redacted(uri)
    return f"{place.rstrip('/')}/#/experiments/{experiment_id}{RUNS}" if is_server(uri) else place


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
