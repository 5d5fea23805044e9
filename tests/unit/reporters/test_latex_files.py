"""The LaTeX report: its files, the macros of the numbers, `--only primary`, the papers of others, and TeX."""

from __future__ import annotations

import html
import importlib
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from repro.compare.findings import findings
from repro.core import registry
from repro.core.errors import UsageError
from repro.record.folder.store import Record
from tests.in_process import called, succeeded
from tests.made_scores import SCORES, scores_course
from tests.records import SUITE, default_course, make_record
from tests.unit.reporters.tex import typeset

numbers = importlib.import_module("repro.reporters.paper.latex_numbers")
latex_text = importlib.import_module("repro.reporters.paper.latex_text")
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


def test_a_program_that_states_no_epochs_is_drawn_against_the_wall_clock_alone(record: Record) -> None:
    (known, *_), canvas = figures.figures(record), Figure()
    known.into(canvas)
    assert "against the wall clock and epochs, one" in known.caption and len(canvas.axes) == 2
    unstated = {"epochs": 0.0}
    results = [item.model_copy(update={"curve": tuple(point.model_copy(update=unstated) for point in item.curve)})
               for item in record.results]
    (drawing, *_), canvas = figures.figures(replace(record, results=tuple(results))), Figure()
    drawing.into(canvas)
    assert "against the wall clock, one" in drawing.caption and len(canvas.axes) == 1
    assert canvas.axes[0].get_xlabel() == "wall clock (s)" and drawing.height < known.height


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
    assert r"\begin{longtable}" in latex_text.latex_table(short, "c")
    assert r"\begin{table*}" in latex_text.latex_table(words.TextTable("t", ("a",), (False,), (("b",),)), "c")


@pytest.mark.parametrize("folder", ["whole", "two columns"])
def test_tex_sets_the_report_without_overfull_lines(out: Path, folder: str, tmp_path: Path) -> None:
    shutil.copytree(out, tmp_path / "copy")
    report = tmp_path / "copy" / "report.tex"
    if folder == "two columns":
        report.write_text(report.read_text().replace("[10pt,a4paper]", "[10pt,a4paper,twocolumn]"))
    log = typeset(report)
    assert [float(width) for width in re.findall(r"Overfull \\hbox \(([\d.]+)pt", log) if float(width) > 2] == []
    assert "Missing character" not in log and "Float too large" not in log


# ---- in the papers of others


figures = importlib.import_module("repro.reporters.paper.figures")
shown = importlib.import_module("repro.reporters.paper.brief")
report = importlib.import_module("repro.reporters.latex")
TEXT = r"\usepackage[T1]{fontenc}\usepackage[utf8]{inputenc}\usepackage{textcomp}"
PACKAGES = r"\usepackage{array,booktabs,longtable,graphicx}"
CLASSES = {
    "one column": r"\documentclass{article}\usepackage[letterpaper,textwidth=5.5in,textheight=9in]{geometry}" + TEXT,
    "two columns": r"\documentclass[twocolumn]{article}\usepackage[margin=20mm]{geometry}" + TEXT,
    "IEEEtran": r"\documentclass[conference]{IEEEtran}" + TEXT,
    "acmart": r"\documentclass[sigconf,nonacm]{acmart}",
}
STYLES = {"IEEEtran": "IEEEtran", "acmart": "ACM-Reference-Format"}
TITLE = r"\title{T}\author{A}\affiliation{\institution{I}\country{C}}\maketitle"
TITLE_OF_OTHERS = r"\providecommand{\affiliation}[1]{}"
LABELS = ("it's 50% of $x_1^2$ & {y} ~ # \\ a_b", "\u03b21 \u2264 1, lr \u2192 \u00b10.5",
          "Zo\u00eb \u0141ukasz \u65e5\u672c", "weight_decay=0.000512, parameter-server (shards=1)",
          "'x' \"y\" --z-- ,,w''")


def names(folder: Path) -> set[str]:
    return set(re.findall(r"^\\newcommand\{\\([A-Za-z]+)\}", (folder / "numbers.tex").read_text(), re.M))


def labels_of(path: Path) -> list[str]:
    return re.findall(r"\\label\{(.+?)\}", path.read_text())


def too_wide(log: str) -> list[float]:
    return [float(width) for width in re.findall(r"Overfull \\hbox \(([\d.]+)pt", log) if float(width) > 1]


