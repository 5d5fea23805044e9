"""Hostile names in every format: shown as they are, or by their numbers, and never run."""

from __future__ import annotations

import csv
import importlib
import io
import json
import re
import warnings
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from repro.core import registry
from repro.core.files import write_model
from repro.record.folder.store import Record, read_record
from repro.record.result.remarks import Stated, stated
from repro.suite.planning.cell import Cell
from tests.records import make_record
from tests.unit.reporters.tex import typeset

csv_tables = importlib.import_module("repro.reporters.table_files")
markdown_page = importlib.import_module("repro.reporters.markdown")
latex_paper = importlib.import_module("repro.reporters.paper.latex_text")
tables = importlib.import_module("repro.tables.tables")
HOSTILE = [
    '<script>alert(1)</script>', "</script><img src=x onerror=alert(1)>", 'a "quoted" \'name\'', "a|b|c", "`code`",
    "[link](http://evil.example)", "![image](x)", "https://evil.example/x", "www.evil.example", "@someone #12 x#y",
    "=HYPERLINK(\"http://evil\")", "+1+cmd|' /C calc'!A0", "-2+3", "@SUM(1)", "\t=1", "  =1+1", "1. first", "# head",
    "- item", "> quote", "\\input{/etc/passwd}", "\\write18{id}", "50% of $x_1^2$ & {y} ~ #", "a\u202egnp.exe\u202c",
    "\u200bhidden", "line\none\r\ntwo", "\x00nul\x1b[31m", "日本語 عربى 😀 ÷ \u00d7 \u00b5 ß",
    "*bold* _em_ ~~gone~~ $math$",
    "&lt;b&gt; &amp; &#35;", "", " ", "x" * 10_000, "$(rm -rf ~)", "^^41 \\^^5c", "?`!`--- ,,quotes''", "[ ] * [x]",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_markdown_shows_the_name_and_nothing_else(text: str) -> None:
    shows_itself(text)


@settings(max_examples=300, deadline=None)
@given(st.text(st.characters(exclude_categories=("Cs", "Cc")), max_size=40)
       | st.text("|`*_[]<>&#@!\\~$-+=1.) w:/", max_size=30))
def test_any_text_shows_itself_in_markdown(text: str) -> None:
    shows_itself(text)


def shows_itself(text: str) -> None:
    """In a table cell, a list item and a heading: the text, and no element inside."""
    parser = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
    clean = " ".join(tables.plain(text).split())
    escaped = markdown_page.escaped(tables.plain(text))
    page = f"# t {escaped}\n\n| a | b |\n| --- | --- |\n| {escaped} | end |\n\n- x: {escaped}\n- {escaped}\n"
    html = parser.render(page).replace("<!-- -->", "")
    cells = re.findall(r"<t[dh]>(.*?)</t[dh]>", html, re.DOTALL)
    assert len(cells) == 4 and [unescaped(cell) for cell in cells] == ["a", "b", clean, "end"]
    items = [unescaped(item) for item in re.findall(r"<li>(.*?)</li>", html, re.DOTALL)]
    assert items == [f"x: {clean}".strip(), clean]
    assert unescaped(re.findall(r"<h1>(.*?)</h1>", html, re.DOTALL)[0]) == f"t {clean}".strip()
    assert not re.search(r"(?<!<!-- -->)@\w|https?://|www\.", escaped.replace("@<!-- -->", ""))


def unescaped(html: str) -> str:
    assert "<" not in html.strip(), html
    for entity, character in (("&lt;", "<"), ("&gt;", ">"), ("&quot;", '"'), ("&amp;", "&")):
        html = html.replace(entity, character)
    return html.strip()


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=30) | st.sampled_from(HOSTILE))
def test_latex_reads_back_as_the_text(text: str) -> None:
    """Every command in the outcome is one of the few that set a character."""
    clean = tables.plain(text)
    escaped, found, place = latex_paper.escaped(clean), "", 0
    back = {code: sign for sign, code in latex_paper.SPECIAL.items()} | {f"{{{sign}}}": sign for sign in "-',"}
    token = re.compile("|".join([*map(re.escape, sorted(back, key=len, reverse=True)),
                                 r"\\texttt\{U\+([0-9A-F]{4,6})\}", r"([-',])(?!\2)",
                                 r"[^\\{}$&#%_^~<>|\"'`\-,\[\]*]"]))
    while place < len(escaped):
        match = token.match(escaped, place)
        assert match is not None, escaped[place:place + 20]
        found += back.get(match[0]) or (chr(int(match[1], 16)) if match[1] else match[0])
        place = match.end()
    assert found == re.sub("[ \\t\\r\\n\\f\\v]+", " ", clean).strip(" ")
    assert "\n" not in escaped


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=30) | st.sampled_from(HOSTILE))
def test_csv_reads_back_and_no_field_is_a_formula(text: str) -> None:
    clean = tables.plain(text)
    written = csv_tables.csv_text(tables.Table("t", "t", ({"a": clean, "b": -1.5, "c": None, "d": True},)))
    (_, row) = list(csv.reader(io.StringIO(written, newline="")))
    assert row[0] in (clean, f"'{clean}") and row[1:] == ["-1.5", "", "true"]
    assert not row[0].lstrip(" ").startswith(csv_tables.FORMULA)


