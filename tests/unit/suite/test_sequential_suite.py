"""Sequential designs in suites: what they plan, what their digest holds, and every mistake in one line."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from repro.core.errors import SuiteError
from repro.core.machine import Machine
from repro.suite.file import read_suite
from repro.suite.planning.plan import Plan, make_plan
from repro.suite.sequential import ANYTIME, UNTIL_SETTLED, ChosenDesign

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
    source = read_suite("./s.yaml")
    here, there = (make_plan(source.suite, Machine(device, count, 2), source.problem)
                   for device, count in (("cpu", 0), ("cuda", 1)))
    assert here.digest == there.digest
    assert Counter(repeat for _, repeat in here.order) == dict.fromkeys(range(10), 2)
    assert any(note.startswith("no look is taken") for note in here.notes)
    assert max(repeat for _, repeat in there.order) == 29


def test_anytime_and_declared_looks_exclude_each_other() -> None:
    with pytest.raises(SuiteError, match="--anytime: the suite declares looks"):
        plan_of(LOOKS, chosen=ANYTIME)
