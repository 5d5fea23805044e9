"""Texts and figures in a real MLflow store: figures that stay true, descriptions."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from repro.record.folder.store import read_record
from tests.flow.mlflow_stores import NARROW, QUIET, SMALL, dump, named, reporter
from tests.records import Course, make_record
from tests.tracking_server import Site

pytest.importorskip("mlflow")
pytestmark = QUIET


def test_a_median_that_trials_disproved_is_no_longer_shown(store: str, tmp_path: Path) -> None:
    """One trial reached the target, then most missed it: the median of the first one is no longer true."""
    text = named(SMALL.replace("seeds: 2", "seeds: 3"), "disproved")
    whole = make_record(tmp_path / "whole", text, lambda trial: Course(hits_at=4 if trial.repeat == 0 else None))
    early = make_record(tmp_path / "run", text, lambda _: Course(hits_at=4), only=4)
    reporter(store).write(early, tmp_path)
    shutil.copytree(whole.folder.trials, early.folder.trials, dirs_exist_ok=True)
    shutil.copy(whole.folder.ledger, early.folder.ledger)
    live = reporter(store)
    live.write(read_record(early.folder.root), tmp_path)
    cells = {key: run["metrics"] for key, run in dump(store, "disproved").items() if key.startswith("cell")}
    for metrics in cells.values():
        history = [value for _, _, value in metrics["answer/median_tta_wall"]]
        assert len(history) == 2 and history[0] is not None and history[1] is None
        assert metrics["answer/reached"][-1][2] == 1 and metrics["interval/trials"][-1][2] == 3
        assert metrics["median/tta_train"][-1][2] is None


def test_an_experiment_is_described_by_its_newest_run(local: Site, tmp_path: Path) -> None:
    from mlflow import MlflowClient

    client, suite = MlflowClient(local.uri), named(NARROW.replace("seeds: 2", "seeds: 1"), "described")
    old, new = (make_record(tmp_path / name, suite.replace("A sample", f"The {name} sample"), started_ms=started_ms)
                for name, started_ms in (("old", 1_600_000_000_000), ("new", 1_700_000_000_000)))

    def described() -> str:
        found = client.get_experiment_by_name("described")
        assert found is not None
        return str(found.tags["mlflow.note.content"])

    for record, first in ((old, "The old sample for tests. "), (new, "The new sample for tests. "),
                          (old, "The new sample for tests. ")):
        reporter(local.uri).write(record, tmp_path)
        assert described().startswith(first)
    found = client.get_experiment_by_name("described")
    assert found is not None
    client.set_experiment_tag(found.experiment_id, "mlflow.note.content", "mine")
    reporter(local.uri).write(new, tmp_path)
    assert described() == "mine"
