"""Programs of `tests/programs`, started and traced as `repro gate` does it, and judged against a reference."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from repro.program.gate.judge import Difference, Intended, culprit, judge
from repro.program.gate.runs import trace_program
from repro.program.gate.sight import sight_of
from repro.program.gate.trace import Trace, read_trace
from repro.suite.kinds import program_files
from repro.suite.kinds.program import ALL_PYTHON, ProgramConfig
from repro.suite.model import Trial
from tests.emulated_cuda import environment as emulated
from tests.watched import QUIET

PROGRAMS = Path(__file__).parent / "programs"


@cache
def traced(
    program: str, arguments: tuple[str, ...] = (), processes: int = 2, ulp: float = 0.0, steps: int = 3,
    environment: tuple[tuple[str, str], ...] = (), seed: str = "11", devices: int = 0,
) -> Trace:
    """Return the trace of one start, on emulated GPUs if `devices` says how many; the same start is traced once."""
    python = str(emulated.python()) if devices else sys.executable
    inherited = emulated.variables(devices) if devices else os.environ
    place = {"EMULATED_CUDA_DEVICES": str(devices)} if devices else {"DS_ACCELERATOR": "cpu"}
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"] if processes > 1 else []
    choices = ProgramConfig.model_validate({
        "engine": {"kind": "program", "sha256": program_files.read(PROGRAMS, ALL_PYTHON, "").sha256,
                   "run": [python, *launcher, program, "--seed", seed, *arguments],
                   "environment": QUIET | {"PYTHONPATH": str(PROGRAMS.parents[1])} | place | dict(environment)},
        "evaluation": {"reader": "watch", "metric": "loss", "direction": "lower"}, "stop": {"target": 0.0},
        "processes": processes, "timeout_seconds": 240})
    trial = Trial(suite="traced", suite_digest="0" * 64, method="", choices=choices, repeat=0, master_seed=1)
    return read_trace(trace_program(trial, PROGRAMS, Path(), range(1, steps + 1), inherited, ulp))


def against(ours: Trace, reference: Trace, null: Trace, intended: Intended) -> Difference | None:
    """Return what the gate says of a trace."""
    return culprit(judged(ours, reference, null, intended))


def judged(ours: Trace, reference: Trace, null: Trace, intended: Intended) -> Mapping[str, Difference | None]:
    return judge(ours, reference, sight_of(ours, reference, [(reference, null)]), intended)