@pytest.mark.slow
@pytest.mark.parametrize("kind", CLASSES)
def test_a_paper_of_a_usual_class_sets_every_file(kind: str, record: Record, out: Path, tmp_path: Path) -> None:
    """All tables and figures, every macro, and the BibTeX entry: no error, no line too wide, no unknown reference."""
    shutil.copytree(out, tmp_path / "run")
    files = sorted((tmp_path / "run").glob("*/*.tex"))
    inputs = "".join(f"\\input{{run/{path.parent.name}/{path.stem}}}\n" for path in files)
    used = " ".join(f"\\{name}{{}}," for name in sorted(names(out)))
    labels = " ".join(f"\\ref{{{label}}}," for path in files for label in labels_of(path))
    (key,) = re.findall(r"@misc\{(.+?),", (out / "references.bib").read_text())
    (tmp_path / "paper.tex").write_text(
        f"{CLASSES[kind]}{PACKAGES}\\graphicspath{{{{run/}}}}\\input{{run/numbers}}"
        f"{TITLE_OF_OTHERS}\\begin{{document}}{TITLE}\\raggedright {used} {labels} \\cite{{{key}}}\n\n{inputs}"
        f"\\clearpage x \\bibliographystyle{{{STYLES.get(kind, 'plain')}}}"
        "\\bibliography{run/references}\\end{document}")
    log = typeset(tmp_path / "paper.tex", 3, bibliography=True)
    assert too_wide(log) == []
    assert "undefined on input" not in log and "multiply" not in log and "Missing character" not in log
    assert "Float too large" not in log


@pytest.mark.parametrize("kind", CLASSES)
def test_a_long_table_is_set_in_every_class(kind: str, tmp_path: Path) -> None:
    """In two columns it has pages of its own, and the text after it has two columns again."""
    long = words.TextTable("t", ("Cell", "n"), (False, True), tuple((f"cell {place}", "6") for place in range(90)))
    (tmp_path / "long.tex").write_text(latex_text.latex_table(long, "c"))
    (tmp_path / "paper.tex").write_text(
        f"{CLASSES[kind]}{PACKAGES}{TITLE_OF_OTHERS}\\begin{{document}}{TITLE} before \\input{{long}}after "
        "\\typeout{width \\the\\columnwidth\\space of \\the\\textwidth}\\end{document}")
    log = typeset(tmp_path / "paper.tex", 2)
    (column, text), = re.findall(r"width ([\d.]+)pt of ([\d.]+)pt", log)
    assert (float(column) < 0.5 * float(text)) == (kind != "one column")
    assert too_wide(log) == []


@pytest.mark.slow
def test_names_of_macros_do_not_depend_on_the_results(tmp_path: Path) -> None:
    """The text of a paper compiles with the file of the next run of its suite, also of a run that fails."""
    factors = SUITE.partition("baseline:")[0] + ("baseline: {engine: ddp, processes: 1}\n"
                                                 "contrasts: [engine, processes]\n")
    for name, text in (("declared", SUITE), ("factors", factors)):
        found = []
        for case, changes, only in (("all", {}, None), ("some", {}, 5), ("crashed", {"crash": True}, None),
                                    ("missed", {"hits_at": None}, None), ("none", {}, 0)):
            made = make_record(tmp_path / name / case / "run", text,
                               lambda trial, changes=changes: replace(default_course(trial), **changes), only)  # type: ignore[misc]
            found.append({item.name for item in numbers.macros(made, shown.shown_of(made))})
        assert all(item == found[0] for item in found) and len(found[0]) > 30


@pytest.mark.slow
def test_two_runs_stand_in_one_paper(record: Record, tmp_path: Path) -> None:
    """With a prefix no macro, label, picture or citation of one run is one of the other."""
    other = make_record(tmp_path / "other", SCORES, scores_course)
    for prefix, made in (("Small", record), ("Large", other)):
        succeeded("report", made.folder.root, "--to", "latex", "--prefix", prefix, "--out", tmp_path / prefix)
    folders = [tmp_path / "Small", tmp_path / "Large"]
    first, second = ({*names(folder), *(str(path.relative_to(folder)) for path in folder.glob("figures/*")),
                      *(label for path in folder.rglob("*.tex") for label in labels_of(path)),
                      *re.findall(r"@misc\{(.+?),", (folder / "references.bib").read_text())} for folder in folders)
    assert not first & second
    assert {"reproSmallRatioPrimary", "tab:repro-Small-cells", "figures/Small-times.pdf"} <= first
    (tmp_path / "paper.tex").write_text(
        f"{CLASSES['two columns']}{PACKAGES}\\graphicspath{{{{Small/}}{{Large/}}}}\\input{{Small/numbers}}"
        "\\input{Large/numbers}\\begin{document}\\reproSmallRatioPrimary, \\reproLargeTrials\n"
        + "".join(f"\\input{{{path.relative_to(tmp_path).with_suffix('')}}}\n" for folder in folders
                  for path in sorted(folder.glob("*/*.tex")))
        + "\\nocite{*}\\bibliographystyle{plain}\\bibliography{Small/references,Large/references}\\end{document}")
    log = typeset(tmp_path / "paper.tex", 3, bibliography=True)
    assert "multiply" not in log and "Large-times.pdf" in log and "Small-times.pdf" in log


def test_a_prefix_has_letters_only(record: Record, tmp_path: Path) -> None:
    ended = called("report", record.folder.root, "--to", "latex", "--prefix", "run2", "--out", tmp_path)
    assert ended.exit_code != 0 and "letters only" in str(ended.exception)


