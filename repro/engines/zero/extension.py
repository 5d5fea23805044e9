"""DeepSpeed's Adam for CPUs, a C++ extension: built once before a run in a folder of our own, and loaded by the ranks.

torch's own loader waits for a file named `lock`, which a killed build leaves behind: every later start then waits for
ever. Here the lock is the kernel's, which ends with its process; a build happens in a new folder, and its library is
put in place complete. Run as a module, this file builds.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import shutil
import sys
import tempfile
from importlib import util
from importlib.metadata import version
from pathlib import Path
from typing import Any

from repro.core.errors import TrialError
from repro.core.machine import NO_TELEMETRY, user_folder

NAME = "cpu_adam"
BUILDING = "building-"


def place() -> Path:
    """Return the folder of this machine's library: another one for each processor, Python, torch and DeepSpeed."""
    build = (version("torch"), version("deepspeed"), sys.implementation.cache_tag, platform.machine(), _processor())
    name = hashlib.sha256("|".join(map(str, build)).encode()).hexdigest()[:16]
    return user_folder("XDG_CACHE_HOME", ".cache") / "repro" / "extensions" / name


def _processor() -> str:
    """Return the instructions of the processor: the library is compiled for them."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.startswith(("flags", "Features"))), platform.processor())


def build(folder: Path) -> Path:
    """Return the library in `folder`; build it if it is not there. Several processes may call this at once."""
    library = folder / f"{NAME}.so"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the kernel releases it when the process ends, in any way
        for rest in folder.glob(f"{BUILDING}*"):  # of builds that were killed: nobody else builds now
            shutil.rmtree(rest, ignore_errors=True)
        if not library.exists():
            with tempfile.TemporaryDirectory(prefix=BUILDING, dir=folder) as new:
                _compile(Path(new))
                (Path(new) / NAME / library.name).replace(library)
    return library


def _compile(folder: Path) -> None:
    os.environ.setdefault("DS_ACCELERATOR", "cpu")  # the library has no code for GPUs
    os.environ["TORCH_EXTENSIONS_DIR"] = str(folder)
    os.environ.update(NO_TELEMETRY)
    from deepspeed.ops.op_builder import CPUAdamBuilder

    CPUAdamBuilder().jit_load(verbose=False)


def load() -> None:
    """Load the library, so that DeepSpeed finds it loaded.

    Raises:
        TrialError: it was not built before the run.
    """
    from deepspeed.ops.op_builder.builder import OpBuilder

    library = place() / f"{NAME}.so"
    spec = util.spec_from_file_location(NAME, library)
    if not library.exists() or spec is None or spec.loader is None:
        raise TrialError(f"{library} is missing: build it with python -m {__spec__.name if __spec__ else __name__}")
    if NAME not in OpBuilder._loaded_ops:
        module: Any = util.module_from_spec(spec)
        spec.loader.exec_module(module)
        OpBuilder._loaded_ops[NAME] = module


if __name__ == "__main__":
    build(place())
