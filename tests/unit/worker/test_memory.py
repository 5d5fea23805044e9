"""A failed allocation, told with its size, its phase and what needs less; the batch of an evaluation."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from repro.core.errors import OutOfMemory
from repro.core.frozen import digest
from repro.launchers.processes.rank_processes import cause, reason
from repro.record.derive.effective import mismatches
from repro.suite.kinds.training import TrainingConfig
from repro.worker.evaluation import share_batches
from repro.worker.memory import naming_out_of_memory

CUDA = ("CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 79.11 GiB of which 1.11 GiB is "
        "free. Process 1 has 78.0 GiB memory in use.")
CPU = ("[enforce fail at alloc_cpu.cpp:119] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to "
       "allocate 8589934592 bytes. Error code 12 (Cannot allocate memory)")


class OutOfMemoryError(RuntimeError):
    """As torch names its own."""


def train_block(error: BaseException) -> None:
    raise error


def evaluate(error: BaseException) -> None:
    raise error


def told(function: Any, error: BaseException, in_gate: bool = False, **choices: Any) -> str:
    with pytest.raises(OutOfMemory) as found, naming_out_of_memory(config(**choices), in_gate):
        function(error)
    assert cause(found.value) == "out_of_memory"
    return reason(found.value)


@pytest.mark.parametrize(("error", "amount"), [
    (OutOfMemoryError(CUDA), ", 2.5 GiB more could not be allocated"),
    (RuntimeError(CPU), ", 8.00 GiB more could not be allocated"),
    (MemoryError("Unable to allocate 7.45 GiB for an array with shape (1000000000,) and data type float64"),
     ", 7.45 GiB more could not be allocated"),
    (MemoryError(), ""), (RuntimeError("std::bad_alloc"), ""), (OSError(12, "Cannot allocate memory"), "")])
def test_it_is_told_in_one_line(error: BaseException, amount: str) -> None:
    line = told(train_block, error)
    assert line.startswith(f"out of memory in a training step{amount}; peak until then ")
    assert line.endswith("less is needed with batch.accumulation above 1 (micro batches of 32 now) or engine: {kind: "
                         "deepspeed, stage: 3} or engine: fsdp or activation_checkpointing: true or a smaller model")


def test_the_advice_fits_the_phase_and_the_engine() -> None:
    assert "with eval_batch below 180 or" in told(evaluate, MemoryError())
    line = told(train_block, MemoryError(), engine={"kind": "deepspeed", "stage": 3}, activation_checkpointing=True)
    assert line.endswith("(micro batches of 32 now) or a smaller model")
    assert "engine: fsdp" not in told(train_block, MemoryError(), engine={"kind": "fsdp", "wrap": "model"})
    assert "with a smaller gate.micro" in told(train_block, MemoryError(), in_gate=True)


def test_other_errors_pass() -> None:
    for error in (RuntimeError("shape mismatch"), KeyError("memory"), OSError(2, "No such file")):
        with pytest.raises(type(error)), naming_out_of_memory(config()):
            raise error
        assert cause(error) == "failed"


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
