"""A real tracking server that is killed and started again, and the checks of its database at the end."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from tests.commands import free_port

READY_SECONDS = 180
DOWN_SECONDS = 3.0
Point = tuple[str, str, int, float]
"""(attempt of a trial, metric, step, value)."""


class Server:
    """`mlflow server` on loopback, over SQLite."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self.port = free_port()
        self.uri = f"http://127.0.0.1:{self.port}"
        self.database = folder / "mlflow.db"
        self._lock = threading.Lock()
        self._child: subprocess.Popen[bytes] | None = None
        self._timer: threading.Timer | None = None
        self.kills = 0

    def start(self) -> None:
        """Start it; `wait` until it answers."""
        with self._lock, (self.folder / "log").open("ab") as log:
            self._child = subprocess.Popen(
                [sys.executable, "-m", "mlflow", "server", "--port", str(self.port), "--workers", "1",
                 "--backend-store-uri", f"sqlite:///{self.database}", "--artifacts-destination",
                 str(self.folder / "artifacts")],
                cwd=self.folder, start_new_session=True, stdout=log, stderr=log, stdin=subprocess.DEVNULL,
                env={**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true", "PYTHONSAFEPATH": "1",
                     "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"},
            )

    def wait(self) -> None:
        """Return when it answers.

        Raises:
            RuntimeError: it did not, with the end of what it printed.
        """
        late = time.monotonic() + READY_SECONDS
        while time.monotonic() < late:
            try:
                with urlopen(f"{self.uri}/health", timeout=2):
                    return
            except OSError:
                time.sleep(0.2)
        raise RuntimeError((self.folder / "log").read_text(errors="replace")[-2000:])

    def kill(self) -> bool:
        """kill -9 of all of it; a new one is started after a while. False: there was none, it is still down."""
        if not self._kill():
            return False
        self.kills += 1
        self._timer = threading.Timer(DOWN_SECONDS, self.start)
        self._timer.start()
        return True

    def _kill(self) -> bool:
        with self._lock:
            child, self._child = self._child, None
            if child is None:
                return False
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            return True

    def close(self) -> None:
        if self._timer is not None:
            self._timer.join()
        self._kill()


def points(database: Path, run: str) -> Counter[Point]:
    """Count every point of every attempt of the record `run`; a doubled run was deleted."""
    return Counter({(str(row[0]), str(row[1]), int(row[2]), float(row[3])): int(row[4]) for row in _rows(database, """
        SELECT k.value, m.key, m.step, m.value, count(*) FROM metrics m
        JOIN tags r ON r.run_uuid = m.run_uuid AND r.key = 'repro.run' AND r.value = ?
        JOIN tags k ON k.run_uuid = m.run_uuid AND k.key = 'repro.key'
        JOIN tags t ON t.run_uuid = m.run_uuid AND t.key = 'repro.trial'
        JOIN runs u ON u.run_uuid = m.run_uuid AND u.lifecycle_stage = 'active' GROUP BY 1, 2, 3, 4""", run)})


def doubled(database: Path, run: str) -> list[str]:
    """Steps of a trial's metric that occur more than once, and attempts or cells with two runs.

    A cell's figures are a history: where a trial ran again the number still to come is the same, the figure may not be.
    """
    found = [f"{row[0]}: {row[1]} at step {row[2]} {row[3]} times" for row in _rows(database, """
        SELECT m.run_uuid, m.key, m.step, count(*) FROM metrics m
        JOIN tags r ON r.run_uuid = m.run_uuid AND r.key = 'repro.run' AND r.value = ?
        JOIN tags t ON t.run_uuid = m.run_uuid AND t.key = 'repro.trial'
        JOIN runs u ON u.run_uuid = m.run_uuid AND u.lifecycle_stage = 'active'
        GROUP BY 1, 2, 3 HAVING count(*) > 1""", run)]
    return found + [f"{row[0]}: {row[1]} runs" for row in _rows(database, """
        SELECT k.value, count(*) FROM tags k
        JOIN tags r ON r.run_uuid = k.run_uuid AND r.key = 'repro.run' AND r.value = ?
        JOIN runs u ON u.run_uuid = k.run_uuid AND u.lifecycle_stage = 'active'
        WHERE k.key = 'repro.key' GROUP BY 1 HAVING count(*) > 1""", run)]


def _rows(database: Path, query: str, *values: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(database, timeout=60)) as store:
        return store.execute(query, values).fetchall()
