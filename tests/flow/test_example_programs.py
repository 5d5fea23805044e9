"""The examples of programs: a plain torchrun script in a suite of ten lines, and two commits of it, really run."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from repro.record.folder.store import read_record
from tests.commands import Ended, command, git
from tests.plans import plan_file, suite

EXAMPLE = Path(__file__).parents[2] / "examples" / "torchrun"
BATCH, TWICE = "default=12288", "default=24576"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A git repository of the example: main, and a branch with twice the batch."""
    folder = tmp_path / "mine"
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("__pycache__", "runs"))
    git(folder, "init", "-q", "-b", "main")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "as it is")
    git(folder, "switch", "-qc", "change")
    script = (folder / "train.py").read_text()
    assert BATCH in script
    (folder / "train.py").write_text(script.replace(BATCH, TWICE))
    git(folder, "commit", "-qam", "twice the batch")
    return folder


def test_both_suites_are_ten_lines_and_plan_two_cells_of_six_seeds(checkout: Path) -> None:
    for name in ("suite.yaml", "commits.yaml"):
        plan = plan_file(checkout / name)
        assert len((checkout / name).read_text().splitlines()) == 10
        assert (len(plan.cells), len(list(plan.trials()))) == (2, 12)
        assert plan.suite.primary is not None
    hashes = {cell.choices.engine.sha256 for cell in plan_file(checkout / "commits.yaml").cells}  # type: ignore[union-attr]
    assert len(hashes) == 2


def test_the_script_knows_nothing_of_this_project() -> None:
    text = (EXAMPLE / "train.py").read_text()
    assert "import repro" not in text and "from repro" not in text and len(text.splitlines()) <= 60


def run(folder: Path, *arguments: str) -> Ended:
    return command(folder, *arguments, MLFLOW_TRACKING_URI=f"sqlite:///{folder.parent}/mlflow.db",
                   XDG_DATA_HOME=str(folder.parent))


def compared(folder: Path) -> dict[str, Any]:
    found = json.loads(run(folder, "compare", "run", "--json").out)
    (item,) = found["comparisons"]
    assert item["primary"] and item["n"] == 6 and item["metric"] == "tta_train"
    assert any("self-reported" in text for text in item["cautions"])
    return dict(item)


def tracked(folder: Path, experiment: str) -> Counter[bool]:
    """Return how many runs the store has: of cells (False) and of attempts (True)."""
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{folder.parent}/mlflow.db")
    found = client.get_experiment_by_name(experiment)
    assert found is not None
    return Counter("mlflow.parentRunId" in item.data.tags for item in client.search_runs([found.experiment_id]))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
@pytest.mark.parametrize(("suite", "verdict"), [("suite.yaml", "faster"), ("commits.yaml", "slower")])
def test_a_torchrun_script_is_judged_from_start_to_bundle(checkout: Path, suite: str, verdict: str) -> None:
    done = run(checkout, "run", suite, "--out", "run")
    assert done.code == 0, done.out + done.error
    record = read_record(checkout / "run")
    assert Counter(item.status for item in record.results) == {"ok": 12}
    assert all(item.tta_train is not None and item.tta_wall > item.tta_train for item in record.results)  # type: ignore[operator]
    item = compared(checkout)
    assert item["verdict"] == verdict, item["because"]
    page = (checkout / "run" / "report" / "report.html").read_text()
    assert f"{item['ratio']:.2f}"[:4] in page and "self-reported" in page and str(checkout) not in page
    assert tracked(checkout, record.plan.suite.suite) == {False: 2, True: 12}
    assert run(checkout, "bundle", "run", "-o", "mine.zip").code == 0
    assert "sound" in run(checkout, "verify", "mine.zip").out
    (checkout / "train.py").write_text("raise SystemExit('not the code of the record')\n")
    refused = run(checkout, "reproduce", "mine.zip", "--trials", "1", "--out", "again")
    assert refused.code == 2 and "--allow-code" in refused.error


SCRIPTS = suite("mine", "matrix: {%s}\n", seeds=6, workload=None, engine="{kind: program, run: [%s], folder: new}",
                batch=None, optimizer=None, stop="{target: 3.28}", evaluate_every=None,
                parameters="{image: \"you/train@sha256:0f3b\"}",
                evaluation="{pattern: 'val_loss:(?P<value>\\S+)', metric: val_loss, direction: lower}")
CONTAINER = 'docker, run, --rm, --init, --network, host, "{image}", python, /app/train.py, --seed, "{seed}"'


@pytest.mark.parametrize(("command", "matrix", "labels"), [
    (CONTAINER, 'parameters.image: ["you/train@sha256:0f3b", "you/train@sha256:91c2"]',
     ["image=you/train@sha256:0f3b", "image=you/train@sha256:91c2"]),
    ('python, train.py, "{seed}", "{image}"', "engine.folder: [old, new]", ["folder=old", "folder=new"]),
    ('python, train.py, "{seed}", "{image}"',
     'engine: [{kind: program, run: [python, "{image}"], folder: old}, '
     '{kind: program, run: [sh, "{image}"], folder: new}]',
     ["old", "new"]),
])
def test_containers_checkouts_and_whole_programs_are_factors(
    tmp_path: Path, command: str, matrix: str, labels: list[str]
) -> None:
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "train.py").write_text(f"print('{name}')\n")
    (tmp_path / "suite.yaml").write_text(SCRIPTS % (command, matrix))
    assert [cell.label for cell in plan_file(tmp_path / "suite.yaml").cells] == labels
