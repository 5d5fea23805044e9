"""What a suite may say of a program, and the one line that answers what it may not."""

from __future__ import annotations

from pathlib import Path

import pytest

from repro.cli.text.suite import suite_text
from repro.core.errors import SuiteError
from repro.core.machine import Machine
from repro.core.source_code import SourceCode
from repro.record.environment.plugin_code import PROGRAM, PluginCode, plugin_code
from repro.suite.file import read_suite
from repro.suite.kinds.program import ProgramConfig
from repro.suite.planning.plan import Plan, expand_again
from tests.commands import git
from tests.plans import plan_file

HERE = Machine("cpu", 0, 2)
SUITE = """\
suite: mine
seeds: 2
trial:
  engine: {kind: program, run: [python, train.py, --lr, "{lr}", --seed, "{seed}"]}
  parameters: {lr: 0.1}
  evaluation: {pattern: 'loss (?P<value>\\S+)', metric: loss, direction: lower}
  stop: {target: 1.5}
"""


def planned(folder: Path, text: str = SUITE) -> Plan:
    (folder / "suite.yaml").write_text(text)
    if not (folder / "train.py").exists():
        (folder / "train.py").write_text("print('loss 1')\n")
    return plan_file(folder / "suite.yaml")


def choices(plan: Plan) -> ProgramConfig:
    found = plan.cells[0].choices
    assert isinstance(found, ProgramConfig)
    return found


def test_ten_lines_make_a_plan_that_its_record_can_expand_again(tmp_path: Path) -> None:
    plan = planned(tmp_path)
    again = Plan.model_validate_json(plan.model_dump_json(by_alias=True))
    assert expand_again(again, HERE).digest == plan.digest
    assert choices(plan).engine.sha256 == SourceCode({"train.py": b"print('loss 1')\n"}, tmp_path).sha256
    assert choices(plan).stop.metric == "loss" and choices(plan).stop.direction == "lower"
    assert plan.cells[0].label == "train.py"


def test_other_files_are_another_cell(tmp_path: Path) -> None:
    first = planned(tmp_path)
    (tmp_path / "train.py").write_text("print('loss 2')\n")
    second = planned(tmp_path)
    assert first.digest != second.digest
    assert first.cells[0].cell_id != second.cells[0].cell_id
    (tmp_path / "notes.txt").write_text("no part of the program")
    assert planned(tmp_path).digest == second.digest


def test_a_suite_can_pin_the_files(tmp_path: Path) -> None:
    sha256 = choices(planned(tmp_path)).engine.sha256
    pinned = SUITE.replace("kind: program,", f"kind: program, sha256: {sha256},")
    assert choices(planned(tmp_path, pinned)).engine.sha256 == sha256
    (tmp_path / "train.py").write_text("changed")
    with pytest.raises(SuiteError, match=r"suite.yaml:4: trial.engine.sha256: the files have the hash [0-9a-f]{64}"):
        planned(tmp_path, pinned)


