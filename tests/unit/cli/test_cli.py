"""The real command: exit codes, one-line errors, JSON, and no torch where none is needed.

Tests that need a separate process (speed, imports, pipes, shells) start one; all else calls the command's `main`,
which turns every failure into one line and an exit code, in this process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import yaml

import repro
from repro.cli.main import COMMANDS, main
from repro.suite.file import bundled, read_suite
from repro.suite.schema import suite_schema
from tests.records import SUITE, make_record

ROOT = Path(repro.__file__).parents[1]
HEAVY = ("torch", "deepspeed", "mlflow", "sklearn", "pandas", "scipy", "plotly")


def command(folder: Path, *arguments: str, options: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "100"}
    return subprocess.run([sys.executable, *options, "-m", "repro", *arguments], cwd=folder, env=environment,
                          capture_output=True, text=True, timeout=60, check=False, stdin=subprocess.DEVNULL)


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """The command in this process: folder and arguments in; exit code, stdout and stderr out."""

    def call(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
        monkeypatch.chdir(folder)
        monkeypatch.setenv("COLUMNS", "100")
        monkeypatch.setattr(sys, "argv", ["repro", *arguments])
        code: Any = 0
        try:
            main()
        except SystemExit as ended:
            code = ended.code
        shown = capsys.readouterr()
        return subprocess.CompletedProcess(arguments, int(code or 0), shown.out, shown.err)

    return call


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "good.yaml").write_text(SUITE)
    (tmp_path / "bad.yaml").write_text(SUITE.replace("workload: digits", "workload: digit", 1))
    return tmp_path


# ---- speed: what only shows things must not wait for libraries


@pytest.mark.slow
def test_help_answers_in_under_0_3_seconds(tmp_path: Path) -> None:
    assert min(answered(tmp_path, "--help") for _ in range(5)) < 0.3


def test_every_command_but_the_hidden_ones_has_a_line_in_the_help() -> None:
    for name, (place, line) in COMMANDS.items():
        module, _, attribute = place.partition(":")
        assert bool(line) is not getattr(import_module(module), attribute).hidden, name


def answered(folder: Path, *arguments: str) -> float:
    """Seconds until the command has ended, less its wait for a processor."""
    start = time.perf_counter()
    child = subprocess.Popen([sys.executable, "-m", "repro", *arguments], cwd=folder, stdout=subprocess.DEVNULL,
                             env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "100"}, stdin=subprocess.DEVNULL)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    took = time.perf_counter() - start
    held_back = int(Path(f"/proc/{child.pid}/schedstat").read_text().split()[1]) / 1e9
    assert child.wait() == 0
    return took - held_back


SHOWING = [
    ["--help"], ["list"], ["list", "engines"], ["list", "workloads"], ["list", "reporters"], ["show", "quickstart"],
    ["plan", "quickstart"], ["schema"],
]
ONE_AFTER_ANOTHER = f"""
import sys
from repro.cli.main import cli
for arguments in {SHOWING}:
    try:
        cli.main(arguments, standalone_mode=False)
    except SystemExit as ended:
        assert not ended.code
    print(arguments, sorted({set(HEAVY)} & set(sys.modules)), file=sys.stderr)
