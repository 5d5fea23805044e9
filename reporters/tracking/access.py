"""Before MLflow sees a tracking URI: what it would say late, at length or not at all is said here at once."""

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
"""Of MLflow's own tracking stores; further ones come from installed packages by entry point."""
LOCK_SECONDS = 120.0
"""Longest wait for another process that creates the same store: the migrations take a few seconds each."""


def check_scheme(uri: str) -> None:
    """Refuse a scheme that no tracking store has.

    Raises:
        TrackingError: in words; MLflow's own name everything but what to write.
    """
    scheme = urlsplit(uri).scheme.partition("+")[0].lower()
    if len(scheme) < 2 or scheme in SCHEMES:  # none, or a drive's letter: a folder
        return
    if scheme not in {point.name for point in entry_points(group="mlflow.tracking_store")}:
        raise TrackingError(f"{redacted(uri)}: MLflow has no tracking store of scheme {scheme!r}; "
                            f"it takes {', '.join(SCHEMES)}")


def database(uri: str) -> Path | None:
    """The file of a local SQLite store; None for any other."""
    parts = urlsplit(uri)
    if parts.scheme.partition("+")[0] != "sqlite" or not parts.path.strip("/"):
        return None
    return Path(unquote(parts.path.removeprefix("/"))).absolute()


@contextmanager
def alone_at(uri: str) -> Iterator[None]:
    """Inside, no other process of ours creates or migrates the same SQLite store.

    MLflow's own creation is a race: of two processes one finds tables that it is about to make. And where the file
    cannot be made MLflow asks again for minutes.

    Raises:
        TrackingError: the store cannot be written, or another process does not come to an end.
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
                raise TrackingError(f"{redacted(uri)}: another process is creating it and does not end") from None
            time.sleep(0.05)
        except OSError:  # a file system without locks: as before
            return
        else:
            return
