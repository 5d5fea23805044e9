"""The figures of the first screen follow the question: scaling, formats, claims of a contest, missed targets."""

from __future__ import annotations

import html
import importlib
import json
import re
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from repro.bundle.stated import figures_sha256
from repro.compare.findings import findings
from repro.record.folder.ledger import Incident
from repro.record.folder.store import Record, read_record
from repro.suite.model import Trial
from repro.suite.planning.terms import Terms
from repro.tables.text import trimmed
from tests.in_process import succeeded
from tests.plans import suite
from tests.records import SCALING, SUITE, Course, default_course, make_record, scaling_course
from tests.unit.reporters.parsed_page import Page, render

question = importlib.import_module("repro.reporters.page.question")
scaling = importlib.import_module("repro.reporters.page.charts.scaling")
speedup = importlib.import_module("repro.reporters.page.speedup")
first = importlib.import_module("repro.reporters.page.first_screen")
axis = importlib.import_module("repro.reporters.page.axis")
html_page = importlib.import_module("repro.reporters.html_page")
latex_text = importlib.import_module("repro.reporters.paper.latex_text")
GALLERY = Path(__file__).parents[3] / "docs/gallery/records"


def words_of(record: Record, folder: Path) -> str:
    return " ".join(Page(render(record, folder)).text.split())


def asked(record: Record) -> question.Question:
    return question.question(findings(record), speedup.forest(findings(record)).primary, scaling.scaling(record))


def gallery(name: str, folder: Path) -> Record:
    with zipfile.ZipFile(GALLERY / f"{name}.zip") as packed:
        packed.extractall(folder)
    return read_record(folder)


def test_scaling_opens_with_time_and_bytes_beside_their_bounds(tmp_path: Path) -> None:
    record = gallery("scaling", tmp_path)
    found = asked(record)
    assert found.scaling
    time, sent = found.sketches
    assert time.title == "Step time, ms" and sent.title == "Sent by the busiest rank, MB per epoch"
    assert [text for _, text in time.columns] == ["1", "2", "4"]
    drawn = [trace for trace in sent.traces if not trace.thin]
    bounds = [trace for trace in sent.traces if trace.thin]
    assert len(drawn) == 2 and [trace.color for trace in bounds] == [axis.INK], "one bound for both, above them"
    assert sent.layers[-1] == bounds[0] and len([trace for trace in time.traces if trace.thin]) == 2
    # Of a ring of p ranks each sends 2 (p - 1) / p |W|, the least; the server of 4 sends 3 |W|, twice as much.
    line = {item.label: item for item in scaling.scaling(record).same[0].lines}
    four = {label: item.points[-1] for label, item in line.items()}
    assert four["ring"].bytes_per_epoch == pytest.approx(four["ring"].least_bytes_per_epoch, rel=0.01)
    server = four["parameter-server (shards=1)"]
    assert server.bytes_per_epoch == pytest.approx(2 * server.least_bytes_per_epoch, rel=0.01)


def test_scaling_is_drawn_next_to_main_effects_without_a_primary_contrast(tmp_path: Path) -> None:
    make_record(tmp_path / "run", SCALING + "contrasts: [comm]\n", scaling_course)
    succeeded("report", tmp_path / "run")
    page = (tmp_path / "run/report/report.html").read_text()
    answer = page[page.index('id="verdicts"'):page.index("contrasts of single cells")]
    places = [answer.index(text) for text in ('class="headline effect"', "Step time, ms", 'aria-label="Main effects')]
    assert places == sorted(places)


def test_one_pair_is_singular_and_one_value_stands_once_beside_the_pairs(tmp_path: Path) -> None:
    one = words_of(make_record(tmp_path / "one", SUITE.replace("seeds: 6", "seeds: 1")), tmp_path / "page")
    assert "top1 of at least 0.9, 1 pair):" in one
    tied = render(make_record(tmp_path / "tied", course=lambda _: Course(0.01)), tmp_path / "page")
    (drawn,) = re.findall(r'<figure class="slopes">.*?</figure>', tied, re.DOTALL)
    assert drawn.count('text-anchor="end"') == 1


