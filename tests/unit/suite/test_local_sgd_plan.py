"""Plans of local-sgd and of DeepSpeed's ZeRO++: what is refused in one line, and what is not gated for which reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from repro.core.errors import SuiteError
from repro.core.machine import Machine
from repro.suite.planning.plan import Plan
from tests.plans import planned

SUITE = """\
suite: rare
seeds: 5
trial:
  workload: digits-mlp
  engine: {engine}
  processes: {processes}
  batch: 64
  optimizer: {optimizer}
  stop: {{metric: top1, target: 0.9, max_epochs: 1}}
  evaluate_every: 720
{more}
"""
HERE = Machine("cpu", 0, 4)
SGD = "{kind: sgd, lr: 0.1}"


def plan(folder: Path, engine: str, more: str = "", processes: int = 2, optimizer: str = SGD) -> Plan:
    text = SUITE.format(engine=engine, more=more, processes=processes, optimizer=optimizer)
    return planned(folder, text, machine=HERE)


@pytest.mark.parametrize(("engine", "more", "reason"), [
    ("{kind: local-sgd, every: 24}", "", "every 24 is more than the 23 steps of the trial"),
    ("{kind: local-sgd, every: 4}", "  compression: powersgd", "sends weights, not gradients"),
    ("{kind: local-sgd, every: 4}", "  overlap: false", "no overlap with back-propagation"),
    ("{kind: local-sgd, every: 4}", "  precision: fp16-master", "scale its loss by itself"),
    ("{kind: local-sgd, every: 4}", "  preconditioner: kfac", "precondition"),
    ("{kind: deepspeed, stage: 2, hpz: 2}", "", "of stage 3"),
    ("{kind: deepspeed, stage: 3, hpz: 3}", "", "hpz 3 does not divide 2 processes"),
    ("{kind: deepspeed, stage: 3, quantized: weights}", "", "CUDA kernels"),
    ("{kind: deepspeed, stage: 3, config: {zero_optimization: {zero_quantized_gradients: true}}}", "", "CUDA kernels"),
])
def test_what_cannot_be_carried_out_is_refused_in_the_plan(
    tmp_path: Path, engine: str, more: str, reason: str
) -> None:
    with pytest.raises(SuiteError, match=reason) as caught:
        plan(tmp_path, engine, more)
    assert "Traceback" not in str(caught.value)


def test_averaged_optimizers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SuiteError, match="one over ranks"):
        plan(tmp_path, "{kind: local-sgd, every: 4}", optimizer="{kind: schedule-free-sgd, lr: 0.1}")


@pytest.mark.parametrize(("engine", "message"), [
    ("{kind: local-sgd, every: 0}", r"every: .*1"), ("local-sgd", "every"),
    ("{kind: local-sgd, every: 2, outer: {nesterov: true}}", "nesterov needs momentum above 0"),
    ("{kind: local-sgd, every: 2, outer: {rate: 1}}", "rate"),
    ("{kind: deepspeed, stage: 3, hpz: 2, config: {zero_optimization: {zero_hpz_partition_size: 2}}}", "set the same"),
    ("{kind: deepspeed, config: {communication_data_type: fp16}}", "`compression`"),
    ("{kind: deepspeed, stage: 2, config: {zero_optimization: {zero_hpz_partition_size: 2}}}", "are of stage 3"),
    ("{kind: deepspeed, stage: 3, config: {zero_optimization: {zero_hpz_partition_size: -2}}}", "1 or more"),
])
def test_bad_options_get_one_line(tmp_path: Path, engine: str, message: str) -> None:
    with pytest.raises(SuiteError, match=message):
        plan(tmp_path, engine)


@pytest.mark.parametrize(("engine", "more", "processes", "optimizer", "reason"), [
    ("{kind: local-sgd, every: 1}", "", 2, SGD, ""),
    ("{kind: local-sgd, every: 4}", "", 1, SGD, ""),
    ("{kind: local-sgd, every: 4}", "", 2, SGD, "train 4 steps by themselves"),
    ("{kind: local-sgd, every: 1, outer: {lr: 0.7}}", "", 1, SGD, "outer rate"),
    ("{kind: local-sgd, every: 1}", "", 2, "{kind: adamw, lr: 0.01}", "not linear in the gradients"),
    ("{kind: local-sgd, every: 1}", "  gradient_clip: 1.0", 2, SGD, "clips its own gradient"),
    ("{kind: local-sgd, every: 1}", "  gradient_clip: 1.0", 1, SGD, ""),
    ("ddp", "", 2, "{kind: adamw, lr: 0.01}", ""),
])
def test_the_gate_runs_where_the_mathematics_is_that_of_one_process(
    tmp_path: Path, engine: str, more: str, processes: int, optimizer: str, reason: str
) -> None:
    cell = plan(tmp_path, engine, more, processes, optimizer).cells[0]
    assert (reason in cell.training.ungated) if reason else cell.training.ungated == ""
