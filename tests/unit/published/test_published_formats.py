"""Published results in formats other than the page: figures of the import, exact in tables and rounded in text."""

from __future__ import annotations

import csv
import json
import math
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from repro.reporters.paper.figures import rendered_figure
from repro.reporters.published.charts import batch_ticks
from repro.reporters.published.formats import published_figures, render_markdown
from repro.reporters.published.view import render

from repro.published.brief import NO_BATCH, REFUSED_UP_TO, published_brief
from repro.published.importing import import_results
from repro.published.mlperf.folder import import_folder
from repro.published.store import Published, read_published
from repro.published.tables import published_tables
from tests.in_process import succeeded
from tests.records import make_record
from tests.unit.published.made_logs import entry, log_lines, repository, three_systems
from tests.unit.reporters.tex import typeset


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Published:
    return three_systems(tmp_path_factory.mktemp("formats"))


def test_the_tables_hold_every_figure_of_the_import(published: Published) -> None:
    found = {table.name: table for table in published_tables([published, published])}
    assert list(found) == ["about", "cells", "runs", "evaluations", "batch_costs", "parameters", "systems", "refused"]
    assert all(row["origin"] == "published" for table in found.values() for row in table.rows)
    for number in (1, 2):
        rows = {name: [row for row in table.rows if row["import"] == number] for name, table in found.items()}
        assert [row["score_minutes"] for row in rows["cells"]] == [
            cell.score.minutes for cell in published.record.cells]
        assert [(row["seconds"], row["status"], row["sha256"]) for row in rows["runs"]] == [
            (item.seconds, item.status, item.sha256) for item in published.results]
        assert len(rows["evaluations"]) == sum(len(item.curve) for item in published.results)
        assert [(row["source"], row["reason"]) for row in rows["refused"]] == [
            (item.source, item.reason) for item in published.refused]
        assert len(rows["batch_costs"]) == sum(item.status == "ok" for item in published.results)
    described = found["cells"].described
    assert described["score_minutes"].kind is float and described["score_valid"].kind is bool


def test_every_format_has_the_same_figures(published: Published, tmp_path: Path) -> None:
    import pandas as pd

    places = {}
    for name in ("once", "again"):
        succeeded("report", published.folder, "--to", "markdown,csv,parquet,jsonl", "--out", tmp_path / name)
        places[name] = {path.name: path.read_bytes() for path in (tmp_path / name).rglob("*") if path.is_file()}
    assert places["once"] == places["again"]
    scores = [cell.score.minutes for cell in published.record.cells]
    with (tmp_path / "once/csv/cells.csv").open(newline="") as stream:
        assert [float(row["score_minutes"]) for row in csv.DictReader(stream)] == scores
    assert pd.read_parquet(tmp_path / "once/parquet/cells.parquet")["score_minutes"].tolist() == scores
    lines = [json.loads(line) for line in (tmp_path / "once/published.jsonl").read_text().splitlines()]
    assert [row["score_minutes"] for row in lines if row["table"] == "cells"] == scores
    text = (tmp_path / "once/published.md").read_text()
    for cell in published.record.cells:
        (line,) = [line for line in text.splitlines() if line.startswith(f"| {cell.factors['system']} ")]
        assert f" {cell.score.minutes:.4g} " in line or f" {cell.score.minutes:.3f} " in line
        assert ("not valid" in line) is not cell.score.valid
    assert "not run again here" in text and "All figures: **published**" in text
    assert all(item.reason[:20] in text for item in published.refused)


def test_batch_costs_stand_by_batch(published: Published) -> None:
    tables = published_brief([published]).costs
    assert [[row[0] for row in table.rows] for table in tables] == [["256"], ["256", "4,096"]]
    assert [[row[2] for row in table.rows] for table in tables] == [["4"], ["5", "4"]]
    assert {row[4] for table in tables for row in table.rows} == {"12.00"}


def test_ticks_are_batches_that_people_choose() -> None:
    assert batch_ticks([1536, 57344]) == [2048, 4096, 8192, 16384, 32768]
    assert batch_ticks([8, 8]) == [8] and batch_ticks([48, 60]) == [48, 60] and batch_ticks([1, 2]) == [1, 2]
    assert len(batch_ticks([1, 1 << 62])) <= 7


