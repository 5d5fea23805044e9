"""Devices of every kind: what they are called, which are here, and all that is done to them differently.

This is the one place that knows kinds, apart from DeepSpeed's adapter and the vendors' process groups; a test reads the
syntax trees of all others. A device is named as torch does: "cpu", or "cuda:1", which is an NVIDIA or an AMD GPU. torch
is loaded by the functions that act on a device; only ranks call them. No AMD GPU has run this code yet.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


CPU, GPU = "cpu", "cuda"
"""The kinds. torch calls AMD's GPUs "cuda" too."""


def kind_of(device: str | torch.device) -> str:
    """Return "cuda" for "cuda:1": the kind as torch and DeepSpeed call it."""
    return str(device).partition(":")[0]


def on_gpu(device: str | torch.device) -> bool:
    """Return True for the device, or the kind, of a GPU."""
    return kind_of(device) != CPU


def of_rank(kind: str, local_rank: int) -> str:
    """Return the device of a rank: every rank of a machine has its own GPU, and all share the processor."""
    return f"{kind}:{local_rank}" if on_gpu(kind) else kind


def gpus_of(device: str | torch.device) -> list[int]:
    """Return the number of a GPU alone in a list, as torch names the devices of a process; [] for the processor."""
    return [int(str(device).partition(":")[2] or 0)] if on_gpu(device) else []


# ---- which are here, without torch


@dataclass(frozen=True, slots=True)
class Vendor:
    """A maker of GPUs, as far as it takes to find them and to choose among them."""

    name: str
    selectors: tuple[str, ...]
    """Variables that choose the visible GPUs; all of them apply."""
    others: tuple[str, ...] = ()
    """Further variables that decide which GPU has which number."""


