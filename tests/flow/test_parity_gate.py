"""The parity gate through the front door: every planted defect stops the run, and healthy engines pass.

One run judges several defects: the gate reads every engine of a suite before it speaks, and keeps what it found about
each in parity.json.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.commands import PLUGINS, ROOT, command

pytest.importorskip("torch")
pytest.importorskip("deepspeed")

TRIAL = """\
seeds: 1
master_seed: 20151102
trial:
  workload: digits
  processes: 2
  batch: {global: 32, accumulation: 2}
  optimizer: {kind: sgd, lr: 0.05, momentum: 0.9, weight_decay: 0.01, decay: weights}
  gradient_clip: 0.5
  stop: {metric: top1, target: 0.05, max_epochs: 0.1}
  evaluate_every: 64
  device: cpu
  timeout_seconds: 120
"""
ALIKE = ("reduction-ends", "work-left-to-the-evaluation", "data", "nan", "small-updates-left-out", "decay", "bucket",
         "clip-late", "bf16", "augmentation", "clip-micro", "unscaled")
"""Further defects; `make defects` plants many more."""


def healthy_and(defects: tuple[str, ...]) -> str:
    """A suite of engines that are well, under two norms, and of one engine for each defect.

    One stage under each norm: ZeRO 3 has no batch norm, and quickstart's gate has ZeRO 1 without.
    """
    planted = "".join(f"    - {{kind: planted, defect: {defect}}}\n" for defect in (*defects, "buffers"))
    return f"""\
suite: defects
{TRIAL}
matrix:
  workload: [{{kind: digits, norm: group}}, {{kind: digits, norm: batch}}]
  engine:
    - ddp
    - {{kind: deepspeed, stage: 1}}
    - {{kind: deepspeed, stage: 3}}
{planted}\
exclude:
  - {{workload: {{norm: batch}}, engine: {{kind: deepspeed, stage: 3}}}}
  - {{workload: {{norm: group}}, engine: {{kind: deepspeed, stage: 1}}}}
  - {{workload: {{norm: group}}, engine: {{defect: buffers}}}}
  - workload: {{norm: batch}}
    engine: {{defect: [{", ".join(defects)}]}}
"""


DEFECTIVE = f"""\
suite: defects
{TRIAL.replace("workload: digits", "workload: {kind: digits, norm: batch}")}
matrix:
  engine: [ddp, {{kind: deepspeed, stage: 1}}, {{kind: planted, defect: sum}}, {{kind: planted, defect: buffers}}]
"""
ALONE = f"""\
suite: alone
{TRIAL.replace("processes: 2", "processes: 1")}
matrix:
  engine: [ddp, {", ".join(f"{{kind: deepspeed, stage: {stage}}}" for stage in range(4))}]
"""
HEALTHY = f"""\
suite: healthy
{TRIAL}
matrix:
  engine: [ddp, {{kind: deepspeed, stage: 1}}]
"""


@dataclass(frozen=True)
class Ended:
    """The end of one run of the command."""

    code: int
    error: str
    folder: Path

    @property
    def findings(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads((self.folder / "parity.json").read_text())["findings"]
        return found

    def problem(self, candidate: str) -> str:
        """The gate's finding on one candidate."""
        (found,) = [item["problem"] for item in self.findings if item["candidate"].startswith(candidate)]
        return str(found)


def run(folder: Path, suite: str) -> Ended:
    (folder / "suite.yaml").write_text(suite)
    ended = command(folder, "run", "suite.yaml", "--out", "run", "--no-mlflow",
                    PYTHONPATH=f"{ROOT}{os.pathsep}{PLUGINS}")
    return Ended(ended.code, ended.error, folder / "run")


