"""Many contrasts: one is primary, the others are corrected by Holm over all shown ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from repro.compare import Comparison, compare
from repro.core.machine import Machine
from repro.record.result.results import Result
from repro.suite.planning.plan import Plan
from tests.made_cells import fine_bracket
from tests.plans import planned
from tests.records import SUITE

FACTORS = (0.98, 1.0, 1.02, 1.01, 0.99)


def plan_of(folder: Path, seeds: int, text: str = SUITE) -> Plan:
    return planned(folder, text.replace("seeds: 6", f"seeds: {seeds}"), machine=Machine("cpu", 0, 8))


def compared(plan: Plan, seconds: Callable[[str, int, int], float]) -> dict[str, Comparison]:
    """z2/d2 -> Comparison, ...; `seconds`(engine, processes, repeat)."""
    names = {cell.cell_id: f"{'z' if cell.choices.engine.kind == 'deepspeed' else 'd'}{cell.choices.processes}"
             for cell in plan.cells}
    found = []
    for item in plan.trials():
        value = seconds(item.choices.engine.kind, item.choices.processes, item.repeat)
        found.append(Result(trial_id=item.trial_id, cell_id=item.cell_id, repeat=item.repeat, attempt=1, status="ok",
                            tta_wall=value, bracket=fine_bracket(value)))
    return {f"{names[item.candidate]}/{names[item.baseline]}": item for item in compare(plan, found)}


def clear(engine: str, processes: int, repeat: int) -> float:
    """Deepspeed twice as slow, two processes twice as fast, a little spread."""
    step = repeat + (1 if engine == "ddp" else 2) * processes
    return (1.0 if engine == "ddp" else 2.0) / processes * FACTORS[step % 5]


def test_holm_is_over_shown_contrasts_without_the_primary(tmp_path: Path) -> None:
    found = list(compared(plan_of(tmp_path, 8), clear).values())
    assert [item.primary for item in found] == [True, False, False, False]
    assert [item.family for item in found] == [1, 3, 3, 3]
    assert found[0].p_adjusted is None
    assert [item.p for item in found] == [2 / 2**8] * 4
    assert [item.p_adjusted for item in found[1:]] == [3 * 2 / 2**8] * 3
    assert [item.verdict for item in found] == ["slower", "slower", "faster", "faster"]
    assert "p = 0.00781 (the least of 8 pairs), 0.0234 after Holm over 3 contrasts" in found[1].because


def test_contrasts_are_exploratory_if_holm_cannot_reach_significance(tmp_path: Path) -> None:
    found = list(compared(plan_of(tmp_path, 6), clear).values())
    assert [item.verdict for item in found] == ["slower", *["exploratory"] * 3]
    assert found[1].because == "6 pairs cannot be significant after Holm over the 3 contrasts shown; 7 can"
    assert found[1].settles == "declare at least 7 pairs in a suite before its first run"
    assert found[1].ratio is not None and found[1].interval is not None


def test_too_few_pairs_for_one_contrast_alone_say_what_all_together_need(tmp_path: Path) -> None:
    first, *others = compared(plan_of(tmp_path, 5), clear).values()
    alone = "5 pairs cannot be significant at 5 % (exact floor p = 0.0625); "
    assert (first.verdict, first.because) == ("inconclusive", f"{alone}6 can")
    assert {(item.verdict, item.because) for item in others} == {
        ("exploratory", f"{alone}3 contrasts together need 7")}


def test_without_a_primary_all_stand_in_the_family(tmp_path: Path) -> None:
    found = list(compared(plan_of(tmp_path, 8, SUITE[:SUITE.index("primary:")]), clear).values())
    assert [item.family for item in found] == [4] * 4
    assert not any(item.primary for item in found)
    assert {item.p_adjusted for item in found} == {4 * 2 / 2**8}


def test_contrasts_without_p_count_in_the_family(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, 8)
    alone = {cell.cell_id for cell in plan.cells if cell.choices.engine.kind == "ddp"}
    found = [Result(trial_id=item.trial_id, cell_id=item.cell_id, repeat=item.repeat, attempt=1,
                    status="ok" if item.cell_id in alone else "crashed",
                    tta_wall=clear("ddp", item.choices.processes, item.repeat) if item.cell_id in alone else None)
             for item in plan.trials()]
    scaled = next(item for item in compare(plan, found) if item.p is not None)
    assert (scaled.family, scaled.p_adjusted) == (3, pytest.approx(3 * 2 / 2**8))


def test_another_metric_or_baseline_than_declared_is_not_primary(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, 8)
    found = [Result(trial_id=item.trial_id, cell_id=item.cell_id, repeat=item.repeat, attempt=1, status="ok",
                    tta_wall=1.0, tta_train=clear(item.choices.engine.kind, item.choices.processes, item.repeat))
             for item in plan.trials()]
    other = compare(plan, found, "tta_train")
    assert not any(item.primary for item in other)
    assert {item.family for item in other} == {4}
    said = [[text for text in item.cautions if "not declared" in text] for item in (other[0], compare(plan, found)[0])]
    assert said == [["the metric tta_train was not declared: the best of k of them shows a difference where there is "
                     "none in up to 1 - 0.95^k (3: 14 %)"], []]
    against_one = compare(plan, found, baseline={"engine": "ddp", "processes": 1})
    assert not any(item.primary for item in against_one)
    assert all("this baseline was not declared" in " ".join(item.cautions) for item in against_one)
    assert {item.baseline_label for item in against_one} == {"ddp, 1 process"}
    assert len(against_one) == 3


def test_the_margin_of_the_suite_is_used_and_keeps_old_digests(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, 8)
    assert plan.suite.margin == 0.05
    assert plan_of(tmp_path, 8, SUITE + "margin: 0.05\n").digest == plan.digest
    wide = plan_of(tmp_path, 8, SUITE + "margin: 0.2\nhorizon: 60\n")
    assert wide.digest != plan.digest
    assert wide.cells == plan.cells
    found = compared(wide, lambda engine, processes, repeat: FACTORS[(repeat * processes + len(engine)) % 5])
    assert {item.equivalence.margin for item in found.values() if item.equivalence} == {0.2}
    assert found["z2/d2"].verdict == "same"
    assert found["z2/d2"].p_adjusted is None
