"""Reference convergence points: read, drawn next to the runs, refused if invalid."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from repro.reporters.paper.figures import rendered_figure
from repro.reporters.published.formats import published_figures
from repro.reporters.published.view import render

from repro.published.importing import import_results
from repro.published.mlperf.folder import import_folder
from repro.published.store import read_published
from repro.published.tables import published_tables
from tests.unit.published.made_logs import repository

POINT = {"Benchmark": "resnet", "BS": 256, "Hyperparams": {"lr": 1}, "Epochs to converge": [11, 12, 13]}


def references(root: Path, data: Any, name: str = "rcps_resnet.json") -> Path:
    folder = root / "training_4.0.0"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(data if isinstance(data, str) else json.dumps(data))
    return folder / name


def test_references_are_shown_next_to_the_runs(tmp_path: Path) -> None:
    repository(tmp_path / "in")
    references(tmp_path / "in", {"b": POINT | {"BS": 4096, "Epochs to converge": [40]}, "a": POINT})
    import_results("mlperf", tmp_path / "in", tmp_path / "out")
    found = read_published(tmp_path / "out")
    assert not found.refused
    assert [(item.round, item.global_batch_size, item.unit, item.costs) for item in found.record.references] == [
        ("training_v4.0", 256, "epochs", (11.0, 12.0, 13.0)), ("training_v4.0", 4096, "epochs", (40.0,))]
    page = render([found])
    (text,) = re.findall(r'id="i1-b0-batch">(.*?)</script>', page, re.DOTALL)
    (trace,) = [item for item in json.loads(text)["data"] if item["name"].startswith("reference")]
    assert (trace["x"], trace["y"]) == ([256, 4096], [12.0, 40.0])
    (drawn,) = [item for item in published_figures([found]) if "batch" in item.name]
    assert "Diamonds" in drawn.caption and b"reference (RCP)" in rendered_figure(drawn, "svg")
    (table,) = [item for item in published_tables([found]) if item.name == "references"]
    assert [(row["mean"], row["runs"]) for row in table.rows] == [(12.0, 3), (40.0, 1)]


@pytest.mark.parametrize(("name", "data", "unit"), [
    ("rcps_bert.json", {"a": POINT}, "samples"), ("rcps_resnet.json", {"a": POINT}, "epochs"),
    ("rcps_llama2_70b_lora.json", {"a": {"BS": 8, "samples to converge": [3072]}}, "samples")])
def test_the_unit_of_references(tmp_path: Path, name: str, data: Any, unit: str) -> None:
    references(tmp_path, data, name)
    assert {item.unit for item in import_folder(tmp_path).references} == {unit}


@pytest.mark.parametrize("data", [
    "[", "[]", "{}", "null", {"a": 1}, {"a": {}}, {"a": POINT | {"BS": "many"}}, {"a": POINT | {"BS": 0}},
    {"a": POINT | {"Epochs to converge": []}}, {"a": POINT | {"Epochs to converge": [1, None]}},
    {"a": POINT | {"Epochs to converge": "x"}}, '{"a": {"BS": 8, "Epochs to converge": [NaN]}}',
    '{"a": {"BS": 1e400, "Epochs to converge": [1]}}', {"a": POINT | {"Epochs to converge": [-1]}}, "[" * 100_000])
def test_invalid_references_are_refused(tmp_path: Path, data: Any) -> None:
    references(tmp_path, data)
    found = import_folder(tmp_path)
    assert not found.references and [item.source for item in found.refused] == ["training_4.0.0/rcps_resnet.json"]


def test_tokens_are_not_drawn_against_a_batch(tmp_path: Path) -> None:
    references(tmp_path, {"a": POINT}, "rcps_gpt3.json")
    assert "counts tokens" in import_folder(tmp_path).refused[0].reason


def test_every_file_of_mlcommons_is_taken_or_counts_tokens_or_iterations(tmp_path: Path) -> None:
    package = pytest.importorskip("mlperf_logging", reason="mlperf-logging is not installed")
    for path in sorted(Path(package.__file__).parent.glob("rcp_checker/training_*/rcps_*.json")):
        (tmp_path / path.parent.name).mkdir(exist_ok=True)
        shutil.copyfile(path, tmp_path / path.parent.name / path.name)
    found = import_folder(tmp_path)
    assert len(found.references) > 200
    steps = [item for item in found.references if (item.round, item.benchmark) == ("training_v3.1", "stable_diffusion")]
    assert min(cost for item in steps for cost in item.costs) >= 1000 * min(item.global_batch_size for item in steps)
    assert all(re.search("counts (tokens|iterations)", item.reason) for item in found.refused), found.refused
    by_batch = {item.global_batch_size: sum(item.costs) / len(item.costs) for item in found.references
                if (item.benchmark, item.round) == ("resnet", "training_v4.0")}
    assert by_batch[4096] == 40.0 and by_batch[65536] == pytest.approx(84.5) and len(by_batch) == 10
