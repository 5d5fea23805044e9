"""What the gate cannot see, because it begins later, voids the trial, with the step and the cause: no verdict is left.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from repro.record.derive.trial_log import TrialLog
from repro.record.folder.store import read_record
from repro.record.log.reading import read_log
from tests.commands import ROOT, command
from tests.plans import suite

pytest.importorskip("torch")
pytest.importorskip("deepspeed")

pytestmark = pytest.mark.slow

PLUGINS = ROOT / "tests" / "plugins"
FOOLED = ("trains-on-test-data", "works-when-the-loss-is-read")
"""Of each, a suite once called the candidate faster."""
LATE = {
    "trains-on-test-data": "saw other inputs than were dealt",
    "works-when-the-loss-is-read": "outside the timed steps",
    "batch-trained-again-late": "saw other inputs than were dealt",
    "samples-dropped-late": "trained on 12 samples and not on the 16 dealt",
    "autocast-late": "autocast was 1, not 0",
    "rate-held-late": "the learning rate was",
    "update-dropped-late": "the optimizer stepped 0 times",
    "update-twice-late": "the optimizer stepped",
    "rank-1-drifts-late": "rank 1",
    "targets-of-the-neighbour-late": "saw other targets than were dealt",
    "inputs-scaled-late": "saw other inputs than were dealt",
    "labels-smoothed-late": "the loss was computed of 0 samples",
    "input-changes-weights-late": "the weights changed between step",
    "first-layer-freezes": "the gradient of '0.weight' differs by 1 of its norm from the harness's own (limit 0.0001): "
                           "it is not trained",
    "reduction-ends": " the trial the gradient of",
    "gradients-thinned": " the trial the gradient of",
    "gradients-rounded": " the trial the gradient of",
    "uncleared": " the trial the gradient of",
    "labels-smoothed": " the trial the ",
    "summed-over-ranks": "it is summed over the ranks and not averaged",
    "bucket-left-out": " the trial the gradient of",
    "momentum-gone-after-evaluations": "an evaluation changed what the optimizer keeps",
    "spikes-dropped": "after the trial the update of",
    "decayed-late": "something was added to it, or changed it, between the two",
    "clock-slow": "the trial's clock counted",
    "sample-doubled": "it was dealt other samples than the workload gives, or changed ones",
}
SECOND = {"limit-follows-rate": "another limit of clipping"}
"""Right in the first step after the trial, at the full rate. A trial of two seconds has no time for a second step."""
PASSING = {
    "layer-rests": "it is not trained",
    "rounded-for-a-while": "no factor explains it",
    "one-rank-for-a-while": "it is that of rank 0 alone",
    "rank-1-counts-twice-for-a-while": "count so many times: 1 (rank 0), 1 (rank 0, last micro-batch), 2 (rank 1), 2 (",
    "thinned-for-a-while": "no factor explains it",
    "softer-for-a-while": "the loss differs",
    "last-micro-batch-for-a-while": "it is that of the last micro-batch alone",
    "narrow-for-a-while": "differs",  # the loss, or the gradient of one that is the same by chance
}
"""They end before the trial does."""
BETWEEN = {
    "larger-steps-for-a-while": "it is 3 times it: another limit of clipping, or none",
    "other-samples-for-a-while": "something was added to it, or changed it, between the two",
    "rests-before-the-step-for-a-while": "it was not given to the optimizer, or set to 0",
    "hook-clamps-for-a-while": "before the optimizer's own step or behind it",
    "clamped-for-a-while": "before the optimizer's own step or behind it",
    "momentum-fades-for-a-while": "before the optimizer's own step or behind it",
    "own-step-for-a-while": "called its `update` 0 times and not 1",
}
"""They act in the same steps, between the backward pass and the end of the update."""
BESIDE = {
    "halved-once": "something beside the optimizer's steps wrote into ",
    "rounded-now-and-then": "something beside the optimizer's steps wrote into ",
    "momentum-reversed-once": "something beside the optimizer's steps wrote into 'momentum_buffer of ",
    "momentum-lower-for-a-while": "the optimizer's momentum was 0.5 and not 0.9",
    "log-stops-for-a-while": "the trial's clock counted",
}
"""They write beside the optimizer, in single steps, or change an option of it, or the log's clock, for a while."""
ZERO = [f"{{kind: deepspeed, stage: {stage}}}" for stage in range(4)]
KINDS = {"ddp": "kind: planted", "zero1": "kind: planted-zero, stage: 1", "zero3": "kind: planted-zero, stage: 3",
         "fsdp": "kind: planted-fsdp"}


