"""Measurements of this machine's GPUs (formats, kernels, copies, tools), and stale locks of torch's extension builds.

`measure` runs them in a child process that prints each result as it has it: a hang costs only what comes after.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from pydantic import Field, ValidationError

from repro.core.frozen import Frozen

CHILD = (sys.executable, "-m", "repro.bench.device")
LIMIT_SECONDS, PROOF_SECONDS = 60.0, 180.0


class Copied(Frozen):
    """Copies from one place to another: the host's memory (`host`, `pinned host`) or a GPU, by its number."""

    sender: str
    receiver: str
    bytes_per_second: float
    """Of a large copy."""
    latency_seconds: float
    """Of four bytes, until they have arrived."""
    direct: bool | None = None
    """The driver lets both GPUs read each other's memory; None: not two GPUs, or not known."""
    intact: bool
    """What arrived is what was sent."""


class DeviceFacts(Frozen):
    """The measurements in their order; one that is missing did not run, which `problem` explains."""

    devices: tuple[str, ...] = ()
    """Names, as the driver has them. All but copies is about the first."""
    kernel_seconds: float | None = None
    """From the call of a small kernel until the host knows that it has ended."""
    flops: dict[str, float] = Field(default_factory=dict)
    """Format -> operations a second of a product of square matrices: measured, and no peak."""
    deterministic: dict[str, str] = Field(default_factory=dict)
    """Operation -> yes, no (torch has no such kernel), or differs (two calls gave other bits)."""
    fused: tuple[str, ...] = ()
    """Optimizers of torch whose fused kernel runs."""
    copies: tuple[Copied, ...] = ()
    clocks: tuple[str, ...] = ()
    """Of every GPU while the first computes: clocks, power and its cap, temperature; () if no tool tells."""
    refused: dict[str, str] = Field(default_factory=dict)
    """What did not work -> the first line of its error."""
    nvcc: str = ""
    """Release of CUDA's compiler; "": there is none."""
    ninja: str = ""
    seconds: float = 0.0
    """How long it took."""
    problem: str = ""
    """Why not everything was tried; "": it was."""


def proven_gpus(child: tuple[str, ...] = (*CHILD, "first")) -> tuple[int, str]:
    """Compute on every visible GPU in a process of its own; return how many did, and why none could, or "".

    A driver may list a GPU that this torch has no kernels for, or that is divided or held by somebody. The process is
    separate because one that has called the driver can fork no ranks that use it. It takes seconds.
    """
    found = measure(PROOF_SECONDS, child)
    return len(found.devices), found.problem


def measure(limit_seconds: float = LIMIT_SECONDS, child: tuple[str, ...] = CHILD) -> DeviceFacts:
    """Try the GPUs in a process of its own; never raises.

    Args:
        child: the command of that process; it prints a JSON object a line, `{"doing": text}` or fields of DeviceFacts.
    """
    began = time.monotonic()
    environment = {**os.environ, "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}  # else no product is deterministic
    with tempfile.TemporaryFile("w+") as printed, tempfile.TemporaryFile("w+") as said:
        try:
            process = subprocess.Popen(child, stdin=subprocess.DEVNULL, stdout=printed, stderr=said, env=environment,
                                       start_new_session=True)
        except OSError as error:
            return DeviceFacts(problem=f"{child[0]}: {error.strerror}")
        try:
            code: int | None = process.wait(limit_seconds)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        found, doing = _read(printed)
        said.seek(0)
        last = (said.read().strip().splitlines() or ["it said nothing"])[-1]
    problem = "" if code == 0 else (f"no end within {limit_seconds:g} s, at: {doing}" if code is None else
                                    f"ended by code {code}, at: {doing}: {last}")
    found |= {"seconds": round(time.monotonic() - began, 1)}
    try:
        return DeviceFacts.model_validate({**found, "problem": found.get("problem") or problem})
    except ValidationError as error:
        return DeviceFacts(problem=f"an answer cannot be read: {error.errors()[0]['msg']}")


def _read(printed: IO[str]) -> tuple[dict[str, Any], str]:
    """Return the fields that a child told, and what it did last."""
    found: dict[str, Any] = {}
    doing = "the start"
    printed.seek(0)
    for line in printed:
        with contextlib.suppress(ValueError):  # the last may be cut off, and libraries print
            told = json.loads(line)
            if isinstance(told, dict):
                doing = told.pop("doing", doing)
                found |= told
    return found, doing


# ---- builds of torch's extensions


def waiting_locks(environment: Mapping[str, str] = os.environ) -> Iterator[Path]:
    """Yield the locks of builds of torch's extensions that no process of this machine holds.

    torch.utils.cpp_extension builds under a file named `lock`, which the builder creates, keeps open and removes. If it
    is killed the file stays, and every later build waits for it without end.
    """
    root = environment.get("TORCH_EXTENSIONS_DIR")
    cache = environment.get("XDG_CACHE_HOME") or f"{environment.get('HOME', '~')}/.cache"
    found = Path(root).glob("*/lock") if root else Path(cache, "torch_extensions").expanduser().glob("py*/*/lock")
    locks = {path.resolve(): path for path in sorted(found)}
    if locks:
        held = set(_open_files())
        yield from (path for place, path in locks.items() if str(place) not in held)


def _open_files() -> Iterator[str]:
    """Yield the paths of the files that processes have open, as far as this user may know."""
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        with contextlib.suppress(OSError):
            yield str(link.readlink())
