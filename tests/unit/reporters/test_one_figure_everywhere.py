"""The end of a run, its page and `repro compare` show the same figure of a cell for every declaration of a suite."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path
from typing import Any

import pytest

from repro.cli.workflows.run import _summarize
from repro.core.errors import Exit
from repro.suite.model import Trial
from tests.in_process import succeeded
from tests.records import SUITE, Course, make_record
from tests.unit.reporters.parsed_page import render

DATA = re.compile(r'<span data-compare="(cells\.\d+)\.([a-z_.]+)"><data value="([^"]+)">')


def course(trial: Trial) -> Course:
    """The last two of each cell's seeds miss; the others arrive after 3 to 5 evaluations."""
    late = trial.repeat >= 6 and trial.choices.engine.kind == "ddp"
    return Course(0.01 * (1 + 0.02 * (trial.repeat % 3)), hits_at=None if late else 3 + trial.repeat % 3)


@pytest.mark.parametrize(("metric", "horizon"), [
    ("samples", 9000), ("tta_train", 1.5), ("throughput", None), ("tta_wall", 1.5)])
def test_run_page_and_compare_agree(tmp_path: Path, metric: str, horizon: float | None) -> None:
    text = SUITE.replace("seeds: 6", "seeds: 8") + f"  metric: {metric}\n"
    record = make_record(tmp_path / "run", text + (f"horizon: {horizon}\n" if horizon else ""), course)
    compared = succeeded("compare", record.folder.root, "--json")
    cells: list[dict[str, Any]] = json.loads(compared.stdout)["cells"]
    ran = _summarize(record, Exit.DONE, [""], None).as_json()["cells"]
    assert ran == cells
    assert {item["metric"] for item in cells} == {metric}
    if horizon:
        assert [item["horizon"] for item in cells if item["restricted"]] == [horizon] * 2
    page = render(record, tmp_path / "out")
    assert re.search(rf'<section id="cells"[^>]* data-metric="{metric}"', page)
    seen = {(place, path): float(value) for place, path, value in DATA.findall(html.unescape(page))}
    for index, item in enumerate(cells):
        assert seen[f"cells.{index}", "median"] == item["median"]
        if item["interval"]:
            assert seen[f"cells.{index}", "interval.low"] == item["interval"]["low"]
        if item["restricted"]:
            assert seen[f"cells.{index}", "restricted.value"] == item["restricted"]["value"]


def test_the_table_of_cells_names_its_metric(tmp_path: Path) -> None:
    page = render(make_record(tmp_path / "run", SUITE + "  metric: samples\n", course), tmp_path / "out")
    table = page[page.index('<section id="cells"'):page.index('<section id="curves"')]
    assert "Median samples to the target" in table
    assert "Median time" not in table
    assert "Every trial, samples" in table
    assert "samples</data>" in table


@pytest.mark.parametrize(("declared", "horizon", "other"), [
    ("tta_wall", 1.5, "samples"), ("samples", 9000, "tta_wall")])
def test_a_horizon_in_another_unit_is_none(tmp_path: Path, declared: str, horizon: float, other: str) -> None:
    text = SUITE.replace("seeds: 6", "seeds: 8") + f"  metric: {declared}\nhorizon: {horizon}\n"
    record = make_record(tmp_path / "run", text, course)
    found = json.loads(succeeded("compare", record.folder.root, "--json", "--metric", other).stdout)
    assert [item["restricted"] for item in found["cells"]].count(None) == 2
    assert horizon not in [item["horizon"] for item in found["cells"]]
    means = [item["restricted"] for item in found["comparisons"] if item["restricted"]]
    assert means and not any(mean["declared"] or mean["horizon"] == horizon for mean in means)
