"""The HTML report: a pure function of the record, with compare's figures and nothing of the machine."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import importlib
import json
import os
import random
import re
import subprocess
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from repro.compare import compare, summarize
from repro.core import registry
from repro.core.machine import Machine
from repro.record.store import Record, read_record
from repro.suite.cell import Skipped
from repro.suite.file import read_suite
from repro.suite.model import Trial
from repro.suite.plan import make_plan
from tests.records import SUITE, Course, make_record

SECTIONS = ("cells", "curves", "speedup", "phases", "communication", "scaling", "settings", "effective", "parity",
            "skipped", "trust", "machine", "data", "attempts", "trials", "reproduce", "verdicts")
page_text = importlib.import_module("repro.reporters.text")
NASTY = '<script>alert(1)</script> & "quoted" \u202egpj.exe %{x} \'"]]>-->' + "long " * 2000


class Page(HTMLParser):
    """What tests look for in a page: elements, exact figures, text outside scripts, scripts."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text, self.scripts = "", list[tuple[dict[str, str | None], str]]()
        self._inside = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag in ("script", "style"):
            self._inside = tag
            if tag == "script":
                self.scripts.append((dict(attrs), ""))

    def handle_endtag(self, tag: str) -> None:
        if tag == self._inside:
            self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "script":
            attrs, text = self.scripts[-1]
            self.scripts[-1] = (attrs, text + data)
        elif not self._inside:
            self.text += data

    @property
    def values(self) -> set[float]:
        """Every exact figure on the page."""
        return {float(attrs["value"] or "nan") for tag, attrs in self.elements if tag == "data"}

    @property
    def ids(self) -> list[str]:
        return [value for _, attrs in self.elements if (value := attrs.get("id"))]


def render(record: Record, out: Path) -> str:
    (path,) = registry.load("reporter", "html")().write(record, out)
    return Path(path).read_text(encoding="utf-8")


def noisy(trial: Trial) -> Course:
    """Spread by seed, one crash, five misses."""
    generator = random.Random(f"{trial.cell_id} {trial.repeat}")
    engine, processes = trial.choices.engine.kind, trial.choices.processes
    step = 0.02 * (1.15 if engine == "deepspeed" else 1.0) * generator.lognormvariate(0, 0.12) / processes**0.8
    if engine == "deepspeed" and processes == 1 and trial.repeat == 3:
        return Course(step, hits_at=None, crash=True)
    if engine == "deepspeed" and processes == 2 and trial.repeat in (1, 2, 5, 6, 7):
        return Course(step, hits_at=None)
    return Course(step, hits_at=generator.choice([3, 4, 4, 5, 6]))


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Record:
    return make_record(tmp_path_factory.mktemp("sample") / "run")


@pytest.fixture(scope="module")
def rough(tmp_path_factory: pytest.TempPathFactory) -> Record:
    return make_record(tmp_path_factory.mktemp("rough") / "run", SUITE.replace("seeds: 6", "seeds: 8"), noisy)


@pytest.fixture(scope="module")
def page(sample: Record, tmp_path_factory: pytest.TempPathFactory) -> Page:
    return Page(render(sample, tmp_path_factory.mktemp("page")))


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
from repro.record.store import read_record
registry.load("reporter", "html")().write(read_record(Path(sys.argv[1])), Path(sys.argv[2]))
"""


def test_other_place_language_and_time_zone_give_the_same_bytes(
    rough: Record, rough_html: str, tmp_path: Path
) -> None:
    root = Path(__file__).parents[2]
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
    ("samples", "needs 1.00 \N{MULTIPLICATION SIGN} the samples of ddp, 2 processes to reach top1 of at least 0.9",
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


def test_no_interval_or_median_where_trials_missed(rough_page: Page) -> None:
    text = rough_page.text
    assert "not every trial reached the target" in text
    assert "not reached" in text
    assert "3 of 8" in text and "5 missed" in text and "1 crashed" in text


def test_what_failed_stands_first(rough_page: Page) -> None:
    page = rough_page
    levels = [attrs["class"] for tag, attrs in page.elements if tag == "li" and attrs.get("class")]
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
    assert set(SECTIONS) <= set(page.ids)
    if case != "partial":
        assert " x the time" not in page.text.split("What to know")[0]


def test_forty_cells_are_told_apart(tmp_path: Path) -> None:
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
    forest = importlib.import_module("repro.reporters.page.speedup").forest(record)
    assert forest.primary.clipped == (True, True)
    assert forest.primary.whisker == (forest.axis.left, forest.axis.right)
    assert not any(any(row.clipped) for row in forest.others if row.candidate.label.startswith("ddp"))


def figures(page: Page) -> dict[str, dict[str, Any]]:
    data = [(attrs, text) for attrs, text in page.scripts if attrs.get("type") == "application/json"]
    return {name: json.loads(text) for attrs, text in data if (name := str(attrs["id"])).startswith("curve-")}


def trials_of(figure: dict[str, Any]) -> list[dict[str, Any]]:
    return [trace for trace in figure["data"] if trace["uid"].startswith("trial-")]


def test_figures_hold_every_evaluation_and_are_legal(page: Page, sample: Record) -> None:
    import plotly.graph_objects as objects

    found = figures(page)
    assert [name.rpartition("-")[2] for name in found] == ["wall", "train", "samples", "epochs"]
    for name, figure in found.items():
        lines = trials_of(figure)
        assert len(lines) == len(sample.results)
        drawn = sorted((x, y) for trace in lines for x, y in zip(trace["x"], trace["y"], strict=True))
        clock = name.rpartition("-")[2]
        field = {"wall": "wall_seconds", "train": "train_seconds"}.get(clock, clock)
        wanted = sorted((getattr(point, field), point.value) for item in sample.results for point in item.curve)
        assert drawn == [(pytest.approx(x, rel=1e-6), y) for x, y in wanted]
        assert [shape["y0"] for shape in figure["layout"]["shapes"]] == [0.9]
        objects.Figure(legal_colors(figure))


def legal_colors(value: Any) -> Any:
    """The figure as the page's script makes it: names of custom properties replaced by colours."""
    if isinstance(value, dict):
        return {key: legal_colors(item) for key, item in value.items()}
    if isinstance(value, list):
        return [legal_colors(item) for item in value]
    return "#123456" if isinstance(value, str) and value.startswith("--") else value


