"""Trials of a fixed number of steps, from the command line to every report: real ones on DDP, and exact ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from repro.core.errors import UsageError
from repro.core.events import EVALUATION_KEYS, read_events
from repro.record.folder.store import Record, read_record
from tests.commands import command
from tests.in_process import called
from tests.plans import suite

pytestmark = pytest.mark.slow

STEPS, WARM, BATCH = 6, 2, 64
REAL = f"""\
suite: real-steps
seeds: 2
trial:
  workload: digits
  engine: ddp
  processes: 2
  batch: {{global: {BATCH}}}
  optimizer: {{kind: sgd, lr: 0.1, momentum: 0.9}}
  stop: {{design: fixed_steps, steps: {STEPS}, warmup: {WARM}}}
  device: cpu
matrix: {{comm: [backend, ring]}}
"""
EXACT = suite("exact-steps", """\
matrix:
  engine: [{kind: fake, step_seconds: 0.010}, {kind: fake, step_seconds: 0.014}]
primary:
  candidate: {engine: {step_seconds: 0.014}}
  baseline: {engine: {step_seconds: 0.010}}
  metric: METRIC
""", seeds=6, stop="{design: fixed_steps, steps: 50, warmup: 5}", evaluate_every=None, launcher="inline")


def repro_cli(*arguments: str) -> Result:
    """Run the command in this process: it reads only."""
    return called(*arguments)


def ran(folder: Path, suite: str) -> Record:
    (folder / "suite.yaml").write_text(suite)
    code, out, error = command(folder, "run", "suite.yaml", "--no-mlflow", "--out", "run", "--master-seed", "7")
    assert code == 0, error
    (folder / "said.txt").write_text(out)
    return read_record(folder / "run")


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Record:
    pytest.importorskip("torch")
    return ran(tmp_path_factory.mktemp("real"), REAL)


@pytest.fixture(scope="module")
def exact(tmp_path_factory: pytest.TempPathFactory) -> Record:
    return ran(tmp_path_factory.mktemp("exact"), EXACT.replace("METRIC", "step_time"))


def test_a_trial_trains_its_steps_evaluates_nothing_and_knows_speed_and_memory(real: Record) -> None:
    assert [item.status for item in real.results] == ["ok"] * 4, [item.reason for item in real.results]
    for item in real.results:
        assert item.samples == (STEPS + WARM) * BATCH and item.steps is not None and item.steps.count == STEPS
        assert item.step_seconds is not None and item.step_seconds > 0
        assert item.train_samples_per_second == pytest.approx(BATCH / item.step_seconds, rel=5)
        assert item.memory == "resident" and item.training_peak_mib is not None
        assert item.training_peak_mib_sum is not None
        assert 50 < item.training_peak_mib < item.training_peak_mib_sum < 4 * item.training_peak_mib
        assert item.model is not None and item.model.parameters == 94186 and item.model.forward_flops is not None
        assert (item.mfu, item.model.why) == (None, "no peak is stated for a processor")
        assert item.every_rank is True  # every rank's weights were compared
        events, _ = read_events(real.folder.log(item.trial_id, item.attempt))
        assert not [event for event in events if event.key in EVALUATION_KEYS]
        keys = [event.key for event in events]
        assert keys.index("run_stop") < keys.index("x_checking") < keys.index("x_again"), "the log grows during checks"


def test_the_gate_has_run(real: Record) -> None:
    assert real.parity is not None and real.parity["needed"] is True
    assert not any(item.get("problem") for item in real.parity["findings"])


def test_the_record_is_sound_and_gives_the_same_result_again(real: Record) -> None:
    done = repro_cli("verify", str(real.folder.root))
    assert done.exit_code == 0, done.output


def test_the_page_says_that_no_accuracy_was_asked(real: Record) -> None:
    page = (real.folder.reports / "report.html").read_text()
    assert "No accuracy was requested: this is a throughput comparison" in page
    assert "Training: speed and memory" in page and "Resident memory" in page.replace("resident", "Resident")
    assert "to target</th>" not in page
    assert "reached the target" not in page.partition('id="checklist"')[0]


def test_rules_about_a_target_do_not_apply(real: Record) -> None:
    done = repro_cli("audit", str(real.folder.root), "--json")
    found = {item["id"]: item for item in json.loads(done.stdout)["findings"]}
    for name in ("F1", "F4", "F5", "MLP1", "MLP3", "MLP7", "HB12"):
        assert found[name]["verdict"] == "not applicable", found[name]
        assert "no target was requested" in found[name]["evidence"]
    assert found["F2"]["verdict"] == "pass"


def test_a_metric_of_a_target_is_refused_in_one_line(real: Record) -> None:
    done = repro_cli("compare", str(real.folder.root), "--metric", "tta_wall")
    assert isinstance(done.exception, UsageError)
    assert str(done.exception).startswith("metric tta_wall: design fixed_steps has no target; its trials have "
                                          "train_throughput, tokens, step_time, peak_memory, run_time")


def test_the_verdict_is_on_the_declared_figure(exact: Record) -> None:
    done = repro_cli("compare", str(exact.folder.root), "--json")
    found: dict[str, Any] = json.loads(done.stdout)
    primary = found["comparisons"][0]
    assert (found["metric"], primary["primary"], primary["verdict"]) == ("step_time", True, "slower")
    assert primary["ratio"] == pytest.approx(1.4, rel=0.05)
    assert found["convergence"] == []
    assert [cell["has_target"] for cell in found["cells"]] == [False, False]
    assert [figures["step_seconds"] > 0 for figures in found["training"]] == [True, True]


def test_another_metric_is_a_family_of_its_own_and_never_primary(exact: Record) -> None:
    done = repro_cli("compare", str(exact.folder.root), "--metric", "train_throughput", "--json")
    found = json.loads(done.stdout)
    assert [item["primary"] for item in found["comparisons"]] == [False]
    assert found["comparisons"][0]["verdict"] == "slower" and found["comparisons"][0]["ratio"] < 1
    assert "Every further metric, baseline or run that you look at adds 5 %" in found["error_budget"]


def test_words_on_the_terminal_name_no_target(exact: Record) -> None:
    said = (exact.folder.root.parent / "said.txt").read_text()
    assert "6 of 6 ended well" in said and "target" not in said.replace("target-", "")
    table = repro_cli("compare", str(exact.folder.root)).stdout
    assert "Ended well" in table and "Speed: medians of training, not tested" in table


@pytest.mark.parametrize("kind", ["markdown", "latex", "csv", "jsonl", "figures", "mllog"])
def test_every_other_report_is_written(exact: Record, kind: str, tmp_path: Path) -> None:
    done = repro_cli("report", str(exact.folder.root), "--to", kind, "--out", str(tmp_path / "out"))
    assert done.exit_code == 0, done.output
    texts = "".join(path.read_text(errors="replace") for path in (tmp_path / "out").rglob("*") if path.is_file())
    if kind in ("markdown", "latex"):
        assert "no accuracy was requested" in texts and "Training alone" in texts
    if kind == "csv":
        assert "training_peak_mib" in texts and "median_step_seconds" in texts
