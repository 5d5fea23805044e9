"""Devices and cores of this machine, detected without importing torch."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


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


def count_cores() -> int:
    """Return how many CPU cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def detect() -> Machine:
    """Detect the devices of this machine from environment, driver and installed torch build."""
    gpus = 0 if _torch_is_cpu_only() else _visible_gpus()
    return Machine("cuda" if gpus else "cpu", gpus, count_cores(), _cpp_compiler() is not None)


def _cpp_compiler() -> str | None:
    """Return the C++ compiler that torch would call."""
    return shutil.which(os.environ.get("CXX", "g++"))


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
