"""Reproduced, not reproduced, inconclusive: on records whose true answer is known."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from repro.bundle.claim import Found, claims_of, shift_between
from repro.bundle.declared import settled_terms
from repro.bundle.difference import OrderSeeds, between_executions, diff_records, differences
from repro.bundle.judge import Reproduction, judge
from repro.cli.workflows.reproduce import Wanted, announced, choose_trials, reduce_plan
from repro.core.errors import UsageError
from repro.core.files import read_model, write_model
from repro.core.machine import Machine
from repro.record.folder.store import Record, RunFolder, read_record
from repro.record.result.result_warnings import Resumed
from repro.record.result.results import Result
from repro.stats.replication import MeanLog, mean_log
from repro.suite.model import Trial
from repro.suite.planning.plan import planned_order
from repro.suite.planning.terms import Terms
from tests.plans import suite
from tests.records import SUITE, Course, make_record, sample_environment

TWO = suite("two", """\
matrix:
  engine: [ddp, fsdp]
primary: {candidate: {engine: fsdp}, baseline: {engine: ddp}}
""", seeds=10, engine=None, determinism="LEVEL")
ONE = suite("one", seeds=10, determinism="LEVEL")
TERMS = Terms(pairs=10, margin=0.05)


def run(root: Path, ratio: float = 1.5, noise: float = 0.01, seed: int = 0, level: str = "seeded",
        only: int | None = None, session: float = 1.0, text: str = TWO) -> Record:
    """Ten seeds of two cells with a little independent noise, the second `ratio` times as long; all `session` times."""
    generator = np.random.default_rng(seed)
    factors = np.exp(noise * generator.standard_normal((2, 100))) * session

    def course(trial: Trial) -> Course:
        second = trial.choices.engine.kind == "fsdp"
        return Course(step_seconds=0.01 * float(factors[int(second), trial.repeat]) * (ratio if second else 1.0))

    return make_record(root, text.replace("LEVEL", level), only=only, course=course)


def answer(first: Record, second: Record, trials: str | None = None, terms: Terms = TERMS) -> Reproduction:
    chosen, _ = choose_trials(first, trials, Wanted(margin=terms.margin, undecided=True))
    return judge(first, second, chosen, terms)


@pytest.mark.parametrize(("ratio", "expected"), [
    (1.5, "reproduced"), (1.52, "reproduced"), (1.5 * 1.046, "inconclusive"), (1.95, "not reproduced"),
    (1.5 / 1.02, "reproduced"), (1.0, "not reproduced"),
])
def test_a_ratio_within_the_margin_is_reproduced_and_one_far_outside_is_not(
    tmp_path: Path, ratio: float, expected: str
) -> None:
    found = answer(run(tmp_path / "a", seed=1), run(tmp_path / "b", ratio, seed=2))
    assert found.answer == expected, found.text()
    assert found.claims[0].change is not None


def test_a_claim_is_not_reproduced_on_other_data(tmp_path: Path) -> None:
    first, second = run(tmp_path / "a", seed=1), run(tmp_path / "b", seed=2)
    assert answer(first, second).answer == "reproduced"
    data = second.environment.data[0].model_copy(update={"sha256": "1" * 64})
    found = answer(first, replace(second, environment=second.environment.model_copy(update={"data": (data,)})))
    assert found.answer == "inconclusive" and found.claims[0].because.startswith("other data of digits (")


def test_a_claim_for_all_nodes_of_a_class_cannot_be_judged_on_one_computer(tmp_path: Path) -> None:
    record = run(tmp_path, text=f"{TWO}unit: node\n")
    with pytest.raises(UsageError, match=r"unit: node.*run its suite again in a pool"):
        choose_trials(record, "6", Wanted(undecided=True))


@pytest.mark.parametrize("session", [1.03, 2.0, 0.5])
def test_a_machine_that_is_slower_in_both_cells_changes_no_claim(tmp_path: Path, session: float) -> None:
    found = answer(run(tmp_path / "a", seed=1), run(tmp_path / "b", seed=2, session=session))
    assert found.answer == "reproduced", found.text()
    assert found.levels[0].ratio == pytest.approx(session, rel=0.1)


def test_noise_makes_it_inconclusive_never_not_reproduced(tmp_path: Path) -> None:
    found = answer(run(tmp_path / "a", noise=0.3, seed=1), run(tmp_path / "b", noise=0.3, seed=2))
    assert found.answer == "inconclusive"
    assert "results inconclusive (" in found.text()
    assert "results inconclusive on a busy machine, which alone can change a ratio of times (" in replace(
        found, busy=True).text()
    assert " on a busy machine" not in replace(found, busy=True, claims=()).text(), "hashes do not depend on it"


def test_too_few_trials_are_inconclusive_however_alike(tmp_path: Path) -> None:
    found = answer(run(tmp_path / "a", noise=1e-4, seed=1), run(tmp_path / "b", noise=1e-4, seed=2), "3")
    assert found.answer == "inconclusive"
    assert "at least 5 pairs are required" in found.claims[0].because


@pytest.mark.slow
def test_figures_equal_to_the_last_digit_are_judged_by_the_margin_from_five_pairs_on(tmp_path: Path) -> None:
    first, second = run(tmp_path / "a", noise=0), run(tmp_path / "b", noise=0)
    assert answer(first, second).answer == "reproduced"
    assert answer(first, second, "4").answer == "inconclusive"
    assert answer(first, run(tmp_path / "d", 1.51, noise=0)).answer == "reproduced", "every pair by the same 0.7 %"
    changed = run(tmp_path / "c", 1.8, noise=0)
    assert answer(first, changed).answer == "not reproduced"
    assert answer(first, changed, "5").answer == "inconclusive", "five equal changes have p = 2 / 2^5"
    assert choose_trials(first, None)[1].power is None, "measured figures without a spread say nothing of it"


def test_a_ratio_near_1_is_not_shown_as_1(tmp_path: Path) -> None:
    record = run(tmp_path / "a", 1.0002, noise=0)
    assert "ratio 1.0002 (10 pairs) against 1.0002 (10 pairs)" in answer(record, record).text()


def test_evaluations_further_apart_than_the_margin_withhold_reproduced(tmp_path: Path) -> None:
    """Evaluations are a third of the time apart: equal times may hide crossings that differ; not if the trainings are
    the same step by step."""
    first, second = run(tmp_path / "a", noise=1e-3, seed=1), run(tmp_path / "b", noise=1e-3, seed=2)
    assert answer(first, second).answer == "reproduced"
    other = replace(second, results=tuple(
        item.model_copy(update={"hashes": {**item.hashes, "final_weights": "other"}}) for item in second.results))
    found = answer(first, other)
    assert found.answer == "inconclusive" and "apart at the target" in found.claims[0].because
    assert answer(first, other, terms=TERMS.model_copy(update={"margin": 0.5})).answer == "reproduced"


def test_trials_that_did_not_run_again_leave_it_open(tmp_path: Path) -> None:
    found = answer(run(tmp_path / "a", seed=1), run(tmp_path / "b", seed=2, only=7))
    assert found.answer == "inconclusive"
    assert "of 10 trials of" in found.claims[0].because


def test_a_record_that_was_not_completed_has_no_verdict_of_its_own(tmp_path: Path) -> None:
    """A run that is ended when its ratio looks well has a chosen ratio."""
    first, second = run(tmp_path / "a", only=14), run(tmp_path / "b", seed=1)
    found = answer(first, second)
    assert found.answer == "reproduced", found.text()
    assert "alone: the record has no verdict of its own; the new run slower" in found.text()
    assert ("caution: the record has no verdict of its own: 7 of 10 planned pairs have run; no verdict before all have"
            in found.text())
    assert "no verdict of its own" not in answer(run(tmp_path / "c"), second).text()


def test_a_crash_decides_nothing_and_ten_misses_are_not_reproduced(tmp_path: Path) -> None:
    first = run(tmp_path / "a", seed=1)
    crashed = make_record(tmp_path / "b", TWO.replace("LEVEL", "seeded"), lambda trial: Course(crash=trial.repeat == 2))
    assert answer(first, crashed).answer == "inconclusive"
    missed = make_record(tmp_path / "c", TWO.replace("LEVEL", "seeded"), lambda trial: Course(hits_at=None))
    assert answer(first, missed).answer == "not reproduced"


def test_one_cell_claims_its_samples_and_a_record_of_misses_claims_nothing(tmp_path: Path) -> None:
    one = run(tmp_path / "a", text=ONE)
    again = run(tmp_path / "b", text=ONE, seed=3, session=3.0)
    found = answer(one, again)
    assert (found.answer, found.claims[0].claim.metric) == ("reproduced", "samples"), found.text()
    missed = make_record(tmp_path / "c", TWO.replace("LEVEL", "seeded"), lambda trial: Course(hits_at=None))
    with pytest.raises(UsageError, match="gives no figure to reproduce"):
        choose_trials(missed, None)
    assert choose_trials(missed, None, Wanted(undecided=True))[1].power == 0


def test_several_claims_share_the_error_of_no(tmp_path: Path) -> None:
    text = TWO[:TWO.index("primary:")].replace("[ddp, fsdp]", "[ddp, fsdp, {kind: deepspeed, stage: 1}]")
    first, second = run(tmp_path / "a", text=text, seed=1), run(tmp_path / "b", text=text, seed=2)
    found = answer(first, second)
    assert len(found.claims) == 2
    assert all(item.change and item.change.interval.level == 1 - 0.05 / 2 for item in found.claims)


# ---- what a record can support


@pytest.mark.parametrize(("ratio", "hidden"), [(1.5, False), (1.1, True), (1.0, False)])
def test_what_is_announced_before_the_trials_run(ratio: float, hidden: bool, tmp_path: Path) -> None:
    """Seven pairs at CV 5 % support no margin of 5 %, whatever runs now; a wider one, or more pairs, are named."""
    record = run(tmp_path / "a", ratio, noise=0.05, text=TWO.replace("seeds: 10", "seeds: 7"))
    with pytest.raises(UsageError) as told:
        choose_trials(record, None)
    line = str(told.value)
    assert line.count("\n") == 0 and "no answer is within reach" in line and "--even-if-undecided" in line
    margin = float(line.partition("--margin ")[2].partition(";")[0])
    assert ("a ratio of 1 would be reproduced, too" in line) is hidden, line
    chosen, terms = choose_trials(record, None, Wanted(margin=margin))
    assert (terms.pairs, len(chosen)) == (7, 14) and (terms.power or 0) >= 0.8
    assert (choose_trials(record, None, Wanted(undecided=True))[1].power or 0) < 0.8
    plan = reduce_plan(record.plan, chosen, Machine("cpu", 0, 2), 0, terms)
    said = announced(record, plan, terms)
    assert ("a ratio of 1 would be reproduced, too" in said) is hidden
    assert "judged: time to the target of" in said and "err in at most 5 % each" in said
    assert "7 new pairs" in said and "deviation of at most 0 % (--interaction)" in said


def test_a_record_that_supports_no_margin_with_its_pairs_is_told_the_pairs_that_do(tmp_path: Path) -> None:
    record = run(tmp_path / "a", ratio=4, noise=0.3, text=TWO.replace("seeds: 10", "seeds: 7"))
    with pytest.raises(UsageError, match="no number does") as told:
        choose_trials(record, None)
    margin, _, trials = str(told.value).partition("--margin ")[2].partition(";")[0].partition(" --trials ")
    assert int(trials) > 7, told.value
    assert (choose_trials(record, trials, Wanted(margin=float(margin)))[1].power or 0) >= 0.8


def test_pairs_beyond_those_of_the_record_have_new_seeds(tmp_path: Path) -> None:
    record = run(tmp_path / "a")
    with pytest.raises(UsageError, match=r"33\.3 % apart at the target.*--margin 0\.34"):
        choose_trials(record, "14", Wanted(margin=0.1))  # weights of no trial of the record can be theirs
    chosen, terms = choose_trials(record, "14", Wanted(margin=0.4))
    assert terms.pairs == 14 and {repeat for _, repeat in chosen} == set(range(14))
    plan = reduce_plan(record.plan, chosen, Machine("cpu", 0, 2), 0, terms)
    assert len({trial.trial_id for trial in plan.trials()}) == 28


def test_a_declared_interaction_widens_both_answers(tmp_path: Path) -> None:
    first, changed = run(tmp_path / "a", seed=1), run(tmp_path / "b", 1.7, seed=2)
    assert answer(first, changed).answer == "not reproduced"
    assert answer(first, changed, terms=TERMS.model_copy(update={"interaction": 0.05})).answer == "inconclusive"
    same = run(tmp_path / "c", seed=3)
    assert answer(first, same).answer == "reproduced"
    assert answer(first, same, terms=TERMS.model_copy(update={"interaction": 0.05})).answer == "inconclusive"


def test_a_record_of_two_pairs_that_supports_no_margin_is_refused_in_one_line(tmp_path: Path) -> None:
    record = run(tmp_path / "a", noise=1.0, text=TWO.replace("seeds: 10", "seeds: 2"))
    with pytest.raises(UsageError, match=r"no answer is within reach.*--even-if-undecided") as told:
        choose_trials(record, "6")
    assert "support a margin" not in str(told.value)


def test_a_record_that_stopped_early_enters_with_its_corrected_mean() -> None:
    """Its pairs exaggerate by 0.02; an unchanged new run of the same seeds must not look smaller by that."""
    logs = {repeat: 0.10 + 0.01 * (repeat % 3 - 1) for repeat in range(9)}
    again = Found(mean_log([value - 0.02 for value in logs.values()]), {
        repeat: value - 0.02 + 0.001 * (repeat % 2) for repeat, value in logs.items()})
    plain, stopped = mean_log(list(logs.values())), MeanLog(0.08, 0.01, 8)
    uncorrected, corrected = (shift_between(Found(mean, logs), again) for mean in (plain, stopped))
    assert uncorrected is not None and corrected is not None
    assert (round(uncorrected.value, 3), round(corrected.value, 3)) == (-0.02, 0.0)
    assert corrected.error > uncorrected.error


def without_weights(record: Record) -> Record:
    """As a program's trials are: none ends with a hash of its weights."""
    return replace(record, results=tuple(item.model_copy(update={"hashes": {
        name: value for name, value in item.hashes.items() if name != "final_weights"}}) for item in record.results))


