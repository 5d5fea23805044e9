"""Hostile records and folders: every reporter shows them as text, or the command refuses them in
one line; nothing outside the folders named is read or written."""

from __future__ import annotations

import csv
import importlib
import io
import json
import re
import shutil
from collections.abc import Callable
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from repro.reporters.published.formats import WRITERS
from repro.reporters.tracking.run_view import attempt_runs

from repro.compare.runs.merge import sections
from repro.core import registry
from repro.core.errors import OutputError, UsageError
from repro.core.files import write_model
from repro.published.importing import import_results as import_published
from repro.published.store import Published, read_published
from repro.record.folder.store import Record, read_record
from repro.record.result.remarks import stated
from tests.in_process import called, refusal, succeeded
from tests.records import SUITE, make_record
from tests.unit.published.made_logs import SYSTEM, log_lines, repository
from tests.unit.reporters.parsed_page import Page
from tests.unit.reporters.tex import typeset

several_page = importlib.import_module("repro.reporters.page.several")
html_page = importlib.import_module("repro.reporters.html_page")
EVIL = ("</script><script>alert(1)</script><img src=x onerror=alert(2)>\" onmouseover=\"alert(3)\" ' {{ 7 * 7 }} "
        "=cmd|' /C calc'!A0 \\input{/etc/passwd} | `x` <!-- a\u202egnp.exe\u202c\u2066\x1b[31m\x00 ")
LONG = EVIL + "y" * 10_000
FORMATS = ("html", "markdown", "latex", "figures", "csv", "parquet", "jsonl", "mllog")


def count(page: str, tag: str) -> int:
    return sum(name == tag for name, _ in Page(page).elements)


def harmless(page: str, scripts: int, images: int = 0) -> None:
    """Check that no name added an element, attribute or address."""
    assert count(page, "script") == scripts and count(page, "img") == images
    found = [(name, value or "") for _, attributes in Page(page).elements for name, value in attributes.items()]
    assert not [name for name, _ in found if name.startswith("on")]
    assert all(link.startswith(("#", "data:", "../trials/")) or re.fullmatch(r"\d-sample/report/report.html", link)
               for name, link in found if name in ("src", "href"))
    assert not re.search("[\u202e\u202c\u2066\x1b\x00]", page)
    assert "alert(1)" in unescape(page), "the name is shown"
    assert "49" not in re.findall(r"onmouseover=.{0,40}", unescape(page))[0], "no template in a name is run"


def test_a_log_whose_name_has_no_attempt_is_none(tmp_path: Path) -> None:
    """A superscript is a digit to `isdigit`, and no number to `int`."""
    record = make_record(tmp_path / "run", only=1)
    before = {cell: len(runs) for cell, runs in attempt_runs(record).items()}
    (log,) = record.folder.root.glob("trials/*/result_1.txt")
    log.with_name("result_\u00b2.txt").write_bytes(log.read_bytes())
    assert {cell: len(runs) for cell, runs in attempt_runs(record).items()} == before


def hostile_record(root: Path) -> Record:
    """Title, labels, factors, notes, reasons, machine, libraries and data: all of them hostile and long."""
    record = make_record(root, only=8)
    plan = record.plan
    cells = tuple(cell.model_copy(update={"label": f"{index} {LONG}", "factors": {"engine": LONG, EVIL: EVIL}})
                  for index, cell in enumerate(plan.cells))
    suite = plan.suite.model_copy(update={"title": LONG})
    write_model(record.folder.plan, plan.model_copy(update={
        "cells": cells, "suite": suite, "notes": (EVIL, LONG),
        "skipped": tuple(item.model_copy(update={"label": LONG, "reason": LONG}) for item in plan.skipped)}))
    environment = record.environment
    write_model(record.folder.environment, environment.model_copy(update={
        "cpu": LONG, "system": EVIL, "libraries": {EVIL: LONG, "torch": LONG}, "packages": (f"{EVIL}=={LONG}", EVIL),
        "data": tuple(item.model_copy(update={"name": LONG}) for item in environment.data)}))
    first = record.results[0]
    write_model(record.folder.result(first.trial_id), first.model_copy(update={
        "warnings": (*stated(LONG), *stated(EVIL)), "reasons": stated(LONG)}))
    return read_record(record.folder.root)


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Record:
    return hostile_record(tmp_path_factory.mktemp("hostile") / "run")


