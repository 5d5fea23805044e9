"""A language model's reports speak of loss, perplexity and tokens, never of accuracy or images."""

from __future__ import annotations

import csv
import importlib
import io
import math
import re
from pathlib import Path

import pytest

from repro.cli.terminal import Console
from repro.cli.workflows.progress import TerminalWatcher
from repro.core import registry
from repro.record.folder.store import Record
from repro.record.log.reading import read_log
from tests.records import SUITE, make_record
from tests.unit.reporters.parsed_page import Page, figures, render, trials_of

points = importlib.import_module("repro.reporters.tracking.metric_points")
TEXT = (SUITE.replace("workload: digits", "workload: text").replace("evaluate_every: 1437", "evaluate_every: 1600")
        .replace("metric: top1, target: 0.9", "metric: val_loss, target: 2.2"))
FORBIDDEN = re.compile(r"(?i)accurac|\bimages?\b|top-?1")


@pytest.fixture(scope="module")
def loss(tmp_path_factory: pytest.TempPathFactory) -> Record:
    return make_record(tmp_path_factory.mktemp("loss") / "run", TEXT)


@pytest.fixture(scope="module")
def page(loss: Record, tmp_path_factory: pytest.TempPathFactory) -> Page:
    return Page(render(loss, tmp_path_factory.mktemp("page")))


def test_the_page_says_loss_perplexity_and_tokens(page: Page) -> None:
    text = page.text
    assert "Loss against each clock" in text
    assert "Time-to-loss report" in text
    assert "Final loss" in text
    final = f"perplexity {math.exp(2.19):.3g}, {2.19 / math.log(2):.3g} bits per byte"
    assert final in text
    assert "tokens/s" in text
    assert "windows/s" in text
    assert any(value == pytest.approx(math.exp(2.19)) for value in page.values)
    # What is left is the name of this software in its citation.
    left = [text[max(0, at.start() - 8):at.end() + 12] for at in FORBIDDEN.finditer(text)]
    assert set(left) == {"time-to-accuracy benchmarks"}


def test_digits_keep_their_words(tmp_path: Path) -> None:
    found = Page(render(make_record(tmp_path / "run"), tmp_path / "page"))
    assert "Accuracy against each clock" in found.text
    assert "Time-to-accuracy report" in found.text
    assert "perplexity" not in found.text
    assert "tokens" not in found.text


def test_curves_fall_to_a_target_whose_label_is_below_its_line(page: Page) -> None:
    for name, figure in figures(page).items():
        (label,) = figure["layout"]["annotations"]
        assert (label["text"], label["yanchor"]) == ("target 2.2", "top")
        assert figure["layout"]["shapes"][0]["y0"] == 2.2
        for trace in trials_of(figure):
            assert trace["y"] == sorted(trace["y"], reverse=True)
            assert trace["text"][-1].startswith("perplexity 8.9")
            assert trace["marker"]["symbol"][-1] != "x-thin-open"  # it reached the target
        if name.endswith("samples"):
            assert figure["layout"]["xaxis"]["title"]["text"] == "windows"


def test_tables_have_perplexity_and_tokens(loss: Record, tmp_path: Path) -> None:
    registry.load("reporter", "csv")().write(loss, tmp_path)
    read = {name: list(csv.DictReader(io.StringIO((tmp_path / "csv" / f"{name}.csv").read_text())))
            for name in ("cells", "trials", "evaluations")}
    assert float(read["cells"][0]["median_final_perplexity"]) == pytest.approx(math.exp(2.19))
    row = read["trials"][0]
    assert float(row["final_bits_per_byte"]) == pytest.approx(2.19 / math.log(2))
    assert float(row["tokens_to_target"]) == 64 * float(row["samples_to_target"])
    for row in read["evaluations"]:
        assert float(row["perplexity"]) == pytest.approx(math.exp(float(row["value"])))


def test_tables_of_an_accuracy_have_no_such_column(tmp_path: Path) -> None:
    registry.load("reporter", "csv")().write(make_record(tmp_path / "run"), tmp_path / "out")
    for name in ("cells", "trials", "evaluations"):
        header = (tmp_path / "out" / "csv" / f"{name}.csv").read_text().splitlines()[0]
        assert "perplexity" not in header
        assert "tokens_to_target" not in header


def test_mlflow_gets_the_perplexity_of_every_evaluation(loss: Record) -> None:
    trial = loss.results[0]
    quality = loss.plan.cells[0].choices.quality
    events = read_log(loss.folder.log(trial.trial_id, 1))
    found = list(points.training_points(events, 64, quality))
    values = [item.value for item in found if item.key == "curve/eval_val_loss"]
    perplexities = [item.value for item in found if item.key == "curve/eval_perplexity"]
    assert perplexities == [math.exp(value) for value in values]
    assert values
    ended = {item.key: item.value for item in points.result_points(trial, 0, quality)}
    assert ended["answer/quality_perplexity"] == pytest.approx(math.exp(2.19))


def test_the_terminal_shows_perplexity_and_tokens_a_second(loss: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("repro.cli.workflows.progress.QUIET_SECONDS", -1.0)
    out = io.StringIO()
    watcher = TerminalWatcher(Console(file=out, width=200))
    trial = next(iter(loss.plan.trials()))
    watcher.trial_started(1, 4, trial, loss.plan.cells[0])
    watcher.trial_ticked(2.5, 0.5, 100.0)
    watcher.trial_ticked(None, 0.5, None)
    watcher.trial_ended(loss.results[0], 3.0)
    text = out.getvalue()
    assert "val_loss 2.5000 (perplexity 12.2, 3.61 bits per byte) at epoch 0.5, 6,400 tokens/s" in text
    assert "val_loss not finite at epoch 0.5" in text
    assert "val_loss 2.1900 (perplexity 8.94, 3.16 bits per byte)" in text
