"""Runs of an MLflow experiment, through MLflow's own client."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from repro.core.errors import TrackingError, UsageError, nearest
from repro.core.redact import Scrubber, redacted, secrets

PAGE, MAX_RUNS = 1000, 10_000
FINISHED = "FINISHED"


@dataclass(frozen=True, slots=True)
class LoggedRun:
    """One logged run of an experiment."""

    run_id: str
    status: str
    metrics: dict[str, float]
    """Latest value by name."""
    params: dict[str, str]
    tags: dict[str, str]
    history: tuple[float, ...] | None = None
    """Every value of the one requested metric, by step."""


@dataclass(frozen=True, slots=True)
class Experiment:
    """The runs that a store holds under one name."""

    name: str
    runs: tuple[LoggedRun, ...]
    deleted: int
    """Number of runs that are deleted but still in the store."""


def read_experiment(name: str, filter_string: str = "", history: str | None = None) -> Experiment:
    """Read every run of an experiment, in the order of their start.

    Args:
        filter_string: MLflow's; runs that do not match are excluded.
        history: a metric of which to read every value.

    Raises:
        UsageError: no such experiment, an invalid filter, or too many runs.
        TrackingError: the store does not answer.
    """
    uri = os.environ.get("MLFLOW_TRACKING_URI", "")
    _quiet()
    with _translated(uri):
        from mlflow import MlflowClient, get_tracking_uri
        from mlflow.entities import ViewType

        uri = uri or get_tracking_uri()
        _must_exist(uri)
        client: Any = MlflowClient(uri)
        found = client.get_experiment_by_name(name)
        if found is None:
            known = [item.name for item in client.search_experiments(max_results=PAGE)]
            raise UsageError(f"{redacted(uri)}: no experiment {name!r}{nearest(name, known)}")
        active = _search(client, found.experiment_id, filter_string, ViewType.ACTIVE_ONLY)
        deleted = _search(client, found.experiment_id, filter_string, ViewType.DELETED_ONLY)
        runs = tuple(_logged(client, item, history) for item in active)
    return Experiment(name, runs, len(deleted))


def _quiet() -> None:
    """Configure MLflow before its import: no telemetry, no log messages, short timeouts."""
    os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
    os.environ["DO_NOT_TRACK"] = "true"
    os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "CRITICAL")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    logging.getLogger("urllib3.connectionpool").setLevel(logging.ERROR)


@contextmanager
def _translated(uri: str) -> Iterator[None]:
    """Turn any error of MLflow, its HTTP or its database layer into one line without credentials."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # MLflow's own deprecation warnings do not concern the user of this package
            yield
    except ImportError as error:
        raise TrackingError(f"mlflow cannot be imported ({error}); pip install mlflow") from error
    except _failures() as error:
        text = Scrubber(secrets({**os.environ, "MLFLOW_TRACKING_URI": uri})).masked(" ".join(str(error).split()))
        if getattr(error, "error_code", "") == "INVALID_PARAMETER_VALUE":
            raise UsageError(f"{redacted(uri)}: {text[:200]}") from None
        raise TrackingError(f"{redacted(uri)}: {text[:200]}; start the server or correct MLFLOW_TRACKING_URI") from None


def _failures() -> tuple[type[Exception], ...]:
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    return MlflowException, SQLAlchemyError, OSError


def _must_exist(uri: str) -> None:
    """Check that a local store exists: MLflow would create it, but an audit must not write."""
    parts = urlsplit(uri)
    if parts.scheme.partition("+")[0] != "sqlite" or not parts.path.strip("/"):
        return
    path = Path(unquote(parts.path.removeprefix("/")))
    if not path.is_file():
        raise UsageError(f"{path}: no such MLflow store; correct MLFLOW_TRACKING_URI")


def _search(client: Any, experiment: str, filter_string: str, view: int) -> list[Any]:
    found: list[Any] = []
    token: str | None = None
    while True:
        page = client.search_runs([experiment], filter_string, run_view_type=view, max_results=PAGE, page_token=token,
                                  order_by=["attributes.start_time ASC"])
        found += page
        token = page.token
        if len(found) > MAX_RUNS:
            raise UsageError(f"more than {MAX_RUNS} runs; select some of them with `filter` in the mapping")
        if not token:
            return found


def _logged(client: Any, run: Any, history: str | None) -> LoggedRun:
    values: tuple[float, ...] | None = None
    if history is not None and history in run.data.metrics:
        points = client.get_metric_history(run.info.run_id, history)
        values = tuple(float(item.value) for item in sorted(points, key=lambda item: (item.step, item.timestamp)))
    return LoggedRun(
        run_id=run.info.run_id, status=run.info.status, metrics=dict(run.data.metrics), params=dict(run.data.params),
        tags=dict(run.data.tags), history=values,
    )
