"""`repro audit` over records of other origin, and its output."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from repro.audit.audit import audit
from repro.audit.mapping import Mapping, read_mapping
from repro.audit.mlflow_facts import Experiment, LoggedRun, experiment_facts
from repro.audit.rules import RULES, Finding, check_facts
from repro.core.errors import Exit, SuiteError, UsageError
from repro.published import importing
from tests.in_process import called
from tests.records import SUITE, make_record

ROOT = Path(__file__).parents[3]
SHARED = Path(os.environ.get("REPRO_SHARED_DATA", ROOT.parent / "shared" / "data"))


def log(seed: int | None, start: int = 1_000_000, *, reached: bool = True, minutes: int = 10) -> str:
    """A closed ResNet log of round v4.0, as short as one can be."""
    events: list[tuple[str, Any, int, dict[str, Any]]] = [
        ("submission_benchmark", "resnet", 0, {}), ("submission_division", "closed", 0, {}),
        ("global_batch_size", 3200, 0, {}), ("opt_name", "lars", 0, {}), ("train_samples", 1281167, 0, {}),
        *([] if seed is None else [("seed", seed, 0, {})]), ("run_start", None, 1000, {}),
        ("eval_accuracy", 0.5, 200_000, {"epoch_num": 4}),
        ("eval_accuracy", 0.76 if reached else 0.7, minutes * 60_000, {"epoch_num": 35}),
        ("run_stop", None, minutes * 60_000 + 500, {"status": "success" if reached else "aborted"}),
    ]
    return "".join(":::MLLOG " + json.dumps({
        "namespace": "", "time_ms": start + at, "event_type": "POINT_IN_TIME", "key": key, "value": value,
        "metadata": {"file": "train.py", "lineno": 1, **metadata},
    }) + "\n" for key, value, at, metadata in events)


def results(root: Path, logs: list[str]) -> Path:
    """A results repository of one system."""
    folder = root / "training_v4.0" / "Acme" / "results" / "box" / "resnet"
    folder.mkdir(parents=True)
    for number, content in enumerate(logs):
        (folder / f"result_{number}.txt").write_text(content)
    systems = root / "training_v4.0" / "Acme" / "systems"
    systems.mkdir()
    (systems / "box.json").write_text(json.dumps({
        "submitter": "Acme", "system_name": "box", "division": "closed", "status": "onprem", "number_of_nodes": "1",
        "accelerators_per_node": "8", "accelerator_model_name": "A1", "framework": "torch 2", "host_networking": "IB",
        "operating_system": "Ubuntu",
    }))
    return root / "training_v4.0"


def told(findings: tuple[Finding, ...]) -> dict[str, Finding]:
    return {item.id: item for item in findings}


def test_an_mlperf_folder_that_keeps_the_rules(tmp_path: Path) -> None:
    found = audit(str(results(tmp_path, [log(seed, minutes=10 + seed) for seed in range(5)])))
    rules = told(found.findings)
    assert (found.origin, found.cells, found.runs, found.exit_code) == ("mlperf", 1, 5, Exit.DONE)
    assert {name for name in rules if rules[name].verdict == "pass"} >= {"F5", "HB3", "MLP1", "MLP2", "MLP3", "MLP4",
                                                                        "MLP5"}
    for name in ("F1", "F2", "F8", "MLP6", "ACM3"):  # what no log says is not held against it
        assert rules[name].verdict == "cannot tell", rules[name]
    assert not list(tmp_path.rglob("*.jsonl"))  # nothing is written


@pytest.mark.parametrize(("logs", "rule"), [
    ([log(seed) for seed in range(4)], "MLP2"),
    ([log(seed, reached=seed > 1) for seed in range(5)], "MLP3"),
    ([log(7) for _ in range(5)], "MLP4"),
])
def test_an_mlperf_folder_that_breaks_one(logs: list[str], rule: str, tmp_path: Path) -> None:
    found = audit(str(results(tmp_path, logs)))
    assert rule in found.required_failed
    assert found.exit_code == Exit.NOT_REPRODUCED


def test_logs_without_seeds_are_not_accused(tmp_path: Path) -> None:
    found = audit(str(results(tmp_path, [log(None) for _ in range(5)])))
    assert told(found.findings)["MLP4"].verdict == "cannot tell"


def test_a_refused_log_is_a_run_without_a_time(tmp_path: Path) -> None:
    root = results(tmp_path, [*[log(seed) for seed in range(4)], "no event\x00\n", "cut :::MLLOG {\n"])
    rules = told(audit(str(root)).findings)
    assert rules["MLP3"].verdict == "fail" and "2 of 6" in rules["MLP3"].evidence


def test_imported_results_give_the_same_findings(tmp_path: Path) -> None:
    root = results(tmp_path, [log(seed) for seed in range(5)])
    importing.import_results("mlperf", root, tmp_path / "published")
    assert audit(str(tmp_path / "published")).findings == audit(str(root)).findings


@pytest.mark.skipif(not (SHARED / "mlperf").is_dir(), reason="no sample of published results next to the checkout")
def test_the_samples_of_published_results() -> None:
    v4, v6 = audit(str(SHARED / "mlperf" / "training_v4.0")), audit(str(SHARED / "mlperf" / "training_v0.6"))
    assert (v4.exit_code, v6.exit_code) == (Exit.DONE, Exit.DONE)
    assert told(v4.findings)["MLP3"].verdict == told(v6.findings)["MLP3"].verdict == "pass"
    dawn = audit(str(SHARED / "dawnbench"))
    assert [*dawn.required_failed] == ["NEU3"]  # entries of one run each


MAPPING = """\
cell: [params.optimizer, params.batch]
filter: "tags.stage = 'final'"
seed: params.seed
time: metrics.seconds
accuracy: metrics.val_acc
target: {value: 0.75}
epochs: metrics.epochs
throughput: metrics.images_per_second
workers: params.gpus
global_batch: params.batch
model: {value: resnet18}
determinism: {value: seeded}
hardware: tags.machine
system: {value: Linux}
software: [tags.torch, {value: cuda 12}]
repeats: 2
baseline: [sgd, 256]
hyperparameters:
  initialisation: {value: he}
  optimizer: params.optimizer
  momentum: params.momentum
  weight_decay: {value: 0.0005}
  learning_rate: params.lr
  schedule: {value: cosine}
  batch_per_worker: {value: 64}
