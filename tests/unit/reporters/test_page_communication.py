"""Communication, scaling and network on the page: figures worked out by hand from records made by formula."""

from __future__ import annotations

import dataclasses
import importlib
import math
import re
from pathlib import Path
from typing import Any

import pytest

from repro.compare import contrast
from repro.record.derive.training_figures import read_traffic
from repro.record.derive.trial_log import TrialLog
from repro.record.folder.store import Record
from repro.record.log.reading import Recorded
from repro.record.log.schema import TrafficCounted
from repro.record.result.parts import Network
from repro.record.result.results import Result
from repro.suite.model import Trial
from tests.records import SCALING, SUITE, WEIGHTS, Course, Moved, make_record, sample_network, scaling_course
from tests.unit.reporters.parsed_page import render

page_bounds = importlib.import_module("repro.reporters.page.charts.bounds")
page_scaling = importlib.import_module("repro.reporters.page.charts.scaling")
page_traffic = importlib.import_module("repro.reporters.page.traffic")
OVERLAP = SCALING.replace("suite: scaling", "suite: overlap").replace(
    "  processes: [1, 2, 4]\n  batch.global: [64, 256]\nbaseline: {processes: 1}\n",
    "  overlap: [true, false]\nbaseline: {overlap: false}\n").replace("engine: ddp", "engine: ddp\n  processes: 4")


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Record:
    return make_record(tmp_path_factory.mktemp("scaling") / "run", SCALING, scaling_course)


def cell_of(record: Record, comm: str, processes: int, batch: int) -> str:
    return next(cell.cell_id for cell in record.plan.cells if cell.choices.comm.kind == comm
                and (cell.choices.processes, cell.choices.batch.global_) == (processes, batch))


def bounds_of(record: Record, cell_id: str, model: page_bounds.CostModel | None) -> page_bounds.StepBounds:
    return page_bounds.bounds(record.cell(cell_id), record.of_cell(cell_id), model)


# ---- the record


def test_a_result_holds_network_and_formula(record: Record) -> None:
    result = record.of_cell(cell_of(record, "ring", 4, 64))[0]
    assert result.network == Network.model_validate(sample_network(4, 1e8))
    assert result.network.slowest == 0.99e8
    assert result.traffic and result.traffic.formula and result.steps
    assert result.traffic.formula.sent_bytes == result.steps.count * 1.5 * WEIGHTS
    assert record.of_cell(cell_of(record, "ring", 1, 64))[0].traffic is None


def test_slowest_link_is_among_those_in_use() -> None:
    data = sample_network(3, 1e8)
    data["links"][0]["measured_bits_per_second"] = 5e7
    assert Network.model_validate(data).slowest == 5e7
    assert Network.model_validate(data | {"node_of_rank": [1, 2]}).slowest == 0.99e8
    assert Network.model_validate(data | {"node_of_rank": [2], "links": []}).slowest == 1e8, "as stated"


def test_training_steps_are_distinguished_from_evaluations(record: Record) -> None:
    result = record.of_cell(cell_of(record, "ring", 4, 64))[0]
    assert result.traffic
    ranks = [rank.model_dump() | {"training": {"busy_seconds": 3.0 + number, "exposed_seconds": 2.0,
                                               "overlapped_seconds": 1.0}}
             for number, rank in enumerate(result.traffic.ranks)]
    log = TrialLog([Recorded(TrafficCounted(value=ranks), 1, 0.0)])
    found = read_traffic(log)
    assert found is not None
    assert (found.training.busy_seconds, found.training.exposed_seconds) == (4.5, 2.0)
    assert found.exposed_seconds == pytest.approx(result.traffic.exposed_seconds)


# ---- communication


