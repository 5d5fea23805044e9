"""Options by which a trial runs its model: the suite's fields, their exclusions, and their read-back."""

from __future__ import annotations

import json
from typing import Literal

from pydantic import Field

from repro.core.machine import Machine
from repro.seams.model_options import CacheState, Compilation, ModelOptions
from repro.seams.plugin import Plugin
from repro.seams.training import Engine
from repro.suite.choices.stand_in import StandIn
from repro.suite.field_problem import SuitePart

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
