"""The cost table of sufficient factors: in the result, on the page, in the exports; absent where it has no line."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest

from repro.comm.algorithms.ring import Ring
from repro.core import registry
from repro.papers.wait_free.gradient_plan import Shape, plan_layers
from repro.record.folder.store import Record, read_record
from tests.records import SCALING, make_record, scaling_course

rows = importlib.import_module("repro.tables.tables")
SHAPES = [Shape("conv.weight", 6, 9, linear=False, rows=500), Shape("wide.weight", 512, 256, linear=True, rows=16),
          Shape("last.weight", 10, 512, linear=True, rows=16)]


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Record:
    made = make_record(tmp_path_factory.mktemp("plan") / "run", SCALING, scaling_course, only=12)
    path = made.folder.result(made.results[0].trial_id)
    planned = [line.model_dump() for line in plan_layers(SHAPES, 4, Ring())]
    data = json.loads(path.read_text()) | {"gradient_plan": planned}
    path.write_text(json.dumps(data))
    return read_record(made.folder.root)


def test_the_engine_s_lines_are_those_of_a_result(record: Record) -> None:
    planned, *others = (item.gradient_plan for item in record.results)
    assert planned and not any(others)
    assert [line.factors for line in planned] == [False, True, False]
    assert planned[1] == plan_layers(SHAPES, 4, Ring())[1]
    assert planned[1].factor_bytes == 3 * 16 * (512 + 256) * 4


def test_the_page_and_the_exports_have_every_layer(record: Record, tmp_path: Path) -> None:
    page = Path(registry.load("reporter", "html")().write(record, tmp_path)[0]).read_text(encoding="utf-8")
    assert "Gradients by layer" in page and "all-reduce: not a separate fully connected layer" in page
    assert page.count("wide.weight") >= 1 and "512 x 256" in page
    table = next(item for item in rows.tables(record) if item.name == "gradient_plan")
    assert [(row["name"], row["factors"]) for row in table.rows] == [
        ("conv.weight", False), ("wide.weight", True), ("last.weight", False)]


def test_records_without_a_plan_have_no_table(tmp_path: Path) -> None:
    old = make_record(tmp_path / "run", SCALING, scaling_course, only=2)
    page = Path(registry.load("reporter", "html")().write(old, tmp_path / "out")[0]).read_text(encoding="utf-8")
    assert "Gradients by layer" not in page
    assert "gradient_plan" not in {item.name for item in rows.tables(old)}
