"""The tracking server's reader of a run, in a process of its own: the run asks it to replay and never waits for long.

Parent and child talk one JSON line a request and an answer over pipes. Whatever happens to the server or to the child,
the run goes on; the record is complete without them.
"""

from __future__ import annotations

import json
import os
import queue
import select
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TextIO

import repro
from repro import registry
from repro.errors import ReproError
from repro.plan import Plan
from repro.scrub import masked
from repro.store import RunFolder, read_model, read_record
from repro.uri import redacted

RETRY_SECONDS = 30.0
"""After a failure the server is left in peace for so long, and nobody waits for it."""
GRACE_SECONDS = 10.0
"""How long an orphaned child may go on with the replay it is in."""


@dataclass(frozen=True, slots=True)
class TrackingEnd:
    """How tracking stood when the run ended."""

    uri: str
    """Where to look at the runs, without credentials."""
    problem: str
    """Why the last replay failed, in one line; "" when it did not."""
    pending: bool
    """True: not all of the record is known to have been taken."""


class Tracker:
    """Asks a child process to replay a run folder to MLflow; implements `runner.Tracking`."""

    def __init__(self, run: Path) -> None:
        """Start the child; it connects and sets up on its own, at the lowest priority."""
        self._lock = threading.Lock()
        self._buffer = b""
        self._outstanding = False
        self._problem, self._failed_at = "", 0.0
        self._uri = redacted(os.environ.get("MLFLOW_TRACKING_URI", ""))
        self._errors: IO[bytes] | None = None
        self._child: subprocess.Popen[bytes] | None = None
        try:
            self._errors = tempfile.TemporaryFile()  # noqa: SIM115  # lives as long as the child
            self._child = subprocess.Popen(
                [sys.executable, "-m", "repro", "track", str(run)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=self._errors, env=_environment(os.environ), start_new_session=True,  # Ctrl-C is the parent's
            )
        except OSError as error:
            self._problem = f"the tracking process cannot be started: {error.strerror}"

    def sync(self, wait_seconds: float = 0.0) -> None:
        """Ask for a replay of what is new; wait for it at most so long.

        While a replay is going on no second one is asked for: the next call, or `finish`, asks for what it left.
        """
        with self._lock:
            deadline = time.monotonic() + wait_seconds
            self._collect(0.0)
            if self._problem:
                if time.monotonic() - self._failed_at < RETRY_SECONDS:
                    return
                deadline = 0.0
            self._ask("sync", deadline)

    @property
    def problem(self) -> str:
        """Why the last replay failed, in one line; "" when it did not, or none has ended yet."""
        return self._problem

    def finish(self, wait_seconds: float) -> TrackingEnd:
        """A last replay, waited for at most so long; then the child is ended, whatever it does."""
        with self._lock:
            deadline = time.monotonic() + wait_seconds
            done = self._ask("finish", deadline) and not self._problem
            self._end(kill=self._outstanding)
            if self._errors is not None:
                self._errors.close()
            problem = self._problem
            if not done and not problem:
                problem = f"no answer within {wait_seconds:.0f} s"
            return TrackingEnd(self._uri or "MLflow", "" if done else problem, pending=not done)

    def _ask(self, what: str, deadline: float) -> bool:
        """Send a request when the line is free; whether its answer came before `deadline`."""
        while self._outstanding:
            if not self._collect(deadline - time.monotonic()):
                return False
        if not self._send({"do": what}):
            return False
        self._outstanding = True
        while self._outstanding:
            if not self._collect(deadline - time.monotonic()):
                return False
        return True

    def _send(self, request: Mapping[str, Any]) -> bool:
        if self._child is None or self._child.stdin is None or self._child.stdin.closed:
            return False
        try:
            self._child.stdin.write(json.dumps(request).encode() + b"\n")
            self._child.stdin.flush()
        except OSError:
            self._lost()
            return False
        return True

    def _collect(self, wait_seconds: float) -> bool:
        """Take in what the child has said, waiting for something at most so long; False: it said nothing."""
        child = self._child
        if child is None or child.stdout is None:
            return False
        ready, _, _ = select.select([child.stdout], [], [], max(0.0, wait_seconds))
        if not ready:
            return False
        read = os.read(child.stdout.fileno(), 1 << 16)
        if not read:
            self._lost()
            return False
        *lines, self._buffer = (self._buffer + read).split(b"\n")
        for line in lines:
            with suppress(ValueError):  # a library that prints is no answer
                self._take(json.loads(line))
        return True

    def _take(self, answer: Any) -> None:
        if not isinstance(answer, dict) or "problem" not in answer:
            return
        self._outstanding = False
        self._problem = str(answer.get("problem", ""))
        self._uri = str(answer.get("uri") or self._uri)
        if self._problem:
            self._failed_at = time.monotonic()

    def _lost(self) -> None:
        """The child is gone: say why, and go on without."""
        self._end(kill=True)
        self._outstanding = False
        self._problem = self._problem or f"the tracking process ended: {self._last_words()}"
        self._failed_at = time.monotonic()

    def _last_words(self) -> str:
        lines: list[str] = []
        if self._errors is not None:
            self._errors.seek(0)
            lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return masked(lines[-1])[:200] if lines else "it left no message"

    def _end(self, kill: bool) -> None:
        """Close the pipes and reap the child."""
        child = self._child
        if child is None:
            return
        if child.stdin is not None:
            with suppress(OSError):
                child.stdin.close()
        try:
            child.wait(timeout=0.1 if kill else 2.0)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        if child.stdout is not None:
            child.stdout.close()
        self._child = None


def _environment(base: Mapping[str, str]) -> dict[str, str]:
    """One thread, no stranger's `./repro` by `python -m`, and this package also where it runs from a checkout."""
    found = {**base, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONSAFEPATH": "1"}
    root = Path(repro.__file__).resolve().parent.parent
    if (root / "reporters").is_dir():
        found["PYTHONPATH"] = os.pathsep.join(part for part in (str(root), base.get("PYTHONPATH", "")) if part)
    return found


def serve(run: Path, stdin: TextIO, stdout: TextIO) -> None:
    """The child: replay `run` whenever a line on `stdin` asks, answer each with a line; ends with `stdin`."""
    _give_way()
    over = threading.Event()
    requests: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(stdin, requests, over), daemon=True).start()
    try:
        with redirect_stdout(sys.stderr):
            replayer = _Replayer(run)
            replayer.prepare()
            while line := requests.get():
                answer = replayer.answer(json.loads(line)["do"])
                stdout.write(json.dumps(answer) + "\n")
                stdout.flush()
    except BrokenPipeError:
        pass  # nobody is left to be answered
    finally:
        over.set()


def _give_way() -> None:
    """Run only on time that nothing else wants: a measured step must not wait for this process."""
    with suppress(OSError):
        os.nice(19)
    with suppress(OSError, AttributeError):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


def _listen(stdin: TextIO, requests: queue.SimpleQueue[str], over: threading.Event) -> None:
    """Pass requests on. The parent's end closes `stdin`: a replay may still end in peace, then this process must."""
    for line in stdin:
        requests.put(line)
    requests.put("")
    if not over.wait(GRACE_SECONDS):
        os._exit(1)


class _Replayer:
    """Reads the record anew at every request, and hands it to the reporter."""

    def __init__(self, run: Path) -> None:
        self._folder = RunFolder(run)
        self._reporter: Any = registry.load("reporter", "mlflow")()
        self._uri = ""

    def prepare(self) -> None:
        """What is slow, before anything is timed; a failure shows, and may have passed, at the first request."""
        with suppress(ReproError):
            self._reporter.check(read_model(self._folder.plan, Plan).suite.suite)

    def answer(self, what: str) -> dict[str, str]:
        """One replay; `finish`: the run is over, so what is unfinished was killed."""
        try:
            if self._folder.environment.is_file():  # else the run is still being set up
                reporter = self._reporter.model_copy(update={"ended": True}) if what == "finish" else self._reporter
                record = read_record(self._folder.root)
                self._uri = reporter.write(record, self._folder.reports)[0]
        except ReproError as error:
            return {"uri": self._uri, "problem": str(error)}
        return {"uri": self._uri, "problem": ""}
