"""The suite of optimizers: equal budgets, origins and widths, one target a workload, at most 8 hours, a short form."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from repro.cli.workflows.tuning import Phases, plan_phases
from repro.core.errors import SuiteError
from repro.core.machine import Machine
from repro.suite.file import read_suite
from repro.suite.planning.cost import estimate
from repro.suite.planning.plan import Plan
from tests.flow.test_reproduce import command
from tests.plans import planned, suite

SHORT = ("tune.trials=1", "stop.max_epochs=0.05")


@pytest.fixture(scope="module")
def phases() -> Phases:
    return plan_phases(read_suite("optimizers"), ())


def test_every_optimizer_competes_on_every_workload_but_muon_on_convolutions(phases: Phases) -> None:
    found = {(item.levels["workload"], item.levels["optimizer"]["kind"] if isinstance(item.levels["optimizer"], dict)
              else item.levels["optimizer"]) for item in phases.contenders}
    kinds = {kind for _, kind in found}
    assert kinds == {"sgd", "rmsprop", "adam", "adamw", "adaptahead", "lars", "lamb", "lion", "muon", "soap",
                     "schedule-free-adamw"}
    assert {(task, kind) for task in ("digits", "mnist1d", "text") for kind in kinds} - found == {
        ("digits", "muon"), ("mnist1d", "muon")}


def test_budgets_and_widths_are_equal(phases: Phases) -> None:
    assert {len(item.settings) for item in phases.contenders} == {8}
    for item in phases.contenders:
        low, high = item.space.space["optimizer.lr"].ends
        assert math.log10(high / low) == pytest.approx(3, abs=0.01), item.label
        assert len(item.space.space["optimizer.weight_decay"].choices or ()) == 3
        assert len(item.space.origin.split()) >= 3


def test_a_workload_has_one_target_and_the_cost_fits_a_night(phases: Phases) -> None:
    targets = {(cell.choices.task, cell.choices.stop.target) for cell in phases.draft.cells}
    assert len(targets) == 3
    seconds = estimate(phases.tuning).full_budget_seconds + estimate(phases.draft).full_budget_seconds
    assert seconds < 8 * 3600


def test_the_short_form_has_a_trial_a_contender_and_phase(phases: Phases) -> None:
    short = plan_phases(read_suite("optimizers", SHORT, None, {"seeds": 1}), SHORT)
    assert len(short.contenders) == len(phases.contenders)
    ran = {len(plan.order) + len(plan.skipped) for plan in (short.tuning, short.draft)}
    assert ran == {31}
    assert all(cell.choices.stop.max_epochs == 0.05 for cell in short.draft.cells)


SUITE = suite("own",
              workload="{kind: digits-mlp, hidden: 8, depth: 1, planted: 0.1, dedup: {threshold: 6}}",
              optimizer="{kind: sgd, lr: 0.05}",
              stop="{metric: top1, target: 0.9, max_epochs: 1, design: fixed_budget}", evaluate_every=2000,
              processes=1)


def planned_by_command(folder: Path, text: str, *more: str) -> tuple[int, str, str]:
    (folder / "own.yaml").write_text(text)
    return command(folder, "plan", "own.yaml", *more)


def test_the_plan_holds_what_stays(tmp_path: Path) -> None:
    code, said, error = planned_by_command(tmp_path, SUITE, "--json")
    assert code == 0, error
    workload = json.loads(said)["cells"][0]["choices"]["workload"]
    assert workload["selected"]["samples"] == 1437 + 144
    assert 1000 < workload["selected"]["kept"] < 1437


@pytest.mark.parametrize(("change", "words"), [
    (("threshold: 6", "thresold: 6"), "thresold"),
    *(pytest.param(*item, marks=pytest.mark.slow) for item in (
        (("threshold: 6", "size: 64"), "size"), (("threshold: 6", "hash: whash, size: 6"), "power of two"),
        (("threshold: 6", "threshold: 64"), "below the 64 bits"), (("planted: 0.1", "planted: 2"), "planted"))),
])
def test_bad_options_get_one_line(tmp_path: Path, change: tuple[str, str], words: str) -> None:
    code, said, error = planned_by_command(tmp_path, SUITE.replace(*change))
    assert code == 2
    assert words in error and "own.yaml:" in error and "Traceback" not in error + said


HERE = Machine("cpu", 0, 4)
SGD = "{kind: sgd, lr: 0.1}"


def plan(folder: Path, engine: str, more: str = "", processes: int = 2, optimizer: str = SGD) -> Plan:
    return planned(folder, suite(
        "rare", f"{more}\n", seeds=5, workload="digits-mlp", engine=engine, batch=64, optimizer=optimizer,
        stop="{metric: top1, target: 0.9, max_epochs: 1}", evaluate_every=720, processes=processes), machine=HERE)


@pytest.mark.parametrize(("engine", "more", "reason"), [
    ("{kind: local-sgd, every: 24}", "", "every 24 is more than the 23 steps of the trial"),
    ("{kind: local-sgd, every: 4}", "  compression: powersgd", "sends weights, not gradients"),
    ("{kind: local-sgd, every: 4}", "  overlap: false", "no overlap with back-propagation"),
    ("{kind: local-sgd, every: 4}", "  precision: fp16-master", "scale its loss by itself"),
    ("{kind: local-sgd, every: 4}", "  preconditioner: kfac", "precondition"),
    ("{kind: deepspeed, stage: 2, hpz: 2}", "", "of stage 3"),
    ("{kind: deepspeed, stage: 3, hpz: 3}", "", "hpz 3 does not divide 2 processes"),
    ("{kind: deepspeed, stage: 3, quantized: weights}", "", "CUDA kernels"),
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
    ("{kind: deepspeed, offload: optimizer, config: {zero_optimization: {offload_optimizer: {}}}}", "set the same"),
    ("{kind: deepspeed, config: {communication_data_type: fp16}}", "`compression`"),
])
def test_bad_options_of_rounds_get_one_line(tmp_path: Path, engine: str, message: str) -> None:
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
