"""Every figure in a table of the page is in a table of the record: two steps from `repro.open`."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pandas
import pytest

import repro
from repro.record.folder.index import seal
from repro.record.folder.store import RunFolder, read_record
from repro.tables.tables import tables
from tests.made_scores import SCORES, scores_course
from tests.made_tuned import make_tuned
from tests.records import SCALING, SUITE, make_record, scaling_course
from tests.unit.reporters.parsed_page import uneven

GALLERY = Path(__file__).parents[3] / "docs/gallery/records"
TABLES = {
    "verdicts": ("cells", "comparisons", "pairs", "main_effects", "interactions"), "cells": ("cells",),
    "training": ("cells",), "survival": ("survival", "cells"), "speedup": ("comparisons", "pairs", "cells"),
    "phases": ("phases",), "communication": ("traffic", "overlap", "gradient_plan"), "controller": ("controller",),
    "scaling": ("scaling",), "trust": ("trust",), "energy": ("trials",), "machine": ("links",), "claims": ("claims",),
    "attempts": ("attempts", "trials"), "trials": ("trials", "attempts"), "curves": ("evaluations",),
    "operations": ("operations", "checks"), "scores": ("scores", "score_times"), "duplicates": ("duplicates",),
    "tuning": ("tuning", "tuning_settings", "tuning_spaces"),
}
"""Section of the page -> tables of the record that hold its figures."""
BY_CELL = ("cells", "training", "survival", "phases", "communication", "controller", "trust")
"""Sections whose rows begin with a cell, in whose rows of the record the figures are."""
SCALES = (1, 1e6)
"""The page shows rates of links in Mbit/s."""


class Figures(HTMLParser):
    """Collects (section, cell number or 0, trial, figure) of every `data` element inside a table."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, int, str, float]] = []
        self.tables: set[str] = set()
        self._section, self._depth, self._cell, self._trial = "", 0, 0, ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        held = {key: value or "" for key, value in attrs}
        if tag == "section":
            self._section = held.get("id", "")
        self._depth += tag == "table"
        if tag == "table":
            self.tables.add(self._section)
        if tag == "tr":
            self._cell, self._trial = 0, held.get("id", "")
        if self._depth and not self._cell and (link := re.fullmatch(r"#cell-(\d+)", held.get("href", ""))):
            self._cell = int(link[1])
        if self._depth and tag == "data":
            self.found.append((self._section, self._cell, self._trial, float(held["value"])))

    def handle_endtag(self, tag: str) -> None:
        self._depth -= tag == "table"


def numbers(frames: list[pandas.DataFrame]) -> Iterator[float]:
    for frame in frames:
        for name in frame.columns:
            if pandas.api.types.is_numeric_dtype(frame[name].dtype):
                yield from (float(value) for value in frame[name].dropna())
        if "measured_bits_per_second" in frame:  # the page has the median of the links
            yield from frame.groupby("cells")["measured_bits_per_second"].median()


def environment(run: repro.Run) -> list[float]:
    """Figures of `run.environment`: its memory, and what it took to load modules."""
    return [run.environment["memory_bytes"], run.environment["nodes"]["preload_seconds"] or 0.0]


def missing(run: repro.Run, page: str) -> tuple[list[tuple[str, int, str, float]], Figures]:
    """The figures of the page that are not where this file says, and all that were found."""
    walked = Figures()
    walked.feed(page)
    ids = run.cells["cell_id"].tolist()
    known: dict[tuple[str, int, str], list[float]] = {}
    lost = []
    for section, cell, trial, value in walked.found:
        trial = trial if section == "trials" else ""
        cell = cell if section in BY_CELL else 0
        key = section, cell, trial
        if key not in known:
            frames = [run.tables[name] for name in TABLES[section]]
            if cell:
                frames = [frame[frame["cell_id"] == ids[cell - 1]] for frame in frames if "cell_id" in frame]
            if trial in set(run.trials["trial_id"]):
                frames = [frame[frame["trial_id"] == trial] for frame in frames]
            known[key] = [*numbers(frames), *(environment(run) if section == "machine" else ())]
        if not any(value * scale == other or math.isclose(value * scale, other, rel_tol=1e-12)
                   for other in known[key] for scale in SCALES):
            lost.append((section, cell, trial, value))
    return lost, walked


@pytest.mark.parametrize("name", ["missed", "resumed", *(pytest.param(name, marks=pytest.mark.slow) for name in (
    "settled", "factorial", "scaling", "same", "inconclusive"))])
def test_every_figure_of_a_page_of_the_gallery_is_in_a_table(name: str, tmp_path: Path) -> None:
    run = repro.open(GALLERY / f"{name}.zip")
    page = Path(run.report("html", tmp_path)[0]).read_text(encoding="utf-8")
    lost, walked = missing(run, page)
    assert lost == []
    assert walked.tables - {"verdicts", "settings", "checklist", "", "machine", "reproduce"} <= set(TABLES)
    assert len(walked.found) > 100


@pytest.mark.parametrize("made", ["uneven", pytest.param("scaling", marks=pytest.mark.slow)])
def test_every_figure_of_a_made_page_is_in_a_table(made: str, tmp_path: Path) -> None:
    if made == "uneven":
        make_record(tmp_path / "run", SUITE, uneven)
    else:
        make_record(tmp_path / "run", SCALING, scaling_course)
    seal(RunFolder(tmp_path / "run"))
    run = repro.open(tmp_path / "run")
    lost, walked = missing(run, Path(run.report("html")[0]).read_text(encoding="utf-8"))
    assert lost == [] and len(walked.found) > 300


def test_a_figure_that_is_nowhere_is_found(tmp_path: Path) -> None:
    run = repro.open(GALLERY / "same.zip")
    page = Path(run.report("html", tmp_path)[0]).read_text(encoding="utf-8")
    planted = page.replace('<data value="', '<data value="1', 400)
    assert len(missing(run, planted)[0]) > 50


@pytest.mark.parametrize("made", ["scores", "tuned", "scaling"])
def test_values_have_the_type_that_is_stated_and_every_column_has_words(made: str, tmp_path: Path) -> None:
    if made == "tuned":
        make_tuned(tmp_path / "run")
    else:
        text, course = (SCORES, scores_course) if made == "scores" else (SCALING, scaling_course)
        make_record(tmp_path / "run", text, course)
    record = read_record(tmp_path / "run")
    found = tables(record)
    assert len(found) > 12
    for each in found:
        for name, facts in each.described.items():
            kinds = (int, float) if facts.kind is float else (facts.kind,)
            values = [row[name] for row in each.rows if row.get(name) is not None]
            assert all(type(value) in kinds for value in values), (each.name, name, facts.kind, values[:2])
            assert facts.words, (each.name, name)