def test_traffic_of_a_step(record: Record) -> None:
    table = page_traffic.traffic(record)
    row = next(row for row in table.rows if row.mark.cell_id == cell_of(record, "tree", 4, 256))
    seconds = 4 * WEIGHTS * 8 / 1e8
    assert table.any
    assert row.sent.value == row.formula.value == 2 * WEIGHTS
    assert row.agreement == "identical"
    assert row.exposed.value == pytest.approx(seconds)
    assert row.overlapped.value == pytest.approx(0.001)
    assert row.share.value == pytest.approx(100 * seconds / (seconds + 0.01))
    assert row.straggler.value == pytest.approx(0.1 * (seconds + 0.01))
    assert row.uncounted == "barrier (gloo)"
    assert table.assumed == ("all_reduce float64",)
    alone = next(row for row in table.rows if row.mark.cell_id == cell_of(record, "tree", 1, 64))
    assert alone.absence == page_traffic.ONE_PROCESS
    assert alone.sent is None


def test_bytes_that_leave_the_formula_are_shown(tmp_path: Path) -> None:
    def course(trial: Trial) -> Course:
        moved = Moved(1030, 1000, 0.001)
        return Course(0.01, traffic=moved if trial.choices.processes > 1 else None)

    table = page_traffic.traffic(make_record(tmp_path / "run", SCALING, course))
    assert {row.agreement for row in table.rows if not row.absence} == {"differ by up to 3.0\N{NO-BREAK SPACE}%"}


def test_uncounted_bytes_are_reported(tmp_path: Path) -> None:
    def course(trial: Trial) -> Course:
        plain = scaling_course(trial)
        moved = plain.traffic and dataclasses.replace(plain.traffic, left=3 * plain.traffic.sent)
        return dataclasses.replace(plain, traffic=moved)

    record = make_record(tmp_path / "run", SCALING, course)
    rows = [row for row in page_traffic.traffic(record).rows if not row.absence]
    assert {row.partial for row in rows} == {"excludes 75\N{NO-BREAK SPACE}% of the payload, which the backend sent"}
    model = page_bounds.CostModel(1.0, 1.0, 3, 0.0)
    found = bounds_of(record, cell_of(record, "ring", 4, 64), model)
    assert (found.wire, found.network) == (None, None)
    assert found.compute is not None, "seconds are counted for every sender of the bytes"
    assert page_bounds.fits(record) == {}
    assert "excludes 75\N{NO-BREAK SPACE}% of the payload" in render(record, tmp_path / "report")


def test_the_backend_says_that_it_does_not_count(tmp_path: Path) -> None:
    record = make_record(tmp_path / "run", SUITE)
    table = page_traffic.traffic(record)
    assert [row.absence for row in table.rows if row.mark.label.endswith("2 processes")] == [
        page_traffic.BACKEND] * 2
    assert "it counts neither bytes nor waiting" in render(record, tmp_path / "report")


def test_nothing_has_run_and_nothing_communicates(tmp_path: Path) -> None:
    record = make_record(tmp_path / "run", SCALING, scaling_course, only=0)
    text = render(record, tmp_path / "report")
    assert "No trial of this run counted communication" in text
    plain = re.sub(r"matrix:.*?baseline", "baseline", SUITE, flags=re.S).split("primary:")[0]
    text = render(make_record(tmp_path / "one", plain), tmp_path / "other")
    assert 'id="scaling"' not in text and 'href="#scaling"' not in text
    assert "No trial of this run counted communication" in text


# ---- overlap


def overlap_course(trial: Trial) -> Course:
    """Overlap saves 1, 2, 3, ... ms of 10 ms, by seed."""
    saved = 0.001 * (1 + trial.repeat) if trial.choices.overlap else 0.0
    return Course(0.02, traffic=Moved(1000, 1000, 0.010 - saved, saved))


