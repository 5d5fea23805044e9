"""A new metric is one entry of `METRICS`: every command and every report shows it."""

from __future__ import annotations

import html
import json
from pathlib import Path
from typing import Any

import click
import pytest

from reporters import markdown
from reporters.latex import latex_files
from reporters.paper import brief
from reporters.paper.brief import shown_of
from reporters.tracking.metric_points import cell_metrics, cell_points, result_points
from repro.cli.commands.compare import compare
from repro.compare import summarize
from repro.record.folder.store import Record
from repro.record.result.results import Result, figures_of
from repro.reporting import reporter
from repro.suite.metrics import METRICS, MetricSpec
from repro.suite.model import Trial
from repro.tables.tables import tables
from tests.in_process import called, succeeded
from tests.records import SUITE, default_course, make_record

STEP = MetricSpec(name="bare_step_seconds", path="steps.median_seconds", noun="median step time", times="the step time",
                  unit="s", description="Median over steps of the slowest rank's step.",
                  says=("takes", "the step time of"))


def step_seconds(trial: Trial) -> float:
    return default_course(trial).step_seconds


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Record:
    """A record whose suite declares the new metric."""
    monkeypatch.setitem(METRICS, STEP.name, STEP)
    return make_record(tmp_path / "run", SUITE + f"  metric: {STEP.name}\n")


def test_compare_accepts_it(record: Record) -> None:
    done = succeeded("compare", record.folder.root, "--json")
    found: dict[str, Any] = json.loads(done.stdout)
    assert found["metric"] == STEP.name
    primary = found["comparisons"][0]
    assert (primary["primary"], primary["verdict"]) == (True, "slower")
    assert primary["ratio"] == pytest.approx(1.2)
    assert primary["speedup"] == pytest.approx(1 / 1.2)
    assert primary["split"] is None  # samples and throughput make up a time to the target, not this one
    table = called("compare", record.folder.root)
    assert "median step time" in table.output


def test_the_command_line_offers_the_table() -> None:
    option = next(item for item in compare.params if item.name == "metric")
    assert isinstance(option.type, click.Choice)
    assert list(option.type.choices) == list(METRICS)


def test_the_page_shows_it(record: Record, tmp_path: Path) -> None:
    page = html.unescape(Path(reporter("html").write(record, tmp_path / "out")[0]).read_text(encoding="utf-8"))
    assert f'data-metric="{STEP.name}"' in page
    assert STEP.description in page
    assert "Median median step time" in page
    assert "the step time of" in page


def test_tables_show_it(record: Record) -> None:
    found = {table.name: table for table in tables(record)}
    trials = {row["trial_id"]: row[STEP.column] for row in found["trials"].rows}
    assert trials == {trial.trial_id: pytest.approx(step_seconds(trial)) for trial in record.plan.trials()}
    assert {row["metric"] for row in found["cells"].rows} == {STEP.name}
    text = brief.brief(record)
    assert "median step time" in markdown.render(text).lower()
    part = shown_of(record)
    paper = "".join(latex_files(record, brief.brief(record, part), part, []).values())
    assert "median step time" in paper.lower()


def test_a_tracking_store_shows_it(record: Record) -> None:
    found = result_points(record.results[0], 0, declared=STEP.name)
    assert found[0].key == f"answer/{STEP.column}"
    assert found[0].value == record.results[0].steps.median_seconds  # type: ignore[union-attr]
    cell = record.plan.cells[0]
    names = cell_metrics(record)
    assert names[0] == STEP.name
    summaries = [summarize(cell, record.of_cell(cell.cell_id), name) for name in names]
    assert f"answer/median_{STEP.column}" in {point.key for point in cell_points(summaries, [], 0, 0)}


@pytest.mark.parametrize("name", METRICS)
def test_every_entry_is_complete(name: str) -> None:
    spec = METRICS[name]
    assert spec.name == name
    assert bool(spec.watched) == spec.to_target
    result = Result(trial_id="t", cell_id="c", repeat=0, attempt=1, status="ok")
    assert result.at(spec.path) is None
    assert spec.column in figures_of(result)


def test_the_docs_name_every_metric() -> None:
    text = (Path(__file__).parents[2] / "docs" / "suites.md").read_text()
    assert all(name in text for name in METRICS)