def test_two_numbers_of_processes_are_no_question_about_scaling(tmp_path: Path) -> None:
    record = make_record(tmp_path / "run", SCALING.replace("[1, 2, 4]", "[1, 2]"), scaling_course)
    assert len(record.plan.suite.matrix["processes"]) == 2
    assert not asked(record).scaling


def test_a_missed_target_shows_the_share_of_trials_at_it(tmp_path: Path) -> None:
    found = asked(gallery("missed", tmp_path))
    (share,) = found.sketches
    assert share.title.startswith("Probability of having reached top1 of at least 0.96")
    reached, missed = map(share.path, share.traces)
    top = axis.BOTTOM - (axis.BOTTOM - axis.TOP) / 1.04
    assert float(reached.rsplit("V", 1)[1]) == pytest.approx(top, abs=0.1), "all reached it"
    assert reached.count("V") == 9
    assert set(missed.split("V")[1:]) == {f"{axis.BOTTOM}"}, "none reached it"


FORMATS = SUITE.replace("matrix:", "matrix:\n  precision: [fp32, bf16-autocast]").replace(
    "{engine: deepspeed, processes: 2}", "{engine: ddp, processes: 2, precision: bf16-autocast}").replace(
    "{engine: ddp, processes: 2}", "{engine: ddp, processes: 2, precision: fp32}").replace(
    "baseline: {engine: ddp}", "baseline: {precision: fp32}")


def test_formats_show_the_quality_next_to_the_time(tmp_path: Path) -> None:
    record = make_record(tmp_path / "run", FORMATS)
    found = asked(record)
    (figure,) = found.sketches
    assert figure.title == "Final top1 against the time to the target"
    assert figure.level is not None, "the target"
    assert [mark.label for mark in found.keys] == ["fp32, ddp, 2 processes", "bf16-autocast, ddp, 2 processes"]
    assert sum(len(trace.words) for trace in figure.traces if not trace.thin) == len(found.keys)


def test_a_format_that_misses_is_drawn_where_its_trials_ended(tmp_path: Path) -> None:
    def course(trial: Trial) -> Course:
        return replace(default_course(trial), hits_at=4 if trial.training.precision.kind == "fp32" else None)

    (figure,) = asked(make_record(tmp_path / "run", FORMATS, course)).sketches
    crosses = [trace for trace in figure.traces if trace.symbol == "x"]
    assert [len(trace.words) for trace in crosses] == [6]
    assert all("missed the target" in words for words in crosses[0].words)
    assert sum(len(trace.words) for trace in figure.traces if not trace.thin) == 1, "the median of fp32 alone"


def test_one_early_trial_leaves_the_marks_of_the_time_axis(tmp_path: Path) -> None:
    def course(trial: Trial) -> Course:
        first = trial.training.engine.kind == "ddp"
        return Course(step_seconds=0.001 if first and trial.repeat == 0 else 0.1, hits_at=1 if first else None)

    (figure,) = asked(make_record(tmp_path / "run", SUITE, course)).sketches
    assert len([text for _, text in figure.columns if text]) >= 3


def test_a_bound_of_one_point_is_not_promised(tmp_path: Path) -> None:
    # DDP's own collectives count nothing, so that only one process has a bound.
    suite = SUITE.replace("processes: [1, 2]", "processes: [1, 2, 4]")
    (time,) = asked(make_record(tmp_path / "run", suite)).sketches
    assert not any(trace.thin for trace in time.traces) and "bound" not in time.counted


@pytest.mark.parametrize(("text", "lead"), [
    ("E.g. DDP vs. FSDP on one host. Then more.", "E.g. DDP vs. FSDP on one host."),
    ("Does it pay? It does not.", "Does it pay?"), ("One sentence", "One sentence"),
])
def test_the_lead_is_the_first_sentence(text: str, lead: str) -> None:
    assert first.SENTENCE.split(text, maxsplit=1)[0] == lead


