
"""A real MLflow server on loopback, for tests that need one that stays up."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.request import urlopen

from tests.commands import environment, free_port

READY_SECONDS = 300
"""Until it answers, also where others work on the machine."""


@dataclass(frozen=True)
class Site:
    """A tracking store, and the database file under it."""

    uri: str
    database: Path


@contextmanager
def serving(folder: Path) -> Iterator[Site]:
    """A server with its own database and artifact store in `folder`; it and all of its workers end with the context."""
    port = free_port()
    uri = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "mlflow", "server", "--port", str(port), "--workers", "1",
               "--backend-store-uri", f"sqlite:///{folder}/mlflow.db", "--artifacts-destination", str(folder / "art")]
    with (folder / "log").open("wb") as log:
        # No queue of jobs: its processes, which nothing here uses, would take the processors for the first seconds.
        apart = environment(MLFLOW_SERVER_ENABLE_JOB_EXECUTION="false")
        child = subprocess.Popen(command, cwd=folder, env=apart, start_new_session=True, stdout=log, stderr=log)
    try:
        _wait(uri, child, folder / "log")
        with urlopen(f"{uri}/api/2.0/mlflow/experiments/get?experiment_id=0", timeout=120):
            pass  # the first answer is slow
        yield Site(uri, folder / "mlflow.db")
    finally:
        with suppress(ProcessLookupError):  # it ended by itself; `_wait` says why
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def _wait(uri: str, child: subprocess.Popen[bytes], log: Path) -> None:
    limit = time.monotonic() + READY_SECONDS
    while True:
        assert child.poll() is None and time.monotonic() < limit, log.read_text(errors="replace")[-2000:]
        try:
            with urlopen(f"{uri}/health", timeout=2):
                return
        except OSError:
            time.sleep(0.1)
