"""Tunings of real trainings, of programs and of classes from files, and a tuning in MLflow."""

from __future__ import annotations

import json
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from repro.bundle.verify import verify
from repro.record.folder.store import read_record
from repro.record.tuning import Tuning, read_tuning
from tests.commands import ROOT, command, start
from tests.file_classes import write_suite
from tests.flow.test_programs import READER, SUITE
from tests.flow.test_tuning import wait_for
from tests.plans import suite

DIGITS = suite("digits-tuned", """\
matrix:
  optimizer: [{kind: sgd, momentum: 0.9}, adamw]
baseline: {optimizer: sgd}
tune:
  trials: 3
  search: grid
  metric: samples
  hopeless: {at: 0.5, after: 2}
  spaces:
    - for: {optimizer: sgd}
      origin: a decade each side of 0.01
      space: {optimizer.lr: {log: [0.0001, 0.1], points: 3}}
    - origin: a decade each side of 0.001
      space: {optimizer.lr: {log: [0.00001, 0.01], points: 3}}
""", seeds=2, stop="{metric: top1, target: 0.9, max_epochs: 2}", evaluate_every=359, processes=2)
PROGRAM = """\
import sys, time
rate, begin = float(sys.argv[2]), time.perf_counter()
for step in range(1, 6):
    time.sleep(0.02)
    print("step", step, "loss", 5 - step * rate, "at", round(time.perf_counter() - begin, 4))
"""
ASK = """\
import json, sys, mlflow
client = mlflow.MlflowClient(sys.argv[1])
found = client.get_experiment_by_name(sys.argv[2])
items = client.search_runs([found.experiment_id], "tags.`repro.level` = 'cell'")
print(json.dumps([[item.data.tags["mlflow.runName"], item.data.tags.get("repro.kind", "")] for item in items]))
"""
TUNE = """\
  parameters: {rate: 1.0}
tune:
  trials: 4
  search: grid
  metric: accuracy
  spaces:
    - origin: a guess
      space: {parameters.rate: {linear: [0.2, 0.8], points: 4}}
"""


FILE_TUNE = """\
tune:
  trials: 40
  metric: samples
  spaces:
    - origin: around the class's own pace
      space: {engine.step_seconds: {linear: [0.005, 0.02]}}
"""


def tuned(root: Path) -> Tuning:
    found = read_tuning(root)
    assert found is not None and found.complete
    checked = verify(root)
    assert checked.sound, checked.text()
    return found


@pytest.mark.slow
def test_ddp_on_digits_is_tuned_and_scored(tmp_path: Path) -> None:
    """Two ranks over gloo. A rate of 1e-4 is too small for SGD in two epochs, and 0.1 or 0.003 reach 90 %."""
    (tmp_path / "suite.yaml").write_text(DIGITS)
    done = command(tmp_path, "run", "suite.yaml", "--no-mlflow", "--out", "run", "--master-seed", "3")
    assert done.code in (0, 3), done.error
    found, scored = tuned(tmp_path / "run"), read_record(tmp_path / "run")
    sgd, adamw = found.contenders
    assert sgd.chosen is not None and sgd.chosen.values["optimizer.lr"] > 1e-4
    assert adamw.chosen is not None and adamw.chosen.values["optimizer.lr"] > 1e-5
    assert found.cost.trials == 6
    assert found.cost.processor_seconds == pytest.approx(2 * found.cost.wall_seconds, abs=0.01)
    assert [cell.training.optimizer.options["lr"] for cell in scored.plan.cells] == [
        sgd.chosen.values["optimizer.lr"], adamw.chosen.values["optimizer.lr"]]
    assert len(scored.results) == 4