def test_a_record_of_four_pairs_is_refused_before_anything_runs(tmp_path: Path) -> None:
    record = run(tmp_path / "a", text=TWO.replace("seeds: 10", "seeds: 4"))
    with pytest.raises(UsageError, match=r"has 4 pairs of .* needs at least 5 in both"):
        choose_trials(record, "10", Wanted(margin=0.5))
    assert choose_trials(record, "10", Wanted(margin=0.5, undecided=True))[1].power == 0
    assert choose_trials(run(tmp_path / "b"), "1", Wanted(undecided=True))[1].power == 0


def test_evaluations_too_far_apart_are_named_before_anything_runs(tmp_path: Path) -> None:
    """Of trials whose weights are hashed the answer may still come; of a program's it cannot."""
    record = run(tmp_path / "a", noise=1e-3)
    chosen, terms = choose_trials(record, None)
    said = announced(record, reduce_plan(record.plan, chosen, Machine("cpu", 0, 2), 0, terms), terms)
    assert "if all trials end with the weights of the record, because evaluations are" in said
    with pytest.raises(UsageError, match="apart at the target, too far to resolve this margin") as told:
        choose_trials(without_weights(record), None)
    margin = float(str(told.value).partition("--margin ")[2].partition(";")[0])
    assert (choose_trials(without_weights(record), None, Wanted(margin=margin))[1].power or 0) >= 0.8
    with pytest.raises(UsageError, match="apart at the target"):
        choose_trials(without_weights(run(tmp_path / "b", text=ONE)), None)


