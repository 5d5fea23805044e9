"""A record of another package's plug-ins is read, verified, compared and bundled where the package is absent."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from repro.bundle.contents import write_bundle
from repro.bundle.verify import verify
from repro.bundle.verify_files import Verification
from repro.bundle.verify_plan import check_plan, this_code
from repro.cli.workflows.reproduce import Wanted, choose_trials, reduce_plan
from repro.core.errors import OutputError, UsageError
from repro.core.files import read_model, write_json
from repro.core.machine import Machine
from repro.launchers.netns.probe import Ability
from repro.record.folder.store import Record, read_record
from repro.runner import preflight
from repro.runner.context import Options
from repro.seams.training import Comm, Engine, Workload
from repro.suite.planning.cell import Skipped
from repro.suite.planning.plan import Plan, planned_order
from tests.letters import SUITE, installed, letters_record, write_package
from tests.plans import planned, suite

ROOT = Path(__file__).resolve().parents[3]
VERBS = [
    ["verify", "run"], ["verify", "run.zip"], ["compare", "run"], ["compare", "run", "other"], ["audit", "run"],
    ["report", "run", "--to", "html,markdown,csv,mllog", "--out", "out"], ["diff", "run", "run.zip"],
    ["bundle", "run", "-o", "again.zip"],
]
DRIVER = """
import json, sys
from repro.cli.main import main
ends = []
for arguments in json.loads(sys.argv[1]):
    sys.argv[1:] = arguments
    print("$", *arguments)
    try:
        main()
        ends.append(0)
    except SystemExit as end:
        ends.append(end.code or 0)
