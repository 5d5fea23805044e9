"""What MLflow's client reads of a store."""

from __future__ import annotations

import math
import shutil
from collections.abc import Sequence
from typing import Any

import pytest

from repro.core import registry
from repro.record.folder.store import Record, read_record
from repro.reporting import Reporter
from repro.runner import tracking as tracking
from tests.records import SUITE, make_record

pytest.importorskip("mlflow")
QUIET = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # MLflow's and SQLAlchemy's own
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # MLflow keeps its database connections open
]
SMALL = SUITE.replace("seeds: 6", "seeds: 2")
NARROW = SMALL.replace("processes: [1, 2]", "processes: [2]")
"""A server takes long to answer for every metric."""


def reporter(uri: str | None, **options: Any) -> Any:
    """A new one, as in a new process: without any state of earlier replays."""
    found = registry.load("reporter", "mlflow")(tracking_uri=uri, **options)
    assert isinstance(found, Reporter)
    return found


def named(text: str, name: str) -> str:
    return text.replace("suite: sample", f"suite: {name}")


def later(record: Record, trials: int) -> Record:
    """The same run after more trials: what `make_record` makes of them, copied over."""
    whole = make_record(record.folder.root.with_name(f"whole-{trials}"), record.folder.suite.read_text(), only=trials)
    for name in ("trials", "ledger.jsonl"):
        source, target = whole.folder.root / name, record.folder.root / name
        shutil.copytree(source, target, dirs_exist_ok=True) if source.is_dir() else shutil.copy(source, target)
    return read_record(record.folder.root)


def dump(uri: str, experiment: str, only: Sequence[str] = ()) -> dict[str, Any]:
    """The content of an experiment in MLflow's client, or of some of its runs, with every point of every metric."""
    from mlflow import MlflowClient

    client = MlflowClient(uri)
    found = client.get_experiment_by_name(experiment)
    assert found is not None
    runs = {run.data.tags["repro.key"]: run for run in client.search_runs([found.experiment_id])}
    return {key: dump_run(client, run) for key, run in runs.items() if not only or key in only}


def dump_run(client: Any, run: Any) -> dict[str, Any]:
    """The content of one run; a value that is not a number is None, which equals itself."""
    history = {
        key: sorted((item.step, item.timestamp, None if math.isnan(item.value) else item.value)
                    for item in client.get_metric_history(run.info.run_id, key))
        for key in run.data.metrics
    }
    info = run.info
    return {
        "id": info.run_id, "name": info.run_name, "status": info.status, "start": info.start_time,
        "end": info.end_time, "params": run.data.params, "tags": run.data.tags, "metrics": history,
        "data": [(item.dataset.name, item.dataset.digest, item.dataset.profile,
                  {tag.key: tag.value for tag in item.tags}) for item in run.inputs.dataset_inputs],
        "artifacts": sorted((item.path, item.file_size) for item in client.list_artifacts(info.run_id)),
    }
