"""The LaTeX report: its files, the macros of the numbers, `--only primary`, and what TeX makes of them."""

from __future__ import annotations

import importlib
import re
import shutil
from pathlib import Path

import pytest

from repro.compare.findings import findings
from repro.core import registry
from repro.core.errors import UsageError
from repro.record.folder.store import Record
from tests.in_process import called, succeeded
from tests.records import SUITE, make_record
from tests.unit.reporters.tex import typeset

rows = importlib.import_module("repro.tables.tables")
numbers = importlib.import_module("repro.reporters.paper.latex_numbers")
table = importlib.import_module("repro.reporters.paper.latex_text")
words = importlib.import_module("repro.tables.layout")


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Record:
    return make_record(tmp_path_factory.mktemp("latex") / "run")


@pytest.fixture(scope="module")
def out(record: Record, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("latex") / "out"
    registry.load("reporter", "latex")().write(record, folder)
    return folder


def read_macros(folder: Path) -> dict[str, str]:
    """Return name -> value, as TeX would define them."""
    return dict(re.findall(r"^\\newcommand\{\\([A-Za-z]+)\}\{(.*)\}$", (folder / "numbers.tex").read_text(), re.M))


def test_every_table_and_figure_is_a_file_that_the_report_inputs(out: Path) -> None:
    report = (out / "report.tex").read_text()
    inputs = set(re.findall(r"\\input\{(.+?)\}", report))
    written = {str(path.relative_to(out).with_suffix("")) for path in out.rglob("*.tex")} - {"report"}
    assert inputs == written and {"numbers", "tables/cells", "tables/comparisons", "figures/times"} <= written
    assert (out / "references.bib").read_text().startswith("@misc{")
    for path in out.rglob("*.tex"):
        assert not re.search(r"resizebox|scriptsize|\\tiny", path.read_text())


def test_macros_are_the_verdicts_of_the_record(record: Record, out: Path) -> None:
    found = read_macros(out)
    primary = next(item for item in findings(record).comparisons if item.primary)
    assert found["reproVerdictPrimary"] == primary.verdict
    assert float(found["reproRatioPrimary"]) == pytest.approx(primary.ratio, rel=0.006)
    assert float(found["reproLowPrimary"]) == pytest.approx(primary.interval.low, rel=0.006)
    assert float(found["reproHighPrimary"]) == pytest.approx(primary.interval.high, rel=0.006)
    assert float(found["reproPPrimary"]) == pytest.approx(primary.p, rel=0.06)
    assert found["reproPairsPrimary"] == str(primary.n)
    assert sum(name.startswith("reproVerdict") for name in found) == 1 + len(findings(record).comparisons)
    for item in findings(record).summaries:
        key = numbers.letters(item.label)
        assert float(found[f"reproMedian{key}"].replace("{,}", "")) == pytest.approx(item.median, rel=0.006)
        assert (found[f"reproRuns{key}"], found[f"reproSuccesses{key}"]) == (str(item.n), str(item.ok))


def test_each_macro_is_defined_once_below_the_sentence_it_belongs_to(out: Path) -> None:
    lines = (out / "numbers.tex").read_text().splitlines()
    defined = [place for place, line in enumerate(lines) if line.startswith(r"\newcommand")]
    assert all(lines[place - 1].startswith("% ") for place in defined)
    assert len(defined) == len(read_macros(out))


def test_names_of_labels_that_look_alike_differ_and_do_not_depend_on_the_others() -> None:
    one, two, three = numbers.keys([("batch 64", "a"), ("batch=64", "b"), ("batch 8", "c")])
    assert len({one, two}) == 2 and three == "BatchEight"
    assert numbers.keys([("batch=64", "b"), ("batch 64", "a")]) == [two, one]
    for label in ("", "\u4e00", "Primary", "x" * 500, "rate -0.5"):
        assert re.fullmatch("[A-Za-z]+", numbers.keys([(label, "d")])[0])


def test_a_number_that_is_not_known_prints_as_question_marks(tmp_path: Path) -> None:
    unfinished = make_record(tmp_path / "run", only=0)
    registry.load("reporter", "latex")().write(unfinished, tmp_path / "out")
    assert read_macros(tmp_path / "out")["reproRatioPrimary"] == r"\reproMissing"


@pytest.mark.slow
def test_only_primary_leaves_out_the_rest_and_keeps_the_verdict(record: Record, out: Path, tmp_path: Path) -> None:
    ended = succeeded("report", record.folder.root, "--to", "latex,markdown", "--only", "primary", "--out", tmp_path)
    assert "--only primary does not apply to markdown: it is written in full" in ended.output
    kept, everything = read_macros(tmp_path), read_macros(out)
    assert kept.items() <= everything.items() and len(kept) < len(everything)
    assert sum(name.startswith("reproMedian") for name in kept) == 2
    assert (tmp_path / "tables/comparisons.tex").read_text().count(r"\\") < (
        out / "tables/comparisons.tex").read_text().count(r"\\")
    assert "--only" not in called("report", record.folder.root, "--out", tmp_path / "x").output


def test_only_primary_without_a_declared_contrast_is_refused(tmp_path: Path) -> None:
    text = SUITE.partition("primary:")[0]
    made = make_record(tmp_path / "run", text)
    with pytest.raises(UsageError, match="no primary contrast is declared"):
        registry.load("reporter", "latex")(only="primary").write(made, tmp_path / "out")


def test_a_long_table_is_a_longtable_and_what_all_rows_say_is_said_once() -> None:
    long = words.TextTable("t", ("Cell", "Figures", "n", "Interval"), (False, False, True, True), tuple(
        (f"cell {place}", "measured", "6", "1.0 to 2.0 (95 %)") for place in range(60)))
    short, said = words.compact(long)
    assert said == "Figures: measured."
    assert short.headers == ("Cell", "n", "Interval (95\N{NO-BREAK SPACE}%)")
    assert short.rows[0] == ("cell 0", "6", "1.0 to 2.0")
    assert r"\begin{longtable}" in table.latex_table(short, "c")
    assert r"\begin{table*}" in table.latex_table(words.TextTable("t", ("a",), (False,), (("b",),)), "c")


@pytest.mark.parametrize("folder", ["whole", "two columns"])
def test_tex_sets_the_report_without_overfull_lines(out: Path, folder: str, tmp_path: Path) -> None:
    shutil.copytree(out, tmp_path / "copy")
    report = tmp_path / "copy" / "report.tex"
    if folder == "two columns":
        report.write_text(report.read_text().replace("[10pt,a4paper]", "[10pt,a4paper,twocolumn]"))
    log = typeset(report)
    assert [float(width) for width in re.findall(r"Overfull \\hbox \(([\d.]+)pt", log) if float(width) > 2] == []
    assert "Missing character" not in log and "Float too large" not in log