print(json.dumps([int(code) for code in ends]))
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs, a bundle of the first, and the package that they need to run."""
    place = tmp_path_factory.mktemp("letters")
    write_package(place / "packages")
    for name, seconds in (("run", 0.01), ("other", 0.02)):
        letters_record(place / name, place / "packages", seconds)
    write_bundle(place / "run", place / "run.zip")
    return place


@pytest.fixture
def record(place: Path) -> Iterator[Record]:
    """The run as it reads without the package; its plan is restored afterwards."""
    text = (place / "run/plan.json").read_text()
    yield read_record(place / "run")
    (place / "run/plan.json").write_text(text)


@pytest.mark.slow
def test_every_verb_but_run_works_without_the_package(place: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HOME": str(place), "OMP_NUM_THREADS": "1"}
    child = subprocess.run([sys.executable, "-c", DRIVER, json.dumps(VERBS)], cwd=place, env=environment, text=True,
                           capture_output=True, check=False, timeout=300)
    ends = json.loads(child.stdout.splitlines()[-1])
    # An audit of so small a record ends with 3 wherever it is done.
    assert ends == [3 if verb[0] == "audit" else 0 for verb in VERBS], child.stdout + child.stderr
    assert child.stdout.count(": sound") == 2, child.stdout
    page = (place / "out/report.html").read_text()
    assert "letters/s" in page and "Plug-in workload letters" in page


@pytest.mark.slow
def test_names_and_facts_are_those_of_the_package(record: Record, place: Path) -> None:
    with installed(place / "packages"):
        known = read_record(place / "run")
    assert known.plan.absent_plugins() == [] and len(record.plan.absent_plugins()) == 4
    assert known.plan.model_dump(mode="json") == record.plan.model_dump(mode="json")
    for there, here in zip(known.plan.cells, record.plan.cells, strict=True):
        assert (there.cell_id, there.choices.slug, there.choices.title) == (
            here.choices.cell_id, here.choices.slug, here.choices.title)
        workload, engine = here.choices.workload.get(Workload), here.choices.engine.get(Engine)
        assert (workload.unit, workload.metrics, workload.train_samples) == ("letters", {"top1": "higher"}, 4096)
        assert engine.zero_stage() == there.choices.engine.get(Engine).zero_stage()
        assert here.choices.comm.get(Comm).own_algorithm == there.choices.comm.get(Comm).own_algorithm


def test_a_run_is_refused_in_one_line(record: Record) -> None:
    chosen, terms = choose_trials(record, "1", Wanted(undecided=True))
    with pytest.raises(UsageError, match=r"workload 'letters' is not installed here .*letters 1\.0"):
        reduce_plan(record.plan, chosen, Machine("cpu", 0, 2), 1, terms)
    with pytest.raises(UsageError, match="can be read, verified and compared, but not run"):
        preflight.check(record.plan, Machine("cpu", 0, 2), record.folder, Options())
    with pytest.raises(UsageError, match="is not installed here"):
        record.plan.cells[0].choices.workload.get(Workload).identity()


def test_a_suite_that_names_an_unknown_plug_in_is_still_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no workload named 'letters'"):
        planned(tmp_path, SUITE)


def test_a_newer_package_with_another_default_does_not_change_the_record(record: Record, tmp_path: Path) -> None:
    write_package(tmp_path, layers=5)
    with installed(tmp_path):
        found = verify(record.folder.root)
        assert found.sound, found.text()
        source = (tmp_path / "letters/__init__.py").read_text()
    (tmp_path / "letters/__init__.py").write_text(source.replace("layers: int", "heads: int = 4\n    layers: int"))
    with installed(tmp_path):
        found = verify(record.folder.root)
    assert found.sound, found.text()
    assert any("workload 'letters' is not installed here as the record describes it" in note for note in found.notes)


def change_plan(record: Record, change: Any) -> None:
    data = json.loads(record.folder.plan.read_text())
    change(data)
    write_json(record.folder.plan, data)


def test_a_record_without_descriptions_is_refused(record: Record) -> None:
    change_plan(record, lambda data: data.pop("plugins"))
    with pytest.raises(OutputError, match="is not installed here, and the record does not describe it"):
        read_model(record.folder.plan, Plan)


def test_a_package_of_ours_cannot_be_described_otherwise(record: Record) -> None:
    def claim(data: Any) -> None:
        facts = {"seam": "precision", "kind": "fp32", "shown": "fp32", "options": {}, "facts": {"weights": "float64"}}
        data["plugins"].append(facts)

    change_plan(record, claim)
    found = read_model(record.folder.plan, Plan)
    assert found.cells[0].choices.precision.label == "fp32" and found.cells[0].choices.precision.options == {}


@pytest.mark.parametrize(("seam", "facts", "said"), [
    ("workload", {"train_samples": -1}, "train_samples"), ("engine", {"zero_stage": 9}, "zero_stage"),
    ("launcher", {"origin": "real"}, "origin"), ("reporter", {}, "seam"),
])
def test_false_descriptions_are_refused(record: Record, seam: str, facts: dict[str, Any], said: str) -> None:
    change_plan(record, lambda data: data["plugins"].append(
        {"seam": seam, "kind": "x", "shown": "x", "options": {}, "facts": facts}))
    with pytest.raises(OutputError, match="plugins"):
        read_record(record.folder.root)


@pytest.mark.parametrize(("matrix", "trial", "machine", "tool", "absent"), [
    ("optimizer: [{kind: sgd, lr: 0.1}, {kind: lion, lr: 0.01}]", {}, Machine("cpu", 0, 8),
     "repro.optimizers.rules.why_missing", "package pytorch-optimizer is not installed"),
    ("engine: [ddp, {kind: deepspeed, stage: 3, quantized: weights}]", {"device": "cuda"}, Machine("cuda", 2, 8),
     "repro.engines.deepspeed_zero.cuda_tools_missing", "nvcc"),
    ("processes: [2, 4]", {"launcher": "{kind: fabric, nodes: 2}"}, Machine("cpu", 0, 8),
     "repro.launchers.emulated.ability", Ability("network namespaces need Linux")),
], ids=["package", "tool", "kernel"])
def test_a_plan_is_verified_whatever_is_installed_where_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, matrix: str, trial: dict[str, str], machine: Machine, tool: str,
    absent: Any,
) -> None:
    text = suite("elsewhere", f"matrix:\n  {matrix}\n", seeds=3, **{"processes": 2} | trial)
    states = [type(absent)(), absent]
    for there in states[:2 if tool != "repro.launchers.emulated.ability" else 1]:  # without it nothing could run
        monkeypatch.setattr(tool, lambda *_, there=there: there)
        plan = planned(tmp_path, text, machine=machine)
        missing = there is absent
        assert (len(plan.cells), [item.missing for item in plan.skipped]) == ((1, [True]) if missing else (2, []))
        for here in states:
            monkeypatch.setattr(tool, lambda *_, here=here: here)
            found = Verification("run")
            check_plan(plan, this_code(), found)
            assert found.problems == []
            assert ["not checked: something" in note for note in found.notes] == [True] * missing


def test_what_a_machine_lacks_is_no_excuse_for_other_cells_and_notes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of two reasons to skip a cell the one counts that holds everywhere; a cell that needs nothing is not missing."""
    monkeypatch.setattr("repro.optimizers.rules.why_missing", lambda *_: "package pytorch-optimizer is not installed")
    text = suite("elsewhere", "matrix: {optimizer: [{kind: sgd, lr: 1}, {kind: sgd, lr: 2}, {kind: lion, lr: 1}], "
                              "compile: [false, {mode: max-autotune}]}\n", seeds=3)
    plan = planned(tmp_path, text, machine=Machine("cpu", 0, 8))
    assert sorted(item.missing for item in plan.skipped) == [False, False, False, True]
    left = plan.cells[1]
    forged = Skipped(label=left.label, factors=left.factors, reason="package sgd is not installed", missing=True)
    without = plan.model_copy(update={"cells": plan.cells[:1], "skipped": (*plan.skipped, forged)})
    without = without.model_copy(update={"order": tuple(planned_order(without))})
    for made, problems in ((plan, False), (without, True), (plan.model_copy(update={"notes": ("as I like",)}), True)):
        found = Verification("run")
        check_plan(made, this_code(), found)
        assert bool(found.problems) == problems, found.problems


def test_a_cell_that_a_plan_leaves_out_without_reason_is_still_found(tmp_path: Path) -> None:
    text = suite("elsewhere", "matrix: {processes: [1, 2], engine: [single, ddp]}\n", engine=None)
    plan = planned(tmp_path, text)
    refused, = plan.skipped
    assert not refused.missing
    found = Verification("run")
    check_plan(plan.model_copy(update={"skipped": ()}), this_code(), found)
    assert any("lacks" in item.what for item in found.problems)
