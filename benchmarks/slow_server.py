"""MLflow's tracking server behind a proxy that delays every request, at idle priority, in a separate process.

    python -m benchmarks.slow_server FOLDER SECONDS

Runs as the leader of a session: at the end it kills its whole group. Prints the port once the server answers, counts
requests in FOLDER/requests, and ends when its standard input ends.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from urllib.request import urlopen

from repro.core import orphans
from repro.runner.tracking_process import give_way

REQUEST = re.compile(rb"(?:GET|POST|PUT|PATCH|DELETE) /")
START_SECONDS = 180.0
TICK_SECONDS = 0.05


def free_port() -> int:
    """Return a free loopback port."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def main() -> None:
    folder, seconds = Path(sys.argv[1]), float(sys.argv[2])
    give_way()
    orphans.signal_at_parent_exit(signal.SIGCONT)  # it may be stopped at that moment
    port = free_port()
    command = [sys.executable, "-m", "mlflow", "server", "--port", str(port), "--workers", "1", "--backend-store-uri",
               f"sqlite:///{folder}/mlflow.db", "--artifacts-destination", str(folder / "files")]
    with (folder / "log").open("wb") as log:
        subprocess.Popen(command, cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                         env={**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"})
    try:
        _await(port)
        asyncio.run(_serve(folder, port, seconds))
    finally:
        os.killpg(0, signal.SIGKILL)


def _await(port: int) -> None:
    limit = time.monotonic() + START_SECONDS
    while time.monotonic() < limit:
        try:
            with urlopen(f"http://127.0.0.1:{port}/health", timeout=5):
                return
        except OSError:
            time.sleep(0.1)


async def _serve(folder: Path, port: int, seconds: float) -> None:
    count = 0

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal count
        there, onward = await asyncio.open_connection("127.0.0.1", port)
        back = asyncio.create_task(_copy(there, writer))
        waiting: list[asyncio.Task[None]] = []
        with suppress(OSError):  # the client has closed the connection
            while data := await reader.read(1 << 16):
                if REQUEST.match(data):
                    count += 1
                    (folder / "requests").write_text(str(count))
                waiting.append(asyncio.create_task(_later(seconds, onward, data)))  # pieces keep their order
        await asyncio.gather(*waiting)
        onward.close()
        await back

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)


async def _later(seconds: float, onward: asyncio.StreamWriter, data: bytes) -> None:
    """Write after `seconds` of this process's running time: while it is stopped, at most one tick passes."""
    for _ in range(round(seconds / TICK_SECONDS)):
        await asyncio.sleep(TICK_SECONDS)
    onward.write(data)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(1 << 16):
            writer.write(data)
    writer.close()


if __name__ == "__main__":
    main()
