"""Addresses of tracking stores, without credentials."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit

from repro.core.redact import redacted
from repro.runner.mlflow_ui import TRAINING, Shown, page


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
