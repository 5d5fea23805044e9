"""The file of metrics of Lightning, followed while it is written."""

from __future__ import annotations

from pathlib import Path

import pytest

from repro.program.file_readers import CsvReader
from repro.program.observation import OutputProblem
from tests.unit.program.printed import OUTPUTS

REAL = (OUTPUTS / "lightning.csv").read_text()


def test_rows_are_seen_once_while_the_file_grows_by_any_bytes(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    reader = CsvReader(path, "val_loss")
    assert reader.poll(0) == []
    found = []
    for end in range(0, len(REAL) + 1, 7):
        path.write_text(REAL[:end])
        found += reader.poll(end)
    path.write_text(REAL)
    found += reader.poll(len(REAL))
    assert [(one.seen, one.step) for one in found] == [
        (seen, last - before) for last in (8, 16, 24)
        for seen, before in (("step", 4), ("step", 0), ("evaluation", 0))]
    assert [one.value for one in found if one.seen == "evaluation"] == [
        0.7534388899803162, 0.7088749408721924, 0.6871819496154785]


def test_a_header_that_grows_rewrites_the_file_and_no_row_counts_twice(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    reader = CsvReader(path, "val_loss")
    path.write_text("epoch,step,train_loss\n0,3,0.9\n0,7,0.7\n")
    assert [one.step for one in reader.poll(1)] == [4, 8]
    path.write_text("epoch,step,train_loss,val_loss\n0,3,0.9,\n")  # the moment within the rewriting
    assert reader.poll(2) == []
    path.write_text("epoch,step,train_loss,val_loss\n0,3,0.9,\n0,7,0.7,\n0,7,,nan\n")
    [found] = reader.poll(3)
    assert (found.seen, found.step, found.arrived_ns, found.read) == ("evaluation", 8, 3, 3)
    assert found.value is not None and found.value != found.value


@pytest.mark.parametrize(("text", "problem"), [
    ("epoch,val_loss\n0,1\n", "without `step`"),
    ("step,val_loss\n0,abc\n", "'abc' is no number"),
    ("step,val_loss\n5,1\n5,2\n", "step 6 is evaluated twice"),
    ("step,val_loss\n5,1\n4,2\n", "step goes back from 6 to 5"),
    ("step,val_loss\n5.5,1\n", "no whole number"),
    ("step,val_loss\n\u00e9\n".encode("latin-1"), "no table of metrics"),
])
def test_a_file_that_cannot_be_is_a_problem(tmp_path: Path, text: str | bytes, problem: str) -> None:
    path = tmp_path / "metrics.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(OutputProblem, match=problem):
        CsvReader(path, "val_loss").poll(0)
