"""`repro predict` on made records whose right answers are known, and what it refuses."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from repro.core.errors import UsageError
from repro.core.machine import Machine
from repro.papers.predict.predict import predict
from repro.papers.predict.prediction import LinkCost, Topology
from repro.papers.predict.sharing import nccl_cost
from repro.record.folder.store import Record
from repro.suite.model import Trial
from tests.in_process import called
from tests.plans import planned
from tests.records import (
    SCALING,
    SUITE,
    WEIGHTS,
    Course,
    Moved,
    default_course,
    make_record,
    scaling_course,
    write_record,
)


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Record:
    """10 ms of computing; a tree's 2 log2(p) and a ring's 2(p-1)/p times the weights over 100 Mbit/s."""
    return make_record(tmp_path_factory.mktemp("scale") / "run", SCALING, scaling_course)


CLASSES = SCALING.replace("processes: [1, 2, 4]", "processes: PROCESSES").replace("seeds: 6", "seeds: 2")
CLASSES = CLASSES.replace("baseline: {processes: 1}", "baseline: {processes: 2}")
"""`PROCESSES`: to be replaced."""


def two_classes(trial: Trial) -> Course:
    """10 ms of computing; 2 ranks on a node; 100 Mbit/s between nodes, 800 Mbit/s within one."""
    processes = trial.choices.processes
    nodes = -(-processes // 2)
    if trial.choices.comm.kind == "tree":
        between, within = 2 * math.log2(nodes) * WEIGHTS, 2.0 * WEIGHTS * (processes > 1)
    else:
        path = 2 * (processes - 1) / processes * WEIGHTS
        between, within = (path, 0.0) if nodes > 1 else (0.0, path)
    seconds = 8 * (between / 1e8 + within / 8e8)
    moved = Moved(1 << 20, 1 << 20, seconds, 0.001) if processes > 1 else None
    return Course(0.01 + seconds, traffic=moved, network_rate=1e8, ranks_per_node=2)


def without_network(trial: Trial) -> Course:
    return replace(two_classes(trial), network_rate=None)


def made(folder: Path, processes: str, course: Callable[[Trial], Course], launcher: str = "local") -> Record:
    text = CLASSES.replace("PROCESSES", processes).replace("device: cpu", f"device: cpu\n  launcher: {launcher}")
    return make_record(folder / "run", text, course)


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


def test_links_within_and_between_nodes_are_fitted_apart(tmp_path: Path) -> None:
    found = predict(made(tmp_path, "[1, 2, 4, 8]", two_classes), "run", [64], fitted=[1, 2, 4])
    for line in found.lines:
        assert [(link.links, link.source) for link in line.links] == [
            ("between nodes", "fitted"), ("within a node", "fitted")]
        assert [link.cost and 8 / link.cost.beta for link in line.links] == pytest.approx([1e8, 8e8], rel=1e-3)
        eight, many = line.rows[3:]
        assert (eight.nodes, many.nodes) == (4, 32)
        assert eight.ratio == pytest.approx(1, rel=1e-3)
        path = 10 + 2 / 8 if line.algorithm == "tree" else 2 * 63 / 64
        assert many.step and many.step.value == pytest.approx(0.01 + path * WEIGHTS * 8 / 1e8, rel=1e-3)


def unlike_any_link(trial: Trial) -> Course:
    """2 processes take far longer than 4: no links explain it."""
    return replace(scaling_course(trial), step_seconds={1: 0.01, 2: 1.0, 4: 0.02}[trial.choices.processes])


def test_a_model_that_does_not_hold_predicts_nothing(tmp_path: Path) -> None:
    found = predict(make_record(tmp_path / "run", SCALING, unlike_any_link), "run", [64])
    assert any(text.endswith("the model does not hold") for text in found.assumptions)
    for row in (row for line in found.lines for row in line.rows):
        assert (row.speed_up, row.efficiency, row.to_target) == (None, None, None)
        assert (row.step is None) == bool(row.why) == (row.processes == 64)


NODES = "{kind: torchrun, nodes: 4, ranks_per_node: 2}"


def test_launchers_of_real_nodes_state_the_placement_of_ranks(tmp_path: Path) -> None:
    with_network = predict(made(tmp_path / "emulated", "[2, 4, 8]", two_classes), "run", [64])
    real = predict(made(tmp_path / "real", "[2, 4, 8]", without_network, NODES), "run", [64])
    assert [row.nodes for row in real.lines[0].rows] == [1, 2, 4, 32]
    assert real.lines == with_network.lines


def nccl(trial: Trial) -> Course:
    """10 ms of computing; 4 nodes at most: 50 us and 10 Gbit/s between them, 5 us within one; NCCL takes its ring with
    4 and 8 processes, its tree with 16 and 32.
    """
    processes = trial.choices.processes
    nodes = min(4, processes)
    costs = nccl_cost("ring" if processes < 16 else "tree", processes, nodes, WEIGHTS)
    seconds = costs[0].rounds * 50e-6 + costs[0].path_bytes * 8e-10 + costs[1].rounds * 5e-6
    return Course(0.01 + seconds, traffic=Moved(WEIGHTS, WEIGHTS, seconds) if processes > 1 else None)


def test_on_gpus_the_backend_is_nccl(tmp_path: Path) -> None:
    text = CLASSES.replace("PROCESSES", "[1, 4, 8, 16, 32]").replace(
        "device: cpu", "device: cuda\n  launcher: {kind: torchrun, nodes: 4}").replace(
        "[{kind: tree, shape: binomial, chunk_kib: null}, ring]", "[backend]").replace("processes: 2}", "processes: 4}")
    record = write_record(tmp_path / "run", planned(tmp_path, text, machine=Machine("cuda", 8, 64)), text, nccl)
    found = predict(record, "run", [64, 256]).lines[1]
    assert found.algorithm == "NCCL's ring or tree, whichever is modelled faster"
    between, within = (link.cost for link in found.links)
    assert between and (between.alpha, 8e-9 / between.beta) == pytest.approx((50e-6, 10), rel=1e-3)
    assert within and (within.alpha, within.beta) == pytest.approx((5e-6, 0), rel=1e-3)
    most, some, many = found.rows[-3:]
    assert (most.nodes, some.nodes, many.nodes) == (4, 8, 32)
    assert most.ratio == pytest.approx(1, rel=1e-6)
    assert some.communication == pytest.approx(6 * 50e-6 + 14 * 5e-6 + 2 * WEIGHTS * 8e-10, rel=1e-3)
    assert many.communication == pytest.approx(10 * 50e-6 + 14 * 5e-6 + 2 * WEIGHTS * 8e-10, rel=1e-3)


def test_one_node_says_nothing_about_links_between_nodes(tmp_path: Path) -> None:
    place = made(tmp_path, "[1, 2]", without_network)
    with pytest.raises(UsageError, match="4 processes need links between nodes, and no fitted trial used any: state "
                                         "their rate and latency by --between, for example --between 100gbit,5us"):
        predict(place, "run", [2, 4])
    between, within = predict(place, "run", [2]).lines[0].links
    assert (between.source, between.cost, within.source) == ("not observed", None, "fitted")
    done = run(str(place.folder.root), "--processes", "8", "--ranks-per-node", "2", "--between", "50mbit,2ms")
    assert done.exit_code == 0, done.output
    assert "between nodes: given, alpha 2e+03 us a round, 50 Mbit/s" in done.output
    topology = Topology(ranks_per_node=2, between=LinkCost(alpha=0.002, beta=8 / 5e7))
    for line in predict(place, "run", [8], topology=topology).lines:
        row = line.rows[-1]
        rounds, path = (4, 4 + 2 / 16) if line.algorithm == "tree" else (28, 2 * 7 / 8)
        assert (row.processes, row.nodes) == (8, 4)
        assert row.step and row.step.value == pytest.approx(0.01 + rounds * 0.002 + path * WEIGHTS * 8 / 5e7, rel=1e-3)


def test_time_to_the_target_is_steps_and_evaluations(record: Record) -> None:
    """A trial is evaluated after whole steps, 1,472 samples apart with batch 64 and 1,536 with batch 256."""
    for line in predict(record, "run", [8]).lines:
        four, eight = line.rows[2:]
        steps = 4 * -(-1437 // four.batch)  # the target is reached at the fourth evaluation
        assert four.epochs == "measured"
        assert eight.step and eight.to_target
        assert eight.to_target.value == pytest.approx(steps * eight.step.value + 0.08)
        assert four.measured_target and four.to_target
        assert four.to_target.value == pytest.approx(four.measured_target.value)


def test_published_epochs_are_labelled(record: Record, tmp_path: Path) -> None:
    table = tmp_path / "epochs.yaml"
    table.write_text("source: a table\nsamples: 1000\nepochs: {32: 2, 128: 4}\n")
    done = run(str(record.folder.root), "--processes", "2", "--scaling", "strong", "--epochs", str(table), "--json")
    assert done.exit_code == 0, done.output
    by_batch = {line["rows"][1]["batch"]: line["rows"][1] for line in json.loads(done.stdout)["lines"]}
    epochs = 2 * 2 ** 0.5
    assert by_batch[64]["epochs"] == "published (a table): 2.828 epochs"
    evaluations = epochs * 1000 / (23 * 64) * 0.02  # one every 23 steps
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
    (("--processes", "16", "--between", "100gbit"), "are no rate and latency; write for example 100gbit,5us"),
    (("--processes", "16", "--within", "0gbit,1us"), "are no rate and latency"),
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
