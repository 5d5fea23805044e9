"""A tracking store through the MLflow client: what it holds, and the calls that bring it up to date."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from repro.core.errors import TrackingError
from repro.core.redact import redacted
from repro.record.environment.environment import DataSet
from repro.runner.tracking_store import (
    RequestTally,
    artifact_root,
    configure_mlflow,
    exclusive_access,
    search,
    setting,
    store_uri,
    translated,
)

from .metric_points import ANSWER, MetricPoint
from .run_view import RunView

DIGEST_LIMIT = 36


@dataclass(slots=True)
class StoredRun:
    """The stored part of one run; updated with every call."""

    run_id: str
    tags: dict[str, str]
    params: set[str]
    metrics: dict[str, float]
    """Latest value by key."""
    status: str
    end_ms: int | None
    data: set[tuple[str, str]]
    unsure: set[str] = field(default_factory=set)
    """Keys whose history another process wrote and this one has not read."""


class Server:
    """One experiment in one tracking store."""

    def __init__(
        self, uri: str | None, experiment: str, timeout_seconds: float, tally: RequestTally | None = None
    ) -> None:
        """Connect, and create the experiment if it does not exist.

        Args:
            tally: counts the answers of the store.

        Raises:
            TrackingError: the store does not answer or refuses, or the experiment was deleted.
        """
        configure_mlflow(timeout_seconds)
        self._tally = tally or RequestTally()
        self.uri = uri or store_uri()
        self._tags: dict[str, str] = {}
        """Those of the experiment, as far as this process knows."""
        with exclusive_access(self.uri), translated(self.uri):
            self.experiment_id = self._connected(experiment)

    def _connected(self, experiment: str) -> str:
        from mlflow import MlflowClient

        # Only a test that the store answers: it may be short.
        with setting({"MLFLOW_HTTP_REQUEST_TIMEOUT": "4", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0"}):
            self._client: Any = MlflowClient(self.uri)
            found = self._client.get_experiment_by_name(experiment)
        self._tally.contacts += 1
        return self._usable(found, experiment) if found else self._create_experiment(experiment)

    def _usable(self, found: Any, name: str) -> str:
        if found.lifecycle_stage != "active":
            raise TrackingError(
                f"{redacted(self.uri)}: experiment {name!r} was deleted there; restore it with "
                f"`mlflow experiments restore -x {found.experiment_id}`"
            )
        self._tags = dict(found.tags)
        return str(found.experiment_id)

    def describe(self, wanted: Callable[[Mapping[str, str]], Mapping[str, str]]) -> None:
        """Set the tags of the experiment that differ.

        Args:
            wanted: returns the tags for those that the experiment has; another record may have set some.
        """
        if all(self._tags.get(key) == value for key, value in wanted(self._tags).items()):
            return
        self._tags = dict(self._client.get_experiment(self.experiment_id).tags)
        for key, value in wanted(self._tags).items():
            if self._tags.get(key) != value:
                self._client.set_experiment_tag(self.experiment_id, key, value)
                self._tally.count()
                self._tags[key] = value

    def _create_experiment(self, name: str) -> str:
        from mlflow.exceptions import MlflowException

        try:
            return str(self._client.create_experiment(name, artifact_root(self.uri, name)))
        except MlflowException:
            found = self._client.get_experiment_by_name(name)  # another run may have created it first
            if found is None:
                raise
            return self._usable(found, name)

    def images(self, run: str, known: Mapping[str, str]) -> dict[str, StoredRun]:
        """Return all runs of a record in the store by key, found by tags because tracking.json can be lost.

        If the answer to `create` was lost, two runs can have one key. One stays, the others are deleted.

        Args:
            known: key -> the run in tracking.json, which stays.
        """
        found: dict[str, list[Any]] = {}
        for item in search(self._client, self.experiment_id, f"tags.`repro.run` = '{run}'", "ASC"):
            found.setdefault(item.data.tags.get("repro.key", ""), []).append(item)
        return {key: _image(self._one(runs, known.get(key))) for key, runs in found.items()}

    def _one(self, runs: Sequence[Any], known: str | None) -> Any:
        """Keep the known one of several runs with one key, else the one with most metrics; delete the others."""
        first, *rest = sorted(runs, key=lambda run: (run.info.run_id != known, -len(run.data.metrics), run.info.run_id))
        for double in rest:
            self._client.delete_run(double.info.run_id)
        return first

    def create(self, view: RunView, parent: str | None) -> StoredRun:
        """Create a run with its tags and start time, which cannot be set later."""
        tags = view.tags | ({"mlflow.parentRunId": parent} if parent else {})
        self._tally.doubt, before = True, self._tally.doubt  # until the answer arrives
        made = self._client.create_run(self.experiment_id, start_time=view.start_ms, tags=tags)
        self._tally.doubt = before
        self._tally.count()
        return _image(made)

    def send(
        self, image: StoredRun, view: RunView, series: Sequence[MetricPoint], figures: Sequence[MetricPoint]
    ) -> None:
        """Send the tags, parameters and metric points that the store does not have yet.

        Args:
            series: points of logs; after a crash before tracking.json was written, the store can have some of them.
            figures: final values; one that the store has already is not sent again, and one that is unknown is sent
                only if the store has a value that is no longer true, or to keep its place in the answer.
        """
        from mlflow.entities import Metric, Param, RunTag

        # MLflow's tables show metrics in the order of their first points, so the figures come first.
        points = [point for point in figures if _is_new(image.metrics.get(point.key), point)]
        points += self._missing(image, series)
        tags = {key: value for key, value in view.tags.items() if image.tags.get(key) != value}
        params = {key: value for key, value in view.params.items() if key not in image.params}
        if points or tags or params:
            self._client.log_batch(
                image.run_id, metrics=[Metric(item.key, item.value, item.time_ms, item.step) for item in points],
                params=[Param(key, value) for key, value in params.items()],
                tags=[RunTag(key, value) for key, value in tags.items()],
            )
            self._tally.count()
        image.tags |= tags
        image.params |= set(params)
        image.metrics |= {point.key: point.value for point in points}

    def _missing(self, image: StoredRun, points: Sequence[MetricPoint]) -> list[MetricPoint]:
        """Return the points that the store does not have; for keys of another process, ask the store."""
        taken: set[tuple[str, int, int]] = set()
        for key in sorted({point.key for point in points} & image.unsure):
            history = self._client.get_metric_history(image.run_id, key)
            taken |= {(key, item.step, item.timestamp) for item in history}
            image.unsure.discard(key)
        return [point for point in points if (point.key, point.step, point.time_ms) not in taken]

    def send_data(self, image: StoredRun, data: Sequence[DataSet]) -> None:
        """Log data sets as inputs, by our digest of their full content: that of MLflow covers 10,000 elements."""
        from mlflow.entities import DatasetInput, InputTag

        new = [item for item in data if (item.name, item.sha256[:DIGEST_LIMIT]) not in image.data]
        if new:
            tags = [InputTag("mlflow.data.context", "training")]
            self._client.log_inputs(image.run_id, datasets=[
                DatasetInput(_dataset(item), [*tags, InputTag("repro.sha256", item.sha256)]) for item in new
            ])
            self._tally.count()
        image.data |= {(item.name, item.sha256[:DIGEST_LIMIT]) for item in new}

    def upload(self, image: StoredRun, path: Path) -> None:
        self._client.log_artifact(image.run_id, str(path))
        self._tally.count()

    def upload_text(self, image: StoredRun, name: str, text: str) -> None:
        self._client.log_text(image.run_id, text, name)
        self._tally.count()

    def set_status(self, image: StoredRun, view: RunView) -> None:
        """Set the status, and the end if the run has ended."""
        if (image.status, image.end_ms) == (view.status, view.end_ms):
            return
        if view.end_ms is not None:
            self._client.set_terminated(image.run_id, view.status, view.end_ms)
        elif image.status != view.status:
            self._client.update_run(image.run_id, status=view.status)
        self._tally.count()
        image.status, image.end_ms = view.status, view.end_ms


def _is_new(stored: float | None, point: MetricPoint) -> bool:
    if math.isnan(point.value):
        return point.key.startswith(f"{ANSWER}/") if stored is None else not math.isnan(stored)
    return stored != point.value


def _image(run: Any) -> StoredRun:
    data = run.inputs.dataset_inputs if run.inputs else []
    metrics: Mapping[str, float] = run.data.metrics
    return StoredRun(
        run_id=run.info.run_id, tags=dict(run.data.tags), params=set(run.data.params), metrics=dict(metrics),
        status=run.info.status, end_ms=run.info.end_time or None, unsure=set(metrics),
        data={(item.dataset.name, item.dataset.digest) for item in data},
    )


def _dataset(data: DataSet) -> Any:
    from mlflow.entities import Dataset

    facts = {
        "sha256": data.sha256, "version": data.version, "train_samples": data.train_samples,
        "eval_samples": data.eval_samples, "licence": data.licence, "synthetic": data.synthetic,
    }
    return Dataset(
        name=data.name, digest=data.sha256[:DIGEST_LIMIT], source_type="repro",
        source=json.dumps({"source": data.source, "sha256": data.sha256}), profile=json.dumps(facts),
    )