def test_copies_of_two_trainings_are_two_trainings(tmp_path: Path) -> None:
    """Ten trials of one cell, of which nine are one training: no answer about its samples or quality."""
    record = run(tmp_path / "a", text=ONE)
    curves = {0: record.results[0].curve, 1: record.results[1].curve}
    twice = replace(record, results=tuple(item.model_copy(update={
        "curve": tuple(point.model_copy(update={"value": point.value + 1e-5 * min(item.repeat, 1)})
                       for point in curves[0]),
        "hashes": {**item.hashes, "final_weights": str(min(item.repeat, 1)), "init_weights": "same"}})
        for item in record.results))
    with pytest.raises(UsageError, match="has 2 trials of"):
        choose_trials(twice, None, Wanted(margin=0.5))


def test_one_cell_that_misses_its_target_is_not_reproduced(tmp_path: Path) -> None:
    one = run(tmp_path / "a", text=ONE)
    missed = make_record(tmp_path / "b", ONE.replace("LEVEL", "seeded"), lambda trial: Course(hits_at=None))
    found = answer(one, missed)
    assert found.answer == "not reproduced" and "Fisher's exact test" in found.text()
    crashed = make_record(tmp_path / "c", ONE.replace("LEVEL", "seeded"), lambda trial: Course(crash=True))
    assert answer(one, crashed).answer == "inconclusive"