def test_overlap_on_against_off_is_paired(tmp_path: Path) -> None:
    record = make_record(tmp_path / "run", OVERLAP, overlap_course)
    rows = page_traffic.traffic(record).overlap
    assert [(row.on.label, row.off.label) for row in rows] == [
        (f"{comm}, overlap True", f"{comm}, overlap False")
        for comm in ("tree (chunk_kib=None, shape=binomial)", "ring")]
    # -1 to -6 ms: mean -3.5, standard deviation sqrt(3.5), t(0.975, 5) = 2.570582.
    half = 2.5705818 * math.sqrt(3.5 / 6) * 1e-3
    assert len(rows[0].pairs) == 6
    assert rows[0].means[2] == pytest.approx(-0.0035)
    assert rows[0].interval == pytest.approx((-0.0035 - half, -0.0035 + half))
    assert rows[0].words == "the interval excludes 0: overlap exposes less; 6 of 6 pairs below 0"
    text = render(record, tmp_path / "report")
    assert 'id="overlap"' in text
    assert "the interval excludes 0: overlap exposes less" in text


def test_overlap_without_enough_pairs_or_effect(tmp_path: Path) -> None:
    few = make_record(tmp_path / "few", OVERLAP, overlap_course, only=4)
    assert {row.words for row in page_traffic.traffic(few).overlap} == {
        "1 pair; an interval needs at least two that differ"}
    assert "<summary>1 pair</summary>" in render(few, tmp_path / "report")

    def noise(trial: Trial) -> Course:
        return Course(0.02, traffic=Moved(1, 1, 0.01 + 0.001 * (-1) ** trial.repeat * bool(trial.choices.overlap)))

    record = make_record(tmp_path / "noise", OVERLAP, noise, only=20)
    words = {row.words for row in page_traffic.traffic(record).overlap}
    assert words == {
        "the interval contains 0: no difference is shown; 2 of 5 pairs below 0; 5 of 6 planned pairs have run"}


def test_trials_that_are_no_pair_do_not_count(tmp_path: Path) -> None:
    record = make_record(tmp_path / "run", OVERLAP, overlap_course)

    def changed(item: Result) -> Result:
        if item.repeat == 0:
            return item.model_copy(update={"status": "crashed"})
        return item.model_copy(update={"hashes": {**item.hashes, "data_order": item.trial_id}}
                               if item.repeat == 1 else {})

    record = dataclasses.replace(record, results=tuple(map(changed, record.results)))
    assert [len(row.pairs) for row in page_traffic.traffic(record).overlap] == [4, 4]


# ---- scaling


def test_bounds_of_a_step(record: Record) -> None:
    model = page_bounds.CostModel(0.001, 2e-8, 4, 0.0)
    found = bounds_of(record, cell_of(record, "tree", 4, 64), model)
    seconds, wire = 4 * WEIGHTS * 8 / 1e8, 2 * WEIGHTS * 8 / 0.99e8
    assert found.step == pytest.approx(0.01 + seconds)
    assert found.compute == pytest.approx(0.01)
    assert found.one_after_the_other == pytest.approx(0.01 + wire)
    assert found.overlapped == pytest.approx(wire)
    assert found.modelled == pytest.approx(0.01 + 6 * 0.001 + 4 * WEIGHTS * 2e-8)
    alone = bounds_of(record, cell_of(record, "tree", 1, 64), model)
    assert alone.step == alone.compute == alone.modelled == pytest.approx(0.01)


def test_steps_that_are_in_no_speed_count_for_bytes_and_waiting(record: Record) -> None:
    cell = record.cell(cell_of(record, "ring", 4, 64))
    result = record.of_cell(cell.cell_id)[0]
    assert result.steps is not None and result.traffic is not None
    stop = cell.choices.stop.model_copy(update={"warmup": result.steps.count})
    warmed = cell.model_copy(update={"choices": cell.choices.model_copy(update={"stop": stop})})
    plain, found = (page_traffic.exposed_per_step(item, result) for item in (cell, warmed))
    assert plain is not None and found == pytest.approx(plain / 2)
    assert page_traffic.counted(warmed, [result])[0][2] == 2 * result.steps.count


