"""Tuned contenders over independent searches: a search is the unit, and one run of it has no verdict."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from repro.compare.findings import findings
from repro.compare.runs.runs import Compared, compare_runs
from repro.compare.runs.searches import over_searches
from repro.compare.runs.two_runs import Ran
from repro.core.errors import SuiteError, UsageError
from repro.record.folder.store import read_record
from repro.suite.model import Trial
from repro.suite.planning.plan import planned_order
from tests.hostile_records import invoke_words
from tests.made_tuned import TUNED, make_tuned, tuned_course
from tests.plans import planned
from tests.records import Course

PRIMARY = """\
primary:
  candidate: {workload: digits, optimizer: adamw}
  baseline: {workload: digits, optimizer: sgd}
"""


def declared(searches: int = 6, seed: int = 11, more: str = PRIMARY) -> str:
    text = TUNED.replace("master_seed: 11", f"master_seed: {seed}") + more
    return text.replace("  trials: 5\n", f"  trials: 5\n  searches: {searches}\n")


def slow(factor: float, luck: float = 0.0) -> object:
    """Courses by formula, those of adamw by a factor slower; `luck` makes what a search found better or worse."""

    def play(trial: Trial) -> Course:
        course = tuned_course(trial)
        found = 1 + luck * (hash(round(trial.choices.rate * 1e9)) % 101 / 50 - 1)
        own = factor if trial.choices.optimizer.kind == "adamw" else 1.0
        return replace(course, step_seconds=course.step_seconds * own * found)

    return play


def searched(root: Path, count: int = 6, factor: float = 1.0, luck: float = 0.0, **how: int) -> list[Path]:
    for number in range(count):
        make_tuned(root / f"s{number}", declared(seed=20 + number, **how), slow(factor, luck))  # type: ignore[arg-type]
    return [root / f"s{number}" for number in range(count)]


def over(runs: list[Path]) -> Compared:
    return compare_runs(runs)


def test_one_run_of_several_searches_has_no_verdict_and_says_what_to_do(tmp_path: Path) -> None:
    record = make_tuned(tmp_path / "one", declared(), slow(3.0))  # type: ignore[arg-type]
    found = findings(record)
    assert {item.verdict for item in found.comparisons} <= {"inconclusive", "incomparable"}
    assert all("one of 6 independent searches" in item.because for item in found.comparisons)
    assert not found.convergence


@pytest.mark.slow
def test_a_difference_over_six_searches_is_found_and_names_its_unit(tmp_path: Path) -> None:
    found = over(searched(tmp_path, factor=3.0))
    primary = next(item for item in found.comparisons if item.primary)
    assert (primary.verdict, primary.n, primary.spoken) == ("slower", 6, "slower")
    assert any("one independent search" in text for text in primary.cautions)


@pytest.mark.slow
def test_a_contest_over_searches_calls_nothing_faster_without_its_claims(tmp_path: Path) -> None:
    text = declared().replace("max_epochs: 8}", "max_epochs: 8, design: contest}").replace(
        "metric: tta_wall", "metric: accuracy")
    runs = []
    for number in range(6):
        record = make_tuned(tmp_path / f"s{number}", text.replace("master_seed: 11", f"master_seed: {20 + number}"),
                            slow(0.5))  # type: ignore[arg-type]
        poor = {cell.cell_id for cell in record.plan.cells if cell.training.optimizer.kind == "adamw"}
        runs.append(Ran(f"s{number}", record.plan, [item.model_copy(update={
            "status": "ok", "tta_wall": (1 if item.cell_id in poor else 2) * (1 + item.repeat / 100 + number / 50),
            "final": (0.85 if item.cell_id in poor else 0.95) + item.repeat / 1000}) for item in record.results]))
    primary = next(item for item in over_searches(runs) if item.primary)
    assert (primary.verdict, primary.ratio) == ("inconclusive", None)
    assert "s0: the candidate's claim of quality is not supported" in primary.because
    good = [replace(run, results=[item.model_copy(update={"final": 0.95 + item.repeat / 1000})
                                  for item in run.results]) for run in runs]
    assert next(item for item in over_searches(good) if item.primary).verdict == "faster"


@pytest.mark.slow
@pytest.mark.parametrize("number", [0, 3])
def test_a_contender_that_one_search_lost_is_named_and_not_left_out(tmp_path: Path, number: int) -> None:
    runs = [Ran(path.name, record.plan, record.results) for path in searched(tmp_path, factor=3.0)
            for record in [read_record(path)]]
    plan = runs[number].plan
    cells = tuple(cell for cell in plan.cells if not cell.label.startswith("digits, adamw"))
    left = plan.model_copy(update={"cells": cells, "order": ()})
    left = left.model_copy(update={"order": tuple(planned_order(left))})
    runs[number] = replace(runs[number], plan=left)
    found = over_searches(runs)
    primary = next(item for item in found if item.primary)
    assert (primary.verdict, primary.because) == ("inconclusive", f"one of the two was not scored in s{number}")
    assert [item.verdict for item in found if item is not primary] == ["slower"]


@pytest.mark.slow
def test_what_single_searches_find_is_no_difference_over_searches(tmp_path: Path) -> None:
    found = over(searched(tmp_path, luck=0.3))
    primary = next(item for item in found.comparisons if item.primary)
    assert primary.verdict == "inconclusive" and primary.n == 6


@pytest.mark.slow
def test_all_declared_searches_are_needed_and_each_once(tmp_path: Path) -> None:
    runs = searched(tmp_path)
    with pytest.raises(UsageError, match="declares 6 independent searches, and 5 runs are given"):
        over(runs[:5])
    with pytest.raises(UsageError, match="given twice"):
        over([*runs[:5], runs[0]])
    make_tuned(tmp_path / "again", declared(seed=20), lambda trial: replace(tuned_course(trial), step_seconds=0.02))
    with pytest.raises(UsageError, match="they are one search twice"):
        over([*runs[:5], tmp_path / "again"])
    make_tuned(tmp_path / "other", declared(seed=40).replace("trials: 5", "trials: 4"))
    with pytest.raises(UsageError, match="other: is no search of the suite"):
        over([*runs[:5], tmp_path / "other"])
    code, error, _ = invoke_words("compare", *map(str, runs[:5]))
    assert code == 2 and "\n" not in error.strip()


@pytest.mark.slow
def test_a_missed_target_in_a_search_withholds_its_figure(tmp_path: Path) -> None:
    runs = searched(tmp_path, count=5, factor=3.0)

    def miss(trial: Trial) -> Course:
        course = slow(3.0)(trial)  # type: ignore[operator]
        return replace(course, hits_at=None) if trial.repeat == 2 else course

    make_tuned(tmp_path / "s5", declared(seed=25), miss)
    found = over([*runs, tmp_path / "s5"])
    primary = next(item for item in found.comparisons if item.primary)
    assert primary.verdict not in ("slower", "faster") and "missed" in primary.because


@pytest.mark.parametrize("searches", [2, 5])
def test_too_few_searches_are_refused(tmp_path: Path, searches: int) -> None:
    with pytest.raises(SuiteError, match=f"{searches} searches can never decide: give at least 6, or 1"):
        planned(tmp_path, declared(searches=searches))


def test_searches_are_part_of_the_digest_and_one_is_none(tmp_path: Path) -> None:
    one, plain, six = (planned(tmp_path, text) for text in (declared(searches=1, more=""), TUNED, declared(more="")))
    assert one.digest == plain.digest != six.digest