def test_fewer_pairs_are_compared_with_the_same_seeds_of_the_record(tmp_path: Path) -> None:
    first, second = run(tmp_path / "a", noise=0.05, seed=1), run(tmp_path / "b", noise=1e-4, seed=2)
    found = answer(first, second, "5", TERMS.model_copy(update={"pairs": 5})).claims[0]
    assert found.change is not None
    shown = float(found.because.partition("against ")[2].split()[0])
    again = float(found.because.split()[1])
    assert again / shown == pytest.approx(found.change.ratio, rel=1e-3)
    assert "(the same seeds; the record's" in found.because and "(10 pairs))" in found.because


@pytest.mark.parametrize("wanted", [Wanted(margin=float("nan")), Wanted(interaction=float("nan"))])
def test_terms_that_are_no_numbers_are_refused(tmp_path: Path, wanted: Wanted) -> None:
    with pytest.raises(UsageError, match="--margin must be above 0"):
        choose_trials(run(tmp_path / "a"), None, wanted)


# ---- what "reproduced" does not say


def test_a_difference_that_the_new_run_does_not_find_is_named_beside_reproduced(tmp_path: Path) -> None:
    """An effect of 1 % that the record shows and the new run alone does not: within the margin, but not found again."""
    first, second = run(tmp_path / "a", 1.01, noise=0.002, seed=1), run(tmp_path / "b", 1.0, noise=0.01, seed=2)
    found = answer(first, second)
    assert found.answer == "reproduced", found.text()
    claim = found.claims[0]
    assert claim.alone is not None and claim.alone.record.verdict == "slower"
    assert "alone: the record slower, 1.0" in found.text() and "; the new run " in found.text()
    last = found.text().splitlines()[-1]
    assert "that the candidate is slower was not found again" in last
    assert "the whole effect of the record is smaller than the margin" in last
    assert "an interaction of session and cell of 0 % assumed" in last
    large = answer(run(tmp_path / "c", seed=1), run(tmp_path / "d", seed=2))
    assert large.claims[0].limits == () and "alone: the record slower" in large.text()


