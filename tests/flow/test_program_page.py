"""Page and audit of a program: what it does not state is shown as unknown, not as a fault; steps are called steps."""

from __future__ import annotations

import html
import re
from pathlib import Path

import pytest

from repro.audit.rules import Finding, check
from repro.record.folder.store import read_record
from tests.commands import command

pytestmark = pytest.mark.slow

SCRIPT = """\
import sys, time
begin = time.perf_counter()
for step in range(1, 6):
    time.sleep(0.08)
    print("step", step, "loss", 5 - step, *(["at", time.perf_counter() - begin] if "own" in sys.argv else []))
"""
SUITE = r"""
suite: {name}
seeds: 2
trial:
  engine: {{kind: program, run: [python, train.py, "{{seed}}", "{{lr}}"{more}]}}
  parameters: {{lr: 1}}
  evaluation:
    pattern: 'step (?P<step>\d+) loss (?P<value>\S+)(?: at (?P<train_s>\S+))?'
    metric: loss
    direction: lower
  stop: {{target: 2.0}}
{batch}
matrix: {{parameters.lr: [1, 2]}}
"""
INSIDE = ("F1", "F2", "F5", "F10", "NEU2")
"""Rules about data, hyper-parameters, epochs and model."""


def made(folder: Path, name: str, more: str = "", batch: str = "", suite: str = SUITE) -> Path:
    (folder / "train.py").write_text(SCRIPT)
    (folder / f"{name}.yaml").write_text(suite.format(name=name, more=more, batch=batch))
    code, out, error = command(folder, "run", f"{name}.yaml", "--no-mlflow", "--out", name)
    assert code == 0, out + error
    return folder / name


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory.mktemp("bare"), "bare")


@pytest.fixture(scope="module")
def stated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its suite declares a batch and samples of a pass, and its lines state a clock."""
    return made(tmp_path_factory.mktemp("stated"), "stated", ", own", "  batch: {global: 8}\n  epoch_samples: 16")


def found(run: Path) -> dict[str, Finding]:
    return {item.id: item for item in check(read_record(run))}


def shown(run: Path) -> str:
    """The text of the page, without scripts and tags."""
    text = re.sub(r"<(script|style).*?</\1>", "", (run / "report" / "report.html").read_text(), flags=re.DOTALL)
    return html.unescape(" ".join(re.sub(r"<[^>]+>", " ", text).split()))


def test_what_a_program_does_not_state_is_no_fault_of_its_record(bare: Path) -> None:
    findings = found(bare)
    for name in INSIDE:
        assert findings[name].verdict == "cannot tell", findings[name]
        assert "a program of the user's does not state it" in findings[name].evidence
    assert "learning rate" not in findings["F2"].evidence, "the suite's parameter states it"
    assert "optimizer (2 of 2 cells)" in findings["F2"].evidence


def test_what_the_suite_states_counts(stated: Path) -> None:
    findings = found(stated)
    assert findings["F5"].verdict == "pass", findings["F5"]
    assert "batch" not in findings["F2"].evidence


def test_steps_are_called_steps_and_clocks_that_nobody_stated_are_not_drawn(bare: Path) -> None:
    text = shown(bare)
    assert "loss against samples" not in text
    assert "loss against epochs" not in text and "against training clock" not in text
    assert "Where the time went" not in text and "the backend's own collectives" not in text
    assert "--allow-code HASH" in text and "draws new data" not in text


def test_quality_is_drawn_against_the_steps_of_a_program(bare: Path) -> None:
    assert "loss against steps" in shown(bare)


def test_evaluations_without_a_position_are_drawn_against_time_alone(tmp_path: Path) -> None:
    text = shown(made(tmp_path, "unplaced", suite=SUITE.replace(r"step (?P<step>\d+) ", "")))
    assert "loss against wall clock" in text
    assert "loss against steps" not in text and "loss against samples" not in text


def test_declared_samples_epochs_and_an_own_clock_are_drawn(stated: Path) -> None:
    text = shown(stated)
    assert "loss against samples" in text and "loss against epochs" in text and "against training clock" in text
    assert "the program's own clock" in text and "without evaluation, checkpoints and logging" not in text


def test_a_gate_that_did_not_run_is_not_called_unneeded(bare: Path) -> None:
    assert "Parity gate not run" in shown(bare) and "not needed" not in shown(bare)
    assert found(bare)["ACM2"].verdict == "cannot tell"
