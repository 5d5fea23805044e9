"""Suites as people write them: every mistake is one line with its place and the correction."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from repro.cli.workflows.tuning import plan_phases
from repro.core.errors import SuiteError
from repro.core.machine import Machine
from repro.suite.choice import parse_choice
from repro.suite.file import bundled, read_suite
from repro.suite.planning.cost import over_time_limits
from repro.suite.planning.plan import Plan, make_plan
from tests.plans import plan_file

TEXT = """\
suite: sample
seeds: 6
trial:
  workload: digits
  engine: ddp
  batch: {global: 64}
  optimizer: {kind: sgd, lr: 0.1}
  stop: {metric: top1, target: 0.9, max_epochs: 8}
  evaluate_every: 1437
matrix:
  engine: [ddp, {kind: deepspeed, stage: 1}]
  processes: [1, 2]
exclude:
  - {engine: deepspeed, processes: 1}
baseline: {engine: ddp}
primary:
  candidate: {engine: deepspeed, processes: 2}
  baseline: {engine: ddp, processes: 2}
"""
Planner = Callable[..., Plan]


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Planner:
    """(old, new, *overrides) -> the plan of TEXT with `old` replaced by `new`, on a machine with two cores."""
    monkeypatch.chdir(tmp_path)

    def make(old: str = "", new: str = "", *overrides: str) -> Plan:
        assert old in TEXT
        Path("s.yaml").write_text(TEXT.replace(old, new, 1))
        return plan_file("./s.yaml", *overrides)

    return make


def labels(plan: Plan) -> list[str]:
    return [cell.label for cell in plan.cells]


def test_the_sample_is_a_plan(plan: Planner) -> None:
    assert labels(plan()) == ["ddp, 1 process", "ddp, 2 processes", "deepspeed (stage=1), 2 processes"]


MISTAKES = [
    # unknown key
    ("seeds: 6", "seed: 6", 2, "seed", "did you mean 'seeds'?"),
    ("  engine: ddp\n", "  engin: ddp\n", 5, "trial.engin", "did you mean 'engine'?"),
    ("{global: 64}", "{globl: 64}", 6, "trial.batch.globl", "did you mean 'global'?"),
    ("lr: 0.1", "lr: 0.1, momentun: 0.9", 7, "trial.optimizer.momentun", "did you mean 'momentum'?"),
    ("stage: 1", "stag: 1", 11, "matrix.engine[1].stag", "did you mean 'stage'?"),
    ("  processes: [1, 2]", "  proceses: [1, 2]", 12, "matrix.proceses", "did you mean 'processes'?"),
    ("baseline: {engine: ddp}", "baseline: {engin: ddp}", 15, "baseline.engin", "did you mean 'engine'?"),
    ("deepspeed, processes: 1", "deepspeed, proceses: 1", 14, "exclude[0].proceses", "did you mean 'processes'?"),
    ("candidate: {engine", "candidate: {engin", 17, "primary.candidate.engin", "did you mean 'engine'?"),
    ("  candidate:", "  candidat:", 17, "primary.candidat", "did you mean 'candidate'?"),
    ("  engine: ddp\n", "  engine: ddp\n  schedule: {kind: cosine, ends: 0.1}\n", 6, "trial.schedule.ends",
     "did you mean 'end'?"),
    # wrong type or value
    ("seeds: 6", "seeds: many", 2, "seeds", "a whole number"),
    ("seeds: 6", "seeds: 0", 2, "seeds", "greater than or equal to 1"),
    ("suite: sample", "suite: Sample!", 1, "suite", "lower-case letters, digits and hyphens, at most 64, the first"),
    ("lr: 0.1", "lr: fast", 7, "trial.optimizer.lr", "given: fast"),
    ("lr: 0.1", "momentum: 0.9", 7, "trial.optimizer.lr", "is missing"),
    ("target: 0.9", "target: .nan", 8, "trial.stop.target", "finite number"),
    ("max_epochs: 8", "max_epochs: .inf", 8, "trial.stop.max_epochs", "finite number"),
    ("  engine: [ddp, {kind: deepspeed, stage: 1}]", "  engine: ddp", 11, "matrix.engine", "must be a list"),
    ("  processes: [1, 2]", "  processes: []", 12, "matrix.processes", "no levels"),
    ("  engine: ddp\n", "  engine: ddp\n  schedule: cosin\n", 6, "trial.schedule", "'cosine'"),
    ("  engine: ddp\n", "  engine: ddp\n  determinism: bitwis\n", 6, "trial.determinism", "'bitwise'"),
    ("target: 0.9", "target: 97", 8, "trial.stop.target", "top1 must be between 0 and 1; 97 % is 0.97 (given: 97)"),
    ("target: 0.9", "target: -0.1", 8, "trial.stop.target", "must be between 0 and 1"),
    ("  processes: [1, 2]", "  processes: [true, 2]", 12, "matrix.processes[0]", "must be a number (given: true)"),
    ("lr: 0.1", "lr: true", 7, "trial.optimizer.lr", "must be a number (given: true)"),
    ("stage: 1", "stage: true", 11, "matrix.engine[1].stage", "must be a number (given: true)"),
    ("seeds: 6", "seeds: true", 2, "seeds", "must be a number (given: true)"),
    ("{global: 64}", "{global: true}", 6, "trial.batch.global", "must be a number (given: true)"),
    ("max_epochs: 8", "max_epochs: 1e99", 8, "trial.stop.max_epochs", "less than or equal to 1000000"),
    # unknown plug-in
    ("  engine: [ddp", "  engine: [dpd", 11, "matrix.engine[0]", "no engine named 'dpd'; did you mean 'ddp'?"),
    ("kind: deepspeed", "kind: deepsped", 11, "matrix.engine[1].kind", "did you mean 'deepspeed'?"),
    ("kind: sgd", "kind: sdg", 7, "trial.optimizer.kind", "did you mean 'sgd'?"),
    ("workload: digits", "workload: faces", 4, "trial.workload", "digits, digits-mlp, gpt"),
    ("workload: digits", "workload: {norm: group}", 4, "trial.workload", "a mapping with `kind: <name>`"),
    # a global batch that does not divide
    ("{global: 64}", "{global: 65}", 6, "trial.batch.global", "processes x accumulation = 2 x 1 = 2; 64 would be"),
    ("{global: 64}", "{global: 65}", 6, "trial.batch.global", '(with engine="ddp", processes=2)'),
    ("{global: 64}", "{global: 64, accumulation: 3}", 6, "trial.batch.global", "63 would be"),
    ("{global: 64}", "{global: 64, micro: 5}", 6, "trial.batch.micro", "not the global batch 64"),
    # a metric that the workload has not
    ("metric: top1", "metric: top5", 8, "trial.stop.metric", "no metric 'top5'; did you mean 'top1'?"),
    ("metric: top1", "metric: top1, direction: lower", 8, "trial.stop.direction", "top1 improves upwards"),
    # duplicate cells, contrasts without cells, nothing left
    ("processes: [1, 2]", "processes: [2, 2]", 12, "matrix", "'ddp' is requested twice by two equal levels, 2"),
    ("engine: [ddp, ", "engine: [{kind: ddp}, ddp, ", 11, "matrix.engine", "by two equal levels, ddp"),
    ("baseline: {engine: ddp}", "baseline: {engine: single}", 15, "baseline", "cells: ddp, 1 process; ddp, 2"),
    ("candidate: {engine: deepspeed", "candidate: {engine: fake", 17, "primary.candidate", "no cell of this suite"),
    ("{engine: deepspeed, processes: 1}", "{processes: [1, 2]}", 13, "exclude", "every combination is excluded"),
]


@pytest.mark.parametrize(("old", "new", "line", "field", "right"), MISTAKES)
def test_a_mistake_is_one_line_with_file_line_field_and_correction(
    plan: Planner, old: str, new: str, line: int, field: str, right: str
) -> None:
    with pytest.raises(SuiteError) as caught:
        plan(old, new)
    text = str(caught.value)
    assert text.startswith(f"./s.yaml:{line}: {field}")
    assert right in text
    assert "\n" not in text


def test_more_processes_than_can_be_started(plan: Planner) -> None:
    with pytest.raises(SuiteError) as caught:
        plan("", "", "processes=64")
    assert str(caught.value).startswith("-o processes=64: trial: nothing can run on this machine: ddp: launcher local")
    assert str(caught.value).endswith("64 processes are too many for 2 cores; at most 8")
    some = plan("", "", "processes=1,64")
    assert labels(some) == ["ddp, 1 process"]
    assert [item.reason for item in some.skipped] == [
        "launcher local: 64 processes are too many for 2 cores; at most 8"] * 2


@pytest.mark.parametrize(("overrides", "start"), [
    (("processes=3",), "-o processes=3: trial.batch.global: global batch 64"),
    (("batch.accumulation=3",), "-o batch.accumulation=3: trial.batch.global: global batch 64"),
    (("processes=3", "seeds=4"), "-o processes=3: trial.batch.global: global batch 64"),
    (("processes=1,3",), "-o processes=1,3: trial.batch.global: global batch 64"),
    (("optimizer.lr=1e-2", "processes=64"), "-o optimizer.lr=1e-2 -o processes=64: trial: nothing can run"),
    (("stop.target=97",), "-o stop.target=97: trial.stop.target: top1 must be between"),
    (("processes=true",), "-o processes=true: trial.processes: must be a number"),
    (("stop.max_epochs=1e99",), "-o stop.max_epochs=1e99: trial.stop.max_epochs: must be less"),
])
def test_a_mistake_in_an_override_names_the_override(
    plan: Planner, overrides: tuple[str, ...], start: str
) -> None:
    with pytest.raises(SuiteError) as caught:
        plan("", "", *overrides)
    assert str(caught.value).startswith(start)


def test_a_mistake_in_the_file_names_the_file_whatever_was_overridden(plan: Planner) -> None:
    with pytest.raises(SuiteError) as caught:
        plan("{global: 64}", "{global: 65}", "optimizer.lr=0.2")
    assert str(caught.value).startswith("./s.yaml:6: trial.batch.global")


def test_numbers_with_an_exponent_are_numbers(plan: Planner) -> None:
    made = plan("lr: 0.1", "lr: 1e-3", "stop.target=9e-1")
    assert made.cells[0].choices.rate == 1e-3
    assert made.cells[0].choices.stop.target == 0.9


def test_files_that_are_no_suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "list.yaml").write_text("- 1\n")
    (tmp_path / "folder.yaml").mkdir()
    for name, problem in (
        ("quickstar", r"no suite named 'quickstar'; did you mean 'quickstart'\?"),
        ("./none.yaml", "there is no such file"),
        ("list.yaml", "list.yaml:1: is not a suite"), ("folder.yaml", "is a folder, not a suite file"),
        ("./sub/none", "there is no such file"),
    ):
        with pytest.raises(SuiteError, match=problem):
            read_suite(name)


def test_every_bundled_suite_reads_and_plans() -> None:
    assert "quickstart" in bundled()
    for name in bundled():
        source = read_suite(name)
        assert source.suite.suite == name
        assert source.suite.title
        if source.suite.tune is not None:
            plan_phases(source, ())
        else:
            make_plan(source.suite, Machine("cpu", 0, 2), source.problem)


# ---- overrides


def test_one_value_fixes_a_field_and_several_sweep_it(plan: Planner) -> None:
    fixed = plan("", "", "optimizer.lr=0.2")
    assert {cell.choices.optimizer.plugin.model_dump()["lr"] for cell in fixed.cells} == {0.2}
    swept = plan("", "", "optimizer.lr=0.1,0.2")
    assert len(swept.cells) == 6
    assert {cell.choices.optimizer.plugin.model_dump()["lr"] for cell in swept.cells} == {0.1, 0.2}


def test_a_sweep_replaces_the_factor_of_the_suite(plan: Planner) -> None:
    found = plan("", "", "processes=2,4", "engine=ddp,fake")
    assert labels(found) == ["ddp, 2 processes", "ddp, 4 processes", "fake, 2 processes", "fake, 4 processes"]


def test_one_value_removes_a_factor(plan: Planner) -> None:
    assert labels(plan("", "", "processes=2")) == ["ddp", "deepspeed (stage=1)"]
    assert {cell.choices.processes for cell in plan("", "", "trial.processes=2").cells} == {2}


def test_a_plug_in_replaces_the_factors_inside_it(plan: Planner) -> None:
    text = "  engine.stage: [1, 2]\n"
    found = plan("  engine: [ddp, {kind: deepspeed, stage: 1}]\n", text, "engine=ddp", "processes=2")
    assert labels(found) == ["ddp"]


def test_an_option_inside_a_factor_reaches_every_level(plan: Planner) -> None:
    found = plan("[ddp, {kind: deepspeed, stage: 1}]", "[deepspeed, {kind: deepspeed, stage: 2, config: {aio: {}}}]",
                 "engine.stage=3", "processes=2")
    stages = [cell.choices.engine.plugin.model_dump() for cell in found.cells]
    assert [(item["stage"], item["config"]) for item in stages] == [(3, {}), (3, {"aio": {}})]


def test_an_option_that_a_level_has_not_is_the_overrides_fault(plan: Planner) -> None:
    with pytest.raises(SuiteError, match=r"^-o engine\.stage=2: matrix\.engine\[0\]\.stage: unknown key") as caught:
        plan("", "", "engine.stage=2")
    assert "bucket_mib" in str(caught.value)


def test_a_swept_option_that_is_wrong_is_blamed_and_not_the_plug_in(plan: Planner) -> None:
    with pytest.raises(SuiteError, match=r"^-o engine\.stage=1,7: matrix\.engine\.stage\[1\]: "):
        plan("[ddp, {kind: deepspeed, stage: 1}]", "[deepspeed]", "engine.stage=1,7")


VERSIONED = 'seeds: 6\nversion: "2.0"\nchanges: [{version: "2.0", text: two}, {version: "1.0", text: one}]\n'


def test_a_suite_has_a_version_and_a_list_of_changes_outside_its_digest(plan: Planner) -> None:
    found = plan("seeds: 6\n", VERSIONED)
    assert [item.version for item in found.suite.changes] == ["2.0", "1.0"]
    assert found.digest == plan().digest
    for old, new, said in (('"2.0"\n', "2.0\n", 'version: is a number without quotes; write it as text, "2.0"'),
                           ('"2.0"\n', '"3.0"\n', "changes[0].version: the latest change must be that of the suite's"),
                           ('"2.0"\n', '"two"\n', "version: ")):
        with pytest.raises(SuiteError, match=re.escape(said)):
            plan("seeds: 6\n", VERSIONED.replace(old, new))


@pytest.mark.parametrize("name", bundled())
def test_every_bundled_suite_says_what_its_versions_changed(name: str) -> None:
    suite = read_suite(name).suite
    assert suite.version and suite.changes[0].version == suite.version
    assert suite.master_seed is None


def test_a_budget_beyond_the_time_limit_is_a_warning(plan: Planner) -> None:
    assert over_time_limits(plan()) == []
    (said,) = over_time_limits(plan("max_epochs: 8", "max_epochs: 80000"))
    assert "(and 2 other cells): the whole budget takes about" in said
    assert "more than timeout_seconds: 3600, which would end the trial as one that missed" in said


def test_seeds_belong_to_the_suite(plan: Planner) -> None:
    assert plan("", "", "seeds=3", "master_seed=5").suite.seeds == 3


def test_the_last_override_wins(plan: Planner) -> None:
    assert {cell.choices.batch.global_ for cell in plan("", "", "batch.global=32", "batch=128").cells} == {128}


@pytest.mark.parametrize(("override", "field", "right"), [
    ("enginee=ddp", "", "no field named 'enginee'; did you mean 'engine'?"),
    ("seed=3", "", "did you mean 'seeds'?"),
    ("engine=dpd", "trial.engine", "did you mean 'ddp'?"),
    ("optimizer.lr=fast", "trial.optimizer.lr", "given: fast"),
    ("schedule.kind=cosin", "trial.schedule", "'cosine'"),
    ("batch.globl=64", "trial.batch.globl", "did you mean 'global'?"),
    ("stop.target=.nan", "trial.stop.target", "finite"),
    ("seeds=1,2", "seeds", "a whole number"),
    ("processes", "", "key=value"), ("processes=", "", "key=value"), ("=1", "", "key=value"),
])
def test_a_wrong_override_is_named(plan: Planner, override: str, field: str, right: str) -> None:
    with pytest.raises(SuiteError) as caught:
        plan("", "", override)
    text = str(caught.value)
    assert text.startswith(f"-o {override}: {field}")
    assert right in text
    assert "\n" not in text


@pytest.mark.parametrize(("old", "new", "line", "field"), [
    ("trial:", "trial: [a]\nnot:", 3, "trial"), ("matrix:", "matrix: [a]\nnot:", 10, "matrix"),
])
def test_an_override_does_not_cover_up_a_broken_section(
    plan: Planner, old: str, new: str, line: int, field: str
) -> None:
    with pytest.raises(SuiteError, match=rf"^\./s\.yaml:{line}: {field}: must be a mapping"):
        plan(old, new, "processes=2")


def test_a_contrast_removed_by_an_override_becomes_a_note(plan: Planner) -> None:
    found = plan("", "", "engine=ddp")
    assert found.suite.primary is None
    assert any("the declared primary" in note and "after the overrides" in note for note in found.notes)
    gone = plan("", "", "engine=deepspeed", "processes=2")
    assert gone.suite.baseline == {}
    assert any("the declared baseline" in note for note in gone.notes)


@pytest.mark.parametrize(("name", "kept"), [("cifar10", {"cutout": 8}), ("imagenet", {"label_smoothing": 0.1})])
def test_the_override_that_a_suite_names_for_synthetic_data_keeps_options(name: str, kept: dict[str, object]) -> None:
    text = read_suite(name).text
    override = f"workload.kind={name}-synthetic"
    assert text.count(f"-o {override}") == 2, "in the first lines and in the description"
    workload = parse_choice("workload", read_suite(name, [override]).suite.trial["workload"]).plugin
    assert workload.synthetic
    assert workload.model_dump(include=set(kept)) == kept
