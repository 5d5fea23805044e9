"""Figures of training in every format: small tables a group, with what a reader must know."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from repro.reporters.page.sections.figures import figures

from reporters import markdown
from reporters.latex import latex_files
from reporters.paper.brief import brief, shown_of
from reporters.tracking.metric_points import cell_metrics, cell_points, result_points
from repro.cli.terminal import Console
from repro.cli.text.compare import print_table
from repro.compare import summarize
from repro.compare.cell_figures import cell_figures, notes
from repro.compare.findings import findings
from repro.record.folder.store import Record
from repro.record.result.parts import Energy, Model
from repro.record.result.results import Result
from repro.reporting import reporter
from repro.tables.cell_tables import group_tables
from repro.tables.tables import tables
from tests.records import make_record

MODEL = Model(parameters=124_439_808, forward_flops=2.92e11, tokens_per_sample=1024, device="NVIDIA H100 80GB HBM3",
              peak_flops=989.5e12, peak_source="bfloat16, NVIDIA H100 data sheet", why="")
ENERGY = Energy(joules=5000.0, provenance="measured", parts={}, seconds=10.0, tool="made up", observer_seconds=0.0)


def on_a_gpu(item: Result) -> Result:
    """The result with every figure that a language model on GPUs has, a little different by seed."""
    return item.model_copy(update={
        "step_seconds": 0.2 + item.repeat / 1000, "step_seconds_mean": 0.21, "tokens_per_second": 500_000.0,
        "memory": "allocated", "training_peak_mib": 40_000.0, "training_peak_mib_sum": 80_000.0,
        "init_peak_mib": 1500.0, "state_bytes": {"weights": 512 << 20, "total": 2048 << 20},
        "input_wait_seconds": 0.004, "input_wait_share": 0.02, "model": MODEL, "mfu": 0.412, "energy": ENERGY})


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Record:
    return make_record(tmp_path_factory.mktemp("figures") / "run")


@pytest.fixture(scope="module")
def new(old: Record) -> Record:
    return dataclasses.replace(old, results=tuple(map(on_a_gpu, old.results)))


def test_no_table_of_the_page_has_more_than_six_columns(new: Record) -> None:
    found = figures(findings(new))
    assert list(found) == ["Speed", "Memory", "Input", "Energy", "Model"]
    assert all(len(group) <= 5 for group in found.values())
    assert {"MFU", "Tokens a second"} <= {item.title for item in found["Speed"]}


def test_the_page_says_what_memory_counts_and_whose_peak_it_is(new: Record, tmp_path: Path) -> None:
    page = Path(reporter("html").write(new, tmp_path)[0]).read_text()
    assert "Memory is what torch allocated on the GPU" in page
    assert "989.5 TFLOP/s a device, the stated peak of NVIDIA H100 80GB HBM3 (bfloat16, NVIDIA H100 data sheet)" in page
    assert page.count('id="training"') == 1 and "These figures are not tested." in page


def test_predicted_memory_is_labelled_as_modelled_wherever_it_is_shown(
    new: Record, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = Path(reporter("html").write(new, tmp_path)[0]).read_text()
    assert "Model states of a rank, modelled" in page and "is modelled, not measured" in page
    row = next(table for table in tables(new) if table.name == "cells").rows[0]
    assert row["median_state_mib_modelled"] == 2048
    assert (row["median_input_wait_seconds"], row["median_input_wait_share"]) == (0.004, 0.02)
    found = [cell_figures(new.of_cell(cell.cell_id)) for cell in new.plan.cells]
    for table in group_tables([cell.label for cell in new.plan.cells], found):
        print_table(table, Console(width=200))
    said = capsys.readouterr().out
    assert "Model states of a rank, modelled (MiB)" in said and "2,048" in said
    assert any("is modelled, not measured" in note for note in notes(new.results))
    assert "Wait for input a step, mean" in said and "mean (s)" not in said
    assert "4 ms" in said, "a time below 0.1 s, as on the page"


def test_a_record_without_them_has_no_section(old: Record, tmp_path: Path) -> None:
    page = Path(reporter("html").write(old, tmp_path)[0]).read_text()
    assert 'id="training"' not in page and "#training" not in page
    assert not figures(findings(old))
    assert "training" not in brief(old).tables
    assert not [column for table in tables(old) if table.name == "cells" for column in table.columns
                if "step_seconds" in column]


def test_medians_leave_out_trials_that_failed(new: Record) -> None:
    results = list(new.of_cell(new.plan.cells[0].cell_id))
    results[0] = results[0].model_copy(update={"status": "crashed", "step_seconds": 99.0})
    assert cell_figures(results)["step_seconds"] == pytest.approx(0.203)


def test_papers_have_one_table_of_them(new: Record) -> None:
    text = brief(new)
    assert text.tables["training"].headers == ("Cell", "Step (s)", "Samples/s", "Tokens/s", "MFU", "Peak memory (MiB)",
                                     "J a sample")
    assert "Tokens/s" in markdown.render(text)
    assert "MFU" in latex_files(new, text, shown_of(new), [])["tables/training.tex"]


def test_a_tracking_store_has_them_under_clear_names(new: Record) -> None:
    points = {point.key: point.value for point in result_points(new.results[0], 0)}
    assert (points["speed/tokens_per_second"], points["speed/mfu"]) == (500_000.0, 0.412)
    assert points["memory/training_peak_mib"] == 40_000.0 and "memory/peak_bytes" not in points  # one unit
    assert points["model/parameters"] == 124_439_808 and points["energy/joules_per_sample"] > 0
    cell = new.plan.cells[0]
    summaries = [summarize(cell, new.of_cell(cell.cell_id), name) for name in cell_metrics(new)]
    keys = {point.key for point in cell_points(summaries, [], 0, 0)}
    assert {"median/step_seconds", "median/train_samples_per_second", "median/tokens_per_second",
            "median/training_peak_mib", "median/mfu", "median/joules_per_sample"} <= keys
    assert next(iter(cell_points(summaries, [], 0, 0))).key == "answer/median_tta_wall"


def test_energy_that_is_modelled_is_no_metric(new: Record) -> None:
    modelled = new.results[0].model_copy(update={"energy": ENERGY.model_copy(update={"provenance": "modelled"})})
    assert new.results[0].joules_per_sample is not None and modelled.joules_per_sample is None
