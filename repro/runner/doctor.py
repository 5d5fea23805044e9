"""Checks of `repro doctor`: what this machine has, what is missing, and the command that fixes it."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal

import psutil

from repro.core import machine, orphans
from repro.core.frozen import Frozen
from repro.core.redact import redacted
from repro.launchers.netns import probe as netns_probe
from repro.record.environment.gpus import interconnect, used_gpus

State = Literal["ok", "note", "missing"]


class Diagnosis(Frozen):
    """The result of one check."""

    what: str
    state: State
    found: str
    mend: str = ""
    """The command or action that fixes it; empty if none is needed."""


def examine(folder: Path) -> list[Diagnosis]:
    """Check everything that a run needs; `folder` is the folder of runs."""
    return [_python(), *_libraries(), _devices(), *_gpus(), *_capacity(folder), _loopback(), _tracking(), *_optional(),
            _fabric(), _orphans()]


def end_orphans() -> list[int]:
    """End the orphaned processes of earlier runs; return the ids of those that ended."""
    found = orphans.find()
    remaining = orphans.end(found)
    return [pid for pid in found if pid not in remaining]


def _python() -> Diagnosis:
    found = f"{sys.version_info.major}.{sys.version_info.minor}.{sys.version_info.micro}"
    return Diagnosis(what="python", state="ok", found=found)


def _libraries() -> Iterator[Diagnosis]:
    for name in ("torch", "deepspeed", "mlflow", "scikit-learn", "jinja2"):
        try:
            yield Diagnosis(what=name, state="ok", found=version(name))
        except PackageNotFoundError:
            mend = f"pip install -c constraints.txt {name}"
            yield Diagnosis(what=name, state="missing", found="not installed", mend=mend)
    yield from _imports()


def _imports() -> Iterator[Diagnosis]:
    """Import torch and deepspeed in a separate process: an installed package may still fail to load."""
    probe = ("import torch, torch.distributed as d; print('gloo' if d.is_gloo_available() else 'no gloo', "
             "'nccl' if d.is_nccl_available() else 'no nccl', f'CUDA {torch.version.cuda}, cuDNN "
             "{torch.backends.cudnn.version()}, ' if torch.version.cuda else '', torch.cuda.is_available())")
    yield _probe("torch works", probe, "pip install --force-reinstall -c constraints.txt torch")
    yield _probe("deepspeed works", "import deepspeed; print('imports')",
                 "pip install --force-reinstall -c constraints.txt deepspeed")


def _probe(what: str, code: str, mend: str) -> Diagnosis:
    environment = dict(os.environ)
    if machine.detect().device == "cpu":
        environment["DS_ACCELERATOR"] = "cpu"
    try:
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False,
                              env=environment)
    except subprocess.TimeoutExpired:
        return Diagnosis(what=what, state="missing", found="did not answer within 120 s", mend=mend)
    if done.returncode == 0:
        return Diagnosis(what=what, state="ok", found=done.stdout.strip().splitlines()[-1])
    return Diagnosis(what=what, state="missing", found=(done.stderr.strip().splitlines() or ["failed"])[-1], mend=mend)


def _devices() -> Diagnosis:
    found = machine.detect()
    if found.device == "cuda":
        return Diagnosis(what="devices", state="ok", found=f"{found.device_count} GPU(s), {found.cores} CPU cores")
    return Diagnosis(what="devices", state="ok", found=f"no usable GPU, {found.cores} CPU cores; trials run on the CPU")


def _gpus() -> Iterator[Diagnosis]:
    """Describe every GPU that a run here would use, and the links between them, as records have them."""
    found = machine.detect()
    if found.device != "cuda":
        return
    for number, text in enumerate(used_gpus()):
        yield Diagnosis(what=f"GPU {number}", state="ok", found=text)
    yield Diagnosis(what="interconnect", state="ok", found=interconnect(found.device_count))


def _capacity(folder: Path) -> Iterator[Diagnosis]:
    memory = psutil.virtual_memory()
    yield Diagnosis(what="memory", state="ok" if memory.available > 2 << 30 else "note",
                  found=f"{memory.available / 1e9:.1f} GB free of {memory.total / 1e9:.1f} GB",
                  mend="" if memory.available > 2 << 30 else "stop other programs; a rank needs about 0.5 GB")
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    free = shutil.disk_usage(existing).free
    yield Diagnosis(what="disk", state="ok" if free > 1 << 30 else "note", found=f"{free / 1e9:.1f} GB free",
                  mend="" if free > 1 << 30 else "pass --out a folder on another disk")
    if not os.access(existing, os.W_OK):
        found = f"{folder} cannot be written"
        yield Diagnosis(what="run folder", state="missing", found=found, mend="pass another folder with --out")
    load, cores = psutil.getloadavg()[0], machine.detect().cores
    yield Diagnosis(what="load", state="ok" if load < 0.5 * cores else "note", found=f"{load:.2f} on {cores} cores",
                  mend="" if load < 0.5 * cores else "stop other work before timing; it distorts the measurement")


def _loopback() -> Diagnosis:
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
    except OSError as error:
        return Diagnosis(what="loopback", state="missing", found=str(error), mend="ip link set lo up")
    return Diagnosis(what="loopback", state="ok", found=f"a port can be opened ({port} was free)")


def _tracking() -> Diagnosis:
    uri = os.environ.get("MLFLOW_TRACKING_URI")
    if not uri:
        return Diagnosis(what="tracking", state="ok", found="MLFLOW_TRACKING_URI not set; a local SQLite store is used")
    return Diagnosis(what="tracking", state="ok", found=f"MLFLOW_TRACKING_URI = {redacted(uri)}")


def _optional() -> Iterator[Diagnosis]:
    chromium = next((name for name in ("chromium", "chromium-browser", "google-chrome") if shutil.which(name)), None)
    yield Diagnosis(what="browser", state="ok" if chromium else "note",
                  found=chromium or "none found; needed only to open the report on this machine",
                  mend="" if chromium else "apt-get install chromium")


def _fabric() -> Diagnosis:
    found = netns_probe.ability()
    if found.problem:
        return Diagnosis(what="fabric", state="note", found=f"emulated clusters cannot be built here: {found.problem}")
    netem = f"; {found.netem}" if found.netem else ""
    return Diagnosis(what="fabric", state="ok", found=f"emulated clusters can be built{netem}")


def _orphans() -> Diagnosis:
    found = orphans.find()
    if not found:
        return Diagnosis(what="orphans", state="ok", found="no orphaned processes of earlier runs")
    listed = ", ".join(map(str, found))
    return Diagnosis(what="orphans", state="note", found=f"processes of runs that have ended: {listed}",
                   mend="repro doctor --fix")
