"""Design contest in a suite: its defaults, its refusals in one line, and what it leaves unchanged."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from repro.core.errors import SuiteError
from repro.core.frozen import canonical
from repro.core.machine import Machine
from repro.suite.design import ANYTIME, UNTIL_SETTLED, ChosenDesign
from repro.suite.file import read_suite
from repro.suite.planning.plan import Plan, make_plan
from tests.plans import plan_file

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


TEXT = """\
suite: sample
SEEDS
trial:
  workload: digits
  engine: ddp
  batch: {global: 64}
  optimizer: {kind: sgd, lr: 0.1}
  stop: {metric: top1, target: 0.9, max_epochs: 8}
  evaluate_every: 1437
matrix:
  engine: [ddp, {kind: deepspeed, stage: 1}]
  processes: [1, 2]
primary:
  candidate: {engine: deepspeed, processes: 2}
  baseline: {engine: ddp, processes: 2}
DESIGN
"""
LOOKS = "sequential: {looks: [10, 15, 20, 30]}"


def plan_of(design: str, *overrides: str, seeds: str = "", chosen: ChosenDesign | None = None) -> Plan:
    Path("s.yaml").write_text(TEXT.replace("SEEDS", seeds or "title: a").replace("DESIGN", design))
    source = read_suite("./s.yaml", overrides, chosen)
    return make_plan(source.suite, Machine("cpu", 0, 2), source.problem, bool(overrides))


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_after_the_first_look_only_the_primary_goes_on() -> None:
    plan = plan_of(LOOKS)
    assert (plan.suite.seeds, plan.design.looks) == (30, (10, 15, 20, 30))
    planned = Counter(plan.cells[index].label for index, _ in plan.order)
    assert planned == {"ddp, 1 process": 10, "deepspeed (stage=1), 1 process": 10,
                       "ddp, 2 processes": 30, "deepspeed (stage=1), 2 processes": 30}
    repeats = [repeat for _, repeat in plan.order]
    assert repeats == sorted(repeats)


def test_the_design_is_in_the_digest_and_a_fixed_number_keeps_its_digest() -> None:
    fixed, ours = plan_of("", seeds="seeds: 30"), plan_of(LOOKS)
    assert len({fixed.digest, ours.digest, plan_of(LOOKS.replace("15", "16")).digest}) == 3
    assert plan_of(LOOKS, "sequential=null", "seeds=3").digest == fixed.digest


def test_the_command_line_chooses_a_design_for_a_suite_without_one() -> None:
    assert plan_of("", seeds="seeds: 6", chosen=UNTIL_SETTLED).design.looks == (8, 12, 18, 27, 40)
    assert plan_of(LOOKS, chosen=UNTIL_SETTLED).design.looks == (10, 15, 20, 30)
    anytime = plan_of("", chosen=ANYTIME).design
    assert (anytime.looks[0], anytime.looks[-1]) == (7, 200)


def test_a_dropped_primary_leaves_a_fixed_number() -> None:
    plan = plan_of(LOOKS, "processes=1")
    assert (plan.suite.sequential, plan.suite.seeds) == (None, 10)


def test_a_design_answers_how_many_repeats_a_cell_has_and_by_which_rule_it_stops() -> None:
    fixed, ours, anytime = (plan.design for plan in (
        plan_of("", seeds="seeds: 30"), plan_of(LOOKS), plan_of("", chosen=ANYTIME)))
    assert [(item.repeats, item.common, bool(item.looks), item.anytime) for item in (fixed, ours, anytime)] == [
        (30, 30, False, False), (30, 10, True, False), (200, 7, True, True)]
    assert [ours.repeats_of(place) for place in range(4)] == [10, 30, 10, 30]
    assert {fixed.repeats_of(place) for place in range(4)} == {30}
    assert (fixed.rule, fixed.words) == ("", "") and "t^2" in ours.rule and "e-process" in anytime.rule


def test_without_a_cell_of_its_primary_a_sequential_design_is_fixed_at_its_first_look() -> None:
    plan = plan_of(LOOKS)
    left = plan.model_copy(update={"cells": plan.cells[:1]})
    assert (left.design.looks, left.design.repeats, left.design.common) == ((), 10, 10)


def test_parts_of_a_sequential_run_that_run_again_are_a_fixed_number() -> None:
    plan = plan_of(LOOKS)
    again = plan.model_copy(update={"kind": "reproduction", "order": ((0, 3), (1, 3), (1, 4))})
    assert (again.design.looks, again.design.common) == ((), 1)
    assert not plan.model_copy(update={"kind": "tuning"}).design.scored and plan.design.scored


MISTAKES = [
    ("sequential: {looks: [10, 9]}", "16: sequential.looks[1]: 9 does not follow 10: looks must rise"),
    ("sequential: {looks: [5, 10]}", "16: sequential.looks[0]: 5 pairs cannot decide there"),
    ("sequential: {looks: [8, 40]}", "16: sequential.looks[0]: 8 pairs cannot decide there: the look's nominal "
                                     "p is 0.002, below the exact sign-flip test's least, 0.0078"),
    ("sequential: {looks: []}", "16: sequential.looks: a sequential design has 1 to 50 looks, not 0"),
    ("sequential: {looks: [10, 20], spending: haybittle}", "16: sequential.spending: must be 'power', "
                                                           "'obrien-fleming' or 'pocock' (given: haybittle)"),
    ("sequential: {looks: [10, 20], spending: pocock, power: 1}", "16: sequential.power: belongs to spending: power"),
    ("sequential: {looks: [10, 20], power: 0}", "16: sequential.power: must be greater than 0"),
    ("sequential: {anytime: true, spending: pocock}", "16: sequential.spending: has no meaning with anytime"),
    ("sequential: {anytime: true, looks: [5]}", "16: sequential.looks[0]: 5 pairs are too few"),
    ("sequential: {look: [10, 20]}", "16: sequential.look: unknown key; did you mean 'looks'?"),
    ("sequential: {looks: [10, true]}", "16: sequential.looks[1]: must be a whole number"),
]


@pytest.mark.parametrize(("design", "text"), MISTAKES)
def test_a_wrong_design_is_one_line_with_its_place(design: str, text: str) -> None:
    with pytest.raises(SuiteError) as error:
        plan_of(design)
    assert str(error.value).startswith(f"./s.yaml:{text}")
    assert "\n" not in str(error.value)


def test_looks_beyond_seeds_are_refused() -> None:
    with pytest.raises(SuiteError, match=r"16: sequential.looks\[2\]: 20 is beyond seeds: 15; leave out seeds"):
        plan_of(LOOKS, seeds="seeds: 15")
    with pytest.raises(SuiteError, match=r"sequential.looks\[3\]: 30 is the last look, not seeds: 40"):
        plan_of(LOOKS, seeds="seeds: 40")


def test_seeds_on_the_command_line_are_refused() -> None:
    with pytest.raises(SuiteError, match=r"-o seeds=12: a sequential design runs up to its last look"):
        plan_of(LOOKS, "seeds=12")
    with pytest.raises(SuiteError, match=r"for a fixed number leave out --until-settled"):
        plan_of("", "seeds=12", chosen=UNTIL_SETTLED)


def test_a_design_without_a_primary_is_refused() -> None:
    without = TEXT.split("primary:")[0] + "sequential: {looks: [10, 20]}\n"
    Path("s.yaml").write_text(without.replace("SEEDS\n", ""))
    with pytest.raises(SuiteError, match=r"s.yaml:12: sequential: needs a primary contrast"):
        read_suite("./s.yaml")
    Path("s.yaml").write_text(TEXT.split("primary:")[0].replace("SEEDS\n", ""))
    with pytest.raises(SuiteError, match=r"--until-settled: sequential: needs a primary contrast"):
        read_suite("./s.yaml", (), UNTIL_SETTLED)


def test_where_a_cell_of_the_primary_cannot_run_every_cell_has_the_pairs_of_the_first_look() -> None:
    text = TEXT.replace("SEEDS\n", "").replace("DESIGN", LOOKS)
    text = text.replace("  processes: [1, 2]", "  precision: [fp32, tf32]")
    Path("s.yaml").write_text(text.replace("{engine: deepspeed, processes: 2}", "{engine: ddp, precision: tf32}")
                              .replace("processes: 2", "precision: fp32"))
    here, there = (plan_file("./s.yaml", machine=Machine(device, count, 2))
                   for device, count in (("cpu", 0), ("cuda", 1)))
    assert here.digest == there.digest
    assert Counter(repeat for _, repeat in here.order) == dict.fromkeys(range(10), 2)
    assert any(note.startswith("no look is taken") for note in here.notes)
    assert max(repeat for _, repeat in there.order) == 29
