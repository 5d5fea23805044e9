"""What a plan refuses about optimizers, in one line each, and what their classes declare."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from repro.cli.commands.suites import rows
from repro.core import machine, registry
from repro.core.errors import SuiteError
from repro.core.machine import Machine
from repro.suite.planning.plan import Plan
from tests.optimizer_cases import ENGINES, EVERYWHERE, OPTIMIZERS
from tests.plans import planned, suite

MACHINE = Machine(device="cpu", device_count=0, cores=2)
ALL = ", ".join(["ddp", "fsdp", *(f"{{kind: deepspeed, stage: {stage}}}" for stage in range(4))])


def plan(folder: Path, optimizer: str, engines: str = ALL, more: str = "") -> Plan:
    return planned(folder, written(optimizer, engines) + more)


def written(optimizer: str, engines: str) -> str:
    return suite("limits", f"matrix:\n  engine: [{engines}]\n", seeds=5, workload="{kind: digits-mlp, hidden: 64}",
                 optimizer=optimizer, stop="{metric: top1, target: 0.9, max_epochs: 2}", evaluate_every=720,
                 processes=2)


def reasons(found: Plan) -> list[str]:
    return [item.reason for item in found.skipped]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_plan_has_the_engines_that_are_tested_and_no_others(tmp_path: Path, name: str) -> None:
    found = plan(tmp_path, f"{{kind: {name}, lr: 0.1}}")
    allowed = [(cell.training.engine.kind, cell.training.engine.options.get("stage")) for cell in found.cells]
    kinds = {"Ddp": "ddp", "Fsdp": "fsdp", "DeepSpeedZero": "deepspeed"}
    assert allowed == [(kinds[type(engine).__name__], getattr(engine, "stage", None)) for engine in ENGINES[name]]
    assert len(found.skipped) == len(EVERYWHERE) - len(allowed)


@pytest.mark.parametrize("name", ["lars", "lamb", "muon", "soap", "shampoo"])
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_whole_tensor_rules_are_refused_where_zero_hands_out_flat_parts(
    tmp_path: Path, name: str, stage: int
) -> None:
    found = plan(tmp_path, f"{{kind: {name}, lr: 0.1}}", f"ddp, {{kind: deepspeed, stage: {stage}}}")
    assert reasons(found) == [
        f"engine deepspeed: the rule of optimizer {name} looks at whole tensors, and ZeRO {stage} hands an optimizer "
        "one flat part of all of them, on which it would train otherwise or fail; use stage 0, ddp or single"]


@pytest.mark.parametrize("name", ["soap", "shampoo"])
def test_rules_that_need_complete_matrices_are_refused_by_fsdp(tmp_path: Path, name: str) -> None:
    assert reasons(plan(tmp_path, f"{{kind: {name}, lr: 0.1}}", "ddp, fsdp")) == [
        f"engine fsdp: the rule of optimizer {name} needs complete matrices, and FSDP divides their rows over the "
        "ranks; use ddp, single or DeepSpeed's stage 0"]


def test_muon_under_fsdp_needs_the_backends_collectives(tmp_path: Path) -> None:
    found = plan(tmp_path, "{kind: muon, lr: 0.1}", "ddp, fsdp", "  comm: [backend, ring]\n")
    assert reasons(found) == ["engine fsdp: optimizer muon multiplies matrices whose rows FSDP divides by torch's "
                              "operators, whose collectives only comm 'backend' carries out, not 'ring'"]


@pytest.mark.parametrize(("name", "engine", "precision", "held"), [
    ("schedule-free-sgd", "{kind: deepspeed, stage: 2}", "fp32", "ZeRO 2"),
    ("schedule-free-adamw", "{kind: deepspeed, stage: 0}", "bf16-master", "bf16-master without ZeRO"),
])
def test_averages_are_refused_where_deepspeed_keeps_them_from_the_model(
    tmp_path: Path, name: str, engine: str, precision: str, held: str
) -> None:
    found = plan(tmp_path, f"{{kind: {name}, lr: 0.1}}", f"ddp, {engine}", f"  precision: [{precision}]\n")
    assert reasons(found) == [
        f"engine deepspeed: optimizer {name} evaluates averaged weights, and under {held} DeepSpeed writes the "
        "optimizer's weights into the model only in a step; use stage 0 with float32 weights, ddp or fsdp"]


@pytest.mark.parametrize(("name", "package", "module"), [
    ("lion", "pytorch-optimizer", "pytorch_optimizer"), ("soap", "pytorch-optimizer", "pytorch_optimizer"),
    ("shampoo", "pytorch-optimizer", "pytorch_optimizer"), ("schedule-free-sgd", "schedulefree", "schedulefree"),
    ("schedule-free-adamw", "schedulefree", "schedulefree"),
])
def test_a_package_that_is_not_installed_is_named_with_its_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, package: str, module: str
) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(machine, "find_spec", lambda wanted: None if wanted == module else real(wanted))
    found = plan_of_both(tmp_path, name)
    assert reasons(found) == [f"optimizer {name}: package {package} is not installed: pip install "
                              "'repro-harness[optimizers]'"]


def plan_of_both(folder: Path, name: str) -> Plan:
    text = written("{kind: sgd, lr: 0.1}", "ddp").replace(
        "  optimizer: {kind: sgd, lr: 0.1}\n", "")
    return planned(folder,
        f"{text}  optimizer: [{{kind: sgd, lr: 0.1}}, {{kind: {name}, lr: 0.1}}]\n")


@pytest.mark.parametrize(("options", "message"), [
    ("{kind: lars, lr: 0.1, fused: true}", "unknown key"),
    ("{kind: lars, lr: 0.1, trust: 0}", "greater than 0"),
    ("{kind: sgd, lr: 0.1, momentum: 0, nesterov: true}", "nesterov needs momentum above 0"),
    ("{kind: schedule-free-sgd, lr: 0.1, momentum: 0}", "greater than 0"),
    ("{kind: schedule-free-adamw, lr: 0.1, betas: [0, 0.9]}", "the first of betas must be above 0"),
    ("{kind: muon, lr: 0.1, hidden: []}", "at least 1"),
    ("{kind: adaptahaed, lr: 0.1}", "did you mean 'adaptahead'"),
])
def test_wrong_options_are_refused_in_a_line(tmp_path: Path, options: str, message: str) -> None:
    with pytest.raises(SuiteError) as caught:
        plan(tmp_path, options, "ddp")
    assert message in str(caught.value) and "\n" not in str(caught.value) and "suite.yaml:6: " in str(caught.value)


def test_soap_says_how_much_the_gate_lets_it_differ(tmp_path: Path) -> None:
    found = plan(tmp_path, "{kind: soap, lr: 0.1}", "ddp, {kind: deepspeed, stage: 0}")
    assert any("the gate lets updates of soap differ by 150%" in note for note in found.notes)
    assert not any("the gate lets" in note for note in plan(tmp_path, "{kind: adamw, lr: 0.1}", "ddp").notes)


def test_every_optimizer_is_listed_and_says_what_it_is() -> None:
    listed = {row["name"]: row["title"] for row in rows("optimizers")}
    assert set(listed) == set(registry.names("optimizer")) == {"sgd", "adamw", *OPTIMIZERS}
    assert "our reading" in listed["adaptahead"]
    assert all(title and "not usable" not in title for title in listed.values())


def test_the_docs_have_a_row_for_every_optimizer() -> None:
    page = (Path(__file__).parents[3] / "docs" / "optimizers.md").read_text()
    missing = [name for name in registry.names("optimizer") if f"| `{name}` |" not in page]
    assert missing == []


def test_the_declared_state_is_that_of_the_rule() -> None:
    def of(field: str, value: Any) -> set[str]:
        return {name for name in registry.names("optimizer")
                if getattr(registry.load("optimizer", name), field) == value}

    assert of("whole_tensors", True) == {"lars", "lamb", "muon", "soap", "shampoo"}
    assert of("evaluates_other_weights", True) == {"schedule-free-sgd", "schedule-free-adamw"}
    assert of("moves_at_rate_zero", True) == {"lars", "adaptahead", "schedule-free-sgd", "schedule-free-adamw"}
    assert of("writes_alike", False) == {"soap", "shampoo", "schedule-free-sgd", "schedule-free-adamw"}
    assert of("starts_from_zero", False) == {"soap", "shampoo", "schedule-free-sgd", "schedule-free-adamw"}