def ran(folder: Path, engines: list[str], epochs: int = 3, target: str = "0.99", **trial: object) -> Path:
    """Run a suite with these cells, which are not gated, and return its folder."""
    (folder / "suite.yaml").write_text(suite(
        "late", "matrix:\n  engine:\n" + "".join(f"    - {engine}\n" for engine in engines),
        head="master_seed: 20151102\n", seeds=1, **{
            "engine": None, "workload": "{kind: digits, norm: group}", "batch": "{global: 32, accumulation: 2}",
            "optimizer": "{kind: sgd, lr: 0.05, momentum: 0.9}", "evaluate_every": 640, "processes": 2,
            "gradient_clip": 2.0,
            "stop": f"{{metric: top1, target: {target}, max_epochs: {epochs}}}", "schedule": "{kind: cosine}",
            "timeout_seconds": 120, "gate": "{skip: the trial itself is tested}"} | trial))
    path = os.pathsep.join([str(ROOT), str(PLUGINS)])
    ended = command(folder, "run", "suite.yaml", "--no-mlflow", "--out", "run", PYTHONPATH=path)
    assert "Traceback" not in ended.error, ended.error
    return folder / "run"


def reasons(root: Path) -> dict[str, tuple[str, str]]:
    """Label of each cell -> (status, reasons) of its trial."""
    record = read_record(root)
    return {record.cell(item.cell_id).label: (item.status, item.reason) for item in record.results}


def voided(folder: Path, engine: str, defects: Mapping[str, str], epochs: int = 3) -> Iterator[tuple[str, str, str]]:
    """Yield each defect, the words that it is to be named by and the reason of its trial, which is void."""
    told = reasons(ran(folder, [f"{{{KINDS[engine]}, defect: {name}}}" for name in defects], epochs))
    assert len(told) == len(defects)
    for name, words in defects.items():
        status, reason = next(item for label, item in told.items() if f"={name}" in label)
        assert status == "invalid", (name, status, reason)
        yield name, words, reason


def test_suites_that_were_fooled_end_without_a_verdict(tmp_path: Path) -> None:
    planted = [*FOOLED, "layer-rests"]
    found = ran(tmp_path, ["ddp", *(f"{{kind: planted, defect: {name}}}" for name in planted)])
    told = reasons(found)
    assert {status for label, (status, _) in told.items() if label.startswith("ddp")} == {"missed"}
    assert {status for label, (status, _) in told.items() if label.startswith("planted")} == {"invalid"}
    for name in planted:
        assert (LATE | PASSING)[name] in next(reason for label, (_, reason) in told.items() if name in label)
    compared = json.loads(command(tmp_path, "compare", "run", "--json").out)["comparisons"]
    assert {item["verdict"] for item in compared} <= {"inconclusive", "exploratory"} and all(
        "invalid" in item["because"] for item in compared if "planted" in item["candidate_label"])


@pytest.mark.parametrize("engine", list(KINDS))
def test_each_late_defect_voids_its_trial_and_is_named(tmp_path: Path, engine: str) -> None:
    for name, words, reason in voided(tmp_path, engine, LATE):
        drift = "the update of" if engine == "fsdp" else "weights differ"  # under FSDP ranks hold other parts
        assert words in reason or (name == "rank-1-drifts-late" and drift in reason), (name, reason)


