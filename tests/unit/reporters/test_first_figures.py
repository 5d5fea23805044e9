"""The figures of the first screen follow the question: scaling, formats, claims of a contest, missed targets."""

from __future__ import annotations

import importlib
import zipfile
from pathlib import Path

import pytest
from click.testing import CliRunner

from repro.cli.main import cli
from repro.record.store import Record, read_record
from tests.records import SCALING, SUITE, make_record, scaling_course

question = importlib.import_module("repro.reporters.page.question")
scaling = importlib.import_module("repro.reporters.page.scaling")
speedup = importlib.import_module("repro.reporters.page.speedup")
sketches = importlib.import_module("repro.reporters.page.sketch")
copies = importlib.import_module("repro.reporters.page.copies")
axis = importlib.import_module("repro.reporters.page.axis")
GALLERY = Path(__file__).parents[3] / "docs/gallery/records"


def asked(record: Record) -> question.Question:
    return question.question(record, speedup.forest(record).primary, scaling.scaling(record))


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
    assert [text for _, text, _ in time.columns] == ["1", "2", "4"]
    drawn = [trace for trace in sent.traces if not trace.thin]
    bounds = [trace for trace in sent.traces if trace.thin]
    assert len(drawn) == len(bounds) == 2
    # Of a ring of p ranks each sends 2 (p - 1) / p |W|, the least; the server of 4 sends 3 |W|, twice as much.
    line = {item.label: item for item in scaling.scaling(record).same[0].lines}
    four = {label: item.points[-1] for label, item in line.items()}
    assert four["ring"].bytes_per_epoch == pytest.approx(four["ring"].least_bytes_per_epoch, rel=0.01)
    server = four["parameter-server (shards=1)"]
    assert server.bytes_per_epoch == pytest.approx(2 * server.least_bytes_per_epoch, rel=0.01)


def test_two_numbers_of_processes_are_no_question_about_scaling(tmp_path: Path) -> None:
    record = make_record(tmp_path / "run", SCALING.replace("[1, 2, 4]", "[1, 2]"), scaling_course)
    assert len(record.plan.suite.matrix["processes"]) == 2
    assert not asked(record).scaling


def test_a_missed_target_shows_the_share_of_trials_at_it(tmp_path: Path) -> None:
    found = asked(gallery("missed", tmp_path))
    (share,) = found.sketches
    assert share.title.startswith("Probability of having reached top1 of at least 0.96")
    reached, missed = share.traces
    top = sketches.BOTTOM - (sketches.BOTTOM - sketches.TOP) / 1.04
    assert float(reached.path.rsplit("V", 1)[1]) == pytest.approx(top, abs=0.1), "all reached it"
    assert reached.path.count("V") == 9
    assert set(missed.path.split("V")[1:]) == {f"{sketches.BOTTOM}"}, "none reached it"


def test_formats_show_the_quality_next_to_the_time(tmp_path: Path) -> None:
    suite = SUITE.replace("matrix:", "matrix:\n  precision: [fp32, bf16-autocast]").replace(
        "{engine: deepspeed, processes: 2}", "{engine: ddp, processes: 2, precision: bf16-autocast}").replace(
        "{engine: ddp, processes: 2}", "{engine: ddp, processes: 2, precision: fp32}").replace(
        "baseline: {engine: ddp}", "baseline: {precision: fp32}")
    record = make_record(tmp_path / "run", suite)
    found = asked(record)
    (figure,) = found.sketches
    assert figure.title == "Final top1 against the time to the target"
    assert figure.level is not None, "the target"
    assert [mark.label for mark in found.keys] == ["fp32, ddp, 2 processes", "bf16-autocast, ddp, 2 processes"]
    assert sum(len(trace.marks) for trace in figure.traces if not trace.thin) == len(found.keys)


def test_a_contest_shows_the_mean_of_every_cell_and_the_target(tmp_path: Path) -> None:
    suite = tmp_path / "suite.yaml"
    suite.write_text("""\
suite: invented
seeds: 3
trial:
  workload: digits
  engine: fake
  launcher: inline
  batch: {global: 64}
  optimizer: {kind: sgd, lr: 0.1}
  stop: {metric: top1, target: 0.9, max_epochs: 3, design: contest}
  evaluate_every: 1437
  device: cpu
matrix: {engine: [{kind: fake, step_seconds: 0.010, spread: 0.1}, {kind: fake, step_seconds: 0.014, spread: 0.1}]}
baseline: {engine: {step_seconds: 0.010}}
""")
    outcome = CliRunner().invoke(cli, ["run", str(suite), "--out", str(tmp_path / "run"), "--no-mlflow"])
    assert outcome.exit_code == 0, outcome.output
    record = read_record(tmp_path / "run")
    found = asked(record)
    (figure,) = found.sketches
    assert figure.goal is not None
    assert [text for _, text in figure.rows] == ["2", "1"]
    assert sum(len(trace.spans) for trace in figure.traces) == 2


@pytest.mark.parametrize(("values", "texts"), [
    ([3.2761, 3.2819], ["3.276", "3.278", "3.28", "3.282"]),
    ([0.97, 0.99], ["0.97", "0.975", "0.98", "0.985", "0.99"]),
    ([120.0, 480.0], ["100", "200", "300", "400", "500"]),
    ([0.5, 0.5], None),
])
def test_marks_of_a_linear_axis_are_told_apart(values: list[float], texts: list[str] | None) -> None:
    found = [axis.tick_text(value, axis.linear(values).digits) for value in axis.linear(values).values]
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
    primary = speedup.forest(gallery(name, tmp_path)).primary
    assert copies.sentence(primary).replace("\N{NO-BREAK SPACE}", " ") == text


@pytest.mark.parametrize(("name", "sleeps"), [("scaling", True), ("settled", False)])
def test_a_sleep_for_computation_is_recognised(name: str, sleeps: bool, tmp_path: Path) -> None:
    assert scaling.scaling(gallery(name, tmp_path)).sleeps is sleeps
