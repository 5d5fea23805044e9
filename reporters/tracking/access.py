"""Checks of a tracking URI before MLflow gets it: MLflow would report these errors late or never."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import entry_points
from pathlib import Path
from urllib.parse import unquote, urlsplit

from repro.core.errors import TrackingError
from repro.core.redact import redacted

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
