"""`repro audit` over an experiment on a real MLflow server, read through MLflow's own client."""

from __future__ import annotations

from pathlib import Path

import pytest

from repro.audit.audit import audit
from repro.core.errors import Exit, TrackingError, UsageError
from tests.commands import free_port
from tests.flow.mlflow_stores import QUIET

pytest.importorskip("mlflow")
pytestmark = QUIET
ROOT = Path(__file__).resolve().parents[2]
MAPPING = """\
cell: [params.optimizer]
filter: "tags.stage = 'final'"
seed: params.seed
time: metrics.seconds
accuracy: metrics.acc
target: {value: 0.9}
model: {value: small}
repeats: 2
"""


def fill(uri: str) -> None:
    """Two cells of two runs, and one that no filter lets pass."""
    from mlflow import MlflowClient

    client = MlflowClient(uri)
    experiment = client.create_experiment("tuning")
    for number, optimizer in enumerate(("sgd", "sgd", "adam", "adam", "trial")):
        made = client.create_run(experiment, tags={"stage": "draft" if optimizer == "trial" else "final"})
        run = made.info.run_id
        client.log_param(run, "optimizer", optimizer)
        client.log_param(run, "seed", str(number % 2))
        client.log_metric(run, "seconds", 10.0 + number)
        for step, value in enumerate((0.5, 0.95, 0.94)):
            client.log_metric(run, "acc", value, step=step)
        client.set_terminated(run)


def check(uri: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The findings of an audit of the experiment, before and after one of its runs is deleted."""
    from mlflow import MlflowClient

    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.setenv("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    fill(uri)
    mapping = folder / "mapping.yaml"
    mapping.write_text(MAPPING)
    found = audit("tuning", mapping)
    rules = {item.id: item for item in found.findings}
    assert (found.origin, found.cells, found.runs, found.exit_code) == ("mlflow", 2, 4, Exit.DONE)
    assert rules["MLP1"].verdict == rules["MLP2"].verdict == rules["MLP4"].verdict == "pass"
    assert rules["HB12"].evidence == "every evaluation is recorded: 12 points of 4 runs"
    assert rules["MLP6"].verdict == "cannot tell"

    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name("tuning")
    first = client.search_runs([experiment.experiment_id], "params.optimizer = 'sgd'")[0]
    client.delete_run(first.info.run_id)
    after = audit("tuning", mapping)
    assert [*after.required_failed] == ["MLP2", "MLP6", "NEU3"]  # its cell has one run left

    with pytest.raises(UsageError, match=r"no experiment 'tunings'; did you mean 'tuning'\?"):
        audit("tunings", mapping)
    mapping.write_text(MAPPING.replace("tags.stage = 'final'", "what = is this"))
    with pytest.raises(UsageError) as error:
        audit("tuning", mapping)
    assert "\n" not in str(error.value)


def test_an_experiment_in_a_local_store(store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check(store, tmp_path, monkeypatch)


@pytest.mark.slow
def test_an_experiment_on_a_server(server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check(server, tmp_path, monkeypatch)


def test_a_store_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mapping = tmp_path / "mapping.yaml"
    mapping.write_text(MAPPING)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://user:hunter2@127.0.0.1:{free_port()}")
    with pytest.raises(TrackingError) as error:
        audit("tuning", mapping)
    assert "hunter2" not in str(error.value) and "\n" not in str(error.value)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/none.db")
    with pytest.raises(UsageError, match="no such MLflow store"):
        audit("tuning", mapping)
    assert not (tmp_path / "none.db").exists()
