"""The Python environment in which torch sees emulated GPUs: built with g++ once, then kept below .venv-emulated/.

It consists of links to the packages of this Python's environment, which it leaves as they are, and of the compiled
device.
`python -m tests.emulated_cuda.environment` builds it and prints the path of its Python.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
KEPT = ROOT / ".venv-emulated"
SOURCES = HERE / "device"
PARTS = ("streams", "memory", "kernels", "collectives", "module")
FLAGS = ("-std=c++20", "-O1", "-fPIC", "-w", "-DTORCH_EXTENSION_NAME=_device", "-DUSE_DISTRIBUTED", "-DUSE_C10D_GLOO=0")
CUDA_BUILD = "+cu128"
"""What torch's version ends with in the environment, as that of a build with CUDA does."""


class Unfit(Exception):
    """The emulated device cannot be built here; the message is one line."""


def problem() -> str | None:
    """Return why the device cannot be built with this Python's torch; None if it can."""
    pinned = re.search(r"^torch==(\S+)", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    installed = version("torch")
    if pinned is None or installed.split("+")[0] != pinned[1]:
        return f"the emulated device fits torch {pinned and pinned[1]} of constraints.txt, installed is {installed}"
    if not installed.endswith("+cpu"):
        return f"the emulated device fits the build of torch without CUDA, installed is {installed}"
    if shutil.which("g++") is None:
        return "g++ is not installed, which the emulated device needs"
    if sys.platform != "linux" or not Path(sysconfig.get_paths()["include"], "Python.h").exists():
        return "Linux and the headers of Python (python3-dev) are needed for the emulated device"
    return None


def key() -> str:
    """Return a hash of everything that the built environment depends on."""
    digest = hashlib.sha256("\n".join((version("torch"), sys.version, sys.prefix, str(ROOT), *FLAGS)).encode())
    for path in (Path(__file__), HERE / "nvidia-smi", *sorted(SOURCES.iterdir())):
        digest.update(path.read_bytes() if path.is_file() else b"")
    return digest.hexdigest()[:12]


def python() -> Path:
    """Return the environment's Python; builds the environment if there is none for these sources.

    Raises:
        Unfit: it cannot be built here.
    """
    if reason := problem():
        raise Unfit(reason)
    folder = KEPT / key()
    KEPT.mkdir(exist_ok=True)
    with (KEPT / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "built").exists():
            for old in (path for path in KEPT.iterdir() if path.is_dir()):
                shutil.rmtree(old)
            build(folder)
    return folder / "bin" / "python"


def build(folder: Path) -> None:
    """Make the environment, a minute on two quiet cores."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    site = next(folder.glob("lib/python*/site-packages"))
    packages = sysconfig.get_paths()["purelib"]
    site.joinpath("a_emulated.pth").write_text(f"{ROOT}\nimport site; site.addsitedir({packages!r})\n")
    module = site / "emulated_cuda"
    module.mkdir()
    shutil.copy(SOURCES / "__init__.py", module)
    shutil.copy(HERE / "nvidia-smi", folder / "bin")
    torchrun = folder / "bin" / "torchrun"
    torchrun.write_text(f"#!{folder}/bin/python\nfrom torch.distributed.run import main\nmain()\n")
    torchrun.chmod(0o755)
    plain = version("torch").split("+")[0]
    metadata = {"emulated_cuda-1": ("emulated_cuda", "1"), f"torch-{plain}{CUDA_BUILD}": ("torch", plain + CUDA_BUILD)}
    for stem, (name, number) in metadata.items():
        information = site / f"{stem}.dist-info"
        information.mkdir()
        information.joinpath("METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {number}\n")
    entry = "[torch.backends]\nemulated_cuda = emulated_cuda:autoload\n"
    site.joinpath("emulated_cuda-1.dist-info", "entry_points.txt").write_text(entry)
    compile_device(folder / "objects", module / f"_device{sysconfig.get_config_var('EXT_SUFFIX')}")
    said = subprocess.run([folder / "bin" / "python", "-c", "import torch; print(torch.cuda.get_device_name())"],
                          capture_output=True, text=True, check=False, env={**os.environ, "CUDA_VISIBLE_DEVICES": "0"})
    if said.returncode:
        raise Unfit(f"the emulated device was built and does not load: {(said.stderr.splitlines() or ['?'])[-1]}")
    (folder / "built").touch()


def compile_device(objects: Path, module: Path) -> None:
    """Compile all sources as one: most of the time goes into torch's headers."""
    spec = find_spec("torch")
    assert spec is not None and spec.origin is not None
    torch = Path(spec.origin).parent
    folders = (SOURCES, torch / "include", torch / "include/torch/csrc/api/include", sysconfig.get_paths()["include"])
    objects.mkdir()
    together = objects / "together.cpp"
    together.write_text("".join(f'#include "{name}.cpp"\n' for name in PARTS))
    done = subprocess.run(["g++", *FLAGS, *(f"-I{folder}" for folder in folders), "-shared", "-o", str(module),
                           str(together), f"-L{torch}/lib", "-ltorch_python", "-ltorch", "-ltorch_cpu", "-lc10",
                           f"-Wl,-rpath,{torch}/lib"], capture_output=True, text=True, check=False)
    if done.returncode:
        line = next((line for line in done.stderr.splitlines() if "error" in line), "g++ gave no reason")
        raise Unfit(f"g++ cannot compile the emulated device: {line}")
    shutil.rmtree(objects)


def variables(devices: int = 2, **more: str) -> dict[str, str]:
    """Environment of a process that sees `devices` GPUs and this checkout's code."""
    removed = ("CUDA_VISIBLE_DEVICES", "DS_ACCELERATOR", "PYTORCH_NVML_BASED_CUDA_CHECK")
    inherited = {name: value for name, value in os.environ.items() if name not in removed}
    return {**inherited, "MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "true", "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1", "REPRO_TIMING_LOCK": "off", "XDG_STATE_HOME": os.devnull,
            "PATH": f"{python().parent}{os.pathsep}{os.environ['PATH']}", "EMULATED_CUDA_DEVICES": str(devices),
            **more}


if __name__ == "__main__":
    try:
        print(python())
    except Unfit as error:
        sys.exit(str(error))
