"""Open MPI's MPI_Allreduce over TCP on the ranks of a launch, for comparison, if it is installed.

mpirun reaches other computers by `ssh host command`. Here hosts are ranks of a launch, each in its place (its node of
an emulated cluster, or loopback). Every rank listens on a socket file, and the program that replaces ssh passes the
command to the rank of that host (`repro.bench.comm.mpi_rank`). So MPI's processes run in the same namespaces, over the
same shaped links.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from importlib.resources import files
from pathlib import Path

from repro.bench.comm.result import MpiResult
from repro.seams.launching import Launcher, LaunchRequest

ENTRY = "repro.bench.comm.mpi_rank:serve_rank"
FOUND, PROGRAM = "mpi.txt", "allreduce"
COMPILE_SECONDS = 120.0
PACKAGES = "Debian: openmpi-bin, libopenmpi-dev"


def measure(
    launcher: Launcher, world: int, sizes: Sequence[int], repetitions: int, seconds: float, show: Callable[[str], None]
) -> MpiResult:
    """Time MPI_Allreduce at every size; the result names the problem if MPI is missing or fails."""
    if missing := [name for name in ("mpicc", "mpirun") if shutil.which(name) is None]:
        return MpiResult(world=world, problem=f"{' and '.join(missing)} not installed ({PACKAGES})")
    show(f"{world} ranks: MPI_Allreduce")
    with tempfile.TemporaryDirectory(prefix="repro-mpi-") as scratch:
        folder = Path(scratch)
        if problem := compile_program(folder):
            return MpiResult(world=world, problem=problem)
        payload = {"sizes": list(sizes), "repetitions": repetitions, "seconds": seconds}
        limit = 60.0 + 2 * seconds * len(sizes)
        outcome = launcher.launch(LaunchRequest(
            entry=ENTRY, payload=payload, processes=world, device="cpu", folder=folder, timeout_seconds=limit,
        ))
        if not outcome.ok:
            return MpiResult(world=world, problem=outcome.failure_text())
        return read_times(world, version(), (folder / FOUND).read_text(encoding="utf-8"))


def compile_program(folder: Path) -> str:
    """Build the C program in `folder`; return the error, "" if there is none.

    Debian's openmpi-bin has mpicc without its headers, so the compiler's first error is the one that matters.
    """
    source = folder / f"{PROGRAM}.c"
    source.write_text(files("repro.bench.comm").joinpath("allreduce.c").read_text(encoding="utf-8"), encoding="utf-8")
    command = ["mpicc", "-O2", "-o", str(folder / PROGRAM), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=COMPILE_SECONDS, check=False)
    if not done.returncode:
        return ""
    lines = done.stderr.strip().splitlines() or ["no message"]
    error = next((line for line in lines if "error:" in line), lines[-1]).removeprefix(str(folder) + "/")
    return f"mpicc failed: {error} ({PACKAGES})"


def version() -> str:
    """Return the version that mpirun reports."""
    done = subprocess.run(["mpirun", "--version"], capture_output=True, text=True, timeout=30, check=False)
    return (done.stdout.strip().splitlines() or ["unknown"])[0].removeprefix("mpirun (").replace(")", "")


def read_times(world: int, called: str, text: str) -> MpiResult:
    """Parse the C program's lines, `size seconds`, one per repetition."""
    times: dict[int, list[float]] = {}
    for line in text.splitlines():
        size, _, seconds = line.partition(" ")
        times.setdefault(int(size), []).append(float(json.loads(seconds)))
    problem = "" if times else "mpirun ended without a result"
    return MpiResult(world=world, version=called, problem=problem,
                     seconds={size: tuple(items) for size, items in times.items()})
