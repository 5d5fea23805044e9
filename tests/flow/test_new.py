"""`repro new`: what it writes works as it is written, and nothing is overwritten."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner

from repro.cli.commands.new import PUBLIC
from repro.cli.main import cli
from repro.core.errors import OutputError, UsageError
from repro.program.output_readers import PatternReader, StartFinder
from tests.commands import command
from tests.plans import plan_file
from tests.unit.program.printed import evaluations, printed, seen


def new(*arguments: str) -> str:
    return CliRunner().invoke(cli, ["new", *arguments], catch_exceptions=False).output


def repro(folder: Path, *arguments: str) -> str:
    code, out, error = command(folder, *arguments)
    assert code == 0, out[-2000:] + error[-2000:]
    return out


@pytest.fixture
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("_here")
@pytest.mark.parametrize(("arguments", "written"), [
    (("suite", "my-engines"), ["my-engines.yaml"]),
    (("workload", "my-spirals"), ["my-spirals.yaml", "my_spirals.py"]),
    (("program", "my-training"), ["my-training/suite.yaml", "my-training/train.py"]),
])
def test_files_are_written_once_and_say_what_to_run(
    tmp_path: Path, arguments: tuple[str, ...], written: Sequence[str],
) -> None:
    output = new(*arguments)
    found = {path.relative_to(tmp_path).as_posix(): path.read_text() for path in tmp_path.rglob("*") if path.is_file()}
    assert sorted(found) == written
    assert all(name in output for name in written)
    suite = next(text for name, text in found.items() if name.endswith(".yaml"))
    assert f"suite: {arguments[1]}\n" in suite
    assert not re.search(r"\b(NAME|SUITE|FILE|CLASS)\b", "".join(found.values()))
    for path in tmp_path.rglob("*.py"):
        compile(path.read_text(), path.name, "exec")
    for name in written:
        (tmp_path / name).write_text("mine")
        with pytest.raises(OutputError, match="already exists; nothing was written"):
            new(*arguments)
    assert all((tmp_path / name).read_text() == "mine" for name in written)


@pytest.mark.usefixtures("_here")
def test_one_file_that_is_there_keeps_all_from_being_written(tmp_path: Path) -> None:
    (tmp_path / "my-spirals.yaml").symlink_to("nowhere")
    with pytest.raises(OutputError, match="nothing was written"):
        new("workload", "my-spirals")
    assert [path.name for path in tmp_path.iterdir()] == ["my-spirals.yaml"]


@pytest.mark.usefixtures("_here")
@pytest.mark.parametrize("name", ["", "My", "a b", "../a", "a/b", "1a", "a" * 51, "a\n", "-a"])
@pytest.mark.parametrize("what", ["suite", "workload", "program"])
def test_a_name_that_cannot_be_is_one_line(tmp_path: Path, what: str, name: str) -> None:
    with pytest.raises(UsageError, match="is not a name"):
        new(what, "--", name)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("_here")
@pytest.mark.parametrize("name", ["none", "class", "import"])
def test_a_workload_is_not_named_like_a_word_of_python(name: str) -> None:
    with pytest.raises(UsageError, match="is a Python keyword"):
        new("workload", name)


LINES = {
    "nanogpt": ("using fused AdamW: False", "step 20: train loss 3.3012, val loss 3.3461", 3.3461),
    "mingpt": ("running on device  cpu", "iter_dt 5.12ms; iter 10: train loss 2.41000", 2.41),
    "trainer": ("  0%|          | 0/60 [00:00<?, ?it/s]",
                "{'eval_loss': '4.1', 'eval_runtime': '0.1', 'epoch': '1'}", 4.1),
    "word_language_model": ("Using device: cpu",
                            "| end of epoch   1 | time:  2.10s | valid loss  6.21 | valid ppl  497.70", 6.21),
    "lightning": ("Training: |          | 0/? [00:00<?, ?it/s]", "", None),
}
"""What the public programs print when they begin, and an evaluation."""


@pytest.mark.usefixtures("_here")
@pytest.mark.parametrize("known", PUBLIC)
def test_a_suite_for_a_public_program_is_planned_for_a_clone_and_reads_its_lines(tmp_path: Path, known: str) -> None:
    clone = tmp_path / "a clone"
    clone.mkdir()
    (clone / "train.py").write_text("")
    assert "read its traps" in new("program", "mine", "--for", known, "--folder", "a clone")
    assert not re.search(r"\b(NAME|SUITE|FOLDER)\b", (tmp_path / "mine.yaml").read_text())
    ended = CliRunner().invoke(cli, ["plan", "mine.yaml"], catch_exceptions=False)
    assert ended.exit_code == 0 and "12 trials = 2 cells x 6 repeats" in ended.output
    assert "takes no {seed}" not in ended.output and "duration unknown" in ended.output
    (choices, *_) = (cell.choices for cell in plan_file(tmp_path / "mine.yaml").cells)
    begins, evaluates, value = LINES[known]
    (line,) = printed(begins)
    assert StartFinder(choices.evaluation).take(line)
    if value is not None:
        (found,) = evaluations(seen(PatternReader(choices.evaluation.patterns()), printed(begins, evaluates)))
        assert found.value == value


@pytest.mark.usefixtures("_here")
def test_the_suite_is_planned(tmp_path: Path) -> None:
    new("suite", "my-engines")
    ended = CliRunner().invoke(cli, ["plan", "my-engines.yaml"], catch_exceptions=False)
    assert ended.exit_code == 0 and "12 trials = 2 cells x 6 repeats" in ended.output


@pytest.mark.slow
@pytest.mark.usefixtures("_here")
def test_the_suite_runs(tmp_path: Path) -> None:
    new("suite", "my-engines")
    assert "4 ok" in repro(tmp_path, "run", "my-engines.yaml", "--seeds", "2", "--no-mlflow")


@pytest.mark.slow
@pytest.mark.usefixtures("_here")
def test_the_workload_passes_its_gate_and_runs(tmp_path: Path) -> None:
    new("workload", "my-spirals")
    assert "all checks passed" in repro(tmp_path, "gate", "my-spirals.yaml")
    output = repro(tmp_path, "run", "my-spirals.yaml", "--seeds", "2", "--no-mlflow")
    assert "4 ok" in output and output.count("2 of 2 reached the target") == 2


@pytest.mark.slow
@pytest.mark.usefixtures("_here")
def test_the_program_prints_what_its_suite_reads_and_reaches_its_target(tmp_path: Path) -> None:
    new("program", "my-training")
    folder = tmp_path / "my-training"
    text = (folder / "suite.yaml").read_text()
    [pattern], [start] = (re.findall(rf"{name}: '(.*)'", text) for name in ("pattern", "start"))
    command = [sys.executable, "train.py", "--lr", "0.1", "--seed", "7", "--batch", "64"]
    done = subprocess.run(command, cwd=folder, text=True, capture_output=True, timeout=120, check=True)
    first, *lines = done.stdout.splitlines()
    assert re.search(start, first) and not any(re.search(start, line) for line in lines)
    found = seen(PatternReader({"evaluation": pattern}), printed(*lines))
    assert [one.step for one in evaluations(found)] == list(range(20, 401, 20))
    assert max(one.value or 0 for one in found) >= 0.95
    assert all(one.own_seconds for one in found)


@pytest.mark.slow
@pytest.mark.usefixtures("_here")
def test_the_program_runs_under_its_suite(tmp_path: Path) -> None:
    new("program", "my-training")
    assert "4 ok" in repro(tmp_path, "run", "my-training/suite.yaml", "--seeds", "2", "--no-mlflow")
