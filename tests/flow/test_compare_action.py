"""The action that gates a run in continuous integration: its script really run, its files consistent."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from repro.core.machine import Machine
from repro.record.folder.store import Record
from repro.suite.file import read_suite
from repro.suite.planning.plan import make_plan
from tests.records import SUITE, make_record

ROOT = Path(__file__).parents[2]
ACTION = ROOT / ".github" / "actions" / "compare"
WORKFLOW = ROOT / ".github" / "workflows" / "performance.yml"
EXPRESSION = re.compile(r"\$\{\{\s*(.*?)\s*\}\}")


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Record:
    return make_record(tmp_path_factory.mktemp("of the runner") / "a run")


class Ran:
    """One start of the script as the runner starts it."""

    def __init__(self, folder: Path, **inputs: str) -> None:
        environment = {
            **os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "GITHUB_STEP_SUMMARY": str(folder / "summary"), "GITHUB_OUTPUT": str(folder / "output"),
            "XDG_DATA_HOME": str(folder), **{f"REPRO_{name.upper()}": value for name, value in inputs.items()}}
        self.done = subprocess.run(["bash", ACTION / "compare.sh"], cwd=folder, env=environment, capture_output=True,
                                   text=True, timeout=60, check=False)
        self.code = self.done.returncode
        self.summary = (folder / "summary").read_text()
        self.output = (folder / "output").read_text()


def test_a_held_condition_fails_the_step_and_the_summary_says_so(record: Record, tmp_path: Path) -> None:
    ran = Ran(tmp_path, run=str(record.folder.root), fail_if="slower\nratio.low > 5\n", markdown="a comment.md")
    assert ran.code == 3, ran.done.stderr
    assert ran.summary == (tmp_path / "a comment.md").read_text()
    assert ran.summary.startswith("### sample: failed (fail if slower, ratio.low &gt; 5)")
    assert ran.output == "markdown=a comment.md\nexit-code=3\n"


@pytest.mark.slow
def test_what_does_not_hold_passes(record: Record, tmp_path: Path) -> None:
    ran = Ran(tmp_path, run=str(record.folder.root), fail_if="faster\n")
    assert ran.code == 0, ran.done.stderr
    assert ran.summary.startswith("### sample: passed (fail if faster)") and "exit-code=0" in ran.output


@pytest.mark.slow
def test_another_metric_and_all_comparisons(record: Record, tmp_path: Path) -> None:
    """Six pairs cannot tell anything of four contrasts, so no condition passes."""
    ran = Ran(tmp_path, run=str(record.folder.root), fail_if="ratio.low > 5", fail_any="true", metric="tta_train")
    assert ran.code == 3 and "cannot be ruled out" in ran.summary and "training time to the target" in ran.summary


@pytest.mark.slow
def test_several_runs_against_several(record: Record, tmp_path: Path) -> None:
    runs = [make_record(tmp_path / f"run {number}", f"{SUITE}master_seed: {number}\n", started_ms=1000 * number)
            for number in range(4)]
    named = ["\n".join(str(run.folder.root) for run in part) for part in ((runs[0], runs[3]), runs[1:3])]
    ran = Ran(tmp_path, run=named[0], against=named[1], fail_if="")
    assert ran.code == 0, ran.done.stderr
    assert ran.summary.startswith("### sample: ")


@pytest.mark.parametrize(("inputs", "reason"), [
    ({"run": "nowhere", "fail_if": "slower"}, "nowhere"),
    ({"run": "", "fail_if": "slower"}, "Missing argument"),
    ({"run": "THE RECORD", "fail_if": "$(touch pwned) `touch pwned`"}, "$(touch pwned)"),
])
def test_what_cannot_be_compared_never_passes(
    record: Record, tmp_path: Path, inputs: dict[str, str], reason: str
) -> None:
    (tmp_path / "repro-compare.md").write_text("of an earlier run: passed")
    ran = Ran(tmp_path, **{name: text.replace("THE RECORD", str(record.folder.root)) for name, text in inputs.items()})
    assert ran.code == 2
    assert "nothing was compared" in ran.summary and reason in ran.summary and "passed" not in ran.summary
    assert not (tmp_path / "pwned").exists()


def test_the_action_declares_what_it_uses_and_puts_no_input_into_the_script() -> None:
    action: dict[str, Any] = yaml.safe_load((ACTION / "action.yml").read_text())
    (step,) = action["runs"]["steps"]
    assert action["runs"]["using"] == "composite" and step["shell"] == "bash"
    assert "${{" not in step["run"]
    given = {EXPRESSION.fullmatch(text)[1] for text in step["env"].values()}  # type: ignore[index]
    assert given == {f"inputs.{name}" for name in action["inputs"]}
    script = (ACTION / "compare.sh").read_text()
    assert all(f"${{{name}:-" in script for name in step["env"])
    for name, output in action["outputs"].items():
        assert output["value"] == f"${{{{ steps.{step['id']}.outputs.{name} }}}}" and f"{name}=" in script
    assert all(item["description"] for item in (*action["inputs"].values(), *action["outputs"].values()))


def test_the_workflow_gives_the_action_what_it_takes() -> None:
    workflow: dict[Any, Any] = yaml.safe_load(WORKFLOW.read_text())
    inputs = yaml.safe_load((ACTION / "action.yml").read_text())["inputs"]
    steps = workflow["jobs"]["compare"]["steps"]
    assert workflow["permissions"] == {"contents": "read"} and "pull_request_target" not in str(workflow)
    assert not any("${{" in step.get("run", "") for step in steps)
    (gate,) = [step for step in steps if step.get("uses") == "./.github/actions/compare"]
    assert set(gate["with"]) <= set(inputs)
    assert {name for name, item in inputs.items() if item.get("required")} <= set(gate["with"])
    (start,) = [step["run"] for step in steps if step.get("run", "").startswith("repro run ")]
    assert (ROOT / start.split()[2]).is_file() and f"--out {gate['with']['run']} " in start


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="no git checkout")
def test_the_suite_of_the_workflow_compares_two_commits_of_this_project() -> None:
    found = read_suite(str(ROOT / ".github" / "performance" / "suite.yaml"), ["engine.commit=HEAD"])
    plan = make_plan(found.suite, Machine("cpu", 0, 2), found.problem, folder=found.folder)
    assert len(plan.cells) == 1 and plan.suite.seeds == 10
