"""What a reader learns of a program before and after it runs: its command, its files, its commit."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from repro.cli.text.suite import suite_text
from repro.core.machine import Machine
from repro.core.source_code import SourceCode
from repro.record.environment.plugin_code import PROGRAM, PluginCode, plugin_code
from repro.suite.file import read_suite
from repro.suite.planning.plan import make_plan

HERE = Machine("cpu", 0, 2)
TRAIN = b"print('loss 1')\n"
SUITE = """\
suite: mine
seeds: 2
trial:
  engine: {kind: program, run: [python, train.py, --seed, "{seed}"]}
  evaluation: {pattern: 'loss (?P<value>\\S+)', metric: loss, direction: lower}
  stop: {target: 1.5}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_bytes(TRAIN)
    return tmp_path


def git(folder: Path, *arguments: str) -> str:
    who = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    done = subprocess.run(["git", "-C", str(folder), *who, *arguments], check=True, capture_output=True, text=True)
    return done.stdout.strip()


def commit(folder: Path) -> str:
    if not (folder / ".git").exists():
        git(folder, "init", "-q")
    git(folder, "add", "train.py")
    git(folder, "commit", "-qm", "a version")
    return git(folder, "rev-parse", "HEAD")


def code_of(folder: Path, text: str = SUITE) -> tuple[PluginCode, ...]:
    (folder / "suite.yaml").write_text(text)
    found = read_suite(str(folder / "suite.yaml"))
    return plugin_code(make_plan(found.suite, HERE, found.problem, folder=found.folder), folder)


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
    found = code_of(folder, SUITE + f"matrix: {{engine.commit: [v1, {second[:10]}]}}\n")
    assert [(code.plugin, code.commit) for code in found] == [
        ("program train.py at v1", first), (f"program train.py at {second[:10]}", second)]
    assert found[0].sha256 != found[1].sha256


def test_show_prints_the_command(folder: Path) -> None:
    (folder / "suite.yaml").write_text(SUITE)
    text = suite_text(read_suite(str(folder / "suite.yaml")).suite)
    assert "executes:    python train.py --seed '{seed}', when it is run" in text.splitlines()


def test_a_script_outside_of_the_folder_is_said_so(folder: Path) -> None:
    (folder / "suite.yaml").write_text(SUITE.replace("train.py", "../other.py"))
    found = read_suite(str(folder / "suite.yaml"))
    plan = make_plan(found.suite, HERE, found.problem, folder=found.folder)
    notes = plan.cells[0].choices.notes(HERE)
    assert any("../other.py lies outside engine.folder, so its changes are not seen" in note for note in notes), notes


def test_a_run_folder_beside_the_program_is_no_part_of_it(folder: Path) -> None:
    before = code_of(folder)
    (folder / "mine/code/0123").mkdir(parents=True)
    (folder / "mine/plan.json").write_text("{}")
    (folder / "mine/code/0123/train.py").write_bytes(TRAIN)
    assert code_of(folder) == before
