"""The content of the HTML report: text of others stays text, links, figures, scripts, rounding."""

from __future__ import annotations

import base64
import dataclasses
import gzip
import hashlib
import importlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from repro.core.machine import Machine
from repro.record.folder.store import Record
from repro.record.result.remarks import stated
from repro.suite.file import read_suite
from repro.suite.planning.cell import Skipped
from repro.suite.planning.plan import make_plan
from tests.records import make_record
from tests.unit.reporters.parsed_page import Page, figures, page, render, rough, sample, trials_of

__all__ = ["page", "rough", "sample"]  # fixtures
page_text = importlib.import_module("repro.tables.text")
NASTY = '<script>alert(1)</script> & "quoted" \u202egpj.exe %{x} \'"]]>-->' + "long " * 2000


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
    """The record with hostile text in every field that comes from a suite or an exception."""
    cells = tuple(cell.model_copy(update={"label": f"{NASTY}{index}"}) for index, cell in enumerate(record.plan.cells))
    suite = record.plan.suite.model_copy(update={"title": NASTY, "description": NASTY})
    plan = record.plan.model_copy(update={
        "cells": cells, "suite": suite, "notes": (NASTY,),
        "skipped": (Skipped(label=NASTY, factors={}, reason=NASTY),)})
    results = tuple(item.model_copy(update={
        "reasons": stated(f"{NASTY} /home/somebody/project/train.py:3"), "warnings": stated(NASTY),
        "effective": {NASTY: NASTY},
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
    before_scripts = (tmp_path / "report.html").read_text(encoding="utf-8").partition("* plotly.js (")[0]
    assert not re.search("[\u202a-\u202e\u2066-\u2069]", before_scripts)
    assert max(len(line) for line in page.text.splitlines()) < 20_000


@pytest.mark.parametrize("change", [lambda record: record, hostile])
def test_no_path_of_the_machine(rough: Record, tmp_path: Path, change: Callable[[Record], Record]) -> None:
    page = Page(render(change(rough), tmp_path))
    dynamic = page.text + "".join(text for attrs, text in page.scripts if attrs.get("type"))
    dynamic += "".join(str(value) for tag, attrs in page.elements for value in attrs.values() if tag != "meta")
    for trace in (str(rough.folder.root), str(tmp_path), str(Path.home()) + "/", "/home/", "/tmp/", "somebody"):
        assert trace not in dynamic


def test_nothing_is_requested_from_the_network(page: Page) -> None:
    for tag, attrs in page.elements:
        for name in ("src", "href", "srcset", "action", "poster", "data", "xlink:href"):
            value = attrs.get(name) or ""
            assert not re.match(r"(?i)\s*(https?:|//|ftp:|wss?:|file:)", value), (tag, name, value)
    css = Path("templates/report.css").read_text() if Path("templates").is_dir() else ""
    assert "@import" not in css and not re.search(r"url\((?!#)", css)


def unpacked(page: Page) -> str:
    """Return plotly.js as the script of the page unpacks it."""
    (packed,) = [text for attrs, text in page.scripts if attrs.get("id") == "plotly"]
    return gzip.decompress(base64.b64decode(packed)).decode()


def test_policy_admits_exactly_the_scripts_of_the_page(page: Page) -> None:
    (policy,) = [attrs["content"] or "" for tag, attrs in page.elements if attrs.get("http-equiv")]
    assert policy.startswith("default-src 'none';")
    allowed = re.findall(r"'sha256-([^']+)'", policy)
    runnable = [text for attrs, text in page.scripts if not attrs.get("type")]
    runnable.insert(0, unpacked(page))
    assert allowed == [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in runnable]
    assert "'unsafe-eval'" not in policy
    assert "script-src 'unsafe-inline'" not in policy


def test_the_bundle_is_inlined_once_and_only_where_a_curve_is_drawn(page: Page, tmp_path: Path) -> None:
    assert "* plotly.js (basic" in unpacked(page)[:200]
    empty = Page(render(make_record(tmp_path / "run", only=0), tmp_path / "out"))
    assert not any(attrs.get("id") == "plotly" for attrs, _ in empty.scripts)


def test_every_trial_and_attempt_links_into_the_run_folder_from_there_only(page: Page, sample: Record) -> None:
    assert not [attrs for tag, attrs in page.elements if tag == "a" and attrs.get("href", "").startswith("../")]
    reports = sample.folder.reports
    within = Page(render(sample, reports))
    links = {attrs["href"] for tag, attrs in within.elements if tag == "a"}
    for result in sample.results:
        for link in (f"../trials/{result.trial_id}/", f"../trials/{result.trial_id}/result_1.txt"):
            assert link in links
            assert (reports / link).resolve().exists()


def test_tables_name_their_headers(page: Page) -> None:
    assert all(attrs.get("scope") in ("col", "row") for tag, attrs in page.elements if tag == "th")


def test_suite_on_the_page_runs_the_same_experiment(page: Page, sample: Record, tmp_path: Path) -> None:
    path = tmp_path / "sample.yaml"
    path.write_text(page.text.partition("The suite as it ran")[2].partition("How to cite")[0])
    suite = read_suite(str(path)).suite
    assert make_plan(suite, Machine("cpu", 0, 2)).digest == sample.plan.digest
    assert suite.master_seed is None  # a copy of it draws new data


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


@pytest.mark.parametrize(("values", "wanted"), [
    ([1.0042, 1.0021, 1.0063], ["1.004", "1.002", "1.006"]),
    ([0.05, 0.0021, 0.9997], ["0.05000", "0.002100", "0.9997"]),
    ([0.3, 0.09, 1.004], ["0.3000", "0.09000", "1.004"]),
    ([0.05, 0.0021, 1.0], ["0.0500", "0.00210", "1.00"]),
])
def test_ratios_near_one_are_not_rounded_to_it(values: list[float], wanted: list[str]) -> None:
    assert [item.text for item in page_text.ratios(values)] == wanted


@pytest.mark.parametrize(("load", "now", "said"), [
    (0.4, None, False), (1.8, None, True), (1.8, 0.9, True), (None, None, False),
    (1.8, 0.1, False),  # what made the load, as an installation, has ended
    (1.8, 0.3, True),  # it may be between two bursts
])
def test_a_machine_that_was_busy_before_the_run_is_reported_at_the_top(
    tmp_path: Path, load: float | None, now: float | None, said: bool
) -> None:
    record = make_record(tmp_path / "run", only=1)
    record = dataclasses.replace(
        record, environment=record.environment.model_copy(update={"load_1min": load, "busy_cores": now}))
    text = " ".join(Page(render(record, tmp_path)).text.split())
    assert ("the load was 1.8 on 2 cores before the run (0.9 per core)" in text) == said
    assert ("Busy machine" in text) == said
    assert ("do not quote its times, and the ratio only with this caution; a repeat is a second run" in text) == said
    assert text.find("Busy machine") < text.find("Because:") or not said, "above the verdict"


def test_settings_are_shown_as_the_ranks_saw_them_and_the_parents_apart(tmp_path: Path) -> None:
    record = make_record(tmp_path / "run", only=2)
    results = tuple(item.model_copy(update={"settings": {"OMP_NUM_THREADS": str(index + 3), "DS_ACCELERATOR": "cpu"}})
                    for index, item in enumerate(record.results))
    text = "".join(Page(render(dataclasses.replace(record, results=results), tmp_path)).text.split())
    assert "EnvironmentvariablesoftheranksSettingValueCellsOMP_NUM_THREADS3" in text
    assert "DS_ACCELERATORcpu" in text
    assert "oftheparentprocessOMP_NUM_THREADS1" in text
    assert "These trials did not record their environment" in Page(render(record, tmp_path)).text
