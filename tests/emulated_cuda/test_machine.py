"""What a user of a machine with GPUs does around a run: choose devices, run out of memory, resume, own programs."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from repro.record.folder.store import Record, read_record
from tests.chaos.faults import ranks_of
from tests.emulated_cuda.rehearsed import OPTIMIZERS, SCATTERED, SMALL
from tests.emulated_cuda.running import finish, repro, run, start
from tests.plans import suite
from tests.waiting import until

FIRST, SECOND = (f"GPU-{number:08}-0000-0000-0000-000000000000" for number in (0, 1))
PROGRAM = """\
import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
torch.manual_seed(int(sys.argv[1]))
model = DistributedDataParallel(nn.Linear(8, 1).cuda(), device_ids=[rank])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(1, 31):
    inputs = torch.randn(64, 8, device="cuda")
    loss = nn.functional.mse_loss(model(inputs), inputs.sum(1, keepdim=True))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 0 and rank == 0:
        print("step", step, "loss", loss.item(), flush=True)
dist.destroy_process_group()
"""
TORCHRUN = """\
suite: own
seeds: 1
trial:
  engine: {kind: program, run: [torchrun, --standalone, --nproc-per-node, "{processes}", train.py, "{seed}"]}
  processes: 2
  evaluation: {pattern: 'step (?P<step>\\d+) loss (?P<value>\\S+)', metric: loss, direction: lower}
  stop: {target: 100}
  timeout_seconds: 120
"""


def one_trial(engine: str = "ddp", *, head: str = "", **trial: object) -> str:
    stated: dict[str, object] = {"workload": SMALL, "optimizer": OPTIMIZERS["adamw"], "engine": engine, "device": None,
                                 "stop": "{metric: top1, target: 0.5, max_epochs: 1}", "evaluate_every": 720,
                                 "processes": 2, "timeout_seconds": 120}
    return suite("one", head=head, **stated | trial)


def ran(folder: Path, text: str, *options: str, **variables: str) -> Record:
    (folder / "suite.yaml").write_text(text)
    repro(folder, "run", "suite.yaml", "--no-mlflow", "--out", "run", "--master-seed", "7", *options, **variables)
    return read_record(folder / "run")


@pytest.mark.rehearse
def test_doctor_names_both_devices(tmp_path: Path) -> None:
    ended = repro(tmp_path, "doctor")
    assert "2 GPU(s)" in ended.out and ended.out.count("Emulated H100") >= 2, ended.out


@pytest.mark.rehearse
@pytest.mark.parametrize("chosen", ["1", SECOND, f"{SECOND},{FIRST}", "0,1"])
def test_devices_are_chosen_by_index_and_by_uuid(tmp_path: Path, chosen: str) -> None:
    count = chosen.count(",") + 1
    assert f"{count} GPU(s)" in repro(tmp_path, "doctor", CUDA_VISIBLE_DEVICES=chosen).out
    for engine in ("ddp", "{kind: deepspeed, stage: 1}"):
        folder = tmp_path / engine.strip("{")[:4]
        folder.mkdir()
        record = ran(folder, one_trial(engine, processes=count), CUDA_VISIBLE_DEVICES=chosen)
        assert [result.status for result in record.results] == ["ok"]


@pytest.mark.rehearse
def test_no_device_is_visible(tmp_path: Path) -> None:
    record = ran(tmp_path, one_trial(), CUDA_VISIBLE_DEVICES="")
    assert [result.model and result.model.device for result in record.results] != ["Emulated H100"]


@pytest.mark.rehearse
@pytest.mark.parametrize("engine", ["ddp", "{kind: deepspeed, stage: 1}"])
def test_a_trial_without_enough_memory_is_called_so(tmp_path: Path, engine: str) -> None:
    text = one_trial(engine, workload="{kind: digits-mlp, hidden: 2048}", gate="null")
    record = ran(tmp_path, text, EMULATED_CUDA_MIB="60")
    (result,) = record.results
    assert result.status == "out_of_memory", result


@pytest.mark.rehearse
def test_a_cpu_run_on_a_machine_with_devices(tmp_path: Path) -> None:
    for engine in ("ddp", "{kind: deepspeed, stage: 1}"):
        folder = tmp_path / engine.strip("{")[:4]
        folder.mkdir()
        record = ran(folder, one_trial(engine, device="cpu"))
        assert [result.status for result in record.results] == ["ok"]
        assert [result.model and result.model.device for result in record.results] != ["Emulated H100"]


def interrupted(folder: Path, engine: str, processes: int) -> None:
    """Leave a run of one trial that was killed, with all its processes, after a checkpoint."""
    (folder / "suite.yaml").write_text(one_trial(
        engine, head="on_failure: resume_from_checkpoint\ncheckpoint_every: 1\n", processes=processes,
        workload="{kind: digits-mlp, hidden: 160}",
        stop="{metric: top1, target: 0.999, max_epochs: 20, design: fixed_budget}"))
    process = start(folder, "-m", "repro", "run", "suite.yaml", "--no-mlflow", "--out", "run", "--master-seed", "7")
    until(lambda: any((folder / "run" / "trials").glob("*/checkpoints/step_*")), process)
    ranks = ranks_of(process.pid)
    os.killpg(process.pid, signal.SIGKILL)
    for pid in ranks.values():
        os.kill(pid, signal.SIGKILL)
    finish(process)


@pytest.mark.rehearse
@pytest.mark.parametrize("engine", ["ddp", "fsdp", "{kind: deepspeed, stage: 2}"])
def test_an_interrupted_run_resumes(tmp_path: Path, engine: str) -> None:
    interrupted(tmp_path, engine, 2)
    ended = repro(tmp_path, "run", "--resume", "run", "--no-mlflow")
    (result,) = read_record(tmp_path / "run").results
    assert result.resumed, ended.error


SAVED = """\
import json
from pathlib import Path

