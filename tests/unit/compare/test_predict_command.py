"""`repro predict` on made records whose right answers are known, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from repro.core.errors import UsageError
from repro.papers.predict.predict import predict
from repro.record.folder.store import Record
from tests.in_process import called
from tests.records import SCALING, SUITE, WEIGHTS, default_course, make_record, scaling_course


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Record:
    """10 ms of computing; a tree's 2 log2(p) and a ring's 2(p-1)/p times the weights over 100 Mbit/s."""
    return make_record(tmp_path_factory.mktemp("scale") / "run", SCALING, scaling_course)


def run(*arguments: str) -> Any:
    return called("predict", *arguments)


def refused(*arguments: str) -> str:
    done = run(*arguments)
    return str(done.exception) if isinstance(done.exception, UsageError) else done.output.splitlines()[-1]


def test_what_was_not_fitted_is_predicted(record: Record) -> None:
    found = predict(record, "run", [64], fitted=[1, 2])
    assert (found.scaling, len(found.lines), len(found.checked)) == ("strong", 4, 4)
    for line in found.lines:
        four, sixty_four = line.rows[2:]
        tree = line.algorithm == "tree"
        path = (4 if tree else 1.5) * WEIGHTS
        assert (four.processes, four.fitted) == (4, False)
        assert four.step and four.step.value == pytest.approx(0.01 + path * 8 / 1e8, rel=1e-3)
        assert four.ratio == pytest.approx(1, rel=1e-3)
        assert four.compute == pytest.approx(0.01)  # equal for 64 and 256 samples, so none of it is by the sample
        assert sixty_four.measured is None
        path = (12 if tree else 2 * 63 / 64) * WEIGHTS
        assert sixty_four.step and sixty_four.step.value == pytest.approx(0.01 + path * 8 / 1e8, rel=1e-3)
        assert any("all of it is taken as bytes" in text for text in line.assumptions)


def test_time_to_the_target_is_steps_and_evaluations(record: Record) -> None:
    line = predict(record, "run", [8]).lines[0]
    four, eight = line.rows[2:]
    steps = 4 * -(-1437 // four.batch)  # the target is reached at the fourth evaluation
    assert four.epochs == "measured"
    assert eight.step and eight.to_target
    # the samples to the target are those of whole steps, a little more than four times 1437
    assert eight.to_target.value == pytest.approx(steps * eight.step.value + 0.08, rel=2e-2)
    assert four.measured_target and four.to_target
    assert four.to_target.value == pytest.approx(four.measured_target.value, rel=0.02)


def test_published_epochs_are_labelled(record: Record, tmp_path: Path) -> None:
    table = tmp_path / "epochs.yaml"
    table.write_text("source: a table\nsamples: 1000\nepochs: {32: 2, 128: 4}\n")
    done = run(str(record.folder.root), "--processes", "2", "--scaling", "strong", "--epochs", str(table), "--json")
    assert done.exit_code == 0, done.output
    by_batch = {line["rows"][1]["batch"]: line["rows"][1] for line in json.loads(done.stdout)["lines"]}
    epochs = 2 * 2 ** 0.5
    assert by_batch[64]["epochs"] == "published (a table): 2.828 epochs"
    evaluations = epochs * 1000 / 1437 * 0.02
    assert by_batch[64]["to_target"]["value"] == pytest.approx(
        epochs * 1000 / 64 * by_batch[64]["step"]["value"] + evaluations)
    assert by_batch[256]["to_target"] is None
    assert by_batch[256]["why"] == "the published table has no epochs on both sides of batch 256"


def test_weak_scaling_keeps_the_samples_of_a_worker(record: Record) -> None:
    rows = predict(record, "run", [8], scaling="weak").lines[0].rows
    assert {row.processes: row.batch for row in rows} == {1: 64, 4: 256, 8: 512}
    assert rows[-1].why.startswith("not every seed reached the target with batch 512")


def test_every_output_has_rows_and_assumptions(record: Record, tmp_path: Path) -> None:
    page = tmp_path / "predict.html"
    done = run(str(record.folder.root), "--processes", "3,16,1024", "--fit", "1,2", "--out", str(page))
    assert done.exit_code == 0, done.output
    for text in ("1024", "assumed: all figures are modelled", "a batch of 64 cannot be divided among 3 processes",
                 "overlap: ", "4 measured steps that were not fitted: median error"):
        assert text in done.output
    html = page.read_text(encoding="utf-8")
    assert html.count('data-chart="step-') == 4
    assert "modelled" in html and "a step is as long as its slowest worker" in html


@pytest.mark.parametrize(("arguments", "right"), [
    (("--processes", "16,x"), "are not numbers of processes; write for example 16,64,256"),
    (("--processes", "0"), "are not numbers of processes"),
    (("--processes", "16", "--fit", "1"), "no two numbers of processes of --fit with the samples of a worker kept"),
])
def test_bad_input_is_one_line(record: Record, arguments: tuple[str, ...], right: str) -> None:
    assert right in refused(str(record.folder.root), *arguments)


def test_no_run_and_no_table_are_one_line(record: Record, tmp_path: Path) -> None:
    assert "\n" not in refused(str(tmp_path / "nothing"), "--processes", "16")
    table = tmp_path / "epochs.yaml"
    table.write_text("epochs: {64: -1}\n")
    text = refused(str(record.folder.root), "--processes", "16", "--epochs", str(table))
    assert "source: Field required; write source: TEXT and epochs: {BATCH: EPOCHS}" in text


def test_engines_that_do_not_all_reduce_are_left_out_with_the_reason(tmp_path: Path) -> None:
    text = SUITE.replace("engine: [ddp, {kind: deepspeed, stage: 1}]", "engine: [fsdp, {kind: deepspeed, stage: 1}]")
    text = text.replace("baseline: {engine: ddp}", "baseline: {engine: fsdp}")
    text = text.replace("  baseline: {engine: ddp, processes: 2}", "  baseline: {engine: fsdp, processes: 2}")
    made = make_record(tmp_path / "run", text, default_course, only=4)
    assert "engine fsdp does not send gradients by all-reduce alone" in refused(
        str(made.folder.root), "--processes", "16")
