"""Open MPI's MPI_Allreduce over TCP on the ranks of a launch, for comparison, if it is installed.

mpirun reaches other computers by `ssh host command`. Here hosts are ranks of a launch, each in its place (its node of
an emulated cluster, or loopback). Every rank listens on a socket file, and the program that replaces ssh passes the
command to the rank of that host (`main`). So MPI's processes run in the same namespaces, over the
same shaped links.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import psutil

from repro.bench.comm.result import MpiResult
from repro.core.errors import TrialError
from repro.seams.launching import Launcher, LaunchRequest, entry_point

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
            entry=entry_point(serve_rank), payload=payload, processes=world, device="cpu", folder=folder,
            timeout_seconds=limit,
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


def serve_rank(folder: str, payload: Mapping[str, Any]) -> None:
    """Entry of one rank.

    Args:
        payload: `sizes` (bytes), `repetitions`, `seconds` (of one size).

    Raises:
        TrialError: mpirun failed, or a sum was wrong.
    """
    import torch.distributed as dist

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    device = os.environ.get("GLOO_SOCKET_IFNAME", "lo")
    addresses: list[Any] = [None] * world
    dist.all_gather_object(addresses, _address(device))
    hosts = list(dict.fromkeys(addresses))
    server = socket.socket(socket.AF_UNIX)
    # One agent per host: the first of the ranks that share an address.
    agent = addresses.index(addresses[rank]) == rank
    if agent:
        server.bind(str(Path(folder, f"{addresses[rank]}.sock")))
        server.listen()
    dist.barrier()
    dist.destroy_process_group()
    if rank == 0:
        _lead(folder, payload, device, [(host, addresses.count(host)) for host in hosts])
    elif agent:
        _follow(server, Path(folder, "done"))


def _address(device: str) -> str:
    found = psutil.net_if_addrs().get(device, [])
    return next((item.address for item in found if item.family == socket.AF_INET), "127.0.0.1")


def _lead(folder: str, payload: Mapping[str, Any], device: str, hosts: list[tuple[str, int]]) -> None:
    """Run mpirun, and signal its end to the other ranks even if it fails."""
    errors = Path(folder, "mpirun.txt")
    try:
        with errors.open("wb") as stderr, Path(folder, FOUND).open("wb") as stdout:
            done = subprocess.run(command(folder, payload, device, hosts), stdout=stdout, stderr=stderr, check=False,
                                  env={**os.environ, "REPRO_MPI_FOLDER": folder})
    finally:
        Path(folder, "done").touch()
    if done.returncode:
        lines = [line for line in errors.read_text(errors="replace").splitlines() if line.strip(" -*")]
        raise TrialError(f"mpirun failed: {(lines or ['no message'])[0].strip()}")


def command(folder: str, payload: Mapping[str, Any], device: str, hosts: list[tuple[str, int]]) -> list[str]:
    """Return mpirun's command: TCP over the links' interface only, also between processes of one host."""
    settings = {
        "plm_rsh_agent": f"{sys.executable} -m repro.bench.comm.mpi", "btl": "tcp,self", "pml": "ob1",
        "btl_tcp_if_include": device, "oob_tcp_if_include": device, "hwloc_base_binding_policy": "none",
        "mpi_yield_when_idle": "1", "orte_keep_fqdn_hostnames": "1", "plm_rsh_no_tree_spawn": "1",
    }
    options = [part for key, value in settings.items() for part in ("--mca", key, value)]
    where = ",".join(f"{host}:{slots}" for host, slots in hosts)
    program = [str(Path(folder, PROGRAM)), str(payload["repetitions"]), str(payload["seconds"])]
    # Attached daemons end with the ranks that started them.
    return ["mpirun", "--allow-run-as-root", "--oversubscribe", "--leave-session-attached",
            "-np", str(sum(slots for _, slots in hosts)), "--host", where, *options, *program,
            *map(str, payload["sizes"])]


def _follow(server: socket.socket, done: Path) -> None:
    """Execute every command that arrives until mpirun has ended."""
    server.settimeout(0.2)
    running: list[subprocess.Popen[bytes]] = []
    while not done.exists():
        try:
            connection, _ = server.accept()
        except TimeoutError:
            continue
        with connection:
            requested = json.loads(connection.makefile().readline())
            running.append(subprocess.Popen(["/bin/sh", "-c", requested], env=dict(os.environ)))
    for process in running:
        process.terminate()
        process.wait()


def main() -> None:
    """Replace ssh for mpirun: pass `host command ...` to the rank of that host, which executes it."""
    host, *words = sys.argv[1:]
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(Path(os.environ["REPRO_MPI_FOLDER"], f"{host}.sock")))
        # Like ssh: one text, quoted by mpirun for the other side's shell.
        client.sendall(json.dumps(" ".join(words)).encode() + b"\n")


if __name__ == "__main__":
    main()