import torch

from repro.engines.plain.state import RandomStates

states, path = RandomStates("cuda:0"), Path("states.json")
if path.exists():
    RandomStates.from_plain(json.loads(path.read_text()), "cuda:0").restore()
    print(torch.randn(3, device="cuda").tolist())
else:
    path.write_text(json.dumps(states.plain()))
    print(torch.randn(3, device="cuda").tolist())
"""


@pytest.mark.rehearse
def test_a_checkpoint_loads_where_fewer_devices_are_visible(tmp_path: Path) -> None:
    saved, loaded = (run(tmp_path, "-c", SAVED, devices=count) for count in (2, 1))
    assert loaded.code == 0, loaded.error
    assert loaded.out == saved.out


@pytest.mark.rehearse
def test_a_program_under_torchrun(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    record = ran(tmp_path, TORCHRUN)
    assert [result.status for result in record.results] == ["ok"]


@pytest.mark.rehearse
def test_benchmarks_of_collectives(tmp_path: Path) -> None:
    ended = repro(tmp_path, *shlex.split("bench comm --world 2 --sizes 1k,64k --repetitions 2"))
    assert ended.code == 0, ended.error


@pytest.mark.rehearse
def test_zero_3_gathers_updated_weights(tmp_path: Path) -> None:
    """DeepSpeed's gathering stream does not wait for the update by itself."""
    record = ran(tmp_path, one_trial(SCATTERED, gate="null"))
    assert [result.status for result in record.results] == ["ok"]


KNOWN: dict[str, str] = {}
"""Test of tests/gpu, a part of its name -> why it is known to fail."""


@pytest.mark.rehearse
@pytest.mark.parametrize("name", ["engines", "trials", "quickstart"])
def test_the_tests_for_gpus_pass(tmp_path: Path, name: str) -> None:
    """All but those that compile: the emulated device has no compiler."""
    tests = Path(__file__).parents[1] / "gpu" / f"test_{name}_gpu.py"
    ended = run(tests.parents[2], "-m", "pytest", "-p", "no:cacheprovider", "-m", "gpu", "-k", "not mode", "-rfEs",
                f"--basetemp={tmp_path / 'base'}", str(tests))
    failed = [line for line in ended.out.splitlines() if line.startswith(("FAILED", "ERROR"))]
    unknown = [line for line in failed if not any(part in line for part in KNOWN)]
    assert not unknown, ended.out[-6000:]


def test_the_ordinary_environment_sees_no_device() -> None:
    code = "import torch; print(torch.cuda.is_available())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout.lower()) is False
