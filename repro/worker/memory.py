"""A failed allocation in one line: what was being allocated and when, the peak so far, what would need less."""

from __future__ import annotations

import re
import resource
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from repro.core import devices
from repro.core.devices import on_gpu
from repro.core.errors import OutOfMemory
from repro.core.machine import is_out_of_memory
from repro.seams.training import Engine
from repro.suite.kinds.training import TrainingConfig

AMOUNT = re.compile(r"allocate (\d[\d.]*) ?(GiB|MiB|KiB|bytes)")
PHASES = {"start_session": "while the model was built", "warm_up": "in the warm-up",
          "train_block": "in a training step", "evaluate": "in an evaluation"}
"""Function of the worker on the stack -> when."""


@contextmanager
def naming_out_of_memory(choices: TrainingConfig, in_gate: bool = False) -> Iterator[None]:
    """Turn a failed allocation inside the block into one line.

    Raises:
        OutOfMemory: an allocation failed.
    """
    try:
        yield
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        raise OutOfMemory(describe(error, choices, in_gate)) from error


def describe(error: BaseException, choices: TrainingConfig, in_gate: bool) -> str:
    """Return what was being allocated and when, the peak so far, and what would need less."""
    amount = ""
    if found := AMOUNT.search(str(error)):
        size = f"{float(found[1]) / 2**30:.2f} GiB" if found[2] == "bytes" else f"{float(found[1]):g} {found[2]}"
        amount = f", {size} more could not be allocated"
    names = [frame.name for frame in traceback.extract_tb(error.__traceback__)]
    phase = next((PHASES[name] for name in names if name in PHASES), "")
    return (f"out of memory{' ' * bool(phase)}{phase}{amount}; peak until then {_peak(choices.device)}; "
            f"less is needed with {' or '.join(_advice(choices, phase, in_gate))}")


def _advice(choices: TrainingConfig, phase: str, in_gate: bool) -> Iterator[str]:
    if in_gate:
        yield "a smaller gate.micro (the gate trains in fp32)"
        yield "no gate (gate: {skip: <the reason>})"
        return
    if phase == PHASES["evaluate"] and choices.eval_batch_size > 1:
        yield f"eval_batch below {choices.eval_batch_size}"
    if choices.micro_batch > 1:
        yield f"batch.accumulation above {choices.batch.accumulation} (micro batches of {choices.micro_batch} now)"
    engine = choices.engine.get(Engine)
    stage = engine.zero_stage()
    if choices.processes > 1 and (stage is None or stage < 3):
        yield "engine: {kind: deepspeed, stage: 3}"
        if choices.engine.kind != "fsdp":
            yield "engine: fsdp"
    if not choices.activation_checkpointing and "activation_checkpointing" in engine.model_options:
        yield "activation_checkpointing: true"
    yield "a smaller model"


def _peak(device: str) -> str:
    if on_gpu(device):
        return f"{devices.allocated_peak(device) / 2**30:.2f} GiB on the GPU"
    unit = 1 if sys.platform == "darwin" else 1024
    return f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**30:.2f} GiB of the process"