@pytest.mark.slow
def test_a_parameter_of_a_program_is_tuned(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    text = SUITE.format(seeds=1, arguments=', "{rate}"', engine="", stop="", limit=60, reader=READER, more=TUNE)
    (tmp_path / "suite.yaml").write_text(text)
    done = command(tmp_path, "run", "suite.yaml", "--no-mlflow", "--out", "run")
    assert done.code == 0, done.error
    found = tuned(tmp_path / "run")
    chosen = found.contenders[0].chosen
    assert chosen is not None and chosen.values == {"parameters.rate": 0.8}, "the lowest final loss"
    assert read_record(tmp_path / "run").plan.suite.settings[0].set_ == {"parameters.rate": 0.8}
    (tmp_path / "suite.yaml").write_text(text.replace("tune:\n", "tune:\n  hopeless: {at: 0.5}\n"))
    done = command(tmp_path, "plan", "suite.yaml")
    assert done.code == 2
    assert "tune.hopeless: only trials of kind training can be abandoned" in done.error


def test_an_option_of_a_workload_is_not_tuned(tmp_path: Path) -> None:
    """Another width is another model, and contenders must train the same one."""
    shutil.copytree(ROOT / "examples/spirals", tmp_path / "own")
    path = tmp_path / "own" / "suite.yaml"
    text = path.read_text().partition("matrix:")[0]
    path.write_text(f"""{text}tune:
  trials: 2
  metric: samples
  spaces:
    - origin: the widths of the example
      space: {{workload.width: [8, 16]}}
""")
    done = command(tmp_path, "plan", "own/suite.yaml")
    assert done.code == 2
    assert "tune.spaces[0].space.workload.width: is not tuned" in done.error


@pytest.mark.slow
def test_a_tuning_of_a_class_from_a_file_goes_on_without_the_file(tmp_path: Path) -> None:
    """The command that the end of the first start names carries the consent to the class that the record holds."""
    write_suite(tmp_path)
    text = (tmp_path / "paced.yaml").read_text().partition("matrix:")[0]
    (tmp_path / "suite.yaml").write_text(text + FILE_TUNE)
    process = start(tmp_path, "run", "suite.yaml", "--no-mlflow", "--out", "run")
    wait_for(process, tmp_path / "run" / "tuning" / "ledger.jsonl", 9)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=120)
    assert process.returncode == 130, error
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("result.json")}
    assert 0 < len(before) < 40 and not (tmp_path / "run" / "plan.json").exists()
    shutil.rmtree(tmp_path / "own")
    again = shlex.split(error.partition("resume with: ")[2].splitlines()[0])
    code, _, error = command(tmp_path, *again[again.index("run"):], "--no-mlflow")
    assert code in (0, 3), error
    found = read_tuning(tmp_path / "run")
    assert found is not None and found.complete and len(found.record.results) == 40
    assert not read_record(tmp_path / "run").missing()
    assert all(path.read_bytes() == content for path, content in before.items())
    assert verify(tmp_path / "run").sound, verify(tmp_path / "run").text()


@pytest.mark.slow
def test_a_tuning_is_an_experiment_of_its_own_in_mlflow(tmp_path: Path) -> None:
    pytest.importorskip("mlflow")
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    text = DIGITS.replace("engine: ddp", "engine: fake").replace("  processes: 2\n", "  launcher: inline\n")
    (tmp_path / "suite.yaml").write_text(text.replace("max_epochs: 2", "max_epochs: 20"))
    done = command(tmp_path, "run", "suite.yaml", "--out", "run", MLFLOW_TRACKING_URI=uri)
    assert done.code == 0, done.error

    def runs(name: str) -> list[list[str]]:
        """Ask in a process of its own: libraries below MLflow warn, and a warning is an error here."""
        asked = subprocess.run([sys.executable, "-c", ASK, uri, name], capture_output=True, text=True, timeout=120,
                               check=True)
        return list(json.loads(asked.stdout))

    tried, scored = runs("digits-tuned-tuning"), runs("digits-tuned")
    assert len(tried) == 6 and all(name.startswith("tuning ") and kind == "tuning" for name, kind in tried)
    assert len(scored) == 2 and not any(name.startswith("tuning") or kind for name, kind in scored)