def hostile(record: Record) -> Record:
    """The record with hostile text wherever text comes from a suite or an exception."""
    cells = tuple(cell.model_copy(update={"label": f"{NASTY}{index}"}) for index, cell in enumerate(record.plan.cells))
    suite = record.plan.suite.model_copy(update={"title": NASTY, "description": NASTY})
    plan = record.plan.model_copy(update={
        "cells": cells, "suite": suite, "notes": (NASTY,),
        "skipped": (Skipped(label=NASTY, factors={}, reason=NASTY),)})
    results = tuple(item.model_copy(update={
        "reason": f"{NASTY} /home/somebody/project/train.py:3", "warnings": (NASTY,), "effective": {NASTY: NASTY},
        "hashes": {**item.hashes, "init_weights": NASTY}}) for item in record.results)
    environment = record.environment.model_copy(update={
        "settings": {"NCCL_TOPO_FILE": "/home/somebody/topology.xml"}, "cpu": NASTY, "packages": (NASTY,)})
    parity = {"needed": True, "tolerance": 1e-5, "steps": 10, "findings": [{
        "group": NASTY, "reference": NASTY, "candidate": NASTY, "problem": NASTY, "largest_difference": 0.5}]}
    return dataclasses.replace(record, plan=plan, results=results, environment=environment, parity=parity)


def test_hostile_text_stays_text(rough: Record, tmp_path: Path) -> None:
    page = Page(render(hostile(rough), tmp_path))
    runnable = [text for attrs, text in page.scripts if attrs.get("type") != "application/json"]
    assert len(runnable) == 2
    assert not any("alert(1)" in text for text in runnable)
    for attrs, text in page.scripts:
        if attrs.get("type") == "application/json":
            assert "<" not in text and json.loads(text)
    assert "Parity gate failed" in page.text
    assert "\\u202egpj.exe" in page.text
    before_scripts = (tmp_path / "report.html").read_text(encoding="utf-8").partition("plotly.js v")[0]
    assert not re.search("[\u202a-\u202e\u2066-\u2069]", before_scripts)
    assert max(len(line) for line in page.text.splitlines()) < 20_000


@pytest.mark.parametrize("change", [lambda record: record, hostile])
def test_no_path_of_the_machine(rough: Record, tmp_path: Path, change: Callable[[Record], Record]) -> None:
    page = Page(render(change(rough), tmp_path))
    dynamic = page.text + "".join(text for attrs, text in page.scripts if attrs.get("type"))
    dynamic += "".join(str(value) for tag, attrs in page.elements for value in attrs.values() if tag != "meta")
    for trace in (str(rough.folder.root), str(tmp_path), str(Path.home()) + "/", "/home/", "/tmp/", "somebody"):
        assert trace not in dynamic


def test_nothing_is_asked_of_the_network(page: Page) -> None:
    for tag, attrs in page.elements:
        for name in ("src", "href", "srcset", "action", "poster", "data", "xlink:href"):
            value = attrs.get(name) or ""
            assert not re.match(r"(?i)\s*(https?:|//|ftp:|wss?:|file:)", value), (tag, name, value)
    css = Path("templates/report.css").read_text() if Path("templates").is_dir() else ""
    assert "@import" not in css and not re.search(r"url\((?!#)", css)


