"""Contests: the claim of each cell over all of its declared runs, and what it means for a comparison."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from scipy import stats as scipy_stats

from repro.compare import Comparison, compare
from repro.compare.design.power import power
from repro.compare.design.standing import claims
from repro.compare.figures import Claim
from repro.compare.runs.merge import unlike
from repro.compare.runs.two_runs import Ran, versus_several
from repro.core.machine import Machine
from repro.record.result.results import Result
from repro.suite.planning.plan import Plan
from tests.plans import planned, suite
from tests.records import SUITE as TRAINING
from tests.records import make_record, sample_environment

CONTEST_OF_TRAINING = TRAINING.replace("max_epochs: 8}", "max_epochs: 8, design: contest}")
GOOD = (3.2781, 3.2775, 3.2790, 3.2783, 3.2778, 3.2786)
POOR = (3.2811, 3.2795, 3.2806, 3.2799, 3.2809, 3.2801)
TIMES = (1.001, 0.999, 1.0005, 1.0, 0.9995, 1.0002)


def plan_of(folder: Path, seeds: int = 6, direction: str = "lower", design: str = "contest") -> Plan:
    (folder / "train.py").write_text("")
    pair = "candidate: {parameters.lr: 2}, baseline: {parameters.lr: 1}"
    return planned(folder, suite(
        "contest", f"matrix: {{parameters.lr: [1, 2]}}\nbaseline: {{parameters.lr: 1}}\nprimary: {{{pair}}}\n",
        seeds=seeds, workload=None, batch=None, optimizer=None, evaluate_every=None, parameters="{lr: 1}",
        engine="{kind: program, run: [python, train.py, \"{lr}\"]}", stop=f"{{target: 3.28, design: {design}}}",
        evaluation=f"{{pattern: 'loss (?P<value>\\S+)', metric: loss, direction: {direction}}}"),
        machine=Machine("cpu", 0, 8))


def ran(plan: Plan, baseline: Sequence[float | None] = GOOD, candidate: Sequence[float | None] = GOOD,
        ratio: float = 0.98, ends: str = "crashed", second: float = 1.0, **changes: Any) -> list[Result]:
    """Return one run a value; None: ended as `ends`, without a quality."""
    found = []
    for place, (cell, values) in enumerate(zip(plan.cells, (baseline, candidate), strict=True)):
        for repeat, value in enumerate(values):
            time = 100 * second * ratio ** place * TIMES[(repeat + place) % 6]
            figures = {} if value is None else {"tta_wall": time, "final": value, "run_seconds": time}
            found.append(Result.model_validate({
                "trial_id": f"{cell.cell_id}-{repeat}", "cell_id": cell.cell_id, "repeat": repeat, "attempt": 1,
                "status": "ok" if value is not None else ends, **figures, **changes}))
    return found


def primary(plan: Plan, results: Sequence[Result], **more: Any) -> Comparison:
    return next(item for item in compare(plan, results, **more) if item.primary or more)


def of_candidate(plan: Plan, results: Sequence[Result]) -> Claim:
    return claims(plan, results)[1]


def test_the_claim_has_the_figures_of_scipys_one_sided_t_test(tmp_path: Path) -> None:
    plan = plan_of(tmp_path)
    for values, verdict in ((GOOD, "supported"), (POOR, "not supported")):
        found = of_candidate(plan, ran(plan, candidate=values))
        wanted = scipy_stats.ttest_1samp(values, 3.28, alternative="less")
        assert (found.verdict, found.n, found.declared, found.alpha) == (verdict, 6, 6, 0.01)
        assert found.mean == pytest.approx(sum(values) / 6, abs=1e-9)
        assert found.p == pytest.approx(wanted.pvalue, abs=1e-9)
        assert found.interval is not None and found.interval.low < found.mean < found.interval.high
    assert found.because.endswith("n = 6: the mean is above the target")
    assert found.statement == "mean loss of at most 3.28 over all runs, p < 0.01"


def test_a_higher_quality_is_claimed_from_the_other_side(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, direction="higher")
    assert of_candidate(plan, ran(plan, candidate=[6.56 - value for value in GOOD])).supported
    below = of_candidate(plan, ran(plan, candidate=GOOD))
    assert not below.supported and below.because.endswith("the mean is below the target")


def test_other_designs_claim_nothing(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, design="fixed_budget")
    assert claims(plan, ran(plan)) == ()


@pytest.mark.parametrize(("ends", "verdict", "because"), [
    ("crashed", "cannot be tested", "of 6 declared runs 1 crashed, and the claim is about all of them"),
    ("hung", "cannot be tested", "of 6 declared runs 1 hung, and the claim"),
    ("invalid", "cannot be tested", "of 6 declared runs 1 was invalid, and the claim"),
    ("diverged", "not supported", "of 6 declared runs 1 diverged, so there is no mean over all runs"),
    ("timed_out", "not supported", "of 6 declared runs 1 ran into the time limit, so there is no mean over all runs"),
    ("out_of_memory", "not supported", "of 6 declared runs 1 ran out of memory, so there is no mean over all runs"),
])
def test_a_run_without_a_quality_is_never_left_out(tmp_path: Path, ends: str, verdict: str, because: str) -> None:
    """Five runs alone would support the claim."""
    plan = plan_of(tmp_path)
    results = ran(plan, candidate=(*GOOD[:5], None), ends=ends)
    found = of_candidate(plan, results)
    assert (found.verdict, found.n, found.mean, found.p) == (verdict, 5, None, None)
    assert found.because.startswith(because)
    assert (primary(plan, results).verdict, primary(plan, results).ratio) == ("inconclusive", None)


def test_a_run_that_did_not_run_is_missed_and_a_seed_counts_once(tmp_path: Path) -> None:
    plan = plan_of(tmp_path)
    found = of_candidate(plan, ran(plan, candidate=GOOD[:4]))
    assert (found.verdict, found.because) == (
        "cannot be tested", "of 6 declared runs 2 did not run, and the claim is about all of them")
    twice = [*ran(plan), ran(plan)[-1]]
    assert of_candidate(plan, twice).because == "seed 5 appears twice"


@pytest.mark.parametrize(("values", "because"), [
    ((3.27,) * 6, "all 6 values of loss are equal: a t test needs values that differ"),
    ((3.27,), "one run: a t test needs at least two"),
])
def test_without_a_spread_nothing_can_be_tested(tmp_path: Path, values: tuple[float, ...], because: str) -> None:
    plan = plan_of(tmp_path, len(values))
    found = of_candidate(plan, ran(plan, candidate=values, baseline=GOOD[:len(values)]))
    assert (found.verdict, found.because) == ("cannot be tested", because)


def test_runs_started_again_are_said(tmp_path: Path) -> None:
    plan = plan_of(tmp_path)
    results = ran(plan)
    results[-1] = results[-1].model_copy(update={"attempt": 2})
    assert of_candidate(plan, results).cautions[0].startswith("1 of its runs were started again after an interruption")
    assert any(text.startswith("candidate: 1 of its runs") for text in primary(plan, results).cautions)


# ---- comparisons


def test_two_percent_are_faster_and_not_the_same(tmp_path: Path) -> None:
    plan = plan_of(tmp_path)
    found = primary(plan, ran(plan))
    assert (found.metric, found.verdict) == ("end_wall", "faster")
    assert found.ratio == pytest.approx(0.98, rel=1e-3) and found.grid is None
    assert "same" not in found.because
    same = primary(plan, ran(plan, ratio=1.0))
    assert (same.verdict, same.equivalence and same.equivalence.margin) == ("same", 0.005)


def test_a_candidate_whose_quality_is_not_shown_is_not_called_faster(tmp_path: Path) -> None:
    plan = plan_of(tmp_path)
    found = primary(plan, ran(plan, candidate=POOR))
    assert (found.verdict, found.refused, found.ratio) == ("inconclusive", True, None)
    assert "candidate's claim of quality is not supported (mean loss of at most 3.28" in found.because
    assert "mean 3.28035" in found.because and "n = 6" in found.because


def test_a_baseline_whose_quality_is_not_shown_is_a_caution(tmp_path: Path) -> None:
    plan = plan_of(tmp_path)
    found = primary(plan, ran(plan, baseline=POOR))
    assert found.verdict == "faster"
    assert any(text.startswith("the baseline's claim of quality is not supported") for text in found.cautions)


def test_final_qualities_are_compared_whatever_is_claimed(tmp_path: Path) -> None:
    plan = plan_of(tmp_path)
    found = primary(plan, ran(plan, candidate=POOR), metric="accuracy")
    assert found.verdict == "higher" and not found.refused
    assert any(text.startswith("the candidate's claim of quality is not supported") for text in found.cautions)


def test_runs_as_units_need_the_claim_of_every_run_of_the_candidate(tmp_path: Path) -> None:
    plan = plan_of(tmp_path)
    environments = [sample_environment().model_copy(update={"started_ms": float(number)}) for number in range(10)]
    runs = [Ran(f"r{number}", plan, ran(plan, second=1 + number % 2 / 20 + number ** 2 / 1e5), environments[number])
            for number in range(10)]
    before, after = ([runs[number] for number in side] for side in ((0, 3, 4, 7, 8), (1, 2, 5, 6, 9)))  # ABBA
    assert not any(item.refused for item in versus_several(before, after))
    poor = Ran("r9", plan, ran(plan, candidate=POOR), environments[9])
    found = versus_several(before, [*after[:-1], poor])
    assert [item.refused for item in found] == [False, True]
    assert found[1].because.startswith("r9: the candidate's claim of quality is not supported")


def test_runs_of_two_commands_are_not_merged_into_one_contest(tmp_path: Path) -> None:
    """More runs after a look at the first ones would be a smaller or a chosen sample."""
    first = make_record(tmp_path / "a", CONTEST_OF_TRAINING)
    assert unlike(first, make_record(tmp_path / "b", CONTEST_OF_TRAINING)).startswith("a contest: ")
    assert unlike(make_record(tmp_path / "c"), make_record(tmp_path / "d")) == ""


def test_a_pilot_gives_its_spread_whatever_its_quality(tmp_path: Path) -> None:
    """The claim of a contest is not tested in a pilot, which has too few runs for it."""
    record = make_record(tmp_path / "pilot", CONTEST_OF_TRAINING)
    assert not any(claim.supported for claim in claims(record.plan, record.results))
    assert all(item.sd_log is not None for item in power(record.plan, record).contrasts)
    assert "a difference of 0.5 %" in power(record.plan, record).text()
