"""The runs of scored cells in a real MLflow store have what their tuning took; runs without a tuning have nothing."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from tests.flow.mlflow_stores import reporter
from tests.in_process import succeeded
from tests.made_tuned import make_tuned
from tests.records import SUITE, make_record
from tests.tracking_server import Site

pytestmark = pytest.mark.slow


def figures(site: Site) -> dict[str, dict[str, float]]:
    """Read run name -> its tuning figures from the database itself."""
    with sqlite3.connect(site.database) as database:
        found = database.execute("SELECT r.name, m.key, m.value FROM latest_metrics m JOIN runs r USING (run_uuid) "
                                 "WHERE m.key LIKE 'tuning/%'").fetchall()
    by_run: dict[str, dict[str, float]] = {}
    for name, key, value in found:
        by_run.setdefault(name, {})[key] = value
    return by_run


def test_every_parent_has_the_cost_of_its_tuning(local: Site, tmp_path: Path) -> None:
    record = make_tuned(tmp_path / "run")
    reporter(local.uri).write(record, tmp_path / "out")
    found = figures(local)
    assert sorted(found) == [f"{number}: {cell.label}" for number, cell in enumerate(record.plan.cells, 1)]
    for values in found.values():
        wall, processor = values.pop("tuning/wall_seconds"), values.pop("tuning/processor_seconds")
        assert values == {"tuning/settings": 5, "tuning/trials": 5, "tuning/abandoned": 0}
        assert wall >= 5 and processor == pytest.approx(2 * wall)


def test_a_finished_record_is_sent_with_its_tuning(
        local: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`repro report RUN --to mlflow`, as for a run with --no-mlflow: both experiments, as the run itself sends them."""
    record = make_tuned(tmp_path / "run")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", local.uri)
    succeeded("report", record.folder.root, "--to", "mlflow")
    with sqlite3.connect(local.database) as database:
        found = dict(database.execute("SELECT e.name, count(*) FROM runs r JOIN experiments e USING (experiment_id) "
                                      "GROUP BY e.name").fetchall())
        tuning = database.execute("SELECT count(*) FROM runs WHERE name LIKE 'tuning %: %'").fetchone()
    assert found == {"tuned-contenders-tuning": 4 * 5 * 2, "tuned-contenders": 4 + 4 * 6}
    assert tuning == (4 * 5,)


def test_untuned_runs_have_none(local: Site, tmp_path: Path) -> None:
    record = make_record(tmp_path / "plain", SUITE.replace("seeds: 6", "seeds: 1"))
    reporter(local.uri).write(record, tmp_path / "out")
    assert figures(local) == {}
