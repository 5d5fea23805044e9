"""Readers of files that programs write: TensorBoard's events, Lightning's table of metrics."""

from __future__ import annotations

import builtins
import math
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from repro.core.errors import UsageError
from repro.program.file_readers import CsvReader, TensorboardReader
from repro.program.observation import OutputProblem
from tests.unit.program.printed import OUTPUTS

TAG = "val/loss"


@pytest.fixture
def writer(tmp_path: Path) -> Any:
    pytest.importorskip("tensorboard", reason="the optional package tensorboard is not installed")
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(tmp_path)) as writer:
        yield writer


def test_without_the_package_one_line_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any, **named: Any) -> Any:
        if name.startswith("tensorboard"):
            raise ImportError(name)
        return real(name, *rest, **named)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(UsageError, match=r"pip install 'repro-harness\[tensorboard\]'"):
        TensorboardReader(tmp_path, TAG)


@pytest.mark.slow
def test_evaluations_are_seen_as_they_are_flushed_with_the_writers_date(tmp_path: Path, writer: Any) -> None:
    reader = TensorboardReader(tmp_path, TAG)
    before = time.monotonic_ns()
    reader.poll(before)
    for step, value in ((10, 2.5), (20, math.inf), (30, -0.5)):
        writer.add_scalar("train/loss", 1.0, 3 * step)
        writer.add_scalar(TAG, value, step, new_style=step == 20)
        writer.flush()
        now = time.monotonic_ns()
        [found] = reader.poll(now)
        assert (found.seen, found.step, found.value, found.arrived_ns) == ("evaluation", step, value, now)
        assert found.own_ns is not None and before - 10**6 <= found.own_ns <= now + 10**6
    assert reader.poll(time.monotonic_ns()) == []


@pytest.mark.slow
def test_a_tag_may_count_epochs_or_samples(tmp_path: Path, writer: Any) -> None:
    writer.add_scalar(TAG, float("nan"), 3)
    writer.flush()
    [epochs] = TensorboardReader(tmp_path, TAG, "epoch").poll(0)
    [samples] = TensorboardReader(tmp_path, TAG, "samples").poll(0)
    assert (epochs.step, epochs.epochs, samples.step, samples.samples) == (None, 3.0, None, 3)
    assert epochs.value is not None and math.isnan(epochs.value)


@pytest.mark.slow
def test_a_file_that_ends_within_an_event_is_still_being_written(tmp_path: Path, writer: Any) -> None:
    for step in range(3):
        writer.add_scalar(TAG, 1.0, step)
    writer.flush()
    [path] = tmp_path.glob("events*")
    other = tmp_path / "other"
    other.mkdir()
    data = path.read_bytes()
    (other / path.name).write_bytes(data[:-7])
    reader = TensorboardReader(other, TAG)
    assert [one.step for one in reader.poll(0)] == [0, 1]
    (other / path.name).write_bytes(data)
    assert [one.step for one in reader.poll(1)] == [2]


@pytest.mark.slow
def test_what_cannot_be_is_a_problem(tmp_path: Path, writer: Any) -> None:
    from torch.utils.tensorboard import SummaryWriter

    writer.add_scalar(TAG, 1.0, 5)
    writer.add_scalar(TAG, 2.0, 5)
    writer.add_histogram("weights", torch.ones(2), 5)
    writer.flush()
    with pytest.raises(OutputProblem, match="step 5 is evaluated twice"):
        TensorboardReader(tmp_path, TAG).poll(0)
    with pytest.raises(OutputProblem, match="holds no scalar at step 5"):
        TensorboardReader(tmp_path, "weights").poll(0)
    SummaryWriter(str(tmp_path), filename_suffix=".second").close()
    with pytest.raises(OutputProblem, match="2 event files"):
        TensorboardReader(tmp_path, TAG).poll(0)


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
