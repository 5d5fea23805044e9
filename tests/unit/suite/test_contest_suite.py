"""Design contest in a suite: what it fills in, what it refuses in one line, and what stays as it was."""

from __future__ import annotations

from pathlib import Path

import pytest

from repro.core.errors import SuiteError
from repro.core.frozen import canonical
from repro.core.machine import Machine
from repro.suite.file import read_suite
from repro.suite.planning.plan import Plan, make_plan
from repro.suite.sequential import UNTIL_SETTLED, ChosenDesign

TRAINING = """\
suite: contest
trial:
  workload: digits
  engine: ddp
  batch: {{global: 64}}
  optimizer: {{kind: sgd, lr: 0.1}}
  evaluate_every: 64
  stop: {{metric: top1, target: 0.9, max_epochs: 2{stop}}}
matrix: {{processes: [1, 2]{matrix}}}
{rest}
"""
PROGRAM = """\
suite: contest
trial:
  engine: {{kind: program, run: [python, train.py, "{{lr}}"], sha256: ""}}
  parameters: {{lr: 0.1}}
  evaluation: {{pattern: 'loss (?P<value>\\S+)', metric: loss, direction: lower}}
  stop: {{target: 3.28{stop}}}
matrix: {{parameters.lr: [0.1, 0.2]{matrix}}}
{rest}
"""
PRIMARY = "primary: {candidate: {processes: 2}, baseline: {processes: 1}%s}"
CONTEST = ", design: contest"


def plan(
    folder: Path, stop: str = CONTEST, rest: str = "", matrix: str = "", text: str = TRAINING,
    design: ChosenDesign | None = None,
) -> Plan:
    path = folder / "suite.yaml"
    path.write_text(text.format(stop=stop, rest=rest, matrix=matrix))
    (folder / "train.py").write_text("")
    found = read_suite(str(path), design=design)
    return make_plan(found.suite, Machine("cpu", 0, 2), found.problem, folder=found.folder)


@pytest.mark.parametrize("text", [TRAINING, PROGRAM])
def test_a_contest_has_its_own_margin_level_and_metric(tmp_path: Path, text: str) -> None:
    made = plan(tmp_path, text=text)
    assert made.design.is_contest and made.design.has_target
    assert (made.suite.margin, made.suite.metric, made.cells[0].choices.stop.alpha) == (0.005, "end_wall", 0.01)
    assert all(cell.choices.always_runs_full_budget for cell in made.cells)
    own = plan(tmp_path, f"{CONTEST}, alpha: 0.001", "margin: 0.02", text=text)
    assert (own.suite.margin, own.cells[0].choices.stop.alpha) == (0.02, 0.001)
    other = plan(tmp_path, ", design: fixed_budget", text=text)
    assert (other.suite.margin, other.suite.metric, other.design.is_contest) == (0.05, "tta_wall", False)


def test_its_primary_is_the_time_to_the_end_unless_it_says_otherwise(tmp_path: Path) -> None:
    assert plan(tmp_path, rest=PRIMARY % "").suite.metric == "end_wall"
    assert plan(tmp_path, rest=PRIMARY % ", metric: end_train").suite.metric == "end_train"
    assert plan(tmp_path, ", design: fixed_budget", PRIMARY % "").suite.metric == "tta_wall"


@pytest.mark.parametrize("text", [TRAINING, PROGRAM])
def test_cells_of_other_designs_keep_their_names(tmp_path: Path, text: str) -> None:
    for stop in ("", ", design: fixed_budget", ", design: stop_at_target"):
        assert '"alpha"' not in canonical(plan(tmp_path, stop, text=text).cells[0].choices)
    assert '"alpha":0.01' in canonical(plan(tmp_path, text=text).cells[0].choices)


def test_a_plan_of_a_contest_reads_back_as_it_was(tmp_path: Path) -> None:
    made = plan(tmp_path, rest=PRIMARY % "")
    again = Plan.model_validate_json(made.model_dump_json(by_alias=True))
    assert again == made and again.suite.margin == 0.005


@pytest.mark.parametrize(("stop", "rest", "matrix", "message"), [
    (f"{CONTEST}, confirm_evals: 2", "", "", "trial.stop.confirm_evals: a contest judges the last evaluation"),
    (", alpha: 0.05", "", "", "trial.stop.alpha: only design contest tests a mean, not stop_at_target; remove it"),
    (f"{CONTEST}, alpha: 0.5", "", "", "trial.stop.alpha: "),
    ("", "", ", stop.design: [contest, fixed_budget]", "trial.stop.design: the cells of a contest make one claim, but "
                                                       "stop.design is contest or fixed_budget"),
    (CONTEST, "", ", stop.target: [0.9, 0.95]", "trial.stop.target: the cells of a contest make one claim, but "
                                                "stop.target is 0.9 or 0.95"),
    (CONTEST, "on_failure: rerun", "", "on_failure: a contest counts every declared run once, also one that failed"),
    (CONTEST, "on_failure: resume_from_checkpoint", "", "on_failure: a contest counts every declared run once"),
    (CONTEST, "contrasts: [processes]", "", "contrasts: a contest makes its claims about cells"),
    (CONTEST, "horizon: 10", "", "horizon: no run of a contest can miss its target"),
    (CONTEST, PRIMARY % ", metric: tta_wall", "", "primary.metric: tta_wall ends at a target, and the runs of a "
                                                  "contest go on to their end; use end_wall"),
    ("", PRIMARY % ", metric: end_wall", "", "primary.metric: end_wall is a time to the end of a fixed budget, which "
                                             "only design contest has"),
    (CONTEST, f"{PRIMARY % ''}\nsequential: {{looks: [10, 14]}}", "",
     "sequential: the runs of a contest are declared beforehand, so no look may end it early"),
])
def test_it_refuses_in_one_line(tmp_path: Path, stop: str, rest: str, matrix: str, message: str) -> None:
    with pytest.raises(SuiteError) as caught:
        plan(tmp_path, stop, rest, matrix)
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_until_settled_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(SuiteError, match=r"--until-settled: .*no look may end it early") as caught:
        plan(tmp_path, rest=(PRIMARY % ""), design=UNTIL_SETTLED)
    assert "\n" not in str(caught.value)
