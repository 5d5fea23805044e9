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
from repro.core.devices import AMD, on_gpu, vendor_here
from repro.core.frozen import Frozen
from repro.core.redact import redacted
from repro.launchers.netns import probe as netns_probe
from repro.record.environment.device_facts import DeviceFacts, measure, proven_gpus, waiting_locks
from repro.record.environment.gpus import interconnect, stand_ins, stated_peak, used_gpus
from repro.runner.tracking_store import store_uri

State = Literal["ok", "note", "missing"]


class Diagnosis(Frozen):
    """The result of one check."""

    what: str
    state: State
    found: str
    mend: str = ""
    """The command or action that fixes it; empty if none is needed."""


def _judged(what: str, fine: bool, found: str, mend: str = "", otherwise: State = "note") -> Diagnosis:
    """Return the result of a check, with what fixes it unless all is well."""
    return Diagnosis(what=what, state="ok" if fine else otherwise, found=found, mend="" if fine else mend)


def examine(folder: Path) -> list[Diagnosis]:
    """Check everything that a run needs; `folder` is the folder of runs."""
    return [_judged("python", True, ".".join(map(str, sys.version_info[:3]))), *_libraries(), _devices(), *_gpus(),
            *_capacity(folder), _loopback(), _tracking(), _browser(), _fabric(), _orphans(), *_locks()]


def examine_devices() -> list[Diagnosis]:
    """Try what works on the GPUs of this machine, by running it; takes up to a minute."""
    if not on_gpu(machine.detect().device):
        return [_judged("devices", True, "no GPU here that the installed torch can use, so nothing was tried"),
                *_locks()]
    return [*_gpus(), *tried(measure()), *_locks()]


def tried(facts: DeviceFacts) -> Iterator[Diagnosis]:
    """Yield what was measured on GPUs, in words. Nothing that is refused hinders a run that does not ask for it."""
    if shown := stand_ins(facts.devices):
        yield _judged("emulated", False, f"{', '.join(shown)} stands for a GPU: these rates are a processor's",
                      "use a machine with a GPU")
    yield _judged("tried", not facts.problem, facts.problem or f"all, in {facts.seconds:g} s",
                  "run `repro doctor` and look at the driver's log (dmesg)", "missing")
    if facts.kernel_seconds is not None:
        yield _judged("kernel", True, f"{facts.kernel_seconds * 1e6:.0f} us until the host knows that it ended")
    for name, rate in facts.flops.items():
        peak = stated_peak(facts.devices[0], name.partition("_")[0]) if facts.devices else None
        share = f", {rate / peak.flops:.0%} of the stated peak" if peak else ""
        yield _judged(f"product in {name}", True, f"{rate / 1e12:.3g} TFLOP/s{share}")
    if facts.deterministic:
        without = [f"{name} ({said})" for name, said in facts.deterministic.items() if said != "yes"]
        yield _judged("deterministic kernels", not without, f"not for {', '.join(without)}" if without else
                      f"for all of {len(facts.deterministic)} operations tried",
                      "with determinism: bitwise leave these operations out of models")
    if facts.fused:
        yield _judged("fused optimizers", True, ", ".join(facts.fused))
    for copy in facts.copies:
        direct = {True: ", direct", False: ", through the host", None: ""}[copy.direct]
        yield _judged(f"copy from {copy.sender} to {copy.receiver}", copy.intact,
                      f"{copy.bytes_per_second / 1e9:.3g} GB/s, {copy.latency_seconds * 1e6:.0f} us{direct}"
                      f"{'' if copy.intact else '; WHAT ARRIVED IS NOT WHAT WAS SENT'}",
                      "a fault of the machine: between GPUs often the IOMMU (PCIe ACS); do not train on it", "missing")
    for number, line in enumerate(facts.clocks):
        yield _judged(f"GPU {number} while GPU 0 computes", True, line)
    for name, error in facts.refused.items():
        yield _judged(name, False, f"refused: {error}")
    if not facts.problem:
        yield _judged("nvcc", bool(facts.nvcc), facts.nvcc or "none found; only ZeRO++ with quantized needs it",
                      "install CUDA's toolkit")
        yield _judged("ninja", bool(facts.ninja), facts.ninja or "none found; extensions of torch are built by it",
                      "pip install ninja")


def _locks() -> Iterator[Diagnosis]:
    for path in waiting_locks():
        yield _judged(f"build of {path.parent.name}", False,
                      f"{path} was left by a build that was killed; every later build of it waits without end",
                      f"rm {path}")


def end_orphans() -> list[int]:
    """End the orphaned processes of earlier runs; return the ids of those that ended."""
    found = orphans.find()
    remaining = orphans.end(found)
    return [pid for pid in found if pid not in remaining]


