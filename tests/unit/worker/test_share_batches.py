"""The batch of an evaluation: declared by the workload, chosen by a trial, read back; every sample comes once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from repro.core.frozen import digest
from repro.record.derive.effective import mismatches
from repro.suite.kinds.training import TrainingConfig
from repro.worker.evaluation import share_batches


def config(**more: Any) -> TrainingConfig:
    return TrainingConfig.model_validate({
        "workload": "digits", "engine": "ddp", "processes": 2, "batch": 64, "optimizer": {"kind": "sgd", "lr": 0.1},
        "stop": {"metric": "top1", "target": 0.9, "max_epochs": 1}, "evaluate_every": 640, "device": "cpu", **more})


@pytest.mark.parametrize("size", [1, 7, 50, 512])
@pytest.mark.parametrize("world", [1, 3])
def test_all_samples_come_once_in_batches_of_the_size(size: int, world: int) -> None:
    parts: Any = SimpleNamespace(eval_batch=lambda indices: (indices, indices))
    seen = []
    for rank in range(world):
        share = share_batches(parts, SimpleNamespace(rank=rank, world=world, eval_batch=size), 100)  # type: ignore[arg-type]
        batches = [batch[1] for batch in share]
        assert len(share) == len(batches)
        assert max(map(len, batches)) <= size
        seen += batches
    assert sorted(np.concatenate(seen)) == list(range(100))


def test_a_trial_may_choose_and_is_read_back() -> None:
    assert config().eval_batch_size == 180, "half of the 360 samples, fewer than the workload's 512"
    assert config(eval_batch=100).eval_batch_size == 100
    settings = {"OMP_NUM_THREADS": "1"}
    assert mismatches(config(eval_batch=100), {"eval_batch": "100"}, settings) == []
    assert [item.words for item in mismatches(config(eval_batch=100), {"eval_batch": "180"}, settings)] == [
        "eval_batch 100 was asked for, 180 ran"]
    assert mismatches(config(), {"eval_batch": "180"}, settings) == []


def test_cells_that_do_not_choose_keep_their_name() -> None:
    assert digest(config()) == digest(config(eval_batch=None)) != digest(config(eval_batch=100))
