"""Fed samples and effective settings, read back from real trials: equal if required, and differences are found."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from repro.core import registry
from repro.launchers.local import Local
from repro.record.derive.derive import derive
from repro.record.log.reading import read_log
from repro.record.log.schema import Fed, Seeded
from repro.record.result.results import Result
from repro.seams.launching import LaunchRequest
from repro.suite.model import Trial

pytest.importorskip("torch")
pytest.importorskip("deepspeed")

PLUGINS = Path(__file__).parents[1] / "plugins"
MODULES = ("torch", "torch._dynamo", "deepspeed", "repro.engines.zero.session", "repro.engines.plain.ddp_session",
           "planted_sessions", "defects", "repro.worker.main")
CHOICES: dict[str, Any] = {
    "workload": "digits", "engine": "ddp", "processes": 2, "batch": {"global": 48, "accumulation": 2},
    "optimizer": {"kind": "sgd", "lr": 0.05, "momentum": 0.9}, "evaluate_every": 480, "device": "cpu",
    "stop": {"metric": "top1", "target": 0.99, "max_epochs": 1.2, "design": "fixed_budget"}, "timeout_seconds": 300,
}


@dataclass(frozen=True)
class Ran:
    """A trial that has run, and its report of fed samples."""

    result: Result
    fed: Fed


Run = Callable[..., Ran]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """Runs trials one by one as a suite does, without its gate; engines with planted defects are known."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(PLUGINS))
        patch.setenv("PYTHONPATH", os.pathsep.join([str(PLUGINS), os.environ.get("PYTHONPATH", "")]))
        patch.setenv("OMP_NUM_THREADS", "1")
        registry._third_party.cache_clear()
        launcher = Local()
        launcher.open(MODULES, "cpu")

        def train(**changes: Any) -> Ran:
            trial = Trial.model_validate({"suite": "s", "suite_digest": "d", "repeat": 0, "master_seed": 7,
                                          "choices": {**CHOICES, **changes}})
            folder = tmp_path_factory.mktemp("trial")
            payload = {"log": "log.txt", "trial": trial.model_dump(mode="json", by_alias=True),
                       "launched_ns": time.monotonic_ns()}
            outcome = launcher.launch(
                LaunchRequest("repro.worker.main:main", payload, trial.choices.processes, "cpu", folder, 300.0))
            events = read_log(folder / "log.txt")
            result = derive(trial, 1, events, outcome)
            assert outcome.ok, (result.reason, (folder / "rank0.log").read_text()[-2000:])
            return Ran(result, next(item.event for item in events if isinstance(item.event, Fed)))

        yield train
        launcher.close()
    registry._third_party.cache_clear()


CUTS: list[tuple[Any, int]] = [(engine, processes) for processes in (1, 2, 4) for engine in
                               ("ddp", *({"kind": "deepspeed", "stage": stage} for stage in range(4)))]


@pytest.fixture(scope="module")
def first(run: Run) -> Ran:
    return run()


@pytest.mark.slow
@pytest.mark.parametrize(("engine", "processes"), [cut for cut in CUTS if cut != ("ddp", 2)], ids=str)
def test_every_engine_is_fed_the_same_on_any_number_of_ranks(
    run: Run, first: Ran, engine: Any, processes: int
) -> None:
    found = run(engine=engine, processes=processes)
    assert found.fed == first.fed
    assert found.result.settings["OMP_NUM_THREADS"] == found.result.effective["threads"] == "1"
    assert found.fed.as_seeded == Seeded(data_order=True, augmentation=True)
    for name in ("data_order", "augmentation", "init_weights", "data"):
        assert found.result.hashes[name] == first.result.hashes[name]
    assert (found.result.status, found.result.samples) == ("missed", 36 * 48)


def slow(*values: Any) -> Any:
    return pytest.param(*values, marks=pytest.mark.slow)


@pytest.mark.parametrize(("defect", "choices", "reason"), [
    ("data", {}, "the consumed samples or their order differed from the seed's"),
    slow("augmentation", {}, "the consumed augmentation differed from the seed's"),
    ("precision", {"precision": "bf16-autocast"}, "matmul_dtype bfloat16 was asked for, float32 ran"),
    slow("wire", {}, "comm_dtype float32 was asked for, bfloat16 ran"),
    ("rank-1-drifts", {"stop": {**CHOICES["stop"], "max_epochs": 2.2}}, "rank 1 ended with other weights than rank 0"),
    ("work-left-to-the-evaluation", {}, "evaluation 1 changed the weights: training was left to it"),
    slow("stale-weights-evaluated", {}, "with the same weights"),
    slow("samples-lost", {}, "the evaluation after 480 samples covered 340 of 360 evaluation samples"),
    slow("momentum-smaller", {}, '"momentum": 0.9'),
    slow("half-of-the-samples-evaluated", {}, "with the same weights"),
])
def test_a_trial_that_was_another_than_asked_is_invalid(
    run: Run, first: Ran, defect: str, choices: dict[str, Any], reason: str
) -> None:
    found = run(engine={"kind": "planted", "defect": defect}, **choices).result
    assert found.status == "invalid"
    assert reason in found.reason
    same = {name: found.hashes[name] == first.result.hashes[name] for name in ("data_order", "augmentation")}
    assert same == {"data_order": defect != "data", "augmentation": defect not in ("data", "augmentation")}


@pytest.mark.parametrize("choices", [
    slow({"engine": {"kind": "deepspeed", "stage": 1}, "compression": "bf16"}),
    slow({"engine": {"kind": "deepspeed", "stage": 3}, "precision": "bf16-master"}),
    {"engine": {"kind": "deepspeed", "stage": 2}, "precision": "bf16-autocast", "comm": "ring"},
    {"compression": "fp16", "overlap": False, "comm": "tree"},
    {"compression": "powersgd", "compression_rank": 2},
    slow({"precision": "fp16-autocast", "processes": 1}),
], ids=str)
def test_a_trial_that_ran_as_requested_is_valid(run: Run, first: Ran, choices: dict[str, Any]) -> None:
    ran = run(**choices)
    found = ran.result
    assert ran.fed == first.fed
    for name in ("data_order", "augmentation", "init_weights", "data"):
        assert found.hashes[name] == first.result.hashes[name]
    assert found.status == "missed"
    assert found.every_rank
    wanted = {"bf16": "bfloat16", "fp16": "float16"}.get(choices.get("compression", ""), "float32")
    if choices.get("precision") == "bf16-master":
        wanted = "bfloat16"
    assert found.effective["comm_dtype"] == wanted
