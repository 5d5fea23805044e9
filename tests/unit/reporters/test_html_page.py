"""The HTML report: a pure function of the record, with compare's figures and nothing of the machine."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from repro.compare import compare, summarize
from repro.compare.findings import findings
from repro.record.folder.store import Record, read_record
from repro.suite.model import Trial
from tests.records import SUITE, Course, make_record
from tests.unit.reporters.parsed_page import Page, figures, page, render, rough, sample, trials_of

__all__ = ["page", "rough", "sample"]  # fixtures

SECTIONS = ("cells", "curves", "speedup", "phases", "communication", "scaling", "settings", "effective", "parity",
            "skipped", "trust", "machine", "data", "attempts", "trials", "reproduce", "verdicts")


@pytest.fixture(scope="module")
def rough_html(rough: Record, tmp_path_factory: pytest.TempPathFactory) -> str:
    return render(rough, tmp_path_factory.mktemp("rough-page"))


@pytest.fixture(scope="module")
def rough_page(rough_html: str) -> Page:
    return Page(rough_html)


def test_same_record_gives_same_bytes_in_one_file(rough: Record, rough_html: str, tmp_path: Path) -> None:
    render(read_record(rough.folder.root), tmp_path)
    assert render(rough, tmp_path) == rough_html
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


ELSEWHERE = """
import sys
from pathlib import Path
from repro.core import registry
from repro.record.folder.store import read_record
registry.load("reporter", "html")().write(read_record(Path(sys.argv[1])), Path(sys.argv[2]))
"""


@pytest.mark.slow
def test_other_place_language_and_time_zone_give_the_same_bytes(
    rough: Record, rough_html: str, tmp_path: Path
) -> None:
    root = Path(__file__).parents[3]
    for index, (zone, language) in enumerate([("Pacific/Chatham", "tr_TR.UTF-8"), ("America/St_Johns", "C")]):
        place = tmp_path / f"place {index}"
        place.mkdir()
        settings = {**os.environ, "TZ": zone, "LANG": language, "LC_ALL": language, "PYTHONHASHSEED": str(index + 7),
                    "PYTHONPATH": str(root)}
        out = place / "out"
        subprocess.run([sys.executable, "-c", ELSEWHERE, str(rough.folder.root), str(out)], cwd=place, env=settings,
                       check=True, timeout=120)
        assert (out / "report.html").read_bytes() == rough_html.encode()


@pytest.mark.parametrize("section", SECTIONS)
def test_every_section_is_there_once(page: Page, section: str) -> None:
    assert page.ids.count(section) == 1


def test_ids_are_unique_and_every_inner_link_leads_somewhere(page: Page) -> None:
    assert len(page.ids) == len(set(page.ids))
    inner = {attrs["href"] for tag, attrs in page.elements if tag == "a" and (attrs["href"] or "").startswith("#")}
    assert {str(link)[1:] for link in inner} <= set(page.ids)


def test_headline_states_the_primary_contrast(page: Page, sample: Record) -> None:
    primary = compare(sample.plan, sample.results)[0]
    assert primary.primary and primary.interval
    shown = " ".join(page.text.replace("\N{NO-BREAK SPACE}", " ").split())
    low, high = primary.interval.low, primary.interval.high
    assert (
        f"deepspeed (stage=1), 2 processes takes {primary.ratio:.2f} \N{MULTIPLICATION SIGN} as long as ddp, "
        f"2 processes to reach top1 of at least 0.9 (6 pairs, 95 % interval {low:.2f} to {high:.2f}): slower"
    ) in shown
    assert primary.because in shown


@pytest.mark.parametrize(("metric", "words", "sides"), [
    ("throughput", "2 processes has 0.85 \N{MULTIPLICATION SIGN} the throughput of ddp, 2 processes (6 pairs, 95 %",
     "Below 1 the candidate is slower"),
    ("accuracy", "No result for deepspeed (stage=1), 2 processes against ddp, 2 processes (final quality, 6 pairs): "
     "inconclusive",
     "Below 1 the candidate is lower"),
    ("samples", "and ddp, 2 processes to reach top1 of at least 0.9: a ratio of 1.00 \N{MULTIPLICATION SIGN}",
     "Below 1 the candidate is faster"),
])
def test_what_is_no_time_is_not_called_one(tmp_path: Path, metric: str, words: str, sides: str) -> None:
    record = make_record(tmp_path / "run", SUITE + f"  metric: {metric}\n")
    text = " ".join(Page(render(record, tmp_path)).text.replace("\N{NO-BREAK SPACE}", " ").split())
    assert words in text
    assert sides in text
    assert "Ratio of times" not in text


@pytest.mark.parametrize(("which", "shown"), [("sample", "page"), ("rough", "rough_page")])
def test_figures_are_exactly_those_of_compare(which: str, shown: str, request: pytest.FixtureRequest) -> None:
    record: Record = request.getfixturevalue(which)
    page: Page = request.getfixturevalue(shown)
    wanted: set[float] = set()
    for cell in record.plan.cells:
        summary = summarize(cell, record.of_cell(cell.cell_id))
        wanted |= {value for value in (summary.median, summary.median_epochs, summary.median_samples_per_second,
                                       summary.median_final) if value is not None}
        wanted |= {summary.interval.low, summary.interval.high} if summary.interval else set()
    for item in compare(record.plan, record.results):
        wanted |= {item.ratio, item.speedup} - {None}
        wanted |= {item.interval.low, item.interval.high} if item.interval else set()
    for result in record.results:
        wanted |= {value for value in (result.tta_wall, result.tta_train, result.tta_cold) if value is not None}
    assert len(wanted) > 40
    assert wanted <= page.values


def test_no_interval_or_median_if_trials_missed(rough_page: Page) -> None:
    text = rough_page.text
    assert "not every trial reached the target" in text
    assert "not reached" in text
    assert "3 of 8" in text and "5 missed" in text and "1 crashed" in text


def test_failures_come_first(rough_page: Page) -> None:
    page = rough_page
    levels = [attrs["class"] for tag, attrs in page.elements
              if tag == "li" and attrs.get("class") in ("fail", "warn", "note")]
    assert levels[0] == "fail"
    assert levels == sorted(levels, key=("fail", "warn", "note").index)
    classes = [attrs.get("class") or "" for tag, attrs in page.elements if tag == "tr"]
    rows = [name for name in classes if name.startswith("st-")]
    assert rows[:6].count("st-ok") == 0
    assert "RuntimeError: made to fail" in page.text


CASES: dict[str, tuple[dict[str, Any], str]] = {
    "nothing": ({"only": 0}, "0 of 24 trials so far"),
    "partial": ({"only": 9}, "9 of 24 trials so far"),
    "crashed": ({"course": lambda trial: Course(crash=True)}, "24 trials: rank 0: RuntimeError: made to fail"),
    "missed": ({"course": lambda trial: Course(hits_at=None)}, "24 trials: top1 after 8 epochs"),
    "one cell": ({"suite_text": SUITE.split("matrix:")[0].replace("seeds: 6", "seeds: 3")}, "make a smoke test"),
}


@pytest.mark.parametrize("case", CASES)
def test_odd_records_are_reported_all_the_same(case: str, tmp_path: Path) -> None:
    arguments, sentence = CASES[case]
    page = Page(render(make_record(tmp_path / "run", **arguments), tmp_path / "out"))
    assert sentence in page.text
    assert set(SECTIONS) - set(page.ids) <= {"scaling"}, "only what is there to show"
    if case != "partial":
        assert " x the time" not in page.text.split("What to know")[0]


@pytest.mark.slow
def test_forty_cells_are_distinguishable(tmp_path: Path) -> None:
    suite = SUITE.replace("[1, 2]", "[1, 2, 4, 8]").replace("seeds: 6", "seeds: 1")
    suite = suite.replace("matrix:", "matrix:\n  batch.global: [32, 64, 128, 256, 512]")
    suite = suite[:suite.index("primary:")]
    record = make_record(tmp_path / "run", suite)
    assert len(record.plan.cells) == 40
    page = Page(render(record, tmp_path / "out"))
    lines = [trace for figure in figures(page).values() for trace in trials_of(figure)]
    looks = {trace["legendgroup"]: (trace["line"]["color"], trace["line"]["dash"], trace["marker"]["symbol"][0])
             for trace in lines}
    assert len(set(looks.values())) == 40


def test_an_interval_beyond_the_drawing_ends_in_an_arrow(tmp_path: Path) -> None:
    def swinging(trial: Trial) -> Course:
        return Course(0.01 * (3 if trial.choices.engine.kind == "deepspeed" and trial.repeat else 1))

    record = make_record(tmp_path / "run", SUITE.replace("seeds: 6", "seeds: 2"), swinging)
    forest = importlib.import_module("repro.reporters.page.speedup").forest(findings(record))
    assert forest.primary.clipped == (True, True)
    assert forest.primary.whisker == (forest.axis.left, forest.axis.right)
    assert not any(any(row.clipped) for row in forest.others if row.candidate.label.startswith("ddp"))