NVIDIA = Vendor("NVIDIA", ("CUDA_VISIBLE_DEVICES",), ("CUDA_DEVICE_ORDER",))
AMD = Vendor("AMD", ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"), ("GPU_DEVICE_ORDINAL",))
SELECTORS = tuple(dict.fromkeys(name for vendor in (NVIDIA, AMD) for name in (*vendor.selectors, *vendor.others)))
"""Variables that a process needs to see the same GPUs under the same numbers."""


def vendor_here() -> Vendor | None:
    """Return whose GPUs the installed torch is built for, by its version; None: processors only, or there is none."""
    try:
        build = version("torch").partition("+")[2]
    except PackageNotFoundError:
        return None
    return None if build == CPU else AMD if build.startswith("rocm") else NVIDIA


def count_gpus(environment: Mapping[str, str] = os.environ) -> int:
    """Return how many GPUs driver and environment offer to the installed torch, which is not asked itself."""
    vendor = vendor_here()
    if vendor is None:
        return 0
    most = _nvidia_gpus() if vendor is NVIDIA else amd_gpus()
    for name in vendor.selectors:
        if (chosen := environment.get(name)) is not None:
            most = min(most, len([part for part in chosen.split(",") if part.strip() and part.strip() != "-1"]))
    return most


def ask(*command: str) -> str:
    """Return what a vendor's tool prints, without colours; "" without it, or if it refuses."""
    try:
        found = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return re.sub(r"\x1b\[[0-9;]*m", "", found.stdout) if found.returncode == 0 else ""


def _nvidia_gpus() -> int:
    listed = ask("nvidia-smi", "-L")
    return (sum(line.startswith("GPU ") for line in listed.splitlines()) if listed
            else len(list(Path("/dev").glob("nvidia[0-9]*"))))


def amd_gpus(root: Path = Path("/")) -> int:
    """Count AMD's GPUs: the nodes of its driver that have SIMD units; processors are nodes without."""
    if not (root / "dev/kfd").exists():
        return 0
    nodes = (root / "sys/class/kfd/kfd/topology/nodes").glob("*/properties")
    return sum(bool(re.search(r"^simd_count [1-9]", path.read_text(), re.MULTILINE)) for path in nodes)


# ---- what is done to one, by torch


def _part(device: str | torch.device) -> Any:
    """Return torch's module for this kind of GPU."""
    import torch

    return torch.get_device_module(torch.device(device))


def use(device: str | torch.device) -> None:
    """Make a GPU the current one of this process, before anything is built: else every rank opens a context on the
    first.
    """
    if on_gpu(device):
        import torch

        torch.accelerator.set_device_index(torch.device(device))


def wait(device: str | torch.device) -> None:
    """Wait until the device has done all that was submitted; on the processor it has."""
    if on_gpu(device):
        import torch

        torch.accelerator.synchronize(torch.device(device))


def stream(device: str | torch.device) -> torch.Stream:
    """Return a new stream of a GPU."""
    import torch

    return torch.Stream(torch.device(device))


def current_stream(device: str | torch.device) -> torch.Stream:
    """Return the stream that this thread submits to."""
    import torch

    return torch.accelerator.current_stream(torch.device(device))


@contextmanager
def within(chosen: torch.Stream) -> Iterator[None]:
    """Inside, this thread submits to `chosen`, and its GPU is the current one."""
    import torch

    before = torch.accelerator.current_stream(chosen.device)
    torch.accelerator.set_stream(chosen)
    try:
        yield
    finally:
        torch.accelerator.set_stream(before)


def event(device: str | torch.device, timed: bool = False) -> torch.Event:
    """Return an event at the present point of the stream that this thread submits to."""
    import torch

    found = torch.Event(torch.device(device), enable_timing=timed)
    found.record(current_stream(device))
    return found


def allocated_peak(device: str | torch.device) -> int:
    """Return the most bytes that tensors held on a GPU since `reset_allocated_peak`."""
    return int(_part(device).max_memory_allocated(device))


def reset_allocated_peak(device: str | torch.device) -> None:
    """Forget the largest memory so far on a GPU."""
    _part(device).reset_peak_memory_stats(device)


def free_bytes(device: str | torch.device) -> int:
    """Return the free memory of a GPU."""
    return int(_part(device).mem_get_info(device)[0])


def random_state(device: str | torch.device) -> torch.Tensor:
    """Return the state of the generator that a layer on the device draws from."""
    import torch

    found: torch.Tensor = _part(device).get_rng_state(device) if on_gpu(device) else torch.get_rng_state()
    return found


def set_random_state(device: str | torch.device, state: torch.Tensor) -> None:
    """Set the state of the device's generator."""
    import torch

    if on_gpu(device):
        _part(device).set_rng_state(state, device)
    else:
        torch.set_rng_state(state)


def seed(device: str | torch.device, value: int) -> None:
    """Seed the generators that layers on this process's device may draw from; `torch.manual_seed` takes 5 ms, for all.
    """
    import torch

    torch.default_generator.manual_seed(value)
    if on_gpu(device):
        _part(device).manual_seed(value)


def name_of(device: str | torch.device) -> str:
    """Return the name of a GPU as its driver has it, and "cpu" for the processor."""
    return str(_part(device).get_device_name(device)) if on_gpu(device) else str(device)


def reach_each_other(one: str, other: str) -> bool | None:
    """Return True if the driver lets two GPUs read each other's memory; None: it does not tell."""
    try:
        part = _part(one)
        return bool(part.can_device_access_peer(*gpus_of(one), *gpus_of(other)))
    except (AttributeError, RuntimeError):
        return None


def lost_to_fork() -> bool:
    """Return True in a process that can use no GPU, because the one it was forked from has called the driver."""
    loaded = sys.modules.get("torch")
    return bool(loaded is not None and (loaded.cuda.is_initialized() or loaded.cuda._is_in_bad_fork()))


def build() -> dict[str, str]:
    """Return the libraries that the installed torch uses on GPUs; {} if it uses none."""
    import torch

    found = {}
    if torch.version.hip is not None:
        found["torch_hip"] = str(torch.version.hip)
    if torch.version.cuda is not None or found:
        found["torch_cudnn"] = str(torch.backends.cudnn.version())  # type: ignore[no-untyped-call]
        if torch.distributed.is_nccl_available():
            found["torch_nccl"] = nccl_version()
    return found


def nccl_version() -> str:
    """Return the version of the library by which GPUs send: NCCL, or AMD's RCCL in its place."""
    import torch

    return ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]
