"""Times in a terminal: milliseconds below 0.1 s, as on the page; JSON keeps seconds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from repro.cli.main import cli
from repro.compare import Summary
from repro.tables.cell_tables import amount_text, ends_text, group_tables, median_text
from tests.records import SUITE, Course, make_record


@pytest.mark.parametrize(("value", "text"), [
    (0.766, "0.766 s"), (0.1, "0.1 s"), (0.0999, "99.9 ms"), (0.001527, "1.527 ms"), (4.985e-05, "0.04985 ms"),
    (1e-12, "0 s"), (1234.5, "1,234 s"), (9999.7, "10,000 s"), (43210.9, "43,211 s"),
])
def test_a_time_below_a_tenth_of_a_second_is_in_milliseconds(value: float, text: str) -> None:
    assert amount_text(value, "tta_wall") == text


def test_large_figures_have_no_exponent() -> None:
    table, = group_tables(["ddp"], [{"step_seconds": 0.01, "train_samples_per_second": 12345.6}])
    assert table.rows == (("ddp", "10 ms", "12,346"),)
    summary = Summary.model_construct(metric="tta_wall", median=4321.0)
    assert median_text(summary) == "4,321 s"


@pytest.mark.parametrize(("low", "high", "metric", "text"), [
    (4.985e-05, 0.0015, "end_wall", "0.04985 to 1.5 ms"), (0.098, 0.102, "end_wall", "98 ms to 0.102 s"),
    (0.7, 0.8, "tta_wall", "0.7 to 0.8 s"), (640, 704, "samples", "640 to 704"),
])
def test_the_ends_of_an_interval_of_times_have_their_unit(low: float, high: float, metric: str, text: str) -> None:
    assert ends_text(low, high, metric) == text


def test_compare_prints_milliseconds_and_its_json_has_seconds(tmp_path: Path) -> None:
    record = make_record(tmp_path / "run", SUITE, lambda _: Course(step_seconds=1e-6))
    words = ["compare", str(record.folder.root), "--metric", "tta_train"]
    shown, data = (CliRunner().invoke(cli, [*words, *more], env={"COLUMNS": "200"}) for more in ([], ["--json"]))
    assert " ms" in shown.stdout
    medians = [item["median"] for item in json.loads(data.stdout)["cells"]]
    assert all(0 < value < 0.1 for value in medians), "seconds"
