"""Names of metrics, parameters and descriptions in MLflow, without a store."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from repro.reporters.tracking.metric_points import (
    GROUPS,
    OTHER,
    MetricPoint,
    cell_metrics,
    cell_points,
    of_trial,
    result_points,
    training_points,
)
from repro.reporters.tracking.notes import (
    NOTE,
    VIEW_TAG,
    Links,
    cell_note,
    experiment_note,
    experiment_tags,
    trial_note,
)
from repro.reporters.tracking.run_view import cell_view, flat_params
from repro.reporters.tracking.server import _is_new

from repro.compare import compare, summarize
from repro.record.folder.store import Record
from repro.record.log.reading import read_log
from repro.record.result.results import figures_of
from repro.suite.choice import parse_choice
from repro.suite.planning.cell import Cell
from repro.suite.recorded import reading
from tests.records import SUITE, Course, make_record

LINKS = Links("7", "abc", "def")
PLACE = "(#/experiments/7/runs/abc/artifacts/report.html?workflowType=machine_learning)"


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Record:
    found = make_record(tmp_path_factory.mktemp("made") / "run")
    found.folder.reports.mkdir()
    (found.folder.reports / "report.html").write_text("<p>")
    return found


def points_of_a_cell(record: Record, number: int) -> list[MetricPoint]:
    cell = record.plan.cells[number]
    summaries = [summarize(cell, record.of_cell(cell.cell_id), name) for name in cell_metrics(record)]
    found = [item for item in compare(record.plan, record.results) if item.candidate == cell.cell_id]
    return cell_points(summaries, found, 0, 0)


def test_every_figure_of_a_trial_has_a_group(record: Record) -> None:
    columns = list(figures_of(record.results[0]))
    assert [column for column in columns if of_trial(column, None).startswith(f"{OTHER}/")] == []
    assert sorted(GROUPS) == list(GROUPS)


def test_the_first_groups_of_a_trial_are_the_answer_and_its_curves(record: Record) -> None:
    result = record.results[0]
    keys = [point.key for point in result_points(result, 0, declared="tta_wall")]
    events = read_log(record.folder.log(result.trial_id, 1))
    curves = {point.key for point in training_points(events, 64)}
    assert keys[0] == "answer/tta_wall"
    assert [key for key in keys if key.startswith("answer/")] == keys[:5]
    assert list(dict.fromkeys(key.partition("/")[0] for key in sorted({*keys, *curves})))[:2] == ["answer", "curve"]
    assert {"curve/eval_top1", "curve/loss", "progress/epoch"} <= curves
    assert all("/" in key for key in keys)


@pytest.mark.parametrize(("declared", "head"), [
    ("step_time", "answer/step_seconds"), ("end_wall", "answer/end_wall"), ("accuracy", "answer/final"),
])
def test_the_declared_metric_is_the_first_of_the_answer(record: Record, declared: str, head: str) -> None:
    found = result_points(record.results[0].model_copy(update={"step_seconds": 0.5}), 0, declared=declared)
    assert found[0].key == head
    assert len({point.key for point in found}) == len(found)


def test_the_answer_of_a_cell_sorts_by_use(record: Record) -> None:
    found = points_of_a_cell(record, 3)
    answer = [point.key.partition("/")[2] for point in found if point.key.startswith("answer/")]
    assert answer == ["median_tta_wall", "ratio", "quality", "reached"], "at most five, each of which MLflow draws"
    assert min(answer) == "median_tta_wall"
    assert min(point.key for point in found) == "answer/median_tta_wall"
    assert "ratio" not in [point.key.partition("/")[2] for point in points_of_a_cell(record, 0)]  # the baseline


def test_a_figure_that_is_unknown_is_nan(tmp_path: Path) -> None:
    missed = make_record(tmp_path / "run", SUITE.replace("seeds: 6", "seeds: 2"), lambda _: Course(hits_at=None))
    values = {point.key: point.value for point in points_of_a_cell(missed, 3)}
    assert math.isnan(values["answer/median_tta_wall"]) and math.isnan(values["answer/ratio"])
    assert values["answer/reached"] == 0 and values["interval/trials"] == 2


@pytest.mark.parametrize(("stored", "key", "value", "sent"), [
    (None, "median/x", 1.0, True), (1.0, "median/x", 1.0, False), (2.0, "median/x", 1.0, True),
    (None, "median/x", math.nan, False), (None, "answer/ratio", math.nan, True), (1.0, "median/x", math.nan, True),
    (math.nan, "answer/ratio", math.nan, False), (math.nan, "answer/ratio", 1.0, True),
])
def test_an_unknown_figure_is_sent_if_it_corrects_one_or_keeps_its_place(
    stored: float | None, key: str, value: float, sent: bool
) -> None:
    assert _is_new(stored, MetricPoint(key, value, 0, 0)) is sent


def test_a_plug_in_with_its_default_is_no_parameter(record: Record, tmp_path: Path) -> None:
    found = flat_params(record.plan.cells[0], {})[0]
    assert not {"comm.kind", "launcher.kind", "preconditioner.kind", "schedule.kind"} & found.keys()
    assert (found["optimizer.kind"], found["workload.kind"], found["precision.kind"]) == ("sgd", "digits", "fp32")
    other = make_record(tmp_path / "run", SUITE.replace("device: cpu", "device: cpu\n  comm: ring"), only=0)
    assert flat_params(other.plan.cells[1], {})[0]["comm.kind"] == "ring"


def stand_in_cell(record: Record, shown: str) -> Cell:
    """Return a cell whose workload is a class from a file that may not be imported here, labelled `shown`."""
    written = {"kind": "net.py:Net", "code": "0123456789abcdef" * 4}
    options = {"dedup": None, "augment": False, "label_smoothing": 0.0, "width": 256}
    described = {**written, "seam": "workload", "shown": shown, "options": options,
                 "facts": {"metrics": {"top1": "higher"}}}
    with reading([described]):
        choice = parse_choice("workload", {**written, **options})
    cell = record.plan.cells[0]
    return cell.model_copy(update={"choices": cell.choices.model_copy(update={"workload": choice})})


def test_a_class_from_a_file_has_the_options_that_its_record_calls_changed(record: Record) -> None:
    def own(shown: str) -> dict[str, str]:
        found = flat_params(stand_in_cell(record, shown), {})[0]
        return {key: value for key, value in found.items() if key.startswith("workload.")}

    named = {"workload.kind": "net.py:Net", "workload.code": "0123456789ab"}
    assert own("net.py:Net") == named
    assert own("net.py:Net (width=256)") == named | {"workload.width": "256"}
    every = own("net.py:Net (augment=False, dedup=None, label_smoothing=0.0, width=256)")
    assert len(every) == 6, "a record of a version that knew no defaults"


def test_what_follows_from_other_settings_is_no_parameter(record: Record) -> None:
    cell = record.plan.cells[1]
    found = flat_params(cell, {})[0]
    assert not {"batch.micro", "stop.direction"} & found.keys() and found["batch.global"] == "64"
    assert "engine" in cell.factors and found["engine"] == cell.factors["engine"] and "engine.kind" not in found
    varied = cell.model_copy(update={"factors": {"workload": "digits", "batch.micro": "32", "engine.kind": "ddp"}})
    found = flat_params(varied, {})[0]
    assert found["batch.micro"] == "32" and found["engine.kind"] == "ddp" and "workload.kind" not in found


def test_a_cell_is_described_by_its_verdict_the_report_and_its_cautions(record: Record) -> None:
    cell = record.plan.cells[3]
    found = [item for item in compare(record.plan, record.results) if item.candidate == cell.cell_id]
    note = cell_note(record, cell, summarize(cell, record.of_cell(cell.cell_id)), found, LINKS)
    first, figures, why, *_ = note.split("\n\n")
    assert first.startswith(f"{found[0].verdict.capitalize()}, {found[0].ratio:.3f} x the time of ddp, 2 processes "
                            "(95 % interval ")
    assert first.endswith(f"), 6 pairs. [Report of all cells]{PLACE}.")
    assert figures.startswith("Median time to the target ") and "6 of 6 reached the target" in figures
    assert why.endswith("This contrast was declared in the suite.")


def test_a_trial_is_described_by_its_end(record: Record) -> None:
    cell = record.plan.cells[0]
    result = record.of_cell(cell.cell_id)[0]
    note = trial_note(record, cell, result, "", LINKS)
    assert note.startswith("Reached the target in ") and "; final top1 " in note
    assert "[cell ddp, 1 process](#/experiments/7/runs/def?" in note and PLACE in note
    crashed = result.model_copy(update={"status": "crashed", "tta_wall": None, "final": None})
    assert trial_note(record, cell, crashed, "rank 0: <b>", Links()) == "Crashed.\n\nReason: rank 0: &lt;b&gt;."
    assert trial_note(record, cell, None, "", LINKS) == ""


def test_nothing_links_to_a_report_that_does_not_exist(tmp_path: Path) -> None:
    made = make_record(tmp_path / "run", only=0)
    assert "report.html" not in experiment_note(made, [], LINKS)
    assert cell_note(made, made.plan.cells[0], None, [], LINKS) == ""


def test_an_experiment_is_described_by_title_report_and_answer(record: Record) -> None:
    found = compare(record.plan, record.results)
    first = experiment_note(record, found, LINKS).partition("\n")[0]
    assert first.startswith(f"A sample for tests. [Report of all cells]{PLACE}. deepspeed (stage=1), 2 processes: ")
    assert "one run a trial" in experiment_note(record, found, LINKS)


def test_an_experiment_is_described_by_its_newest_record(record: Record, tmp_path: Path) -> None:
    tags = experiment_tags(record, "new", {})
    assert tags[NOTE] == "new"
    assert experiment_tags(record, "new", tags) == tags
    assert experiment_tags(record, "newer", tags)[NOTE] == "newer"
    older = make_record(tmp_path / "older", only=0, started_ms=1_500_000_000_000)
    assert experiment_tags(older, "old", tags) == {}


def test_the_description_of_a_user_stays(record: Record) -> None:
    assert NOTE not in experiment_tags(record, "new", {NOTE: "mine"})
    tags = experiment_tags(record, "new", {}) | {NOTE: "mine"}
    again = experiment_tags(record, "new", tags)
    assert NOTE not in again
    assert NOTE not in experiment_tags(record, "new", tags | again)
    assert experiment_tags(record, "new", {VIEW_TAG: "[]"}) == {}


def test_the_view_has_the_answer_and_the_factors(record: Record) -> None:
    view = json.loads(experiment_tags(record, "new", {})[VIEW_TAG])
    columns = json.loads(view["state"])["selectedColumns"]
    assert columns[:5] == ["attributes.`Description`", "tags.`repro.verdict`", "metrics.`answer/median_tta_wall`",
                           "metrics.`answer/tta_wall`", "metrics.`answer/ratio`"]
    assert columns[-2:] == ["params.`engine`", "params.`processes`"]
    assert (view["name"], view["updatedAt"]) == ("repro", record.environment.started_ms)
    known = {point.key for number in range(4) for point in points_of_a_cell(record, number)}
    known |= {point.key for point in result_points(record.results[0], 0, declared="tta_wall")}
    assert {column[9:-1] for column in columns if column.startswith("metrics.")} <= known


def test_names_of_cells_have_the_numbers_of_the_page(record: Record, tmp_path: Path) -> None:
    names = [cell_view(record, "r", cell, [(0, 1)], [], False, False).tags["mlflow.runName"]
             for cell in record.plan.cells]
    assert names == [f"{number}: {cell.label}" for number, cell in enumerate(record.plan.cells, 1)]
    text = SUITE.replace("processes: [1, 2]", "processes: [1, 2]\n  optimizer.lr: [0.1, 0.2, 0.3]")
    many = make_record(tmp_path / "run", text.partition("primary:")[0], only=0)
    names = [cell_view(many, "r", cell, [(0, 1)], [], False, False).tags["mlflow.runName"] for cell in many.plan.cells]
    assert names[0].startswith("01: ") and names == sorted(names)
