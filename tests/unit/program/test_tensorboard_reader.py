"""TensorBoard's event files, written by the real package and followed."""

from __future__ import annotations

import builtins
import math
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from repro.core.errors import UsageError
from repro.program.file_readers import TensorboardReader
from repro.program.observation import OutputProblem

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