def test_there_are_no_bounds_without_known_figures(record: Record) -> None:
    cell = record.cell(cell_of(record, "ring", 4, 64))
    results = record.of_cell(cell.cell_id)
    shared = [item.model_copy(update={"network": item.network.model_copy(update={"node_of_rank": (0, 0, 1, 1)})})
              for item in results if item.network]
    assert page_bounds.bounds(cell, shared, None).wire is None, "ranks of one node do not use its link"
    loopback = [item.model_copy(update={"network": None}) for item in results]
    assert page_bounds.bounds(cell, loopback, None).one_after_the_other is None
    silent = [item.model_copy(update={"traffic": None}) for item in results]
    assert page_bounds.bounds(cell, silent, None).compute is None
    assert page_bounds.bounds(cell, [], None).step is None


def test_the_fit_finds_the_parameters_of_the_record(tmp_path: Path) -> None:
    def course(trial: Trial) -> Course:
        plain = scaling_course(trial)
        if plain.traffic is None:
            return plain
        busy = 0.002 * plain.traffic.rounds + 9e-8 * plain.traffic.path_bytes
        return dataclasses.replace(plain, traffic=dataclasses.replace(plain.traffic, exposed_seconds=busy,
                                                                      overlapped_seconds=0.0))

    (model,) = page_bounds.fits(make_record(tmp_path / "run", SCALING, course)).values()
    assert (model.alpha, model.beta) == pytest.approx((0.002, 9e-8))
    assert model.error < 1e-9
    assert model.cells == 8


def test_networks_are_fitted_separately(tmp_path: Path) -> None:
    def course(trial: Trial) -> Course:
        plain = scaling_course(trial)
        if plain.traffic is None:
            return plain
        beta = 1e-7 if trial.choices.launcher.plugin.monitor_seconds == 0.5 else 2e-7
        busy = beta * plain.traffic.path_bytes
        return dataclasses.replace(plain, traffic=dataclasses.replace(plain.traffic, exposed_seconds=busy,
                                                                      overlapped_seconds=0.0))

    suite = SCALING.replace("matrix:", "matrix:\n  launcher.monitor_seconds: [0.5, 0.25]").replace(
        "engine: ddp", "engine: ddp\n  launcher: local").replace("seeds: 6", "seeds: 1")
    models = page_bounds.fits(make_record(tmp_path / "run", suite, course))
    assert [(model.beta, model.cells) for model in models.values()] == [(pytest.approx(1e-7), 8),
                                                                        (pytest.approx(2e-7), 8)]


def test_same_batch_and_larger_batch_are_separate(record: Record) -> None:
    found = page_scaling.scaling(record)
    assert [panel.title for panel in found.same] == [
        f"Same batch: {batch} samples per step at every number of processes" for batch in (64, 256)]
    for panel in found.same:
        assert len(panel.lines) == 2
        for line in panel.lines:
            assert [point.processes for point in line.points] == [1, 2, 4]
            assert len({point.batch for point in line.points}) == 1
            baselines = {point.baseline.cell_id for point in line.points}
            assert baselines == {line.points[0].mark.cell_id}, "its own single worker, at its own batch"
    (larger,) = found.larger
    assert len(larger.lines) == 4
    assert {point.baseline.cell_id for line in larger.lines for point in line.points} == {
        cell_of(record, "tree", 1, 64), cell_of(record, "ring", 1, 64)}
    tree = {(point.processes, point.batch): point for line in larger.lines for point in line.points
            if line.label.startswith("tree")}
    quarter = tree[4, 256].bytes_per_epoch / tree[4, 64].bytes_per_epoch
    assert quarter == pytest.approx(0.25), "four times the batch: a quarter of the bytes an epoch"