@pytest.fixture(scope="module")
def plain_scripts(tmp_path_factory: pytest.TempPathFactory) -> int:
    """Script elements of the page of a record without a single hostile name."""
    return count(html_page.render(make_record(tmp_path_factory.mktemp("plain") / "run", only=8)), "script")


def test_the_page_shows_hostile_names_as_text(hostile: Record, plain_scripts: int) -> None:
    harmless(html_page.render(hostile), plain_scripts)


def test_the_page_of_several_runs_shows_hostile_names_as_text(hostile: Record, tmp_path: Path) -> None:
    other = make_record(tmp_path / "other", SUITE.replace("lr: 0.1", "lr: 0.2"), only=1)
    link = tmp_path / f"run{EVIL.replace('/', '').replace(chr(0), '')}"[:120]
    shutil.copytree(hostile.folder.root, link)
    found = sections([link, other.folder.root], tmp_path / "out")
    page = several_page.render(found)
    harmless(page, 0, images=count(page, "figcaption"))
    assert len(page) < 3e6
    text = registry.load("reporter", "markdown")().write_sections(found, tmp_path / "md")
    assert "<script" not in Path(text[0]).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Published:
    """An import whose every name is hostile."""
    root = tmp_path_factory.mktemp("foreign")
    name = re.sub("[/\x00]", "", EVIL)[:100]
    texts = {f"result_{at}.txt": "".join(log_lines(seconds=500.0 + at, seed=at, status=EVIL if at == 4 else "success"))
             .replace('"opt_name"', json.dumps(f"opt{EVIL}")).replace('"lars"', json.dumps(LONG)) for at in range(5)}
    texts["result_cut.txt"] = "".join(log_lines())[:700] + "\n"
    repository(root / "in", texts, system=name, org=f"O{name}", benchmark=f"b{name}")
    path = next(item for item in (root / "in").rglob("*.json") if item.parent.name == "systems")
    path.write_text(json.dumps(SYSTEM | dict.fromkeys((
        "submitter", "system_name", "accelerator_model_name", "framework", "host_processor_model_name"), LONG)))
    (path.parent / f"x{name}.txt").write_text("refused by name")
    import_published("mlperf", root / "in", root / "out")
    return read_published(root / "out")


@pytest.mark.parametrize("kind", [
    "html", "markdown", "csv", "parquet", "jsonl", "latex", pytest.param("figures", marks=pytest.mark.slow)])
def test_hostile_published_names_are_text_in_every_format(foreign: Published, kind: str, tmp_path: Path) -> None:
    places = [Path(path) for path in WRITERS[kind](registry.load("reporter", kind)(), [foreign], [], tmp_path / "out")]
    assert places and {path for path in tmp_path.rglob("*") if path.is_file()} == set(places)
    for place in places:
        if place.suffix in (".pdf", ".parquet"):
            continue
        text = place.read_text(encoding="utf-8")
        assert not re.search("[\u202e\u202c\u2066\x1b\x00]", text)
        if place.suffix == ".csv":
            rows = list(csv.reader(io.StringIO(text, newline="")))
            assert len({len(row) for row in rows}) == 1
            assert not [cell for row in rows for cell in row if re.match(r"\s*[=+@\t|%]|\s*-\D", cell)]
        elif place.suffix == ".jsonl":
            for line in text.splitlines():
                json.loads(line, parse_constant=lambda word: pytest.fail(word))
        elif place.suffix == ".html":
            harmless(text, count(text, "script"))
        elif place.suffix == ".tex":
            assert "\\input{/etc" not in text
        else:
            assert "<script" not in text and "<img" not in text


