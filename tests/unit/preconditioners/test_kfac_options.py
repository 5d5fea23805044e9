"""The options of K-FAC, what it refuses in a plan, and where it stands in a cell's identity and in the gate."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from repro.core.errors import SuiteError
from repro.core.frozen import canonical
from repro.core.machine import Machine
from repro.papers.kfac.kfac import Kfac
from repro.seams.training import Preconditioner
from repro.suite.planning.plan import Plan
from repro.worker.gate import parity
from tests.plans import planned, suite

MACHINE = Machine(device="cpu", device_count=0, cores=2)
SUITE = suite("preconditioned", seeds=2, batch="64", stop="{metric: top1, target: 0.9, max_epochs: 1}",
              evaluate_every=640, processes=2, preconditioner="kfac")


def plan(tmp_path: Path, more: str = "", *changes: tuple[str, str]) -> Plan:
    text = SUITE + more
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return planned(tmp_path, text)


WHOLE = ("preconditioner kfac: K-FAC needs the whole mean gradient of a layer, and engine {} divides gradients over "
         "the ranks (ZeRO stage {}); use ddp, single, or deepspeed with stage 0")


@pytest.mark.parametrize(("old", "new", "reason"), [
    ("engine: ddp", "engine: {kind: deepspeed, stage: 1}", WHOLE.format("deepspeed", 1)),
    ("engine: ddp", "engine: {kind: deepspeed, stage: 2}", WHOLE.format("deepspeed", 2)),
    ("engine: ddp", "engine: {kind: deepspeed, stage: 3}", WHOLE.format("deepspeed", 3)),
    ("engine: ddp", "engine: fsdp", WHOLE.format("fsdp", 3)),
    ("engine: ddp", "engine: {kind: fsdp, wrap: model}", WHOLE.format("fsdp", 2)),
    ("engine: ddp", "engine: fake", "preconditioner kfac: engine fake preconditions no gradients; use ddp, single, or "
                                    "deepspeed with stage 0"),
    ("engine: ddp", "engine: ddp\n  compile: true",
     "preconditioner kfac: K-FAC reads the inputs of layers by hooks, which compiled code does not call; remove "
     "compile"),
    ("processes: 2", "processes: 4\n  preconditioner: {kind: kfac, placement: fraction, fraction: 0.75}",
     "preconditioner kfac: fraction 0.75 of 4 processes is 3 ranks; it must be a whole number that divides 4"),
    ("processes: 2", "processes: 2\n  preconditioner: {kind: kfac, placement: fraction, fraction: 0.25}",
     "preconditioner kfac: fraction 0.25 of 2 processes is 0.5 ranks; it must be a whole number that divides 2"),
])
def test_what_it_cannot_do_is_refused_with_the_reason(tmp_path: Path, old: str, new: str, reason: str) -> None:
    more = [("  preconditioner: kfac\n", "")] if "preconditioner" in new else []
    with pytest.raises(SuiteError) as caught:
        plan(tmp_path, "", *more, (old, new))
    assert str(caught.value).endswith(f": {reason}")


def test_of_several_engines_those_that_divide_gradients_are_skipped(tmp_path: Path) -> None:
    found = plan(tmp_path, "matrix:\n  engine: [ddp, {kind: deepspeed, stage: 0}, {kind: deepspeed, stage: 2}]\n")
    assert [item.reason for item in found.skipped] == [WHOLE.format("deepspeed", 2)]
    assert len(found.cells) == 2


@pytest.mark.parametrize(("options", "problem"), [
    ("factor_every: 4, eigen_every: 10",
     "trial.preconditioner.eigen_every: must be a multiple of factor_every 4 (given: 10; 12 would be): decompositions "
     "are of factors that were just updated"),
    ("placement: fraction", "trial.preconditioner.fraction: placement fraction needs it: give both or neither"),
    ("fraction: 0.5", "trial.preconditioner.fraction: placement opt has none: give both or neither"),
    ("placement: best", "trial.preconditioner.placement"),
    ("damping: 0", "trial.preconditioner.damping"),
])
def test_options_that_contradict_each_other_are_refused(tmp_path: Path, options: str, problem: str) -> None:
    with pytest.raises(SuiteError) as caught:
        plan(tmp_path, "", ("preconditioner: kfac", f"preconditioner: {{kind: kfac, {options}}}"))
    assert problem in str(caught.value) and "\n" not in str(caught.value)


def test_no_preconditioner_leaves_a_cell_its_name(tmp_path: Path) -> None:
    without = plan(tmp_path, "", ("  preconditioner: kfac\n", ""))
    none = plan(tmp_path, "", ("preconditioner: kfac", "preconditioner: none"))
    kfac = plan(tmp_path)
    assert without.digest == none.digest != kfac.digest
    assert json.loads(canonical(kfac.cells[0].choices))["preconditioner"]["damping"] == 0.003


def groups(tmp_path: Path, matrix: str) -> list[parity.Group]:
    found = plan(tmp_path, matrix)
    assert not found.skipped
    return parity.groups(found)


def test_every_placement_is_compared_with_one_process_that_preconditions_too(tmp_path: Path) -> None:
    found = groups(tmp_path, "matrix:\n  preconditioner: [none, kfac, {kind: kfac, placement: lw}, "
                             "{kind: kfac, placement: fraction, fraction: 0.5}, {kind: kfac, eigen_every: 100}]\n")
    shown: list[tuple[Any, int]] = [
        (group.reference.training.preconditioner.get(Preconditioner), len(group.candidates)) for group in found]
    assert shown == [(Kfac(), 3), (Kfac(eigen_every=100), 1)]
    assert all(group.reference.training.engine.kind == "single" for group in found)


def test_a_suite_of_one_engine_is_gated_where_it_preconditions(tmp_path: Path) -> None:
    assert len(groups(tmp_path, "")) == 1
    assert parity.groups(plan(tmp_path, "", ("  preconditioner: kfac\n", ""))) == []