data:
  name: {value: cifar10}
  version: {value: "1"}
  digest: {value: "abc"}
  train_samples: {value: 50000}
  eval_samples: {value: 10000}
  licence: {value: MIT}
  source: {value: "https://www.cs.toronto.edu/~kriz/cifar.html"}
stated: {costs: arithmetic mean, models: 1, test_augmentation: false, declared: true}
"""


def mapping(folder: Path, text: str = MAPPING) -> Mapping:
    path = folder / "mapping.yaml"
    path.write_text(text)
    return read_mapping(path)


def run(number: int, optimizer: str, **changed: Any) -> LoggedRun:
    base = LoggedRun(
        run_id=f"run{number}", status="FINISHED", history=(0.1, 0.8, 0.79),
        metrics={"seconds": 100.0 + number, "val_acc": 0.79, "epochs": 9.0, "images_per_second": 500.0},
        params={"optimizer": optimizer, "batch": "256", "seed": str(number % 2), "gpus": "4", "momentum": "0.9",
                "lr": "0.1"},
        tags={"machine": "4 x A100", "torch": "torch 2.9", "stage": "final", "mlflow.source.git.commit": "c" * 40},
    )
    return replace(base, **changed)


def experiment(*runs: LoggedRun, deleted: int = 0) -> Experiment:
    return Experiment("tuning", runs, deleted)


FOUR = (run(0, "sgd"), run(1, "sgd"), run(2, "adam"), run(3, "adam"))


def test_an_mlflow_experiment_by_its_mapping(tmp_path: Path) -> None:
    facts = experiment_facts(experiment(*FOUR), mapping(tmp_path))
    rules = told(check_facts(facts))
    assert [cell.label for cell in facts.cells] == ["optimizer sgd, batch 256", "optimizer adam, batch 256"]
    assert facts.cells[0].runs[0].quality == 0.8  # the best of the curve, not its last point
    passed = {name for name in rules if rules[name].verdict == "pass"}
    assert passed >= {"F1", "F2", "F4", "F5", "F8", "F10", "HB1", "HB3", "HB9", "MLP1", "MLP2", "MLP4", "NEU2", "ACM1"}
    assert {name for name in rules if rules[name].verdict == "fail"} == {"MLP3"}  # two runs leave none
    assert rules["HB7"].verdict == rules["MLP6"].verdict == rules["NEU4"].verdict == "cannot tell"
    assert rules["F3"].verdict == "not applicable"  # every cell has 4 workers


def bad_facts(folder: Path, *runs: LoggedRun, deleted: int = 0, text: str = MAPPING) -> dict[str, Finding]:
    return told(check_facts(experiment_facts(experiment(*runs, deleted=deleted), mapping(folder, text))))


def test_violations_of_an_mlflow_experiment(tmp_path: Path) -> None:
    assert bad_facts(tmp_path, *FOUR, deleted=2)["MLP6"].verdict == "fail"
    same = [replace(item, params=item.params | {"seed": "1"}) for item in FOUR]
    rules = bad_facts(tmp_path, *same)
    assert rules["MLP4"].verdict == rules["NEU3"].verdict == "fail"
    assert bad_facts(tmp_path, *FOUR[:3])["MLP2"].verdict == "fail"
    scaled = [replace(item, params=item.params | {"gpus": "4" if item.params["optimizer"] == "sgd" else "8"})
              for item in FOUR]
    assert bad_facts(tmp_path, *scaled)["F3"].verdict == "fail"
    models = [replace(item, tags=item.tags | {"model": item.params["optimizer"]}) for item in FOUR]
    text = MAPPING.replace("model: {value: resnet18}", "model: tags.model")
    assert bad_facts(tmp_path, *models, text=text)["F10"].verdict == "fail"
    assert bad_facts(tmp_path, *FOUR, text=MAPPING.replace("arithmetic mean", "harmonic mean"))["HB3"].verdict == "fail"
    assert bad_facts(tmp_path, *FOUR, text=MAPPING.replace("models: 1", "models: 5"))["F8"].verdict == "fail"


def test_a_run_that_only_holds_others_together_is_no_repeat(tmp_path: Path) -> None:
    head = run(9, "sgd")
    head.metrics.clear()
    below = [run(number, "sgd", tags={**run(number, "sgd").tags, "mlflow.parentRunId": head.run_id})
             for number in range(2)]
    meaning = mapping(tmp_path)
    for runs, counted in (((head, *below), 2), ((head, *FOUR), 5)):  # without runs below it, it is one that missed
        assert sum(len(cell.runs) for cell in experiment_facts(experiment(*runs), meaning).cells) == counted
    broken = replace(head, status="FAILED")
    assert len(experiment_facts(experiment(broken, *below), meaning).cells[0].runs) == 3


def test_a_run_below_the_target_or_broken_has_not_reached_it(tmp_path: Path) -> None:
    low, broken = replace(FOUR[0], history=(0.1, 0.7)), replace(FOUR[1], status="FAILED")
    cells = experiment_facts(experiment(low, broken, *FOUR[2:]), mapping(tmp_path)).cells
    assert [item.reached for item in cells[0].runs] == [False, None]
    assert cells[0].median is None and cells[1].median == 102.5


def test_a_target_to_get_below(tmp_path: Path) -> None:
    text = MAPPING.replace("{value: 0.75}", "{value: 0.2, direction: lower, metric: loss}")
    cell = experiment_facts(experiment(*FOUR), mapping(tmp_path, text)).cells[0]
    assert cell.target == "loss <= 0.2" and cell.runs[0].quality == 0.1 and cell.runs[0].reached


@pytest.mark.parametrize(("old", "new", "says"), [
    ("time: metrics.seconds", "tyme: metrics.seconds", "time"),
    ("time: metrics.seconds", "time: seconds", "metrics.NAME, params.NAME or tags.NAME"),
    ("repeats: 2", "repeats: none", "repeats"),
    ("baseline: [sgd, 256]", "baseline: [sgd]", "1 values for the 2 of `cell`"),
    ("cell: [params.optimizer, params.batch]", "cell: []", "cell"),
    ("costs: arithmetic mean", "costs: mean", "costs"),
    (MAPPING, "- a list", "must have keys"),
    (MAPPING, "cell: [", "not valid YAML"),
])
def test_a_wrong_mapping_is_located(old: str, new: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(SuiteError) as error:
        mapping(tmp_path, MAPPING.replace(old, new))
    assert says in str(error.value) and "mapping.yaml:" in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(("runs", "says"), [
    ((), "no run matches `filter`"),
    ((replace(FOUR[0], params={}),), "run run0 has no params.optimizer"),
    ((replace(FOUR[0], params=FOUR[0].params | {"gpus": "many"}),), "'many'"),
    (FOUR[2:], "no cell has sgd, 256"),
])
def test_runs_that_do_not_fit_the_mapping(runs: tuple[LoggedRun, ...], says: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=says.replace(".", r"\.")):
        experiment_facts(experiment(*runs), mapping(tmp_path))


def test_numbers_that_are_none(tmp_path: Path) -> None:
    bad = replace(FOUR[0], metrics=FOUR[0].metrics | {"seconds": float("nan")}, history=(float("inf"), float("nan")))
    first = experiment_facts(experiment(bad, *FOUR[1:]), mapping(tmp_path)).cells[0].runs[0]
    assert first.seconds is None and first.quality == 0.79 and first.reached is False


def test_the_command_line(tmp_path: Path) -> None:
    make_record(tmp_path / "five", SUITE.replace("seeds: 6", "seeds: 5"))
    make_record(tmp_path / "six")
    passed, failed = (called("audit", tmp_path / name, "--json") for name in ("six", "five"))
    assert (passed.exit_code, failed.exit_code) == (0, 3), passed.output
    data = json.loads(failed.output)
    assert data["required_failed"] == ["HB5"] and data["exit_code"] == 3
    assert len(data["findings"]) == len(RULES) == sum(data["counts"].values())
    table = called("audit", tmp_path / "five")
    lines = [line for line in table.output.splitlines() if line.startswith(("fail ", "pass "))]
    assert lines[0].split()[:2] == ["fail", "HB5"] and table.output.rstrip().endswith("required and not met: HB5")
    assert table.exit_code == 3


@pytest.mark.parametrize(("arguments", "says"), [
    (["nowhere"], "no such folder"),
    (["."], "neither a run folder"),
    (["x", "--map", "nowhere.yaml"], "cannot be read"),
])
def test_bad_input_is_one_line(
    arguments: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = called("audit", *arguments)
    assert isinstance(result.exception, UsageError) and result.exception.exit_code == Exit.USAGE
    assert says in str(result.exception)


def test_control_characters_of_foreign_names_are_shown_as_text(tmp_path: Path) -> None:
    root = results(tmp_path, [log(0)])
    (root / "Acme" / "results" / "box").rename(root / "Acme" / "results" / "b\x1b[31m\u202eox")
    output = called("audit", root).output
    assert "\x1b" not in output and "\u202e" not in output


def test_the_document_lists_every_rule() -> None:
    document = (ROOT / "docs" / "checklists.md").read_text()
    rows = [line.split("|")[1:4] for line in document.splitlines() if line.startswith("| ") and line.count("|") >= 6]
    listed = {row[0].strip(): row[1].strip() for row in rows if row[0].strip()[-1:].isdigit()}
    assert listed == {rule.id: rule.title for rule in RULES}