def test_policy_admits_exactly_the_scripts_of_the_page(page: Page) -> None:
    (policy,) = [attrs["content"] or "" for tag, attrs in page.elements if attrs.get("http-equiv")]
    assert policy.startswith("default-src 'none';")
    allowed = re.findall(r"'sha256-([^']+)'", policy)
    runnable = [text for attrs, text in page.scripts if attrs.get("type") != "application/json"]
    assert allowed == [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in runnable]
    assert "'unsafe-eval'" not in policy
    assert "script-src 'unsafe-inline'" not in policy


def test_the_bundle_is_inlined_once_and_only_where_a_curve_is_drawn(page: Page, tmp_path: Path) -> None:
    assert sum("plotly.js v" in text[:200] for _, text in page.scripts) == 1
    empty = Page(render(make_record(tmp_path / "run", only=0), tmp_path / "out"))
    assert not any("plotly.js v" in text[:200] for _, text in empty.scripts)


def test_every_trial_and_attempt_links_into_the_run_folder(page: Page, sample: Record) -> None:
    links = {attrs["href"] for tag, attrs in page.elements if tag == "a"}
    reports = sample.folder.reports
    for result in sample.results:
        for link in (f"../trials/{result.trial_id}/", f"../trials/{result.trial_id}/result_1.txt"):
            assert link in links
            assert (reports / link).resolve().exists()


def test_tables_name_their_headers(page: Page) -> None:
    assert all(attrs.get("scope") in ("col", "row") for tag, attrs in page.elements if tag == "th")


def test_suite_on_the_page_runs_the_same_experiment(page: Page, sample: Record, tmp_path: Path) -> None:
    path = tmp_path / "sample.yaml"
    path.write_text(page.text.partition("The suite as it ran")[2].partition("How to cite")[0])
    assert make_plan(read_suite(str(path)).suite, Machine("cpu", 0, 2)).digest == sample.plan.digest


@pytest.mark.parametrize(("text", "wanted"), [
    ("no file /home/a/b/c.py here", "no file .../c.py here"),
    ("in '/tmp/x/y' and /usr/lib/z", "in '.../y' and .../z"),
    ("file:///home/a/b.txt", ".../b.txt"),
    ("see https://example.org/a/b and 3/4 images/s", "see https://example.org/a/b and 3/4 images/s"),
    ("../trials/x/result.json", "../trials/x/result.json"),
    (r"C:\Users\me\x.py", r".../x.py"),
])
def test_absolute_paths_are_cut(text: str, wanted: str) -> None:
    assert page_text.without_paths(text) == wanted


@pytest.mark.parametrize(("value", "wanted"), [
    (0.0, "0"), (1.23456, "1.23"), (0.0123456, "0.0123"), (1234.5, "1,234"), (12345.6, "12,346"), (1e-7, "1.00e-07"),
])
def test_significant_digits(value: float, wanted: str) -> None:
    assert page_text.significant(value) == wanted


def test_ratios_near_one_are_not_rounded_to_it() -> None:
    shown = page_text.ratios([1.0042, 1.0021, 1.0063])
    assert [item.text for item in shown] == ["1.004", "1.002", "1.006"]


@pytest.mark.parametrize(("load", "said"), [(0.4, False), (1.8, True), (None, False)])
def test_a_machine_that_was_busy_before_the_run_is_said_at_the_top(
    tmp_path: Path, load: float | None, said: bool
) -> None:
    record = make_record(tmp_path / "run", only=1)
    record = dataclasses.replace(record, environment=record.environment.model_copy(update={"load_1min": load}))
    text = " ".join(Page(render(record, tmp_path)).text.split())
    assert ("the load was 1.8 on 2 cores before the run (0.9 per core)" in text) == said
    assert ("Busy machine" in text) == said


def test_settings_are_shown_as_the_ranks_saw_them_and_the_parents_apart(tmp_path: Path) -> None:
    record = make_record(tmp_path / "run", only=2)
    results = tuple(item.model_copy(update={"settings": {"OMP_NUM_THREADS": str(index + 3), "DS_ACCELERATOR": "cpu"}})
                    for index, item in enumerate(record.results))
    text = "".join(Page(render(dataclasses.replace(record, results=results), tmp_path)).text.split())
    assert "EnvironmentvariablesoftheranksSettingValueCellsOMP_NUM_THREADS3" in text
    assert "DS_ACCELERATORcpu" in text
    assert "oftheparentprocessOMP_NUM_THREADS1" in text
    assert "These trials did not record their environment" in Page(render(record, tmp_path)).text