def test_a_contest_shows_the_mean_of_every_cell_and_the_target(tmp_path: Path) -> None:
    text = suite("invented", """\
matrix: {engine: [{kind: fake, step_seconds: 0.010, spread: 0.1}, {kind: fake, step_seconds: 0.014, spread: 0.1}]}
baseline: {engine: {step_seconds: 0.010}}
""", seeds=3, engine="fake", stop="{metric: top1, target: 0.9, max_epochs: 3, design: contest}", launcher="inline")
    (tmp_path / "suite.yaml").write_text(text)
    succeeded("run", tmp_path / "suite.yaml", "--out", tmp_path / "run", "--no-mlflow")
    record = read_record(tmp_path / "run")
    found = asked(record)
    (figure,) = found.sketches
    assert figure.goal is not None
    assert [text for _, text in figure.rows] == ["2", "1"]
    page = (tmp_path / "run" / "report" / "report.html").read_text()
    answer = page[page.index('id="verdicts"'):page.index('class="arms')]
    assert "Claims of quality" in answer and "one-sided p = " in answer and "Primary contrast" not in answer
    assert sum(len(trace.spans) for trace in figure.traces) == 2


@pytest.mark.parametrize(("values", "texts"), [
    ([3.2761, 3.2819], ["3.276", "3.278", "3.28", "3.282"]),
    ([0.97, 0.99], ["0.97", "0.975", "0.98", "0.985", "0.99"]),
    ([120.0, 480.0], ["100", "200", "300", "400", "500"]),
    ([0.5, 0.5], None),
])
def test_marks_of_a_linear_axis_are_told_apart(values: list[float], texts: list[str] | None) -> None:
    found = [trimmed(value, axis.linear(values).digits) for value in axis.linear(values).values]
    assert len(set(found)) == len(found) >= 2
    assert texts is None or found == texts


@pytest.mark.parametrize(("name", "text"), [
    ("same", "ddp (bucket_mib=50.0) takes 1.01 times as long for a step as ddp (16 pairs, 95 % interval 0.99 to 1.04; "
             "measured): same within 10 %."),
    ("missed", "batch 256 reached top1 of at least 0.96 in 0 of 8 trials, batch 64 in 8 of 8 trials (8 pairs; "
               "measured). The ratio of their times is unknown: inconclusive."),
    ("inconclusive", "Undecided between nesterov True and nesterov False to reach top1 of at least 0.96: ratio 0.920 "
                     "(6 pairs, 95 % interval 0.844 to 1.002; measured), inconclusive."),
])
def test_the_copied_sentence_says_what_the_page_says(name: str, text: str, tmp_path: Path) -> None:
    primary = speedup.forest(findings(gallery(name, tmp_path))).primary
    assert speedup.sentence(primary).replace("\N{NO-BREAK SPACE}", " ") == text


def quoted(record: Record) -> str:
    view = html_page.first_view(findings(record))
    return html.unescape(view["copies"][view["forest"].primary.index][0]).replace("\N{NO-BREAK SPACE}", " ")


@pytest.mark.parametrize(("name", "parts"), [
    ("inconclusive", (
        "Both: digits, ddp, 1 process, batch 64, fp32, constant learning rate, 2 cores of ", ", torch 2.13",
        ". nesterov True: sgd (lr=0.05, momentum=0.9, nesterov=True, decay=all); nesterov False: sgd ",
        "Caution: Busy machine: the load was 1.18 on 2 cores")),
    ("scaling", ("fabric (rate=100mbit)",)),
    ("settled", ("Caution: settled at its first look", ". Also differs between the two, as read back: overlap off ")),
])
def test_a_quotation_has_the_settings_the_machine_and_every_caution(
    name: str, parts: tuple[str, ...], tmp_path: Path
) -> None:
    record = gallery(name, tmp_path)
    text, first = quoted(record), speedup.sentence(speedup.forest(findings(record)).primary)
    assert text.startswith(first.replace("\N{NO-BREAK SPACE}", " "))
    assert all(part in text for part in parts), text
    assert "no figure is affected" not in text