def test_two_cells_that_were_the_same_and_no_longer_are_is_named_beside_a_wide_margin(tmp_path: Path) -> None:
    first = run(tmp_path / "a", 1.0, seed=1)
    found = answer(first, run(tmp_path / "b", 1.2, seed=2), terms=Terms(pairs=10, margin=0.3))
    assert (found.answer, found.claims[0].limits) == ("reproduced", ("that both are the same was not found again",))
    assert answer(first, run(tmp_path / "c", 1.0, seed=2)).claims[0].limits == ()


def test_a_reproduction_of_fewer_pairs_finds_the_difference_by_itself(tmp_path: Path) -> None:
    """As a run it has no verdict of its own, because its pairs are a part of another's; beside the answer it has."""
    first, second = run(tmp_path / "a", seed=1), run(tmp_path / "b", seed=2, only=14)
    chosen, terms = choose_trials(first, "7", Wanted(margin=0.05))
    again = replace(second, plan=reduce_plan(first.plan, chosen, Machine("cpu", 0, 2), 0, terms), results=tuple(
        item for item in run(tmp_path / "c", seed=2).results if item.repeat < 7))
    claim = judge(first, again, chosen, terms).claims[0]
    assert claim.alone is not None and claim.alone.again.verdict == "slower" and claim.limits == ()


def test_records_that_may_have_been_chosen_for_their_verdict_are_a_caution(tmp_path: Path) -> None:
    first = run(tmp_path / "a", 1.008, noise=0.01, seed=3)
    p = answer(first, first).claims[0].alone
    assert p is not None and p.shows_difference
    assert "just significant (t test, p = 0.0" in answer(first, run(tmp_path / "b", 1.0, seed=3)).text()
    clear = run(tmp_path / "c", seed=1)
    assert "just significant" not in answer(clear, run(tmp_path / "d", seed=2)).text()
    low = TERMS.model_copy(update={"power": 0.3})
    said = judge(clear, run(tmp_path / "e", 1.95, seed=2), choose_trials(clear, None)[0], low).text()
    assert "to be found with 30 % only" in said


# ---- several claims, and claims beside cells that are judged by their hashes


FOUR = TWO[:TWO.index("primary:")].replace("[ddp, fsdp]", "[ddp, fsdp, {kind: deepspeed, stage: 1}, {kind: deepspeed, "
                                           "stage: 2}, {kind: deepspeed, stage: 3}]")


def test_a_declared_contrast_with_a_bitwise_cell_is_judged_beside_the_hashes(tmp_path: Path) -> None:
    """The cost of determinism: nothing else may take the place of the declared ratio."""
    text = TWO[:TWO.index("matrix:")].replace("  determinism: LEVEL\n", "") + """\
matrix:
  engine: [ddp, fsdp]
  determinism: [seeded, bitwise]
primary: {candidate: {engine: fsdp, determinism: bitwise}, baseline: {engine: fsdp, determinism: seeded}}
"""
    def made(root: Path, cost: float) -> Record:
        draw = np.random.default_rng(len(root.name))
        return make_record(root, text, course=lambda trial: Course(step_seconds=0.01 * float(
            np.exp(0.005 * draw.standard_normal())) * (cost if trial.choices.determinism == "bitwise" else 1.0)))

    first, dear = made(tmp_path / "a", 1.19), made(tmp_path / "bb", 2.3)
    chosen, terms = choose_trials(first, None, Wanted(margin=0.05))
    found = judge(first, dear, chosen, terms)
    assert found.answer == "not reproduced" and len(found.claims) == 1 and len(found.cells) == 2, found.text()
    assert found.claims[0].answer == "not reproduced" and {item.answer for item in found.cells} == {"reproduced"}
    said = announced(first, reduce_plan(first.plan, chosen, Machine("cpu", 0, 2), 0, terms), terms)
    assert said.startswith("judged by hashes: weights and evaluations bit for bit of 2 cells\njudged: time")