@pytest.mark.slow
def test_pdflatex_sets_hostile_published_names(foreign: Published, tmp_path: Path) -> None:
    WRITERS["latex"](registry.load("reporter", "latex")(), [foreign], [], tmp_path)
    assert "Missing character" not in typeset(tmp_path / "published.tex")


def test_what_writes_no_published_results_says_so_before_anything_is_written(
    foreign: Published, tmp_path: Path
) -> None:
    for kind, words in (("mllog", "their own logs"), ("mlflow", "runs of this harness")):
        assert words in refusal("report", foreign.folder, "--to", f"html,{kind}", "--out", tmp_path / "out",
                                kind=UsageError)
    assert not (tmp_path / "out").exists()


def listing(root: Path) -> dict[str, bytes | str]:
    return {str(path.relative_to(root)): str(path.readlink()) if path.is_symlink() else path.read_bytes()
            for path in sorted(root.rglob("*")) if path.is_symlink() or path.is_file()}


def linked(folder: Path, name: str, outside: Path) -> None:
    """Put a link that leads to `outside` in place of what is called `name`."""
    path = folder / name
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(outside)


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory) -> Record:
    return make_record(tmp_path_factory.mktemp("usual") / "run", only=4)


def copied(record: Record, root: Path) -> Record:
    shutil.copytree(record.folder.root, root)
    return read_record(root)


@pytest.mark.parametrize("name", ["report", "report/csv", "trials", "TRIAL", "TRIAL/result_1.txt", "suite.yaml"])
def test_a_link_in_a_run_is_refused_and_nothing_is_written(
    usual: Record, name: str, tmp_path: Path
) -> None:
    record = copied(usual, tmp_path / "run")
    copied(usual, tmp_path / "outside")
    place = name.replace("TRIAL", f"trials/{record.results[0].trial_id}")
    target = tmp_path / "outside" / (place if (tmp_path / "outside" / place).exists() else "trials")
    linked(record.folder.root, place, target)
    before = listing(tmp_path)
    for arguments in (["report", str(record.folder.root), "--to", ",".join(FORMATS)],
                      ["report", str(record.folder.root), str(usual.folder.root), "--out", str(tmp_path / "out")],
                      ["audit", str(record.folder.root)]):
        assert "links are not followed" in refusal(*arguments, kind=OutputError)
    assert listing(tmp_path) == before


def test_links_in_an_import_are_refused_too(foreign: Published, tmp_path: Path) -> None:
    shutil.copytree(foreign.folder, tmp_path / "in")
    (tmp_path / "outside").mkdir()
    (tmp_path / "in/report").symlink_to(tmp_path / "outside")
    assert "links are not followed" in refusal("report", tmp_path / "in", "--to", "csv", kind=OutputError)
    assert not list((tmp_path / "outside").iterdir())


@pytest.mark.parametrize("change", [
    {"trial_id": "../../outside/trials/x"}, {"trial_id": "x"}, {"cell_id": "another"}, {"repeat": 99}])
