"""The measurement of docs/extending.md, run on two ranks: its record, its page, its tables, its bundle, its audit."""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from repro.record.folder.store import read_record
from tests.commands import ROOT, command
from tests.flow.mlflow_stores import reporter
from tests.tracking_server import Site

pytestmark = pytest.mark.slow

EXAMPLE = ROOT / "examples/allreduce"
WRONG = ("        self.sum.copy_(self.own)\n", "        self.sum.copy_(2 * self.own)\n")


def test_the_example_in_the_docs_is_the_file_that_is_tested() -> None:
    assert (EXAMPLE / "allreduce.py").read_text() in (ROOT / "docs/extending.md").read_text()
    assert (EXAMPLE / "suite.yaml").read_text() in (ROOT / "docs/extending.md").read_text()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One seed of two cells, three operations each, with every report."""
    folder = tmp_path_factory.mktemp("measured")
    shutil.copytree(EXAMPLE, folder / "own")
    code, said, error = command(folder, "run", "own/suite.yaml", "--seeds", "1", "-o", "stop.repeats=3", "--no-mlflow",
                                "--out", "run")
    assert code == 0, error
    assert "2 of 2" not in said
    assert "1 of 1 ended well, median" in said
    return folder


def test_bytes_answers_and_figures_are_in_the_result(folder: Path) -> None:
    results = [json.loads(path.read_text()) for path in sorted((folder / "run").glob("trials/*/result.json"))]
    assert len(results) == 2
    for item in results:
        assert (item["status"], item["operation"]["count"]) == ("ok", 3)
        assert item["operation"]["checks"][0]["error"] <= 1e-12
        assert item["operation"]["sent_bytes"] == 2 * 40_000 * 8  # a rank of two sends its whole tensor once
        assert item["operation"]["figures"][0]["value"] == 40_000 * 8
        assert item["effective"]["comm_algorithm"] in ("ring", "tree")
        assert item["effective"]["dtype"] == "float64"


def test_the_record_is_sound_and_every_format_has_its_figures(folder: Path) -> None:
    assert command(folder, "verify", "run")[0] == 0
    for form in ("csv", "markdown"):
        code, _, error = command(folder, "report", "run", "--to", form, "--out", "out")
        assert code == 0, error
    page = (folder / "run/report/report.html").read_text()
    assert "Checks of the answers" in page
    for words in (*(f'id="{name}"' for name in ("phases", "communication", "scaling", "curves", "training")),
                  "throughput comparison"):
        assert words not in page, words
    rows = next((folder / "out").rglob("operations.csv")).read_text()
    assert "kept_bytes" in rows
    assert "sum against all values on one rank" in next((folder / "out").rglob("checks.csv")).read_text()
    assert "Checks of the answers" in next((folder / "out").rglob("*.md")).read_text()


def test_the_audit_asks_nothing_of_training(folder: Path) -> None:
    _code, said, _error = command(folder, "audit", "run", "--json")
    found = {item["id"]: item["verdict"] for item in json.loads(said)["findings"]}
    assert {found[name] for name in ("F1", "F2", "F8", "F10", "NEU2")} == {"not applicable"}
    assert found["HB8"] == found["HB10"] == "pass"


def test_its_bundle_is_verified_and_reproduced_without_the_file(folder: Path, tmp_path: Path) -> None:
    assert command(folder, "bundle", "run", "--out", str(tmp_path / "mine.zip"))[0] == 0
    assert command(tmp_path, "verify", "mine.zip")[0] == 0
    code, _, error = command(tmp_path, "reproduce", "mine.zip", "--out", "again")
    assert code == 2 and "measurement allreduce.py:AllReduce (code/" in error, error
    consent = re.findall("--allow-code ([0-9a-f]{64})", error)[0]
    _, said, error = command(tmp_path, "reproduce", "mine.zip", "--even-if-undecided", "--allow-code", consent,
                             "--out", "again")
    assert "again" in said, (said, error)
    assert command(tmp_path, "verify", "again")[0] == 0


def test_a_fast_wrong_answer_is_an_invalid_trial_with_its_reason(tmp_path: Path) -> None:
    shutil.copytree(EXAMPLE, tmp_path / "own")
    text = (EXAMPLE / "allreduce.py").read_text()
    assert WRONG[0] in text
    (tmp_path / "own/allreduce.py").write_text(text.replace(*WRONG))
    _code, said, error = command(tmp_path, "run", "own/suite.yaml", "--seeds", "1", "-o", "stop.repeats=1", "-o",
                                "processes=1", "-o", "comm=ring", "--no-mlflow", "--out", "run")
    assert "invalid, sum against all values on one rank: the error is" in error
    assert "0 of 1 ended well: no valid trial" in said


def test_its_figures_and_checks_are_in_mlflow(folder: Path, local: Site) -> None:
    """A real store, as a run itself writes it; read from its database."""
    record = read_record(folder / "run")
    reporter(local.uri).write(record, folder / "out")
    with closing(sqlite3.connect(local.database)) as database:
        rows = database.execute("SELECT r.name, m.key, m.value FROM latest_metrics m JOIN runs r USING (run_uuid)")
        found = {(name, key): value for name, key, value in rows}
    assert len(record.results) == 2
    for item in record.results:
        assert item.operation is not None
        name = f"seed {item.repeat}: {record.cell(item.cell_id).label}"
        assert found[name, "operation/kept_bytes"] == 40_000 * 8
        assert found[name, "answer/operation_time"] == pytest.approx(item.operation.median_seconds)
        assert found[name, "check/sum against all values on one rank"] == item.operation.checks[0].error
