"""Devices, cores, packages and memory of this machine, and of this process, found without importing torch."""

from __future__ import annotations

import hashlib
import os
import re
import resource
import shutil
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from repro.core.errors import UsageError


@dataclass(frozen=True, slots=True)
class Machine:
    """Devices and cores that trials can be planned on."""

    device: str
    """"cuda" if the installed torch can use a GPU, else "cpu"."""
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


def rank_threads(environment: Mapping[str, str]) -> int:
    """Return how many threads torch uses in a rank on the CPU: as OMP_NUM_THREADS says, else one.

    Launchers start ranks with it, ranks set torch to it, the preflight check counts cores by it, and the record of what
    ran is compared with it.
    """
    stated = environment.get("OMP_NUM_THREADS", "")
    return int(stated) if stated.isdecimal() and int(stated) > 0 else 1


def detect() -> Machine:
    """Detect the devices of this machine from environment, driver and installed torch build."""
    gpus = 0 if _torch_is_cpu_only() else _visible_gpus()
    compiler = shutil.which(os.environ.get("CXX", "g++"))  # the one that torch would call
    return Machine("cuda" if gpus else "cpu", gpus, count_cores(), compiler is not None)


def _torch_is_cpu_only() -> bool:
    try:
        return version("torch").endswith("+cpu")
    except PackageNotFoundError:
        return True


def _visible_gpus() -> int:
    present = _gpu_count()
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return present
    listed = [part for part in chosen.split(",") if part.strip() and part.strip() != "-1"]
    return min(present, len(listed))


def _gpu_count() -> int:
    if shutil.which("nvidia-smi"):
        try:
            found = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=20, check=False)
        except (OSError, subprocess.TimeoutExpired):
            return len(list(Path("/dev").glob("nvidia[0-9]*")))
        if found.returncode == 0:
            return sum(line.startswith("GPU ") for line in found.stdout.splitlines())
    return len(list(Path("/dev").glob("nvidia[0-9]*")))


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
    if torch.version.cuda is not None:
        found["torch_cudnn"] = str(torch.backends.cudnn.version())  # type: ignore[no-untyped-call]
        if torch.distributed.is_nccl_available():
            version = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]
            found["torch_nccl"] = ".".join(map(str, version))
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


def peak_bytes() -> int:
    """Return the largest resident memory of this process since `reset_peak`, interpreter and libraries included.

    Without Linux's files it is that of the whole life of the process.
    """
    with suppress(OSError):
        if found := PEAK.search(STATUS.read_text()):
            return int(found[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def reset_peak() -> None:
    """Forget the largest memory so far, where the system can."""
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