def test_speed_up_is_that_of_the_comparison(record: Record) -> None:
    point = page_scaling.scaling(record).same[0].lines[0].points[2]
    cells = [record.cell(cell_of(record, "tree", processes, 64)) for processes in (4, 1)]
    wanted = contrast(*cells, *(record.of_cell(cell.cell_id) for cell in cells), "tta_wall", primary=False)
    assert point.speedup == pytest.approx(wanted.speedup)
    assert point.speedup < 0.1
    assert page_scaling.scaling(record).same[0].lines[0].points[0].speedup == 1.0


def test_charts_hold_measured_points_and_bounds(record: Record) -> None:
    found = page_scaling.scaling(record)
    assert [chart.name for chart in found.charts] == [
        *(f"scaling-same-{batch}-{what}" for batch in (64, 256) for what in ("step", "epoch", "tta", "speedup")),
        "scaling-larger-speedup", "scaling-larger-bytes", "scaling-larger-exposed"]
    step = found.charts[0].figure
    assert step["layout"]["xaxis"]["tickvals"] == [1, 2, 4]
    # Trials, three bounds and the measured line, of two algorithms.
    assert len(step["data"]) == 10
    measured = [trace for trace in step["data"] if trace["mode"] == "lines+markers"]
    assert [trace["y"][0] for trace in measured] == pytest.approx([10.0, 10.0])
    assert all(isinstance(value, float) and value > 0 for trace in step["data"] for value in trace["y"])
    assert found.same[0].keys == (("dot", "compute alone"), ("dash", "compute + bytes / link rate"),
                                  ("dashdot", "compute + fitted cost model"))


def test_missed_targets_leave_speed_up_out_and_say_so(tmp_path: Path) -> None:
    def course(trial: Trial) -> Course:
        return dataclasses.replace(scaling_course(trial), hits_at=None if trial.choices.processes == 4 else 4)

    record = make_record(tmp_path / "run", SCALING, course)
    point = page_scaling.scaling(record).same[0].lines[0].points[2]
    assert point.speedup is None
    assert "missed the target" in point.because
    assert point.bounds.step is not None, "steps are measured all the same"
    assert "did not reach the target" in render(record, tmp_path / "report")


# ---- the page


def test_the_page_labels_every_kind_of_figure(record: Record, tmp_path: Path) -> None:
    text = render(record, tmp_path / "report")
    section = text[text.index('<section id="scaling"'):text.index('id="h-notices"')]
    assert section.count('class="chart"') == 11
    assert section.count("Same data as a table") == 3
    assert '<span class="tag t-modelled">modelled</span>' in section
    assert "The model is fitted to the values next to it" in section
    assert "no latency, no overlap" in section
    network = text[text.index('id="network"'):text.index('id="data"')]
    assert '<span class="tag t-emulated">emulated</span>' in network
    assert "99.0\N{NO-BREAK SPACE}Mbit/s" in network
    assert render(record, tmp_path / "again") == text


def test_network_rows_by_arrangement(record: Record) -> None:
    rows = page_traffic.networks(record)
    assert [(len(row.network.node_of_rank), len(row.nodes), len(row.links)) for row in rows] == [
        (1, 1, 0), (2, 2, 2), (4, 4, 4)]
    assert str(page_traffic.megabits(rows[2].measured[0])) == "99.0\N{NO-BREAK SPACE}Mbit/s"
    assert not rows[0].measured


def test_nodes_with_rates_of_their_own(record: Record) -> None:
    def changed(item: Any) -> Any:
        if item.network is None or len(item.network.node_of_rank) != 4:
            return item
        return item.model_copy(update={"network": item.network.model_copy(
            update={"stated_bits_per_second": (1e8, 1e8, 1e8, 2e7)})})

    mixed = dataclasses.replace(record, results=tuple(map(changed, record.results)))
    assert page_traffic.networks(mixed)[2].stated.replace("\N{NO-BREAK SPACE}", " ") == (
        "100 Mbit/s (node 0 to 2); 20.0 Mbit/s (node 3)")
