"""The tracking process: it replays the run folder to the tracking server on request, at idle priority."""

from __future__ import annotations

import json
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout, suppress
from pathlib import Path
from typing import Any, TextIO

from repro.core import orphans, registry
from repro.core.errors import ReproError
from repro.core.files import read_model
from repro.record.folder.store import RunFolder, read_record
from repro.suite.planning.plan import Plan

PATIENCE_SECONDS = 15.0
"""Seconds that the last replay retries a failing server; a server that does not exist is not retried."""
GRACE_SECONDS = 10.0
"""Seconds that an orphaned tracking process may continue its present replay."""


def serve(run: Path, stdin: TextIO, stdout: TextIO) -> None:
    """Replay `run` for every line on `stdin` and answer each with a line; end with `stdin`."""
    give_way()
    orphans.signal_at_parent_exit(signal.SIGCONT)  # a stopped process would not notice that its input has ended
    over = threading.Event()
    requests: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(stdin, requests, over), daemon=True).start()
    try:
        with redirect_stdout(sys.stderr):
            replayer = _Replayer(run, _Pulse(stdout))
            replayer.prepare()
            while line := requests.get():
                _write(stdout, replayer.answer(json.loads(line)["do"]))
    except BrokenPipeError:
        pass  # the parent has ended
    finally:
        over.set()


def _write(stdout: TextIO, what: Mapping[str, Any]) -> None:
    stdout.write(json.dumps(what) + "\n")
    stdout.flush()


class _Pulse:
    """Reports progress, at most once a second: the parent may be busy, and a pipe has a limited size."""

    def __init__(self, stdout: TextIO) -> None:
        self._stdout, self._said_at = stdout, 0.0

    def __call__(self, taken: int) -> None:
        if time.monotonic() - self._said_at >= 1:
            self._said_at = time.monotonic()
            _write(self._stdout, {"taken": taken})


def give_way() -> None:
    """Lower the priority of this process to idle: a measured step must not wait for it."""
    with suppress(OSError):
        os.nice(19)
    with suppress(OSError, AttributeError):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


def _listen(stdin: TextIO, requests: queue.SimpleQueue[str], over: threading.Event) -> None:
    """Queue requests. The parent's end closes `stdin`: a running replay may be completed, then this process ends."""
    for line in stdin:
        requests.put(line)
    requests.put("")
    if not over.wait(GRACE_SECONDS):
        os._exit(1)


class _Replayer:
    """Reads the record at every request, and passes it to the reporter."""

    def __init__(self, run: Path, progress: Callable[[int], None]) -> None:
        self._folder = RunFolder(run)
        self._reporter: Any = registry.load("reporter", "mlflow")(patience_seconds=0)  # the next request tries again
        self._reporter.follow(progress)
        self._uri = ""

    def prepare(self) -> None:
        """Do the slow set-up before anything is timed; a failure is reported by the first request, if it persists."""
        with suppress(ReproError):
            self._reporter.check(read_model(self._folder.plan, Plan).suite.suite)

    def answer(self, what: str) -> dict[str, str]:
        """Replay once; for `finish` the run is over, so trials without an end were killed."""
        try:
            if self._folder.environment.is_file():  # else the run is still being set up
                last = {"ended": True, "patience_seconds": PATIENCE_SECONDS}
                reporter = self._reporter.model_copy(update=last) if what == "finish" else self._reporter
                record = read_record(self._folder.root)
                self._uri = reporter.write(record, self._folder.reports)[0]
        except ReproError as error:
            return {"uri": self._uri, "problem": str(error)}
        return {"uri": self._uri, "problem": ""}
