"""Warnings of a run: each states what it means for the figures, and whose figures contain it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from repro.compare.runs.run_warnings import run_warnings
from repro.record.folder.ledger import Incident
from repro.record.folder.store import Record
from repro.record.result.result_warnings import SlowLogging
from repro.tables.tables import tables
from tests.records import make_record


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Record:
    return make_record(tmp_path_factory.mktemp("warned") / "run", only=8)


def warned(record: Record, cells: set[str]) -> Record:
    """Return the record with a warning of another figure in each trial of `cells`."""
    results = tuple(
        item.model_copy(update={"warnings": (SlowLogging(share=share),), "observer_effect": share})
        if item.cell_id in cells else item.model_copy(update={"warnings": (), "observer_effect": 0.0})
        for number, item in enumerate(record.results) for share in [(6 + number) / 100])
    return replace(record, results=results)


def test_a_warning_of_trials_says_whose_figures_contain_it(record: Record) -> None:
    cells = [cell.cell_id for cell in record.plan.cells]
    labels = {cell.cell_id: cell.label for cell in record.plan.cells}
    for some, said in (
        (cells, "trials of every cell are affected"),
        (cells[:3], "trials of 3 of 4 cells are affected, and so are ratios to the others"),
        (cells[:1], f"only trials of {labels[cells[0]]} are affected, and so is every ratio of that cell"),
    ):
        (found,) = [item for item in run_warnings(warned(record, set(some))) if item.about == "trials"]
        assert found.consequence == said and found.line.endswith(f"; {said}")
        assert f"(and {2 * len(some) - 1} other trial" in found.text


@pytest.mark.parametrize(("kind", "words"), [
    ("waited", "no figure is affected"), ("edited", "run the suite again"), ("clock", "durations come"),
    ("throttled", "the ratios of these seeds may be wrong"),
])
def test_an_incident_says_what_it_means(record: Record, kind: str, words: str) -> None:
    incident = Incident(at_ms=1.0, kind=kind, text="something happened")
    (found,) = [item for item in run_warnings(replace(record, incidents=(incident,))) if item.about == "attempts"]
    assert words in found.consequence and "something happened" in found.line and found.consequence in found.line


def test_the_table_of_warnings_has_what_each_means(record: Record) -> None:
    """CSV, Parquet and JSON lines write this table."""
    noted = replace(record, incidents=(Incident(at_ms=1.0, kind="waited", text="something happened"),))
    rows = {table.name: table.rows for table in tables(noted)}["warnings"]
    assert any("no figure is affected" in str(row["means"]) for row in rows)


@pytest.mark.parametrize(("slower", "word"), [(0.009, "note"), (0.02, "warning")])
def test_logging_that_is_alike_in_all_cells_is_a_note(tmp_path: Path, slower: float, word: str) -> None:
    record = make_record(tmp_path / "run")
    results = tuple(item.model_copy(update={
        "observer_effect": share, "warnings": (SlowLogging(share=share),),
    }) for item in record.results for share in [slower if "deepspeed" in item.cell_id else 0.008])
    found = [item for item in run_warnings(replace(record, results=results)) if "logging took" in item.text]
    assert [item.word for item in found] == [word]