"""


def test_no_heavy_library_is_imported_to_show_things(tmp_path: Path) -> None:
    ended = subprocess.run([sys.executable, "-c", ONE_AFTER_ANOTHER], cwd=tmp_path, capture_output=True, text=True,
                           env={**os.environ, "PYTHONPATH": str(ROOT)}, timeout=60, check=False)
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr.splitlines() == [f"{arguments} []" for arguments in SHOWING]


# ---- what is printed


@pytest.mark.parametrize("arguments", [
    ("list", "--json"), ("list", "engines", "--json"), ("show", "quickstart", "--json"),
    ("plan", "good.yaml", "--json"), ("schema",),
])
def test_json_is_json_and_nothing_else(called: Callable[..., Any], folder: Path, arguments: tuple[str, ...]) -> None:
    ended = called(folder, *arguments)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert json.loads(ended.stdout)


def test_a_plan_as_json_has_all_trials_and_their_cost(called: Callable[..., Any], folder: Path) -> None:
    data = json.loads(called(folder, "plan", "good.yaml", "--json", "--seeds", "3", "-o", "processes=1").stdout)
    assert len(data["order"]) == 6
    assert data["cost"]["full_budget_seconds"] > 0
    assert data["suite"]["primary"] is None
    assert any("after the overrides" in note for note in data["notes"])


def test_a_plan_is_printed_with_skipped_cells_and_reasons(called: Callable[..., Any], folder: Path) -> None:
    text = called(folder, "plan", "good.yaml", "-o", "engine=ddp,single", "-o", "precision=fp32,tf32",
                   "-o", "device=cpu").stdout
    assert "ddp, 2 processes" in text
    assert "engine single trains in one process, not 2" in text
    assert "precision tf32:" in text
    assert "note: the declared primary" in text
    assert "suite digest" in text


def test_every_bundled_suite_and_every_plug_in_is_listed(called: Callable[..., Any], tmp_path: Path) -> None:
    names = [row["name"] for row in json.loads(called(tmp_path, "list", "--json").stdout)["rows"]]
    assert names == bundled()
    assert "ddp" in called(tmp_path, "list", "engines").stdout


def test_the_version_is_the_packages(tmp_path: Path) -> None:
    assert command(tmp_path, "--version").stdout.split()[-1] == repro.__version__


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_a_script(called: Callable[..., Any], tmp_path: Path, shell: str) -> None:
    ended = called(tmp_path, "completion", shell)
    assert ended.returncode == 0
    assert "_REPRO_COMPLETE" in ended.stdout


def test_a_reader_that_goes_away_is_no_error(folder: Path) -> None:
    text = f"{sys.executable} -m repro schema | head -c 10"
    ended = subprocess.run(["bash", "-o", "pipefail", "-c", text], cwd=folder, capture_output=True, text=True,
                           env={**os.environ, "PYTHONPATH": str(ROOT)}, timeout=60, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")


# ---- mistakes


@pytest.mark.parametrize(("arguments", "problem"), [
    (("plan", "bad.yaml"), "error: bad.yaml:5: trial.workload: no workload named 'digit'; did you mean 'digits'?"),
    (("show", "quickstar"), "error: no suite named 'quickstar'; did you mean 'quickstart'?"),
    (("plan", "none.yaml"), "error: none.yaml: there is no such file"),
    (("plan", "."), "error: no suite named '.'"),
    (("plan", "./"), "error: ./: is a folder, not a suite file"),
    (("plan", "good.yaml", "-o", "lr=1"), "error: -o lr=1: no field named 'lr'"),
    (("plan", "good.yaml", "-o", "batch=63"), "error: -o batch=63: trial.batch.global: global batch 63"),
    (("plan", "good.yaml", "--seeds", "0"), "Error: Invalid value for '--seeds'"),
    (("plan",), "Error: Missing argument 'SUITE'"),
    (("plam", "good.yaml"), "error: no command named 'plam'; did you mean 'plan'?"),
    (("data",), "  prepare  Check the files of data set NAME and write its manifest."),
    (("list", "engine"), "Error: Invalid value for"),
    (("run", "quickstart", "--seeds", "3"), "error: --seeds 3: a sequential design runs up to its last look; leave "
     "this out, or for a fixed number add -o sequential=null"),
    (("run", "quickstart", "--anytime"), "error: --anytime: the suite declares looks"),
    (("run", "good.yaml", "--budget", "2h"), "error: --budget ends a sequential run at a look"),
    (("run", "quickstart", "--budget", "2x"), "Error: Invalid value for '--budget': '2x' is not a duration; write 2h"),
    (("plan", "engines", "--anytime", "--until-settled"), "Error: --until-settled judges at declared looks and"),
    (("run", "--resume", "run", "--anytime"), "Error: --resume RUN keeps the design of RUN"),
    (("run", "bad.yaml", "--no-mlflow"), "error: bad.yaml:5: trial.workload"),
    (("run", "good.yaml", "--no-mlflow", "--out", "."), "error: .: exists and is not an empty folder"),
    (("run", "good.yaml", "--no-mlflow", "--out", "good.yaml/x"), "error: good.yaml/x: cannot be written: Not a"),
    (("report", "."), "error: .: is not a run folder (it has no plan.json)"),
    (("report", ".", "--to", "htlm"), "error: no reporter named 'htlm'; did you mean 'html'?"),
    (("report", ".", "--to", ","), "error: --to names no reporter"),
])
def test_a_mistake_is_one_line_and_exit_code_2(
    called: Callable[..., Any], folder: Path, arguments: tuple[str, ...], problem: str
) -> None:
    ended = called(folder, *arguments)
    assert ended.returncode == 2
    assert ended.stdout == ""
    last = ended.stderr.strip().splitlines()[-1]
    assert last.startswith(problem)
    if problem.startswith("error"):
        assert ended.stderr.count("\n") == 1
    assert "Traceback" not in ended.stderr
    assert sorted(path.name for path in folder.iterdir()) == ["bad.yaml", "good.yaml"]


def test_a_process_ends_with_the_exit_code_of_a_mistake(folder: Path) -> None:
    ended = command(folder, "show", "quickstar")
    assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (2, "", 1)


def test_a_damaged_record_is_one_line_and_exit_code_2(called: Callable[..., Any], tmp_path: Path) -> None:
    record = make_record(tmp_path / "run", only=2)
    record.folder.parity_verdict.write_text("{")
    ended = called(tmp_path, "report", "run")
    assert ended.returncode == 2
    assert ended.stderr.startswith("error: run/parity.json: Invalid JSON")
    assert ended.stderr.count("\n") == 1


# ---- the schema for editors


@cache
def validator() -> Any:
    jsonschema = pytest.importorskip("jsonschema")
    schema = suite_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def test_every_bundled_suite_fits_the_schema() -> None:
    check = validator()
    for name in bundled():
        assert list(check.iter_errors(yaml.safe_load(read_suite(name).text))) == []
    assert list(check.iter_errors(yaml.safe_load(SUITE))) == []


@pytest.mark.parametrize(("old", "new"), [
    ("seeds: 6", "seed: 6"), ("seeds: 6", "seeds: many"), ("engine: ddp\n", "engine: dpd\n"),
    ("  engine: ddp\n", "  engin: ddp\n"), ("{global: 64}", "{globl: 64}"), ("momentum: 0.9", "momentun: 0.9"),
    ("lr: 0.1", "lr: fast"), ("workload: digits", "workload: {kind: digits, size: 3}"), ("device: cpu", "device: tpu"),
    ("device: cpu", "schedule: cosin"), ("suite: sample", "suite: 'No Name'"), ("suite: sample\n", ""),
    ("  processes: [1, 2]", "  proceses: [1, 2]"), ("  processes: [1, 2]", "  processes: [1, two]"),
    ("  processes: [1, 2]", "  optimiser.lr: [0.1]"), ("  processes: [1, 2]", "  processes.more: [1]"),
    ("lr: 0.1", "lr: 1e-x"), ("max_epochs: 8", "max_epochs: 1.0e+99"),
])
def test_the_schema_marks_input_that_the_reader_refuses(old: str, new: str) -> None:
    assert old in SUITE
    assert list(validator().iter_errors(yaml.safe_load(SUITE.replace(old, new, 1)))) != []


@pytest.mark.parametrize("new", [
    "schedule: cosine", "schedule: {kind: step, milestones: [3]}", "precision: tf32", "timeout_seconds: 1e3",
    "gradient_clip: 5e-1",
])
def test_the_schema_accepts_input_that_the_reader_accepts(new: str) -> None:
    text = SUITE.replace("device: cpu", new).replace("batch: {global: 64}", "batch: 64")
    assert list(validator().iter_errors(yaml.safe_load(text))) == []


def test_the_schema_accepts_dotted_factors_and_numbers_with_an_exponent() -> None:
    factors = "  processes: [1, 2]\n  optimizer.lr: [1e-3, 0.1]\n  batch.global: [64]"
    text = SUITE.replace("  processes: [1, 2]", factors)
    assert text != SUITE
    assert list(validator().iter_errors(yaml.safe_load(text.replace("lr: 0.1,", "lr: 1e-1,")))) == []
