"""Records with several baseline arms: every arm against each of them, on the published figures of all such records."""

from __future__ import annotations

import json
import re
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from repro.reporters.published.view import render
from scipy import stats
from statsmodels.stats.multitest import multipletests

from repro.published.importing import import_results
from repro.published.speedrun.claims import ArmClaim, Claims, judge_claims
from repro.published.store import Published, read_published
from repro.published.tables import claim_rows
from tests.unit.published.made_logs import row
from tests.unit.published.made_speedruns import LOSSES, PROGRAM, Box, Run, arm, runs, scaled

DATA = Path(__file__).parents[2] / "data" / "speedrun_baselines.json"
BASELINE = re.compile("baseline|prior", re.IGNORECASE)
Arms = dict[str, Any]


@pytest.fixture(scope="module")
def records() -> dict[str, Arms]:
    return json.loads(DATA.read_text())["records"]


@pytest.fixture(scope="module")
def published(records: dict[str, Arms], tmp_path_factory: pytest.TempPathFactory) -> Published:
    """The records, their logs written again from the figures."""
    root = tmp_path_factory.mktemp("records")
    for record, arms in records.items():
        for name, figures in arms.items():
            arm(root / "in" / record / name, [
                Run(loss, milliseconds / 1e3, figures["steps"], 1000, program=f"# {name}\n{PROGRAM}",
                    box=Box(gpus=figures["gpus"])) for loss, milliseconds in figures["runs"]])
    import_results("speedrun", root / "in", root / "out")
    return read_published(root / "out")


@pytest.fixture(scope="module")
def claims(published: Published) -> Claims:
    return judge_claims(published)


def given(claims: Claims) -> dict[tuple[str, str, str], tuple[ArmClaim, Any]]:
    """(record, arm, baseline) -> claim."""
    names = {item.cell_id: item for item in claims.arms}
    return {(item.record, item.arm, names[time.against].arm): (item, time)
            for item in claims.arms for time in item.times if time.against}


def wanted(records: dict[str, Arms]) -> dict[tuple[str, str, str], list[np.ndarray]]:
    """(record, arm, baseline of as many GPUs) -> logarithms of their seconds."""
    return {(record, ours, theirs): [np.log([ms / 1e3 for _, ms in arms[name]["runs"]]) for name in (ours, theirs)]
            for record, arms in records.items() for ours, theirs in product(arms, arms)
            if not BASELINE.search(ours) and BASELINE.search(theirs) and arms[ours]["gpus"] == arms[theirs]["gpus"]}


@pytest.mark.slow
def test_every_ratio_to_every_baseline_is_there_and_is_scipys(records: dict[str, Arms], claims: Claims) -> None:
    found, expected = given(claims), wanted(records)
    several = [key for key in expected if sum(BASELINE.search(name) is not None for name in records[key[0]]) > 1]
    assert (len(expected), len(several)) == (37, 23)
    assert found.keys() == expected.keys()
    for key, (ours, theirs) in expected.items():
        time = found[key][1]
        assert time.ratio == pytest.approx(np.exp(ours.mean() - theirs.mean()), rel=1e-9)
        if len(theirs) > 1:
            welch = stats.ttest_ind(ours, theirs, equal_var=False)
            assert time.p == pytest.approx(welch.pvalue, abs=1e-9, rel=1e-6)
            assert time.interval == pytest.approx(np.exp(list(welch.confidence_interval(0.95))), rel=1e-9)


def test_all_of_them_are_corrected_together(claims: Claims) -> None:
    decided = [time for _, time in given(claims).values() if time.p_adjusted is not None]
    adjusted = multipletests([time.p for time in decided], method="holm")[1]
    assert [time.p_adjusted for time in decided] == pytest.approx(list(adjusted), rel=1e-9)
    assert len(decided) > 25


def test_the_baseline_of_equal_steps_comes_first(records: dict[str, Arms], claims: Claims) -> None:
    names = {item.cell_id: item.arm for item in claims.arms}
    for item in claims.arms:
        steps = [records[item.record][names[time.against]]["steps"] for time in item.times if time.against]
        equal = [count == records[item.record][item.arm]["steps"] for count in steps]
        assert equal == sorted(equal, reverse=True)
    gated = {item.arm: item for item in claims.arms if item.record == "2026-04-29_XSAGatedLayers"}["this_pr_v1-s1410"]
    assert [names[time.against] for time in gated.times] == ["baseline-s1410", "baseline-s1440"]
    assert [time.verdict for time in gated.times] == ["slower", "faster"]


def test_page_text_and_table_show_every_ratio(published: Published, claims: Claims) -> None:
    page = render([published])
    for (_, _, baseline), (item, time) in given(claims).items():
        text = row(page, item.cell_id)
        assert f'<data value="{time.ratio!r}">' in text and f">{time.verdict}</span>" in text
        assert f"to {baseline}" in text.replace("<wbr>", "")
    rows = [(line["cell_id"], line["against"], line["ratio"]) for line in claim_rows(published)]
    assert sorted((item.cell_id, time.against, time.ratio) for _, (item, time) in given(claims).items()) == sorted(
        line for line in rows if line[1])


def test_a_baseline_on_other_accelerators_is_left_out_where_there_is_one_on_the_same(tmp_path: Path) -> None:
    for name, gpus, factor in (("baseline", 8, 1.0), ("baseline-1x", 1, 7.0), ("pr", 8, 0.98)):
        arm(tmp_path / "in" / "2026-07-17_A" / name, runs(
            times=scaled(factor), losses=[loss - factor / 1e4 for loss in LOSSES], box=Box(gpus=gpus)))
    import_results("speedrun", tmp_path / "in", tmp_path / "out")
    (time,) = {item.arm: item for item in judge_claims(read_published(tmp_path / "out")).arms}["pr"].times
    assert time.verdict == "faster" and time.ratio == pytest.approx(0.98, abs=1e-3)
