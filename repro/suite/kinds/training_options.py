"""Groups of options of a training: how it runs its model, reads its input, and is gated."""

from __future__ import annotations

import json
from typing import Literal

from pydantic import Field, field_validator, model_validator

from repro.core.machine import Machine
from repro.seams.model_options import CacheState, Compilation, ModelOptions
from repro.seams.plugin import Plugin
from repro.seams.training import Engine
from repro.suite.choices.stand_in import StandIn
from repro.suite.field_problem import FieldProblem, SuitePart

GRAPHS = ("reduce-overhead", "max-autotune")
"""Modes of torch.compile that record CUDA graphs."""


class Compile(SuitePart):
    """torch.compile of the model; `true` means all defaults."""

    mode: Literal["default", "reduce-overhead", "max-autotune-no-cudagraphs", "max-autotune"] = "default"
    dynamic: bool | None = Field(None, description="true: shapes are symbols; false: every shape is compiled; null: "
                                                   "symbols from the second shape on")
    cache: CacheState = Field("cold", description="cold: every trial compiles everything; warm: a trial finds "
                                                  "everything compiled, or compiles it once before its clocks start")

    def option(self) -> Compilation:
        return Compilation(self.mode, self.dynamic, self.cache)


def compile_phrase(value: str) -> str:
    """Return a level of the factor in words; `value` as labels write it: False, or JSON."""
    if not value.startswith("{"):
        return "not compiled"
    given, defaults = json.loads(value), Compile()
    changed = [f"{key}={item}" for key, item in given.items() if item != getattr(defaults, key, None)]
    return f"compiled ({', '.join(changed)})" if changed else "compiled"


def why_unsupported(
    options: ModelOptions, engine: Plugin, name: str, determinism: str, device: str, machine: Machine
) -> str:
    """Return why an engine cannot run a model with these options, in one sentence; "" if it can.

    Args:
        name: the engine's.
        device: "cpu" or "cuda".
    """
    if isinstance(engine, StandIn):
        return ""  # its plan was made where it is installed
    assert isinstance(engine, Engine)
    if left := [item for item in options.chosen() if item not in engine.model_options]:
        return f"engine {name} does not carry out {left[0]}"
    if not machine.cpp_compiler and (built := engine.builds()):
        return f"engine {name} builds {built} with a C++ compiler: install g++, or name one in the variable CXX"
    if options.cudnn_benchmark and device == "cpu":
        return "cudnn_benchmark chooses between cuDNN's kernels, and a CPU has none"
    if options.cudnn_benchmark and determinism == "bitwise":
        return "cudnn_benchmark picks kernels by measured times, so no run repeats another bit for bit"
    if options.compile is None or device != "cpu":
        return ""
    if options.compile.mode in GRAPHS:
        return f"compile mode {options.compile.mode} records CUDA graphs; on a CPU use default"
    if not machine.cpp_compiler:
        return "compile needs a C++ compiler on a CPU: install g++, or name one in the variable CXX"
    return ""


def requested(options: ModelOptions) -> dict[str, str]:
    """Return the options in the names and words in which sessions read them back."""
    found = {name: "on" if getattr(options, name) else "off"
             for name in ("activation_checkpointing", "channels_last", "cudnn_benchmark")}
    if options.compile is None:
        return found | {"compile": "off"}
    return found | {"compile": str(options.compile), "compile_cache": options.compile.cache}


EVAL_SAMPLES = 2048
"""Samples of an evaluation in the gate: all of a small data set, enough of a large one."""


class GateOptions(SuitePart):
    """The gate trains in fp32, and its reference on one device: a model that fits in a trial need not fit there."""

    skip: str | None = Field(None, max_length=300, description="do not gate the cell, for this reason, which the "
                                                               "plan, the report and its verdicts show")
    micro: int | None = Field(None, ge=1, description="samples per process and pass in the gate, at most the trial's; "
                                                      "null: the trial's")
    eval_samples: int = Field(EVAL_SAMPLES, ge=2, le=1 << 53, description="samples of an evaluation in the gate, over "
                                                                          "all processes")

    @field_validator("skip")
    @classmethod
    def _has_a_reason(cls, value: str | None) -> str | None:
        if value is not None and not value.strip():
            raise ValueError("needs a reason in words, because readers of the results see it")
        return None if value is None else " ".join(value.split())


AHEAD = 2
"""Micro-batches that an input worker reads ahead if the suite does not say."""


class Input(SuitePart):
    """Reading of batches on each rank, if the workload reads samples (`Workload.reads_samples`)."""

    workers: int = Field(0, ge=0, le=256, description="input worker processes per rank; 0: read inside the timed step")
    ahead: int | None = Field(None, ge=1, le=1024,
                              description=f"micro-batches that each worker reads ahead; null: {AHEAD} with workers")
    order: Literal["planned", "stream"] = Field(
        "planned", description="planned: drawn from the seed; stream: the order of the data, in which each rank reads "
                               "its shard from beginning to end; unpaired by order")

    @model_validator(mode="after")
    def _ahead_of_workers(self) -> Input:
        if self.ahead is not None and not self.workers:
            raise FieldProblem("with 0 workers nothing is read ahead: leave `ahead` out, or give workers", ("ahead",))
        return self

    @property
    def depth(self) -> int:
        """Micro-batches that each worker reads ahead; 0 without workers."""
        return (self.ahead or AHEAD) if self.workers else 0
