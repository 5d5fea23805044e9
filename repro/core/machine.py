"""Cores, packages and memory of this machine, and of this process, found without importing torch."""

from __future__ import annotations

import hashlib
import os
import re
import resource
import shutil
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from repro.core import devices
from repro.core.devices import CPU, GPU, on_gpu
from repro.core.errors import UsageError

BUSY = 0.25
"""Load per core above which a machine is busy: one other process on four cores."""
IDLE = 0.1
"""Busy cores, as a share, below which a load of the last minute is that of work that has ended."""
NO_TELEMETRY = {"MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "true"}
"""Environment variables that disable MLflow's telemetry. DeepSpeed imports MLflow."""


@dataclass(frozen=True, slots=True)
class Machine:
    """Devices and cores that trials can be planned on."""

    device: str
    """"cuda" if the installed torch is built for the GPUs that are here, else "cpu"."""
    device_count: int
    """Usable GPUs; 0 on "cpu"."""
    cores: int
    """CPU cores that this process may use."""
    cpp_compiler: bool = True
    """A C++ compiler is installed."""


def user_folder(variable: str, below: str) -> Path:
    """Return a folder of this user: the one that a variable (XDG) names, else `below` the home folder.

    Raises:
        UsageError: the user has no home folder, as in some containers.
    """
    if given := os.environ.get(variable):
        return Path(given)
    try:
        return Path.home() / below
    except RuntimeError:
        raise UsageError(f"this user has no home folder: set HOME, or {variable}") from None


def count_cores() -> int:
    """Return how many CPU cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def load_now(seconds: float = 0.1) -> float:
    """Measure the number of busy cores over `seconds`.

    The load of the last minute does not show work that began a moment ago, and still shows work that has ended.
    """
    import psutil

    return psutil.cpu_percent(seconds) / 100 * (os.cpu_count() or 1)


def rank_threads(environment: Mapping[str, str]) -> int:
    """Return how many threads torch uses in a rank on the CPU: as OMP_NUM_THREADS says, else one."""
    stated = environment.get("OMP_NUM_THREADS", "")
    return int(stated) if stated.isdecimal() and int(stated) > 0 else 1


def detect() -> Machine:
    """Detect the devices of this machine from environment, driver and installed torch build."""
    gpus = devices.count_gpus()
    compiler = shutil.which(os.environ.get("CXX", "g++"))  # the one that torch would call
    return Machine(GPU if gpus else CPU, gpus, count_cores(), compiler is not None)


def torch_build() -> dict[str, str]:
    """Return compiler, BLAS, instruction set in use, CUDA libraries, commit, and a hash over torch's configuration.

    Loads torch, so it is for processes that have it loaded.
    """
    import torch

    configuration = torch.__config__.show()
    found = {
        "torch_cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "torch_commit": str(torch.version.git_version), "torch_cuda": str(torch.version.cuda),
        "torch_config_sha256": hashlib.sha256(configuration.encode()).hexdigest()[:16],
    }
    found |= devices.build()
    for name, pattern in (("torch_compiler", r"- (GCC [\d.]+|clang [\d.]+)"), ("torch_blas", r"BLAS_INFO=(\w+)"),
                          ("torch_mkl", r"Math Kernel Library Version (\S+)"), ("torch_mkldnn", r"MKL-DNN v(\S+)")):
        if match := re.search(pattern, configuration):
            found[name] = match[1]
    return found


def why_missing(extra: str, package: str, module: str) -> str | None:
    """Return what to install if `module` of a package of an extra cannot be imported; None if it can."""
    if find_spec(module) is not None:
        return None
    return f"package {package} is not installed: pip install 'repro-harness[{extra}]'"


STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
PEAK = re.compile(r"^VmHWM:\s+(\d+) kB$", re.MULTILINE)
RESET = "5"
"""Value for clear_refs that sets the peak back to the memory resident now (proc(5))."""


def peak_bytes(device: str = CPU) -> int:
    """Return the largest memory of this process since `reset_peak`: resident, interpreter and libraries included; with
    a GPU what tensors held there.

    Without Linux's files it is that of the whole life of the process.
    """
    if on_gpu(device):
        return devices.allocated_peak(device)
    with suppress(OSError):
        if found := PEAK.search(STATUS.read_text()):
            return int(found[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def reset_peak(device: str = CPU) -> None:
    """Forget the largest memory so far, where the system can."""
    if on_gpu(device):
        devices.reset_allocated_peak(device)
        return
    with suppress(OSError):
        CLEAR.write_text(RESET)


PHRASES = ("out of memory", "outofmemory", "memoryerror", "can't allocate memory", "not enough memory",
           "cannot allocate memory", "bad_alloc", "alloc_failed")
"""Of CUDA and its libraries, Python, torch's CPU allocator and the C library, in lower case: an exception's type alone
does not tell."""


def says_out_of_memory(text: str) -> bool:
    """Return True if a message or the reason of a rank's end says so."""
    lower = text.lower()
    return any(phrase in lower for phrase in PHRASES)


def is_out_of_memory(error: BaseException) -> bool:
    """Return True if an allocation failed."""
    if isinstance(error, MemoryError) or type(error).__name__ in ("OutOfMemoryError", "OutOfMemory"):
        return True
    return isinstance(error, RuntimeError | OSError) and says_out_of_memory(str(error))