def test_a_long_list_of_refused_files_is_cut_and_says_so(tmp_path: Path) -> None:
    repository(tmp_path / "in")
    for index in range(REFUSED_UP_TO + 5):
        (tmp_path / "in" / f"other-{index:02d}.md").write_text("x")
    import_results("mlperf", tmp_path / "in", tmp_path / "out")
    brief = published_brief([read_published(tmp_path / "out")])
    assert len(brief.refused) == REFUSED_UP_TO and brief.refused_left_out == 5
    assert "5 more are in refused.jsonl" in render_markdown(brief)


def test_figures_are_drawn_of_scores_and_of_batches(published: Published, tmp_path: Path) -> None:
    drawn = published_figures([published])
    assert [item.name for item in drawn] == ["published-scores-1", "published-scores-2", "published-batch-1"]
    assert all("published by others" in item.caption for item in drawn)
    entry(tmp_path / "in", "fast")
    entry(tmp_path / "in", "slow", tsv="epoch\thours\ttop5Accuracy\n1\t50.0\t93.0\n")
    import_results("dawnbench", tmp_path / "in", tmp_path / "out")
    dawn = read_published(tmp_path / "out")
    alone = published_figures([dawn])
    assert any(NO_BATCH in text for text in published_brief([dawn]).doubts) and NO_BATCH in render([dawn])
    assert not any(NO_BATCH in text for text in published_brief([published]).doubts)
    assert [item.name for item in alone] == ["published-scores-1"]
    svg = rendered_figure(alone[0], "svg")
    assert b"logarithmic" in svg and b"mathdefault" not in svg, "no formula where text is not read for formulas"
    assert svg == rendered_figure(alone[0], "svg")


def test_numbers_too_large_for_a_column_keep_their_size(tmp_path: Path) -> None:
    """Epochs may be any number, so samples computed from them may be more than 64 bits hold."""
    text = "".join(log_lines()).replace('"epoch_num": 12', '"epoch_num": 1e18')
    repository(tmp_path / "in", {"result_0.txt": text})
    import_results("mlperf", tmp_path / "in", tmp_path / "out")
    succeeded("report", tmp_path / "out", "--to", "parquet,csv,jsonl,markdown")
    assert all(math.isfinite(item.epochs_to_target or 0.0) for item in read_published(tmp_path / "out").results)


def test_a_run_of_this_harness_is_in_a_separate_folder(published: Published, tmp_path: Path) -> None:
    record = make_record(tmp_path / "run", only=4)
    succeeded("report", published.folder, record.folder.root, "--to", "markdown,csv", "--out", tmp_path / "out")
    assert (tmp_path / "out/own-1/report.md").is_file() and (tmp_path / "out/own-1/csv/cells.csv").is_file()
    text = (tmp_path / "out/published.md").read_text()
    assert "own-1/report.md" in text
    assert not [cell for cell in record.plan.cells if cell.label in text]


def test_latex_is_a_file_a_table_and_a_figure(published: Published, tmp_path: Path) -> None:
    succeeded("report", published.folder, "--to", "latex", "--out", tmp_path)
    document = (tmp_path / "published.tex").read_text()
    inputs = set(re.findall(r"\\input\{(.+?)\}", document))
    written = {str(path.relative_to(tmp_path).with_suffix("")) for path in tmp_path.glob("*/*.tex")}
    assert inputs == written and {"tables/published-scores-1", "tables/published-batch-1",
                                  "figures/published-scores-1", "figures/published-batch-1"} <= written
    assert "not run again here" in document and "results.jsonl" in document
    assert all(f"{item.reason[:20]}" in document for item in published.refused)
    for path in (tmp_path / "tables").iterdir():
        text = path.read_text()
        assert "\\emph{published} by others" in text and f"\\label{{tab:repro-{path.stem}}}" in text
    for path in tmp_path.glob("figures/*.pdf"):
        (width,) = re.findall(rb"/MediaBox \[ 0 0 ([\d.]+) ", path.read_bytes())
        assert float(width) <= 72 * 3.33, "a column of a paper"
    assert "Overfull \\hbox" not in typeset(tmp_path / "published.tex")


# ---- references


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
