"""One rank's part in running MPI: it executes mpirun's commands for its host; rank 0 also starts mpirun."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

from repro.bench.comm.mpi import FOUND, PROGRAM
from repro.core.errors import TrialError


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
        "plm_rsh_agent": f"{sys.executable} -m repro.bench.comm.mpi_rank", "btl": "tcp,self", "pml": "ob1",
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