@pytest.mark.parametrize("engine", list(KINDS))
def test_a_defect_at_small_rates_is_seen_in_a_longer_trial(tmp_path: Path, engine: str) -> None:
    for name, words, reason in voided(tmp_path, engine, SECOND, epochs=15):
        assert words in reason, (name, reason)


@pytest.mark.parametrize("engine", list(KINDS))
def test_what_ends_before_the_trial_is_seen_in_the_steps_that_were_kept(tmp_path: Path, engine: str) -> None:
    for name, words, reason in voided(tmp_path, engine, PASSING):
        assert " of the trial the " in reason, (name, reason)
        assert words in reason or engine == "fsdp", (name, reason)  # there the mean is changed, by parts


@pytest.mark.parametrize("engine", list(KINDS))
def test_what_happens_behind_the_backward_pass_is_seen_in_the_steps_that_were_kept(tmp_path: Path, engine: str) -> None:
    for name, words, reason in voided(tmp_path, engine, BETWEEN):
        assert words in reason, (name, reason)


@pytest.mark.parametrize("engine", list(KINDS))
def test_what_changes_beside_the_steps_is_seen_in_each_of_them(tmp_path: Path, engine: str) -> None:
    for name, words, reason in voided(tmp_path, engine, BESIDE):
        assert words in reason, (name, reason)


@pytest.mark.parametrize("engine", list(KINDS))
def test_running_statistics_that_follow_otherwise_are_named(tmp_path: Path, engine: str) -> None:
    told = reasons(ran(tmp_path, [f"{{{KINDS[engine]}, defect: variance-grows-late}}"],
                       workload="{kind: digits, norm: batch}"))
    (status, reason), = told.values()
    assert status == "invalid" and "running_var' differs by 0.0" in reason, (status, reason)


def test_a_foreign_hook_and_the_evaluation_that_reached_the_target_are_looked_at(tmp_path: Path) -> None:
    """DDP tells which hook it calls; the first of three evaluations that confirm a target is repeated like the last."""
    root = ran(tmp_path, ["ddp", "{kind: planted, defect: wire}", "{kind: planted, defect: first-layer-freezes}"],
               epochs=8, target="0.6, confirm_evals: 3")
    told = reasons(root)
    assert any(LATE["first-layer-freezes"] in reason for _, reason in told.values())
    wire, = (reason for label, (_, reason) in told.items() if "wire" in label)
    assert "compression none was asked for, hook _narrowed ran" in wire
    record = read_record(root)
    result = next(item for item in record.results if item.status == "ok")
    log = TrialLog(read_log(record.folder.log(result.trial_id, 1)))
    facts = log.facts()
    assert facts is not None and result.bracket is not None
    crossed = next(number for number, point in enumerate(result.curve, 1)
                   if point.samples == result.bracket.hit_samples)
    assert {crossed, crossed + 2} <= {item.number for item in facts.evaluations}
    assert all(item.reported == pytest.approx(item.own, rel=1e-3) for item in facts.evaluations)


ODD: dict[str, object] = {
    "workload": "{kind: random-layers, odd: true}", "stop": "{metric: loss, target: 0.1, max_epochs: 4}",
    "optimizer": "{kind: adamw, lr: 0.003}", "evaluate_every": 256}


def test_a_model_of_tied_frozen_and_unused_parameters_is_no_defect(tmp_path: Path) -> None:
    told = reasons(ran(tmp_path, ["{kind: ddp, find_unused: true}", "{kind: fsdp, wrap: model}", *ZERO], **ODD))
    assert len(told) == 6 and {status for status, _ in told.values()} == {"missed"}, told


def test_a_diverged_trial_is_called_diverged_and_nothing_else(tmp_path: Path) -> None:
    told = reasons(ran(tmp_path, ["ddp", "fsdp", *ZERO], gradient_clip=None,
                       optimizer="{kind: sgd, lr: 1000000.0, momentum: 0.9, weight_decay: 1}"))
    assert len(told) == 6 and {status for status, _ in told.values()} == {"diverged"}, told
