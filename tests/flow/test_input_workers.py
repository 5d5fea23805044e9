"""Input workers in real trials: equal bytes for any number of them, little waiting, and a reported end."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from repro.core import registry
from repro.launchers.local import Local
from repro.record.derive.derive import derive
from repro.record.log.reading import read_log
from repro.record.result.results import Result
from repro.seams.launching import LaunchRequest, LaunchResult
from repro.suite.model import Trial
from tests.waiting import LONG_SECONDS, until

pytest.importorskip("torch")

PLUGINS = Path(__file__).parents[1] / "plugins"
MODULES = ("torch", "torch._dynamo", "torch.utils.data", "repro.engines.plain.ddp_session", "file_samples",
           "repro.worker.main")
CHOICES: dict[str, Any] = {
    "engine": "ddp", "processes": 2, "batch": {"global": 16, "accumulation": 2},
    "optimizer": {"kind": "sgd", "lr": 0.05, "momentum": 0.9}, "evaluate_every": 40, "device": "cpu",
    "stop": {"metric": "top1", "target": 0.999, "max_epochs": 2.4, "design": "fixed_budget"}, "timeout_seconds": 60,
}


@dataclass(frozen=True)
class Ran:
    """A trial that has run, and what its workload wrote down."""

    result: Result
    outcome: LaunchResult
    told: Path
    log: str
    """What rank 0 printed."""
    seconds: float

    def fed(self, rank: int) -> list[str]:
        return (self.told / f"fed{rank}.txt").read_text().splitlines()

    def processes(self) -> list[dict[str, Any]]:
        """What every input worker wrote of itself."""
        return [json.loads(path.read_text()) for path in sorted(self.told.glob("process*.json"))]


Run = Callable[..., Ran]


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(PLUGINS))
        patch.setenv("PYTHONPATH", os.pathsep.join([str(PLUGINS), os.environ.get("PYTHONPATH", "")]))
        patch.setenv("OMP_NUM_THREADS", "1")
        registry._third_party.cache_clear()
        from file_samples import write_samples

        folder = tmp_path_factory.mktemp("data") / "samples"
        write_samples(folder)
        yield folder
    registry._third_party.cache_clear()


@pytest.fixture(scope="module")
def run(samples: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """Runs trials one by one as a suite does, without its gate."""
    launcher = Local()
    launcher.open(MODULES, "cpu")

    def train(workload: dict[str, Any] | None = None, **changes: Any) -> Ran:
        told = tmp_path_factory.mktemp("told")
        made = {"kind": "file-samples", "folder": str(samples), "told": str(told), **(workload or {})}
        trial = Trial.model_validate({"suite": "s", "suite_digest": "d", "repeat": 0, "master_seed": 7,
                                      "choices": {**CHOICES, "workload": made, **changes}})
        folder = tmp_path_factory.mktemp("trial")
        payload = {"log": "log.txt", "trial": trial.model_dump(mode="json", by_alias=True),
                   "launched_ns": time.monotonic_ns()}
        begin = time.monotonic()
        outcome = launcher.launch(
            LaunchRequest("repro.worker.main:main", payload, trial.choices.processes, "cpu", folder, 2 * LONG_SECONDS))
        result = derive(trial, 1, read_log(folder / "log.txt"), outcome)
        return Ran(result, outcome, told, (folder / "rank0.log").read_text(), time.monotonic() - begin)

    yield train
    launcher.close()


def ended_well(ran: Ran) -> Ran:
    assert ran.outcome.ok and ran.result.status == "missed", (ran.result.reason, ran.log[-3000:])
    return ran


@pytest.fixture(scope="module")
def in_process(run: Run) -> Ran:
    return ended_well(run())


@pytest.mark.parametrize("workers", [1, 4])
def test_any_number_of_workers_feeds_the_same_bytes(run: Run, in_process: Ran, workers: int) -> None:
    read = ended_well(run(input={"workers": workers}))
    assert [read.fed(rank) for rank in range(2)] == [in_process.fed(rank) for rank in range(2)]
    # 2.4 passes over 96 samples, in steps of 16, two micro-batches each; then a drawn one of them again, by the engine
    # and by the harness.
    fed = read.fed(0)
    assert len(fed) == 2 * 15 + 4 and fed[-4:-2] == fed[-2:] and fed[-2:] in [fed[at:at + 2] for at in range(0, 30, 2)]
    assert read.result.hashes == in_process.result.hashes
    assert {"data_order", "augmentation", "final_weights"} <= read.result.hashes.keys()
    assert [point.value for point in read.result.curve] == [point.value for point in in_process.result.curve]
    assert read.result.effective["input_workers"] == str(workers)
    assert read.result.effective["input_ahead"] == "2"
    assert in_process.result.effective["input_workers"] == "0"


def test_workers_are_small_and_hold_no_log(run: Run) -> None:
    ran = ended_well(run(input={"workers": 2}))
    told = ran.processes()
    parents = {item["parent"] for item in told}
    found = [item for item in told if item["pid"] not in parents]  # the ranks themselves read after the steps after
    ranks = {item["parent"] for item in found}
    assert len(ranks) == 2 and len(found) >= 4, "two workers a rank, and those that read an evaluation again"
    assert {item["threads"] for item in found} == {1}
    assert not [path for item in found for path in item["opened"] if path.endswith("log.txt")]
    assert not [item for item in found if psutil.pid_exists(item["pid"])]


SLOW = {"decode_seconds": 0.005, "step_seconds": 0.06, "told": None}
"""A decoder that takes 5 ms a sample: with 4 workers 16 samples need 20 ms, and a step takes 120."""
ALONE = {"processes": 1, "engine": "single", "batch": {"global": 16, "accumulation": 2}, "evaluate_every": 96}


@pytest.mark.slow
def test_input_that_is_read_ahead_leaves_the_step(run: Run) -> None:
    short = {**ALONE, "stop": {**CHOICES["stop"], "max_epochs": 2}}
    inside = ended_well(run(SLOW, **short)).result
    ahead = ended_well(run(SLOW, input={"workers": 4, "ahead": 4}, **short)).result
    assert inside.input_wait_seconds is not None and ahead.input_wait_seconds is not None
    assert inside.input_wait_seconds > 0.08, "16 samples of 5 ms, one after the other"
    assert ahead.input_wait_seconds < inside.input_wait_seconds / 2
    assert inside.input_wait_share is not None and inside.input_wait_share > 0.35


@pytest.mark.slow
def test_little_of_a_step_is_waiting_for_input(run: Run) -> None:
    """On a machine with cores to spare; the start of the workers, which is in the first step, counts."""
    longer = {**ALONE, "stop": {**CHOICES["stop"], "max_epochs": 10}}
    ahead = ended_well(run(SLOW, input={"workers": 4, "ahead": 4}, **longer)).result
    print(f"input wait {ahead.input_wait_seconds:.5f} s a step, {ahead.input_wait_share:.2%} of it")
    assert ahead.input_wait_share is not None and ahead.input_wait_share < 0.05


@pytest.mark.parametrize(("failure", "rest"), [
    ("undecodable", "17.bin: cannot be decoded: 12 of 33 bytes"),
    ("raises", "an input worker failed: ValueError: a defect of the reader"),
    ("killed", "was killed by SIGKILL (by the kernel when memory runs out, or by hand)"),
])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_reader_that_fails_ends_the_trial_with_its_reason(run: Run, workers: int, failure: str, rest: str) -> None:
    if not workers and failure == "killed":
        pytest.skip("a rank that is killed is tested elsewhere")
    ran = run({"bad_sample": 17, "failure": failure}, input={"workers": workers})
    assert ran.result.status == "crashed"
    assert "\n" not in ran.result.reason
    assert (rest.removeprefix("an input worker failed: ") if not workers else rest) in ran.result.reason
    assert ran.seconds < LONG_SECONDS, "before the time limit of a trial"


def test_workers_end_with_a_rank_that_is_killed(run: Run, samples: Path, tmp_path: Path) -> None:
    killed: list[int] = []

    def kill() -> None:
        late = time.monotonic() + LONG_SECONDS
        while time.monotonic() < late and not killed:
            for path in tmp_path.glob("process*.json"):
                with suppress(ValueError, ProcessLookupError):
                    os.kill(rank := json.loads(path.read_text())["parent"], signal.SIGKILL)
                    killed.append(rank)
                    break
            time.sleep(0.01)

    thread = threading.Thread(target=kill)
    thread.start()
    ran = run({"decode_seconds": 0.01, "told": str(tmp_path)}, input={"workers": 2}, processes=1,
              engine="single", batch={"global": 16})
    thread.join()
    assert killed and ran.result.status == "crashed"
    # A worker that ended with the rank while it wrote its file has left an empty one.
    workers = [json.loads(text)["pid"] for path in tmp_path.glob("process*.json") if (text := path.read_text())]
    assert workers
    until(lambda: not any(map(psutil.pid_exists, workers)))


def test_a_stream_is_read_in_the_order_of_the_data(run: Run, in_process: Ran) -> None:
    streamed = [ended_well(run(input={"workers": workers, "order": "stream"})) for workers in (0, 2)]
    assert streamed[0].fed(1) == streamed[1].fed(1) != in_process.fed(1)
    assert streamed[0].result.hashes == streamed[1].result.hashes
    assert streamed[0].result.hashes["data_order"] != in_process.result.hashes["data_order"]
    assert streamed[1].result.effective["input_order"] == "stream"
