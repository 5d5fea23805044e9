"""The page, the command and the formats of imported speed-runs."""

from __future__ import annotations

import csv
import json
import re
import shutil
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from repro.reporters.published.view import render

from repro.audit.audit import audit
from repro.core.errors import OutputError
from repro.published.comparison.compare import compare_published
from repro.published.importing import import_results
from repro.published.speedrun.claims import judge_claims
from repro.published.store import RECORD, RESULTS, Published, read_published
from tests.in_process import called
from tests.records import make_record
from tests.unit.published.made_logs import figures, row
from tests.unit.published.made_speedruns import LOSSES, TIMES, Box, arm, runs, scaled

BAD = (3.2784, 3.2901, 3.2777, 3.2890, 3.2794, 3.2783)


def make(root: Path) -> Path:
    arm(root / "2025-01-01_First", runs(times=scaled(2.0)))
    arm(root / "2025-05-01_Bad", runs(losses=BAD, times=scaled(1.8)))
    (root / "2025-05-01_Bad" / "README.md").write_text("losses: (std=0.001, mean=3.2761)")
    shutil.copytree(root / "2025-01-01_First", root / "2025-06-01_Copy")
    arm(root / "2026-07-17_Two" / "baseline", runs())
    arm(root / "2026-07-17_Two" / "this_pr", runs(times=scaled(0.987), losses=[x - 1e-4 for x in LOSSES]))
    arm(root / "2026-07-19_Moved" / "baseline", runs(times=scaled(1.001)))
    arm(root / "2026-07-19_Moved" / "this_pr", runs(times=scaled(0.97), box=Box(bus=0x40)))
    cut = root / "2026-07-19_Moved" / "this_pr" / "00000001.txt"
    cut.write_text(cut.read_text()[:-2000])
    return root


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Published:
    root = tmp_path_factory.mktemp("speedruns")
    import_results("speedrun", make(root / "in"), root / "out")
    return read_published(root / "out")


def test_every_arm_is_a_row_with_its_exact_figures_and_verdicts(published: Published) -> None:
    page = render([published])
    claims = judge_claims(published)
    assert len(claims.arms) == 7
    for item in claims.arms:
        text = row(page, item.cell_id)
        values = [float(value) for value in re.findall(r'<data value="([^"]+)">', text)]
        for figure in (item.quality.mean, item.quality.p, item.seconds, item.time.ratio):
            assert figure is None or figure in values
        assert f">{item.quality.verdict}</span>" in text and f">{item.time.verdict}</span>" in text
    verdicts = {(item.record, item.arm): (item.quality.verdict, item.time.verdict) for item in claims.arms}
    assert verdicts["2026-07-17_Two", "this_pr"] == ("supported", "faster")
    assert verdicts["2026-07-19_Moved", "this_pr"] == ("cannot be tested", "not decided")


def test_what_is_not_supported_is_said_with_the_numbers(published: Published) -> None:
    page = unescape(render([published])).replace("<wbr>", "")
    section = page[page.index('id="i1-contest-open"'):page.index('id="i1-runs"')]
    for text in ("2025-05-01_Bad, this record: mean 3.28215, target 3.28, one-sided p = 0.798, n = 6: the mean is "
                 "above the target",
                 "README.md states a mean of 3.2761; the means of the logs here are: this record 3.28215",
                 "2025-06-01_Copy, this record: all its 6 logs are copies of others",
                 "2026-07-19_Moved, this_pr: 1 of 6 logs give no result (1 refused)"):
        assert text in section
    assert "cut: its last line is step" in page and "may still be true" in section


def test_a_complete_run_is_not_said_to_have_reached_the_target(published: Published) -> None:
    page = render([published])
    assert ">reached<" not in page and page.count('<span class="badge b-complete">complete</span>') == 35
    assert "MLCommons" not in page and "DAWNBench" not in page


def test_the_progression_holds_every_arm_that_is_no_baseline(published: Published) -> None:
    chart = figures(render([published]))["i1-t1-progression"]
    drawn = {(x, round(y, 6)) for trace in chart["data"] for x, y in zip(trace["x"], trace["y"], strict=True)}
    arms = judge_claims(published).arms
    assert drawn == {(item.date, round(item.seconds, 6)) for item in arms if item.seconds and not item.baseline}
    assert chart["layout"]["yaxis"]["type"] == "log" and chart["layout"]["xaxis"]["type"] == "date"
    assert {trace["name"] for trace in chart["data"]} == {
        "quality supported", "quality not supported", "quality cannot be tested"}


def test_same_folder_same_bytes_and_no_section_a_record(published: Published) -> None:
    page = render([published])
    assert page == render([read_published(published.folder)])
    assert page.count('<section class="published"') == 5


@pytest.mark.parametrize("name", ["<script>alert(1)<script>", '" onload="x', "a\u202eb", "{{ 7 * 7 }}"])
def test_foreign_names_are_text(tmp_path: Path, name: str) -> None:
    arm(tmp_path / "in" / "2025-01-01_First" / name, runs())
    import_results("speedrun", tmp_path / "in", tmp_path / "out")
    page = render([read_published(tmp_path / "out")])
    assert "<script>alert" not in page and 'onload="x' not in page and "\u202e" not in page and ">49<" not in page