@pytest.mark.parametrize("text", ["=1", "+1", "-1", "@x", "\t=1", "\uff1d1", " =1", "|cmd", "%x"])
def test_what_a_spreadsheet_would_run_has_an_apostrophe_in_front(text: str) -> None:
    assert csv_tables.field(text) == f"'{text}"


def test_text_that_turns_others_around_is_shown_by_number() -> None:
    assert tables.plain("a\u202eb\x00c\u200bd\ufeff") == "a\\u202eb\\u0000c\\u200bd\\ufeff"
    assert tables.plain("see /home/someone/data/x.bin") == "see .../x.bin"


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Record:
    """A record whose title, labels, notes and reasons are hostile."""
    record = make_record(tmp_path_factory.mktemp("hostile") / "run")
    names = iter(HOSTILE)
    cells = tuple(Cell(cell_id=cell.cell_id, label=next(names) + " | $x$ <b> \\input{x} \u202e", factors={
        "engine": next(names)}, choices=cell.choices) for cell in record.plan.cells)
    suite = record.plan.suite.model_copy(update={"title": "=cmd|'x' <script> \\input{y} $ @all " + "long " * 2000})
    write_model(record.folder.plan, record.plan.model_copy(update={
        "cells": cells, "suite": suite, "notes": tuple(HOSTILE)}))
    path = record.folder.result(record.results[0].trial_id)
    write_model(path, record.results[0].model_copy(update={
        "warnings": tuple(Stated(text=text) for text in HOSTILE), "reasons": stated("".join(HOSTILE))}))
    return read_record(record.folder.root)


@pytest.mark.parametrize("kind", ["csv", "parquet", "jsonl", "markdown", "latex", "mllog"])
def test_a_hostile_record_is_written_without_a_warning(hostile: Record, kind: str, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        places = [Path(place) for place in registry.load("reporter", kind)().write(hostile, tmp_path / "out")]
    assert places and all(tmp_path / "out" in place.parents for place in places)
    assert {path for path in tmp_path.rglob("*") if path.is_file()} == set(places)
    if kind == "jsonl":
        assert all(json.loads(line) for line in places[0].read_text().splitlines())
    for place in places:
        if place.suffix in (".md", ".tex", ".csv", ".jsonl", ".json"):
            text = place.read_text(encoding="utf-8")
            assert "\u202e" not in text and "\x00" not in text
        if place.suffix in (".md", ".svg"):
            assert "<script" not in place.read_text(encoding="utf-8")
        if place.suffix == ".csv":
            for row in csv.reader(io.StringIO(place.read_text(), newline="")):
                assert not [cell for cell in row if re.match(r"\s*[=+@\t]|\s*-\D", cell)]


@pytest.mark.slow
def test_pdflatex_sets_a_hostile_record(hostile: Record, tmp_path: Path) -> None:
    """Also what the escapes claim: no error, no missing character, nothing read from outside."""
    registry.load("reporter", "latex")().write(hostile, tmp_path)
    (tmp_path / "paper.tex").write_text(
        "\\documentclass{article}\\usepackage[T1]{fontenc}\\usepackage[utf8]{inputenc}\\usepackage{textcomp}"
        "\\usepackage{array,booktabs,longtable,graphicx}\\begin{document}"
        + "\n\n".join(latex_paper.escaped(tables.plain(text)) for text in HOSTILE) + "\\end{document}")
    for name in ("paper", "report"):
        assert "Missing character" not in typeset(tmp_path / f"{name}.tex")