def test_two_commits_of_one_folder_are_two_cells(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    for number in (1, 2):
        (tmp_path / "train.py").write_text(f"print('loss {number}')\n")
        git(tmp_path, "add", "train.py")
        git(tmp_path, "commit", "-qm", f"version {number}")
        git(tmp_path, "tag", f"v{number}")
    plan = planned(tmp_path, SUITE + "matrix: {engine.commit: [v1, v2]}\n")
    assert [cell.label for cell in plan.cells] == ["commit=v1", "commit=v2"]
    hashes = [cell.choices.engine.sha256 for cell in plan.cells if isinstance(cell.choices, ProgramConfig)]
    assert hashes == [SourceCode({"train.py": f"print('loss {number}')\n".encode()}, tmp_path).sha256
                      for number in (1, 2)]


@pytest.mark.parametrize(("old", "new", "message"), [
    ("(?P<value>\\\\S+)", "(?P<worth>\\\\S+)", "trial.evaluation.pattern: group `worth` means nothing here"),
    ("loss (?P<value>\\\\S+)", "loss (\\\\S+)", "trial.evaluation.pattern: no group `value`"),
    ("(?P<value>\\\\S+)", "(?P<value>", "trial.evaluation.pattern: not a regular expression"),
    ("pattern: 'loss (?P<value>\\S+)'", "pattern: nanogtp", "did you mean 'nanogpt'"),
    ("pattern: 'loss (?P<value>\\S+)', ", "", "trial.evaluation.pattern: is missing"),
    ("{lr}", "{lrr}", "trial.engine.run[3]: no parameter named 'lrr'; did you mean 'lr'?"),
    ('--lr, "{lr}", ', "", "trial.parameters.lr: the command does not use it; write {lr} in engine.run, or remove it"),
    ("{lr: 0.1}", "{seed: 1}", "trial.parameters.seed: a parameter's name is a word"),
    ('"{seed}"', '"{batch.global}"', "trial.engine.run[5]: uses {batch.global}, and the suite declares no batch"),
    ("direction: lower", "direction: down", "trial.evaluation.direction"),
    ("{target: 1.5}", "{}", "trial.stop.target: is missing"),
    ("{target: 1.5}", "{target: 1.5, metric: top1}", "trial.stop.metric: evaluation.metric says loss"),
    ("kind: program, ", "", "trial.engine.kind: an engine with a command (run) is a program: write kind: program"),
    ("kind: program, ", "kind: programme, ", "trial.engine.kind: an engine with a command (run) is a program"),
    ('{kind: program, run: [python, train.py, --lr, "{lr}", --seed, "{seed}"]}', "program",
     "trial.engine: must be a mapping (given: program)"),
    ("run: [", "folder: nowhere, run: [", "trial.engine.folder: no such folder: nowhere"),
    ("run: [", "commit: v9, run: [", "trial.engine.commit: "),
    ("run: [", "commit: 12345e6789, run: [", "must be text (given: inf); in quotes it is text"),
    ("run: [", "files: ['*.jl'], run: [", "trial.engine.files: no file of"),
    ("run: [", "runs: 3, run: [", "trial.engine.runs: unknown key"),
    ("run: [", "environment: {API_TOKEN: abc}, run: [", "trial.engine.environment.API_TOKEN: looks like a credential"),
    ("  parameters", "  launcher: local\n  parameters", "trial.launcher: a program is started by the harness itself"),
    ("metric: loss,", "metric: loss, reader: watch,", "trial.evaluation.pattern: reader watch has none; remove it"),
    ("  evaluation: {pattern: 'loss (?P<value>\\S+)', metric: loss, direction: lower}\n", "",
     "trial.evaluation: is missing: how the quality is read; or compare times only, by stop: {design: end}"),
    ("{target: 1.5}", "{design: end}", "trial.evaluation.reader: design end evaluates nothing"),
    ("{target: 1.5}", "{design: end, target: 1}", "trial.stop.target: design end asks for no quality; remove it"),
    ("metric: loss,", "metric: loss, tag: x,", "trial.evaluation.tag: only reader tensorboard has it"),
])
def test_what_cannot_be_meant_is_one_line(tmp_path: Path, old: str, new: str, message: str) -> None:
    old, new = (text.replace("\\\\", "\\") for text in (old, new))
    assert old in SUITE
    with pytest.raises(SuiteError) as caught:
        planned(tmp_path, SUITE.replace(old, new))
    assert message in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(("evaluation", "metric", "why"), [
    ("pattern: 'loss (?P<value>\\S+)'", "tta_train", "use tta_wall, or a pattern with a group of train_ms"),
    ("pattern: 'loss (?P<value>\\S+)', progress: 'at (?P<train_s>\\S+)'", "tta_train", "nothing reads one"),
    ("pattern: 'loss (?P<value>\\S+) at (?P<train_s>\\S+)'", "tta_train", ""),
    ("reader: watch", "end_train", "use end_wall"), ("reader: mllog", "tta_train", ""),
    ("pattern: nanogpt", "tta_train", "nothing reads one"), ("pattern: airbench", "tta_train", ""),
    ("reader: watch", "throughput", ""), ("pattern: nanogpt", "samples", "declare batch"),
    ("pattern: nanogpt", "step_time", "a program has tta_wall"),
])
def test_a_figure_that_no_trial_can_have_is_known_beforehand(
    tmp_path: Path, evaluation: str, metric: str, why: str,
) -> None:
    name = {"pattern: nanogpt": "val_loss", "pattern: airbench": "val_acc"}.get(evaluation, "loss")
    found = choices(planned(tmp_path, SUITE.replace(
        "pattern: 'loss (?P<value>\\S+)', metric: loss", f"{evaluation}, metric: {name}"))).lacks(metric)
    assert why in found and bool(why) == bool(found)


def test_values_are_filled_in_as_they_are(tmp_path: Path) -> None:
    text = SUITE.replace("{lr: 0.1}", "{lr: 1e-05}").replace('"{seed}"', '"{seed}", "{{lr}}", "{\\"a\\": {}}"')
    plan = planned(tmp_path, text)
    given = {"seed": "7", "run_dir": "/nowhere"}
    filled = [choices(plan).filled(part, given) for part in choices(plan).engine.run]
    assert filled == ["python", "train.py", "--lr", "1e-05", "--seed", "7", "{lr}", '{"a": {}}']


@pytest.mark.parametrize("name", ["accelerate", "huggingface", "lightning", "torchrun"])
def test_the_examples_are_plans(name: str) -> None:
    plan = plan_file(Path(__file__).parents[3] / "examples" / name / "suite.yaml")
    assert len(plan.cells) == 2 and plan.suite.seeds >= 6


def test_a_command_without_a_seed_is_said_so(tmp_path: Path) -> None:
    assert not planned(tmp_path).notes[1:]
    notes = planned(tmp_path, SUITE.replace(', --seed, "{seed}"', "")).notes
    assert any("takes no {seed}" in note for note in notes)


def test_cells_that_differ_in_a_number_that_the_command_does_not_take_are_named(tmp_path: Path) -> None:
    text = SUITE + "matrix: {batch.global: [32, 64]}\n"
    assert "batch 32; batch 64: all run one command with the same arguments" in "; ".join(planned(tmp_path, text).notes)
    taken = text.replace('"{seed}"', '"{seed}", --batch, "{batch.global}"')
    assert not any("one command" in note for note in planned(tmp_path, taken).notes)


TRAIN = b"print('loss 1')\n"
IDENTITY_SUITE = SUITE.replace('--lr, "{lr}", ', "").replace("  parameters: {lr: 0.1}\n", "")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_bytes(TRAIN)
    return tmp_path


def commit(folder: Path) -> str:
    if not (folder / ".git").exists():
        git(folder, "init", "-q")
    git(folder, "add", "train.py")
    git(folder, "commit", "-qm", "a version")
    return git(folder, "rev-parse", "HEAD")


def code_of(folder: Path, text: str = IDENTITY_SUITE) -> tuple[PluginCode, ...]:
    return plugin_code(planned(folder, text), folder)


def test_outside_of_a_checkout_its_files_stand_for_it(folder: Path) -> None:
    (code,) = code_of(folder)
    assert (code.plugin, code.distribution, code.files) == ("program train.py", PROGRAM, 1)
    assert code.sha256 == SourceCode({"train.py": TRAIN}, folder).sha256
    assert code.commit is None and code.dirty is None


def test_in_a_checkout_its_commit_and_the_state_of_its_own_files_are_named(folder: Path) -> None:
    first = commit(folder)
    (folder / "notes.txt").write_text("not a part of the program")
    assert [(code.commit, code.dirty) for code in code_of(folder)] == [(first, False)]
    (folder / "train.py").write_text("print('loss 2')\n")
    assert [(code.commit, code.dirty) for code in code_of(folder)] == [(first, True)]


def test_each_commit_of_a_factor_is_named(folder: Path) -> None:
    first = commit(folder)
    git(folder, "tag", "v1")
    (folder / "train.py").write_text("print('loss 2')\n")
    second = commit(folder)
    found = code_of(folder, IDENTITY_SUITE + f"matrix: {{engine.commit: [v1, '{second[:10]}']}}\n")
    assert [(code.plugin, code.commit) for code in found] == [
        ("program train.py at v1", first), (f"program train.py at {second[:10]}", second)]
    assert found[0].sha256 != found[1].sha256


def test_show_prints_the_command(folder: Path) -> None:
    (folder / "suite.yaml").write_text(IDENTITY_SUITE)
    text = suite_text(read_suite(str(folder / "suite.yaml")).suite)
    assert "executes:    python train.py --seed '{seed}', when it is run" in text.splitlines()


def test_a_script_outside_of_the_folder_is_said_so(folder: Path) -> None:
    plan = planned(folder, IDENTITY_SUITE.replace("train.py", "../other.py"))
    notes = plan.cells[0].choices.notes(HERE)
    assert any("../other.py lies outside engine.folder, so its changes are not seen" in note for note in notes), notes


def test_a_run_folder_beside_the_program_is_no_part_of_it(folder: Path) -> None:
    before = code_of(folder)
    (folder / "mine/code/0123").mkdir(parents=True)
    (folder / "mine/plan.json").write_text("{}")
    (folder / "mine/code/0123/train.py").write_bytes(TRAIN)
    assert code_of(folder) == before


def test_a_gate_is_part_of_a_cell_only_if_the_suite_states_it(tmp_path: Path) -> None:
    plain = choices(planned(tmp_path))
    assert "gate" not in plain.model_dump(mode="json", by_alias=True) and plain.wrapper == ""
    stated = planned(tmp_path, SUITE + "  gate: {steps: 2, later: [9], wrapper: ddp}\n")
    gate = choices(stated).gate
    assert gate is not None and gate.traced == [1, 2, 9] and choices(stated).wrapper == "ddp"
    assert choices(stated).cell_id != plain.cell_id
    assert Plan.model_validate_json(stated.model_dump_json(by_alias=True)).cells == stated.cells


@pytest.mark.parametrize(("run", "environment", "wrapper"), [
    ("[python, train.py, --deepspeed, zero.json]", "{}", "deepspeed"),
    ("[python, train.py, --fsdp=full_shard]", "{}", "fsdp"),
    ("[python, train.py]", '{ACCELERATE_USE_FSDP: "true"}', "fsdp"),
    ("[python, train.py]", '{ACCELERATE_USE_FSDP: "false"}', ""),
])
def test_well_known_arguments_tell_which_wrapper_was_requested(
    run: str, environment: str, wrapper: str, tmp_path: Path
) -> None:
    text = SUITE.replace('[python, train.py, --lr, "{lr}", --seed, "{seed}"]', f"{run}, environment: {environment}")
    assert choices(planned(tmp_path, text.replace("  parameters: {lr: 0.1}\n", ""))).wrapper == wrapper


def test_a_wrapper_may_be_a_parameter_and_must_be_a_known_one(tmp_path: Path) -> None:
    text = SUITE.replace("{lr: 0.1}", "{lr: 0.1, backend: BACKEND}").replace("--lr,", '"{backend}", --lr,')
    text += '  gate: {wrapper: "{backend}"}\n'
    assert choices(planned(tmp_path, text.replace("BACKEND", "deepspeed-2"))).wrapper == "deepspeed-2"
    with pytest.raises(SuiteError, match=r"gate.wrapper: 'horovod' is none of none, ddp, fsdp, fsdp2, deepspeed"):
        planned(tmp_path, text.replace("BACKEND", "horovod"))