def test_own_runs_stand_beside_them(published: Published, tmp_path: Path) -> None:
    own = make_record(tmp_path / "own")
    page = render([published], [own])
    assert page.count('<section class="own"') == 1 and "No ratio compares them with published results" in page


def test_the_command_prints_claims_and_writes_the_same_record(tmp_path: Path, published: Published) -> None:
    make(tmp_path / "in")
    done = called("import", "speedrun", tmp_path / "in", "--out", tmp_path / "out")
    assert done.exit_code == 0, done.output
    for text in ("2025-05-01_Bad, this record: quality not supported: mean 3.28215", "states a mean of 3.2761",
                 "refused  ", "35 results (35 ok, 0 missed, 0 invalid), 7 files refused"):
        assert text in done.output
    assert (tmp_path / "out" / RESULTS).read_bytes() == (published.folder / RESULTS).read_bytes()
    data = json.loads(called("import", "speedrun", tmp_path / "in", "--out", tmp_path / "other", "--alpha", "0.001",
                             "--target", "3.279", "--margin", "0.02", "--json").stdout)
    assert (data["contest"]["alpha"], data["contest"]["target"], data["contest"]["margin"]) == (0.001, 3.279, 0.02)
    assert {item["quality"]["verdict"] for item in data["arms"]} == {"not supported", "cannot be tested"}


@pytest.mark.parametrize("options", [["--alpha", "0.6"], ["--alpha", "nan"], ["--margin", "0"], ["--target", "inf"]])
def test_a_wrong_rule_is_one_line(tmp_path: Path, options: list[str]) -> None:
    make(tmp_path / "in")
    done = called("import", "speedrun", tmp_path / "in", "--out", tmp_path / "out", *options)
    assert done.exit_code == 2 and options[0] in done.output and not (tmp_path / "out").exists()


def test_compare_judges_arms_of_one_record_and_refuses_machines_and_records(published: Published) -> None:
    def contrast(record: str, other: str) -> Any:
        return compare_published([published.folder], baseline=f"round={record},system={other}",
                                 candidate="round=2026-07-17_Two,system=this_pr").contrasts[0].comparison
    found = contrast("2026-07-17_Two", "baseline")
    assert found.verdict == "faster" and found.ratio == pytest.approx(0.987, abs=1e-4)
    assert found.equivalence is None
    found = contrast("2025-01-01_First", "this record")
    assert found.verdict == "inconclusive" and "rounds differ" in found.because
    moved = compare_published([published.folder], baseline="round=2026-07-19_Moved,system=baseline").contrasts[0]
    assert moved.comparison.verdict == "inconclusive"
    assert "the logs name different machines" in moved.comparison.because


def test_audit_and_other_formats_read_them(published: Published, tmp_path: Path) -> None:
    assert audit(str(published.folder)).origin == "speedrun"
    done = called("report", published.folder, "--to", "markdown,latex,csv,jsonl,figures", "--out", tmp_path / "paper")
    assert done.exit_code == 0, done.output
    text = (tmp_path / "paper" / "published.md").read_text()
    assert "quality not supported: mean 3.28215" in text and text.count("| faster |") == 1
    claims = judge_claims(published).arms
    with next((tmp_path / "paper").rglob("*claims.csv")).open() as stream:
        rows = list(csv.DictReader(stream))
    assert [(row["quality"], row["time"], row["origin"]) for row in rows] == [
        (item.quality.verdict, item.time.verdict, "published") for item in claims]
    assert [float(row["p"]) for row in rows if row["p"]] == [
        item.quality.p for item in claims if item.quality.p is not None]
    assert [path.name for path in sorted((tmp_path / "paper" / "figures").iterdir())] == [
        "published-progression-1.pdf", "published-progression-1.svg", "published-progression-1.tex"]


@pytest.mark.parametrize(("name", "old", "new", "match"), [
    (RECORD, '"target": "3.28"', '"target": "x"', "target is not a number"),
    (RECORD, '"date": "2025-01-01"', '"date": "soon"', "date is no date"),
    (RECORD, '"alpha": 0.01', '"alpha": 2.0', "less than 0.5"),
    (RESULTS, f'"seconds": {TIMES[0]}, "run_seconds"', '"seconds": -1.0, "run_seconds"', "without a time"),
    (RESULTS, '"status": "ok"', '"status": "missed"', "missed, but with a time"),
])
def test_a_forged_import_is_one_line(
    published: Published, tmp_path: Path, name: str, old: str, new: str, match: str
) -> None:
    import hashlib

    shutil.copytree(published.folder, tmp_path / "out")
    for file in (RECORD, RESULTS):
        path = tmp_path / "out" / file
        text = json.dumps(json.loads(path.read_text())) if file == RECORD else path.read_text()
        assert file != name or old in text
        path.write_text(text.replace(old, new, 1) if file == name else text)
    record = json.loads((tmp_path / "out" / RECORD).read_text())
    record["results_sha256"] = hashlib.sha256((tmp_path / "out" / RESULTS).read_bytes()).hexdigest()
    (tmp_path / "out" / RECORD).write_text(json.dumps(record))
    with pytest.raises(OutputError, match=match):
        read_published(tmp_path / "out")