def test_a_quotation_names_what_a_label_of_one_factor_leaves_out(tmp_path: Path) -> None:
    text = SUITE[:SUITE.index("baseline:")].replace("suite:", "combine: one_at_a_time\nsuite:", 1)
    rows = speedup.forest(findings(make_record(tmp_path, text + "baseline: {engine: ddp, processes: 1}\n"))).rows
    texts = [speedup.quotation(row, "a machine", ()) for row in rows]
    both = ("Both: digits, ddp, batch 64, fp32, sgd (lr=0.1, momentum=0.9, decay=all), constant learning rate, a "
            "machine.")
    assert any(both in item for item in texts), texts
    assert any(". reference: 1 process." in item for item in texts), texts


def test_a_quotation_for_latex_is_cleaned_before_it_is_escaped(tmp_path: Path) -> None:
    record = gallery("settled", tmp_path)
    odd = Incident(kind="throttled", at_ms=0, text=f"see /home/alice/a_secret/notes.txt {'x_y ' * 900}")
    page = Page(render(replace(record, incidents=(*record.incidents, odd)), tmp_path))
    plain, tex = [attrs["data-copy"] or "" for _, attrs in page.elements if "data-copy" in attrs][:2]
    assert "alice" not in plain + tex and "notes.txt" in plain
    assert re.search(r" \.\.\. \([\d,]+ more characters\)$", plain) and len(tex) > len(plain) > 2000
    assert tex == latex_text.breakable_text(plain)


@pytest.mark.parametrize(("stated", "words"), [
    ({"answer": "not reproduced", "warnings": ["second one"], "claims": [
        {"label": "a against b", "answer": "not reproduced", "because": "ratio 2", "cautions": ["its p is 0.04"]}]},
     ("repeats the trials of the record <i>one</i>.zip;ls: results not reproduced, as stated by reproduction.json",
      "16 pairs, margin 5 %, with which an unchanged claim is reproduced with a probability of 90 %.",
      "a against b: not reproduced: ratio 2.", "the figures of this run alone.", "Second one.", "Its p is 0.04.")),
    ({"answer": "reproduced", "again": "2" * 64}, ("no answer here: reproduction.json is about another execution.",)),
    ({"answer": None}, ("has no answer here: it did not end.",)),
    ({"answer": "perhaps"}, ("has no answer here: reproduction.json cannot be read: ",)),
    ({"answer": "reproduced", "of": "1" * 64}, ("has no answer here: reproduction.json is about another record.",)),
    (None, ("has no answer here: reproduction.json is not in its folder.",)),
])
def test_the_page_of_a_reproduction_begins_with_its_answer(
    stated: dict[str, object] | None, words: tuple[str, ...], tmp_path: Path
) -> None:
    record = gallery("same", tmp_path)
    if stated is not None:
        written = {"source": "<i>one</i>.zip;ls", "of": "0" * 64, "again": figures_sha256(record)} | stated
        (tmp_path / "reproduction.json").write_text(json.dumps(written))
    assert "repeats" not in words_of(record, tmp_path)
    terms = Terms(pairs=16, margin=0.05, record="0" * 64, power=0.9)
    again = replace(record, plan=record.plan.model_copy(update={"kind": "reproduction", "terms": terms}))
    text = words_of(again, tmp_path)
    assert all(part in text for part in words), text[:2000]


@pytest.mark.parametrize(("name", "sleeps"), [("scaling", True), ("settled", False)])
def test_a_sleep_for_computation_is_recognised(name: str, sleeps: bool, tmp_path: Path) -> None:
    assert scaling.scaling(gallery(name, tmp_path)).sleeps is sleeps