@pytest.mark.slow
def test_sections_of_several_runs_have_prefixes(record: Record, tmp_path: Path) -> None:
    other = make_record(tmp_path / "other", SUITE.replace("suite: sample", "suite: another"))
    succeeded("report", record.folder.root, other.folder.root, "--to", "latex", "--only", "primary", "--out",
              tmp_path / "out")
    one, two = (names(path.parent) for path in sorted((tmp_path / "out").rglob("numbers.tex")))
    assert "reproOneRatioPrimary" in one and "reproTwoRatioPrimary" in two and not one & two
    assert sum(name.startswith("reproOneMedian") for name in one) == 2


@pytest.mark.slow
def test_every_picture_fits_a_column(out: Path, tmp_path: Path) -> None:
    many = make_record(tmp_path / "run", SUITE.replace(
        "processes: [1, 2]", "processes: [1, 2]\n  batch.global: [32, 64, 128, 256]").replace(
        "processes: 2}", "processes: 2, batch.global: 64}"))
    registry.load("reporter", "latex")().write(many, tmp_path / "out")
    for path in (*out.glob("figures/*.pdf"), *(tmp_path / "out").glob("figures/*.pdf")):
        width, height = map(float, re.findall(rb"/MediaBox \[ 0 0 ([\d.]+) ([\d.]+)", path.read_bytes())[0])
        assert width <= 72 * 3.33 and height <= 72 * 6.5, path
        text = path.with_suffix(".tex").read_text()
        assert "\\includegraphics[width=\\columnwidth]" in text and "resizebox" not in text


def test_captions_say_n_the_levels_and_only_what_is_drawn(record: Record, tmp_path: Path) -> None:
    drawn = {item.name: item.caption for item in figures.figures(record)}
    assert "6 trials each" in drawn["quality"] and "6 trials each" in drawn["times"]
    assert "6 pairs each; bars: intervals (95 %)" in drawn["ratios"] and "blue with a diamond" in drawn["ratios"]
    none = make_record(tmp_path / "run", SUITE.partition("primary:")[0])
    (ratios,) = [item.caption for item in figures.figures(none) if item.name == "ratios"]
    assert "blue" not in ratios
    intervals = [item.interval for item in findings(record).comparisons]
    intervals[0] = intervals[0].model_copy(update={"level": 0.9825})
    assert figures.interval_levels(intervals) == "95 % to 98.2 %"


def test_a_caption_does_not_call_modelled_figures_measured() -> None:
    mixed = words.TextTable("t", ("Cell", "Figures"), (False, False), (("a", "emulated"), ("b", "modelled")))
    assert report._origin(mixed, "emulated") == r"Figures, as each row says: \emph{emulated}, \emph{modelled}."
    alike = words.TextTable("t", ("Cell", "Figures"), (False, False), (("a", "emulated"),))
    assert report._origin(alike, "emulated") == r"All figures \emph{emulated}."


def test_prose_stays_readable_and_numbers_complete() -> None:
    assert latex_text.escaped("the baseline's sign-flip, n = 7") == "the baseline's sign-flip, n = 7"
    assert latex_text.escaped("--x ''") == "-{-}x '{'}"
    assert latex_text.breakable("inconclusive. 0.0000000005123") == r"inconclusive. 0.0000000005\allowbreak{}123"
    assert latex_text.parts("Organisation") == ["Organisation"]
    assert latex_text.breakable_text("inconclusive. weight_decay=0.0005, parameter-server") == (
        r"inconclusive. weight\_\allowbreak{}decay=\allowbreak{}0.0005, parameter-server")


@pytest.mark.parametrize("fonts", [TEXT, r"\usepackage[utf8]{inputenc}\usepackage{textcomp}"])
def test_special_characters_are_set_with_and_without_t1_fonts(fonts: str, tmp_path: Path) -> None:
    body = "\n\n".join(write(label) for label in LABELS for write in (latex_text.escaped, latex_text.breakable,
                                                                      latex_text.breakable_text))
    (tmp_path / "paper.tex").write_text(
        f"\\documentclass{{article}}{fonts}\\begin{{document}}\n{body}\n\\end{{document}}", encoding="utf-8")
    assert "Missing character" not in typeset(tmp_path / "paper.tex")


def test_the_sentence_copied_for_latex_compiles_as_it_is(record: Record, tmp_path: Path) -> None:
    registry.load("reporter", "html")().write(record, tmp_path)
    page = html.unescape((tmp_path / "report.html").read_text())
    texts = re.findall(r'data-copy="([^"]*)">as LaTeX', page)
    assert len(texts) == 4 and all("measured" in text for text in texts)
    (tmp_path / "paper.tex").write_text(
        f"{CLASSES['IEEEtran']}\\begin{{document}}\\raggedright " + "\n\n".join(texts) + "\\end{document}")
    assert too_wide(typeset(tmp_path / "paper.tex")) == []