@pytest.fixture(scope="module")
def defective(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    return run(tmp_path_factory.mktemp("defects"), DEFECTIVE)


@pytest.fixture(scope="module")
def alike(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    return run(tmp_path_factory.mktemp("alike"), healthy_and(ALIKE))


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    return run(tmp_path_factory.mktemp("healthy"), HEALTHY)


def is_named(ended: Ended, defect: str, beginning: str, rest: str) -> None:
    problem = ended.problem(f"planted (defect={defect})")
    assert problem.startswith(beginning)
    assert rest in problem


@pytest.mark.parametrize(("defect", "beginning", "rest"), [
    ("sum", "step 1: gradient of '", "on rank 0 has norm"),
    ("buffers", "after evaluation: buffer '1.running_mean' on rank 1", "(buffers are not synchronised)"),
])
def test_a_planted_defect_is_named_with_its_step_and_tensor(
    defective: Ended, defect: str, beginning: str, rest: str
) -> None:
    is_named(defective, defect, beginning, rest)


@pytest.mark.slow
@pytest.mark.parametrize(("defect", "beginning", "rest"), [
    ("reduction-ends", "step 54: gradient of '", "on rank 0 has norm"),
    ("work-left-to-the-evaluation", "step 1: weight of '", "on rank 0 has norm"),  # the warm-up evaluates, too
    ("data", "step 1: rank 1 was fed other data than the reference", "(micro-batch 1)"),
    ("nan", "step 3: loss is nan", "the reference's"),
    ("small-updates-left-out", "step 56: weight of '", "on rank 0"),
    ("decay", "step 1: weight of '", "on rank 0"),
    ("bucket", "step 1: gradient of '", "on rank 1"),
    ("clip-late", "step 1: weight of '", "on rank 0"),
    ("bf16", "step 5: weight of '", "on rank 0"),
    ("augmentation", "step 1: rank 1 was fed other data than the reference", "(micro-batch 1)"),
    ("clip-micro", "step 1: gradient of '", "on rank 0 has norm"),
    ("unscaled", "step 1: gradient of '", "2 times the reference's"),
])
def test_a_further_defect_is_named(alike: Ended, defect: str, beginning: str, rest: str) -> None:
    is_named(alike, defect, beginning, rest)


def test_a_sum_for_a_mean_is_twice_as_long_on_two_ranks(defective: Ended) -> None:
    assert ", 2 times the reference's" in defective.problem("planted (defect=sum)")


@pytest.mark.slow
def test_decay_is_missed_on_no_matrix_and_found_on_a_vector(alike: Ended) -> None:
    # Matrices decay as they should: the first tensor that differs is the first norm's scale.
    assert alike.problem("planted (defect=decay)").startswith("step 1: weight of '1.weight'")


def test_healthy_engines_pass_next_to_defective_ones(defective: Ended) -> None:
    passed = {(item["group"], item["candidate"]) for item in defective.findings if not item["problem"]}
    assert passed == {
        ("digits (norm=batch), batch 32, 2 processes", f"{engine} on 2 processes")
        for engine in ("ddp", "deepspeed (stage=1)")
    }
    assert all(0 <= item["largest_difference"] < 1e-3 for item in defective.findings if not item["problem"])


@pytest.mark.slow
def test_healthy_engines_pass_under_either_norm_and_zero_3_says_its_stage(alike: Ended) -> None:
    passed = {(item["group"], item["candidate"]) for item in alike.findings if not item["problem"]}
    assert passed == {
        *(("digits, batch 32, 2 processes", f"{engine} on 2 processes") for engine in ("ddp", "deepspeed (stage=3)")),
        *(("digits (norm=batch), batch 32, 2 processes", f"{engine} on 2 processes")
          for engine in ("ddp", "deepspeed (stage=1)")),
    }
    stages = {item["candidate"]: item["effective"].get("zero_stage") for item in alike.findings}
    assert stages["deepspeed (stage=3) on 2 processes"] == "3"


@pytest.mark.slow
def test_healthy_engines_on_one_process_pass(tmp_path: Path) -> None:
    ended = run(tmp_path, ALONE)
    assert ended.code == 0, ended.error
    engines = ["ddp", *(f"deepspeed (stage={stage})" for stage in range(4))]
    assert [item["candidate"] for item in ended.findings] == [f"{engine} on 1 process" for engine in engines]
    assert all(not item["problem"] and 0 <= item["largest_difference"] < 1e-3 for item in ended.findings)


def test_the_gate_reports_effective_settings(defective: Ended) -> None:
    stages = {item["candidate"]: item["effective"].get("zero_stage") for item in defective.findings}
    assert stages["deepspeed (stage=1) on 2 processes"] == "1"


def test_the_run_stops_with_a_line_a_failure_before_any_trial(defective: Ended) -> None:
    assert defective.code == 1
    lines = defective.error[defective.error.index("error: parity gate: no trial was timed"):].splitlines()
    against = "on 2 processes against single on 1 process: "
    summed, = (line for line in lines if f"planted (defect=sum) {against}step" in line)
    assert ": it is summed over the ranks and not averaged" in summed
    assert any(f"planted (defect=buffers) {against}after evaluation: " in line for line in lines)
    assert lines[-1] == "  every check: repro gate SUITE"
    assert "Traceback" not in defective.error
    assert not (defective.folder / "ledger.jsonl").exists()
    assert list((defective.folder / "trials").iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("defect", ["clipping-left-out", "spike-guard"])
def test_what_acts_on_large_gradients_only_is_named(tmp_path: Path, defect: str) -> None:
    # Ordinary gradients of this model have norms below 5.
    suite = healthy_and((defect,)).replace("gradient_clip: 0.5", "gradient_clip: 8")
    is_named(run(tmp_path, suite), defect, "step 59: ", "on rank 0")


@pytest.mark.slow
def test_healthy_engines_alone_pass_and_are_timed(healthy: Ended) -> None:
    assert healthy.code == 0, healthy.error
    assert [item["problem"] for item in healthy.findings] == ["", ""]
    lines = (healthy.folder / "ledger.jsonl").read_text().splitlines()
    assert len(lines) == 4  # two trials, a line when each starts and one when it ends
