"""What the fork server loads never calls CUDA: a process that has called it cannot fork ranks that use it."""

from __future__ import annotations

import os
import subprocess
import sys
from unittest.mock import patch

import pytest

from repro.core.errors import UsageError
from repro.engines.deepspeed_zero import DeepSpeedZero
from repro.engines.torch_engines import Ddp, Fsdp
from repro.launchers.processes import fork_server

SPY = """
import sys, traceback
import torch

CALLS = []
def spied(owner, name):
    def call(*args, **kwargs):
        CALLS.append(name + ''.join(traceback.format_stack(limit=4)[:-1]))
        return old(*args, **kwargs)
    old = getattr(owner, name)
    setattr(owner, name, call)

for name in ('init', '_lazy_init', 'current_device', 'set_device', 'synchronize',
             'get_device_name', 'get_device_capability', 'get_device_properties', 'mem_get_info'):
    spied(torch.cuda, name)
import importlib
for module in sys.argv[1:]:
    importlib.import_module(module)
sys.exit('\\n'.join(CALLS) or 0)
"""


def environment(device: str) -> dict[str, str]:
    with patch.dict(os.environ):
        for name in ("DS_ACCELERATOR", "PYTORCH_NVML_BASED_CUDA_CHECK", "MLFLOW_DISABLE_TELEMETRY"):
            os.environ.pop(name, None)
        fork_server._set_environment(device, "{}")
        return dict(os.environ)


@pytest.mark.slow
def test_modules_of_engines_do_not_call_cuda_when_they_are_loaded() -> None:
    """Asking for the number of GPUs is no call: `_set_environment` has NVML answer. Triton asks it for DeepSpeed."""
    modules = dict.fromkeys((*Ddp.preload, *Fsdp.preload, *DeepSpeedZero.preload))
    ran = subprocess.run([sys.executable, "-c", SPY, *modules], env=environment("cuda"), capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize(("device", "accelerator", "check"), [("cpu", "cpu", None), ("cuda", "cuda", "1")])
def test_deepspeed_is_told_its_accelerator(device: str, accelerator: str, check: str | None) -> None:
    found = environment(device)
    assert (found["DS_ACCELERATOR"], found.get("PYTORCH_NVML_BASED_CUDA_CHECK")) == (accelerator, check)


def test_deepspeed_imports_an_mlflow_that_sends_nothing() -> None:
    assert environment("cpu")["MLFLOW_DISABLE_TELEMETRY"] == "true"


def test_a_module_that_calls_the_driver_is_refused_by_name() -> None:
    report = {"failed": {}, "seconds": {"torch": 1.0, "greedy": 0.1}, "cuda_started": True}
    with pytest.raises(UsageError, match="starts CUDA at import, after which ranks cannot be forked: torch, greedy"):
        fork_server._check(report, fork_server.Path("none"), "cuda")
    fork_server._check(report, fork_server.Path("none"), "cpu")  # its ranks never call the driver


def test_a_fork_that_torch_marks_as_bad_cannot_use_cuda() -> None:
    told = subprocess.run([sys.executable, "-c", (
        "import json, os, tempfile, torch\n"
        "orders = {'modules': [], 'log': tempfile.mkdtemp() + '/log', 'path': __import__('sys').path,"
        " 'main_path': None, 'main_name': None, 'owner': os.getppid()}\n"
        "os.environ['REPRO_FORK_SERVER'] = json.dumps(orders)\n"
        "from repro.core import devices\n"
        "from repro.launchers.processes import preload\n"
        "good = devices.lost_to_fork()\n"
        "torch.cuda._is_in_bad_fork = lambda: True\n"
        "os._exit(0 if (good, devices.lost_to_fork()) == (False, True) else 1)")], env=environment("cuda"))
    assert told.returncode == 0


def test_a_server_that_is_started_again_has_the_environment_of_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trials record it: `revive` starts a server with what `os.environ` has then."""
    inherited: list[dict[str, str]] = []
    monkeypatch.setattr(fork_server, "begin", lambda: inherited.append(dict(os.environ)))
    monkeypatch.setattr(fork_server, "finish", lambda *_: inherited.append(dict(os.environ)))
    monkeypatch.setattr(fork_server, "stop", lambda: None)
    server = fork_server.WarmServer(["json"], "cpu")
    server.start()
    server.stop()
    first, later = inherited
    assert first == later
