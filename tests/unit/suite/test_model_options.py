"""compile, activation_checkpointing, channels_last, cudnn_benchmark and offload in suites, plans and results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from repro.core.errors import SuiteError
from repro.core.machine import Machine
from repro.record.derive.effective import mismatches
from repro.suite.planning.plan import Plan
from tests.plans import planned

SUITE = """\
suite: options
seeds: 5
trial:
  workload: digits
  engine: ddp
  processes: 2
  batch: 64
  optimizer: {{kind: adamw, lr: 0.01}}
  stop: {{metric: top1, target: 0.9, max_epochs: 1}}
  evaluate_every: 720
{more}
"""
HERE = Machine("cpu", 0, 2)


def plan(folder: Path, more: str, machine: Machine = HERE) -> Plan:
    return planned(folder, SUITE.format(more=more), machine=machine)


def test_levels_have_words_and_defaults_change_no_cell(tmp_path: Path) -> None:
    found = plan(tmp_path, "matrix:\n  compile: [false, true, {cache: warm}]\nbaseline: {compile: false}\n"
                           "primary:\n  candidate: {compile: {cache: warm}}\n  baseline: {compile: false}\n"
                           "  metric: tta_wall\n")
    assert [cell.label for cell in found.cells] == ["not compiled", "compiled", "compiled (cache=warm)"]
    assert found.cells[0].cell_id == plan(tmp_path, "").cells[0].cell_id
    assert found.cells[1].choices.setting("cpu", 0).model.compile is not None


@pytest.mark.parametrize(("more", "machine", "reason"), [
    ("  cudnn_benchmark: [false, true]", HERE, "a CPU has none"),
    ("  compile: [false, {mode: reduce-overhead}]", HERE, "CUDA graphs"),
    ("  compile: [false, true]", Machine("cpu", 0, 2, cpp_compiler=False), "needs a C++ compiler"),
    ("  engine: [ddp, {kind: deepspeed, offload: optimizer}]", Machine("cpu", 0, 2, cpp_compiler=False),
     "builds DeepSpeed's Adam"),
    ("  engine: [ddp, {kind: deepspeed, stage: 0, offload: optimizer}]", HERE, "stage 0 divides nothing"),
    ("  engine: [ddp, {kind: deepspeed, stage: 2, offload: optimizer+weights}]", HERE, "only stage 3"),
    ("  engine: [ddp, fake]\n  channels_last: [true]", HERE, "fake does not carry out channels_last"),
])
def test_cells_that_cannot_run_are_skipped_with_the_reason(
    tmp_path: Path, more: str, machine: Machine, reason: str
) -> None:
    found = plan(tmp_path, f"matrix:\n{more}\n", machine)
    skipped, = found.skipped
    assert reason in skipped.reason
    assert found.cpp_compiler is machine.cpp_compiler


def test_on_a_gpu_benchmarking_excludes_bitwise(tmp_path: Path) -> None:
    more = "  cudnn_benchmark: true\nmatrix:\n  determinism: [seeded, bitwise]\n"
    found = plan(tmp_path, more, Machine("cuda", 2, 2))
    assert "no run repeats another bit for bit" in found.skipped[0].reason


def test_compiling_needs_the_warm_up(tmp_path: Path) -> None:
    with pytest.raises(SuiteError, match="compile needs the warm-up"):
        plan(tmp_path, "  compile: true\n  warmup_steps: false\n")


@pytest.mark.parametrize(("more", "ran", "phrase"), [
    ("  compile: true", {"compile": "off"}, "compile default, dynamic auto was asked for, off ran"),
    ("  compile: {cache: warm}", {"compile": "default, dynamic auto", "compile_cache": "cold"},
     "compile_cache warm was asked for, cold ran"),
    ("  channels_last: true", {"channels_last": "off"}, "channels_last on was asked for, off ran"),
    ("", {"activation_checkpointing": "on"}, "activation_checkpointing off was asked for, on ran"),
])
def test_what_ran_is_compared_with_what_was_asked_for(
    tmp_path: Path, more: str, ran: dict[str, Any], phrase: str
) -> None:
    choices = plan(tmp_path, more).cells[0].choices
    assert [item.words for item in mismatches(choices, ran, {})] == [phrase]
    assert mismatches(choices, {}, {}) == [], "what was not read back is not judged"