def test_times_of_cells_that_are_all_bitwise_are_not_judged_and_the_last_line_says_so(tmp_path: Path) -> None:
    first, slower = run(tmp_path / "a", level="bitwise"), run(tmp_path / "b", 2.4, level="bitwise")
    found = answer(first, slower)
    assert (found.answer, found.claims) == ("reproduced", ())
    assert found.text().splitlines()[-1] == (
        "results reproduced (weights and evaluations bit for bit; times, and ratios of them, are not judged)")


def test_the_announced_probability_is_that_of_all_claims_together(tmp_path: Path) -> None:
    draw = np.random.default_rng(3)
    record = make_record(tmp_path / "a", FOUR.replace("LEVEL", "seeded"), course=lambda _: Course(
        step_seconds=0.01 * float(np.exp(0.02 * draw.standard_normal()))))
    claims = claims_of(record.plan, [cell.cell_id for cell in record.plan.cells])
    alone = [settled_terms(record, [claim], 10, 0.06, undecided=True).power or 0 for claim in claims]
    both = settled_terms(record, claims, 10, 0.06, undecided=True).power
    assert len(claims) == 4 and both == pytest.approx(max(0.0, 1 - sum(1 - power for power in alone)))
    chosen, terms = choose_trials(record, None, Wanted(margin=0.15))
    said = announced(record, reduce_plan(record.plan, chosen, Machine("cpu", 0, 2), 0, terms), terms)
    assert "all 4 claims, if unchanged, are found to be reproduced with" in said and (terms.power or 0) >= 0.8
    with pytest.raises(UsageError, match="find all 4 claims, if unchanged, to be within"):
        choose_trials(record, "5", Wanted(margin=0.03))


@pytest.mark.slow
def test_the_verdicts_of_the_new_run_are_one_family_as_those_of_the_record_are(tmp_path: Path) -> None:
    """A record judged against itself has the same verdicts twice."""
    for seed in range(4):
        first = run(tmp_path / f"a{seed}", 1.012, noise=0.01, seed=seed, text=FOUR)
        for claim in answer(first, first).claims:
            assert claim.alone is not None and claim.alone.record.verdict == claim.alone.again.verdict


@pytest.mark.slow
def test_misses_share_the_error_of_no_over_the_claims(tmp_path: Path) -> None:
    """Six of ten misses of one cell have p = 0.011: enough for one claim, not for one of four."""
    def missing(root: Path, text: str) -> Record:
        return make_record(root, text.replace("LEVEL", "seeded"), lambda trial: Course(
            hits_at=None if trial.choices.engine.kind == "fsdp" and trial.repeat < 6 else 3))

    assert answer(run(tmp_path / "a", seed=1), missing(tmp_path / "b", TWO)).answer == "not reproduced"
    found = answer(run(tmp_path / "c", seed=1, text=FOUR), missing(tmp_path / "d", FOUR))
    assert found.answer == "inconclusive" and len(found.claims) == 4


def test_five_pairs_cannot_find_a_difference_again_by_themselves(tmp_path: Path) -> None:
    found = answer(run(tmp_path / "a", seed=1), run(tmp_path / "b", seed=2), "5", TERMS.model_copy(update={"pairs": 5}))
    assert found.answer == "reproduced" and "the new run has too few pairs to tell" in found.text()
    assert "5 pairs cannot show by themselves that the candidate is slower" in found.text().splitlines()[-1]


def test_five_pairs_find_sameness_again_if_they_can(tmp_path: Path) -> None:
    five = TERMS.model_copy(update={"pairs": 5})
    found = answer(run(tmp_path / "a", 1.0, seed=1), run(tmp_path / "b", 1.0, seed=2), "5", five)
    assert found.answer == "reproduced" and found.claims[0].limits == ()
    assert "; the new run same, " in found.text()
    four = answer(run(tmp_path / "c", 1.0, seed=1, text=FOUR), run(tmp_path / "d", 1.0, seed=2, text=FOUR), "5", five)
    assert four.claims[0].limits == ("5 pairs cannot show by themselves that both are the same",)


def test_a_declared_interaction_that_is_as_large_as_the_margin_is_the_reason(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="because the declared interaction alone is as large as the margin"):
        choose_trials(run(tmp_path / "a", noise=0.002), "10", Wanted(margin=0.05, interaction=0.05))


def test_failed_starts_and_open_ended_looks_stand_beside_the_answer(tmp_path: Path) -> None:
    first, second = run(tmp_path / "a", 0.7, seed=1), run(tmp_path / "b", 0.7, seed=2)
    fast = next(item for item in second.results if second.cell(item.cell_id).choices.engine.kind == "fsdp")
    crashed = next(item for item in second.attempts if item.trial_id == fast.trial_id)
    again = replace(second, results=tuple(item.model_copy(update={"attempt": 2}) if item is fast else item
                                          for item in second.results),
                    starts=(*(item.model_copy(update={"status": "crashed"}) if item is crashed else item
                              for item in second.starts), crashed.model_copy(update={"attempt": 2})))
    assert "the new run faster when it succeeds; failed starts 1 of 10 against 0 of 10" in answer(first, again).text()