def test_a_result_that_names_another_trial_is_refused(
    usual: Record, change: dict[str, Any], tmp_path: Path
) -> None:
    record = copied(usual, tmp_path / "run")
    first = record.results[0]
    write_model(record.folder.result(first.trial_id), first.model_copy(update=change))
    before = listing(tmp_path)
    for kind in FORMATS:
        refusal("report", tmp_path / "run", "--to", kind, kind=OutputError)
    assert listing(tmp_path) == before


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0])
def test_figures_that_are_none_break_no_format(usual: Record, value: float, tmp_path: Path) -> None:
    """Of a result that was written by hand, or by a version that let them through."""
    record = copied(usual, tmp_path / "run")
    path = record.folder.result(record.results[0].trial_id)
    data = json.loads(path.read_text())
    for point in data["curve"]:
        point |= dict.fromkeys(("value", "wall_seconds", "train_seconds"), value)
    data["steps"] = {key: value if isinstance(found, float) else found for key, found in data["steps"].items()}
    path.write_text(json.dumps(data))
    ended = called("report", tmp_path / "run", "--to", "html,markdown,csv,jsonl,mllog")
    if value != -1.0:  # refused where the record is read
        assert isinstance(ended.exception, OutputError) and "\n" not in str(ended.exception), ended.output
        return
    assert ended.exit_code == 0, ended.exception
    for line in (tmp_path / "run/report/report.jsonl").read_text().splitlines():
        json.loads(line, parse_constant=lambda word: pytest.fail(word))
    page = (tmp_path / "run/report/report.html").read_text()
    for text in re.findall(r'<script type="application/json"[^>]*>(.*?)</script>', page, re.DOTALL):
        json.loads(text, parse_constant=lambda word: pytest.fail(word))


def doubled(text: str, key: str) -> str:
    lines = text.splitlines(True)
    at = next(index for index, line in enumerate(lines) if f'"{key}"' in line)
    return "".join([*lines[: at + 1], lines[at], *lines[at + 1:]])


def backwards(text: str) -> str:
    """Times that go backwards: every line's number of milliseconds, mirrored."""
    return re.sub(r'"time_ms": ?([\d.]+)', lambda found: f'"time_ms": {3.2e12 - float(found[1])}', text)


SPOILED: dict[str, Callable[[str], str | bytes]] = {
    "cut": lambda text: text[: len(text) // 2],
    "nul": lambda text: text.replace("\n", "\x00\n", 3),
    "not UTF-8": lambda text: text.encode().replace(b"\n", b"\xff\xfe\n", 4),
    "deep": lambda text: text + ':::MLLOG {"key": "x", "value": ' + "[" * 100_000 + "\n",
    "deep and whole": lambda text: text + ':::MLLOG {"namespace": "", "time_ms": 1, "event_type": "POINT_IN_TIME", '
                                          f'"key": "x", "value": {"[" * 500}{"]" * 500}, "metadata": {{}}}}\n',
    "not finite": lambda text: re.sub(r'"value": ?0\.\d+', '"value": NaN', text).replace('"samples_count": 1437',
                                                                                       '"samples_count": Infinity'),
    "no count": lambda text: re.sub(r'"samples_count": ?\d+', '"samples_count": "many"', text),
    "backwards": backwards,
    "two stops": lambda text: doubled(text, "run_stop"),
    "two starts": lambda text: doubled(text, "run_start"),
    "no stop": lambda text: "".join(line for line in text.splitlines(True) if '"run_stop"' not in line),
    "empty": lambda text: "",
    "a long line": lambda text: text + ":::MLLOG " + "x" * (4 << 20) + "\n",
}


@pytest.mark.parametrize("name", SPOILED)
def test_damaged_logs_of_a_run_are_written_strictly_or_excluded_by_name(
    usual: Record, name: str, tmp_path: Path
) -> None:
    """The mllog package reads logs again; for any content its output is strict and of this trial."""
    record = copied(usual, tmp_path / "run")
    path = record.folder.log(record.results[0].trial_id, 1)
    content = SPOILED[name](path.read_text())
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    succeeded("report", tmp_path / "run", "--to", "mllog", "--out", tmp_path / "out")
    logs = sorted((tmp_path / "out").rglob("result_*.txt"))
    readme = (tmp_path / "out/mllog/README.md").read_text()
    assert len(logs) == (4 if name in ("not finite", "no count") else 3)
    assert (record.results[0].trial_id in readme) is (len(logs) == 3)
    for log in logs:
        for line in log.read_text(encoding="utf-8").splitlines():
            token, _, body = line.partition(" ")
            assert token == ":::MLLOG"
            json.loads(body, parse_constant=lambda word: pytest.fail(word))