def _libraries() -> Iterator[Diagnosis]:
    for name in ("torch", "deepspeed", "mlflow", "scikit-learn", "jinja2"):
        try:
            yield _judged(name, True, version(name))
        except PackageNotFoundError:
            yield _judged(name, False, "not installed", f"pip install -c constraints.txt {name}", "missing")
    # In a separate process: an installed package may still fail to load.
    probe = ("import torch, torch.distributed as d; print('gloo' if d.is_gloo_available() else 'no gloo', "
             "'nccl' if d.is_nccl_available() else 'no nccl', *([f'CUDA {torch.version.cuda}', f'cuDNN "
             "{torch.backends.cudnn.version()}'] if torch.version.cuda else []), "
             "'sees a GPU' if torch.accelerator.is_available() else 'sees no GPU', sep=', ')")
    for name, code in (("torch", probe), ("deepspeed", "import deepspeed; print('imports')")):
        fine, found = _ran(code)
        mend = f"pip install --force-reinstall -c constraints.txt {name}"
        yield _judged(f"{name} works", fine, found, mend, "missing")


def _ran(code: str) -> tuple[bool, str]:
    """Run Python code in a process; return whether it succeeded, and its last line."""
    environment = os.environ | machine.NO_TELEMETRY
    if machine.detect().device == "cpu":
        environment["DS_ACCELERATOR"] = "cpu"
    try:
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False,
                              env=environment)
    except subprocess.TimeoutExpired:
        return False, "did not answer within 120 s"
    printed = done.stderr if done.returncode else done.stdout
    return done.returncode == 0, (printed.strip().splitlines() or ["failed"])[-1]


def _devices() -> Diagnosis:
    found = machine.detect()
    if not on_gpu(found.device):
        return _judged("devices", True, f"no usable GPU, {found.cores} CPU cores; trials run on the CPU")
    count, problem = proven_gpus()
    if count >= found.device_count:
        untried = "; this program has not been run on AMD's yet" if vendor_here() is AMD else ""
        return _judged("devices", True, f"{found.device_count} GPU(s) that torch computes on, {found.cores} CPU cores"
                                        f"{untried}")
    return _judged("devices", False, f"{found.device_count} GPU(s) are there, and torch computes on {count}: {problem}",
                   "install the build of torch for this driver and these GPUs, or run with -o device=cpu", "missing")


def _gpus() -> Iterator[Diagnosis]:
    """Describe every GPU that a run here would use, and the links between them, as records have them."""
    found = machine.detect()
    if not on_gpu(found.device):
        return
    for number, text in enumerate(used_gpus()):
        yield _judged(f"GPU {number}", True, text)
    yield _judged("interconnect", True, interconnect(found.device_count))


def _capacity(folder: Path) -> Iterator[Diagnosis]:
    memory = psutil.virtual_memory()
    yield _judged("memory", memory.available > 2 << 30,
                  f"{memory.available / 1e9:.1f} GB free of {memory.total / 1e9:.1f} GB",
                  "stop other programs; a rank needs about 0.5 GB")
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    free = shutil.disk_usage(existing).free
    yield _judged("disk", free > 1 << 30, f"{free / 1e9:.1f} GB free", "pass --out a folder on another disk")
    if not os.access(existing, os.W_OK):
        yield _judged("run folder", False, f"{folder} cannot be written", "pass another folder with --out", "missing")
    load, cores = psutil.getloadavg()[0], machine.detect().cores
    yield _judged("load", load < 0.5 * cores, f"{load:.2f} on {cores} cores",
                  "stop other work before timing; it distorts the measurement")


def _loopback() -> Diagnosis:
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            return _judged("loopback", True, f"a port can be opened ({server.getsockname()[1]} was free)")
    except OSError as error:
        return _judged("loopback", False, str(error), "ip link set lo up", "missing")


def _tracking() -> Diagnosis:
    named = "" if os.environ.get("MLFLOW_TRACKING_URI") else "not set, so the store of this user: "
    return _judged("tracking", True, f"MLFLOW_TRACKING_URI {named}{redacted(store_uri())}")


def _browser() -> Diagnosis:
    found = next((name for name in ("chromium", "chromium-browser", "google-chrome") if shutil.which(name)), "")
    return _judged("browser", bool(found), found or "none found; needed only to open the report on this machine",
                   "apt-get install chromium")


def _fabric() -> Diagnosis:
    found = netns_probe.ability()
    if found.problem:
        return _judged("fabric", False, f"emulated clusters cannot be built here: {found.problem}")
    return _judged("fabric", True, f"emulated clusters can be built{f'; {found.netem}' if found.netem else ''}")


def _orphans() -> Diagnosis:
    found = ", ".join(map(str, orphans.find()))
    return _judged("orphans", not found, f"processes of runs that have ended: {found}" if found else
                   "no orphaned processes of earlier runs", "repro doctor --fix")