# ---- bit for bit


def rewrite(record: Record, repeat: int, **hashes: str) -> Record:
    item = next(item for item in record.results if item.repeat == repeat)
    path = record.folder.result(item.trial_id)
    write_model(path, item.model_copy(update={"hashes": {**item.hashes, **hashes}}))
    assert read_model(path, Result).hashes["final_weights"]
    return read_record(record.folder.root)


def bits(root: Path, session: float = 1.0) -> Record:
    return run(root, level="bitwise", session=session, text=ONE)


def test_bitwise_is_judged_by_weights_whatever_the_times(tmp_path: Path) -> None:
    found = answer(bits(tmp_path / "a"), bits(tmp_path / "b", 3.0))
    assert (found.answer, found.claims, found.cells[0].equal_weights) == ("reproduced", (), 10)
    assert "not judged: time to the target of" in found.text()


@pytest.mark.parametrize(("name", "told"), [("final_weights", "final weights differ"), ("init_weights", "init weights"),
                                            ("data_order", "data order differ")])
def test_one_trial_with_other_bits_is_enough(tmp_path: Path, name: str, told: str) -> None:
    found = answer(bits(tmp_path / "a"), rewrite(bits(tmp_path / "b"), 7, **{name: "other"}))
    assert found.answer == "not reproduced"
    assert found.cells[0].because.startswith("seed 7: ") and told in found.cells[0].because


def test_the_earliest_parting_is_named(tmp_path: Path) -> None:
    first = rewrite(bits(tmp_path / "a"), 3, weights_step_1="s", weights_step_10="t")
    second = rewrite(bits(tmp_path / "b"), 3, weights_step_1="s", weights_step_10="u", final_weights="v")
    assert "weights step 10 differ" in answer(first, second).cells[0].because


def test_without_weights_at_the_end_bitwise_is_inconclusive(tmp_path: Path) -> None:
    second = make_record(tmp_path / "b", ONE.replace("LEVEL", "bitwise"), lambda trial: Course(crash=trial.repeat == 2))
    found = answer(bits(tmp_path / "a"), second)
    assert found.answer == "inconclusive" and "seed 2 ended as ok in the record and as crashed" in found.text()


def test_resumed_trials_are_a_caution(tmp_path: Path) -> None:
    first, second = run(tmp_path / "a", seed=1), run(tmp_path / "b", seed=2)
    lost = Resumed(attempt=1, step=60, samples=3840, lost_seconds=8.8, clock="monotonic")
    resumed = replace(second, results=tuple(item.model_copy(update={"warnings": (lost,)}) for item in second.results))
    assert "caution:" not in answer(first, second).text()
    assert "caution: " in answer(first, resumed).text()


# ---- what differs


def test_two_runs_alike_differ_in_nothing(tmp_path: Path) -> None:
    first, second = make_record(tmp_path / "a", only=4), make_record(tmp_path / "b", only=4)
    assert differences(first, second) == []


def test_order_seeds_are_information_and_no_difference(tmp_path: Path) -> None:
    roots = [make_record(tmp_path / name, only=4).folder for name in "ab"]
    assert diff_records(roots[0].root, roots[1].root).order_seeds is None
    plan = read_record(roots[1].root).plan.model_copy(update={"order_seed": 7})
    write_model(roots[1].plan, plan.model_copy(update={"order": tuple(planned_order(plan))}))
    found = diff_records(roots[0].root, roots[1].root)
    assert found.differences == () and found.order_seeds == OrderSeeds(first="20151102", second="7")
    last = found.text().splitlines()[-1]
    assert last == "for information: order seed: 20151102 -> 7 (every run draws its own)"


def test_a_place_that_a_bundle_does_not_name_is_no_difference(tmp_path: Path) -> None:
    found = []
    for name, place in (("a", "<temporary>/cache_of_it"), ("b", "/tmp/cache_of_it"), ("c", "/tmp/another"),
                        ("d", "<home>/of_it"), ("e", f"{Path.home()}/of_it"), ("f", "/home/of another/of_it")):
        root = make_record(tmp_path / name, only=4).folder
        settings = {"NCCL_TOPO_FILE": place, "TORCHINDUCTOR_CACHE_DIR": f"/somewhere/{name}"}
        write_model(root.environment, sample_environment().model_copy(update={"settings": settings}))
        found.append(read_record(root.root))
    assert differences(found[0], found[1]) == differences(found[1], found[0]) == differences(found[3], found[4]) == []
    assert differences(found[3], found[5]) == [], "of a bundle that another user packed only the last part is known"
    for first in found[:2]:
        (only,) = differences(first, found[2])
        assert (only.name, only.second) == ("NCCL_TOPO_FILE", "/tmp/another")


def test_every_area_is_named(tmp_path: Path) -> None:
    first, second = make_record(tmp_path / "a", only=4), make_record(
        tmp_path / "b", SUITE.replace("lr: 0.1", "lr: 0.2"), only=4)
    changed = sample_environment().model_copy(update={
        "packages": ("torch==2.14.0", "aiohttp==1", "alembic==1", "blinker==1", "flask==1", "gloo==1"),
        "libraries": {"torch": "2.14.0"}, "cpu": "Other", "governor": "powersave",
        "settings": {"OMP_NUM_THREADS": "4"}, "limits": {"cpu.max": "100000 100000"}, "repro_version": "1",
    })
    write_model(RunFolder(tmp_path / "b").environment, changed)
    found = {f"{item.area}: {item.name}: {item.first} -> {item.second}"
             for item in differences(first, read_record(second.folder.root))}
    for expected in ("libraries: torch: 2.13.0 -> 2.14.0", "libraries: gloo: absent -> 1",
                     "code: repro_version: 0 -> 1",
                     "hardware: cpu: Sample CPU -> Other", "hardware: governor: unknown -> powersave",
                     "settings: OMP_NUM_THREADS: 1 -> 4", "hardware: limit cpu.max: absent -> 100000 100000"):
        assert expected in found
    assert any(item.startswith("hyper-parameters: optimizer.lr") and item.endswith("0.1 -> 0.2") for item in found)
    assert any(item.startswith("experiment: digest") for item in found)
    lines = diff_records(tmp_path / "a", tmp_path / "b").text().splitlines()
    assert lines[lines.index("  torch: 2.13.0 -> 2.14.0") + 1] == \
        "  5 other packages, whose versions --json has: aiohttp, alembic, blinker, flask, gloo"
    between = between_executions(first, read_record(second.folder.root))
    assert {item.area for item in between} == {"code", "libraries", "hardware", "settings"}


# ---- what is chosen


def test_chosen_by_number_by_id_and_never_by_result(tmp_path: Path) -> None:
    record = make_record(tmp_path / "a")
    least = Wanted(undecided=True)
    assert {name for name, _ in choose_trials(record, None, least)[0]} == {record.plan.cells[3].cell_id,
                                                                         record.plan.cells[1].cell_id}
    assert {repeat for _, repeat in choose_trials(record, "2", least)[0]} == {0, 1}
    primary = {record.plan.cells[index].cell_id for index in (1, 3)}
    pair = [item for item in record.results if item.repeat == 2 and item.cell_id in primary]
    names = ",".join(f" {item.trial_id}, {item.trial_id}" for item in pair)
    chosen, terms = choose_trials(record, names, least)
    assert (chosen, terms.pairs) == ([(item.cell_id, 2) for item in pair], 1)
    other = next(item for item in record.results if item.cell_id == pair[1].cell_id and item.repeat == 3)
    for text, told in (("0", "--trials 0: must be from 1"), ("-3", "--trials -3: must be from 1"),
                       ("nonsense", "no trial with a result named"),
                       (",", "names no trial"), ("", "names no trial"), (pair[0].trial_id, "leave no pair of a claim"),
                       (f"{pair[0].trial_id},{other.trial_id}", "leave no seed in both cells")):
        with pytest.raises(UsageError, match=told):
            choose_trials(record, text)
    with pytest.raises(UsageError, match="holds no result"):
        choose_trials(make_record(tmp_path / "b", only=0), None)


def test_the_plan_keeps_names_and_order_and_drops_the_rest(tmp_path: Path) -> None:
    plan = make_record(tmp_path / "a", only=1).plan
    chosen = [(plan.cells[2].cell_id, 3), (plan.cells[0].cell_id, 1)]
    small = reduce_plan(plan, chosen, Machine("cpu", 0, 2), 0, TERMS)
    assert small.terms == TERMS
    assert {trial.trial_id for trial in small.trials()} == {
        trial.trial_id for trial in plan.trials() if (trial.cell_id, trial.repeat) in chosen}
    assert small.digest == plan.digest


def test_trials_that_cannot_run_here_are_reported_before_anything_runs(tmp_path: Path) -> None:
    plan = make_record(tmp_path / "a", only=1).plan
    cell = plan.cells[0]
    choices = cell.choices.model_copy(update={"device": "cuda"})
    plan = plan.model_copy(update={"cells": (cell.model_copy(update={"choices": choices}), *plan.cells[1:])})
    with pytest.raises(UsageError, match="device cuda is requested, and this machine has no usable GPU"):
        reduce_plan(plan, [(cell.cell_id, 0)], Machine("cpu", 0, 2), 0, TERMS)
