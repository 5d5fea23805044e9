"""The tracking server's reader of a run, in a process of its own: the run asks it to replay and never waits for long.

Parent and child talk one JSON line a request and an answer over pipes. Whatever happens to the server or to the child,
the run goes on; the record is complete without them.
"""

from __future__ import annotations

import json
import os
import queue
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TextIO

import repro
from repro.core import child_process, registry
from repro.core.errors import ReproError
from repro.core.files import read_model
from repro.core.redact import Scrubber, redacted, secrets
from repro.record.store import RunFolder, read_record
from repro.suite.plan import Plan

RETRY_SECONDS, LONGEST_RETRY_SECONDS = 30.0, 240.0
"""After a failure the server is left in peace for so long, twice as long after the next, and nobody waits for it."""
STILL_SECONDS = 30.0
"""At the end of a run the last replay is given up when nothing is taken for so long."""
PATIENCE_SECONDS = 15.0
"""At the end of a run a server that fails is asked again for so long in vain; one that is not there, not at all."""
QUIET_SECONDS = 1.0
"""What the end of a run waits without a word."""
STARTS = 4
"""Tracking processes a run starts at most: one that is killed is started again."""
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
    left: str = ""
    """What of the record is still to be replayed, in words."""


class Tracker:
    """Asks a child process to replay a run folder to MLflow; implements `runner.Tracking`."""

    def __init__(self, run: Path, uri: str | None = None, retry_seconds: float = RETRY_SECONDS) -> None:
        """Start the child; it connects and sets up on its own, at the lowest priority.

        Args:
            uri: tracking store; None: as MLFLOW_TRACKING_URI says.
            retry_seconds: pause after the first failure.
        """
        self._run, self._retry_seconds = run, retry_seconds
        self._base = {**os.environ, **({"MLFLOW_TRACKING_URI": uri} if uri else {})}
        self._lock = threading.Lock()
        self._buffer = b""
        self._outstanding, self._slow = "", False
        self._problem, self._failed_at, self._pause = "", 0.0, retry_seconds
        self._moved = time.monotonic()
        self._uri = redacted(self._base.get("MLFLOW_TRACKING_URI", ""))
        self._errors: IO[bytes] | None = None
        self._child: subprocess.Popen[bytes] | None = None
        self._starts = 0
        self.answers = 0
        """Replays that ended, in success or failure."""
        self._start()

    def _start(self) -> bool:
        """A child, where one may still be started."""
        if self._starts >= STARTS:
            return False
        self._starts += 1
        self._buffer, self._outstanding = b"", ""
        try:
            self._errors = self._errors or tempfile.TemporaryFile()  # noqa: SIM115  # lives as long as the children
            self._child = subprocess.Popen(
                [sys.executable, "-m", "repro", "track", str(self._run)], stdin=subprocess.PIPE,
                stdout=subprocess.PIPE, stderr=self._errors, env=_environment(self._base),
                start_new_session=True,  # Ctrl-C is the parent's
            )
        except OSError as error:
            self._problem = f"the tracking process cannot be started: {error.strerror}"
            return False
        return True

    @property
    def pid(self) -> int | None:
        """The child that replays; None when there is none."""
        return self._child.pid if self._child else None

    def sync(self, wait_seconds: float = 0.0) -> None:
        """Ask for a replay of what is new; wait for it at most so long.

        While a replay is going on no second one is asked for: the next call, or `finish`, asks for what it left. A
        server that kept the run waiting in vain once is not waited for again before the end.
        """
        with self._lock:
            begun = time.monotonic()
            self._collect(0.0)
            if self._problem and begun - self._failed_at < self._pause:
                return
            wait = 0.0 if self._problem or self._slow else wait_seconds
            answered = self._ask("sync", begun + wait)
            self._slow = self._slow or (wait > 0 and not answered)

    @property
    def problem(self) -> str:
        """Why the last replay failed, in one line; "" when it did not, or none has ended yet."""
        return self._problem

    def finish(self, wait_seconds: float, say: Callable[[str], None] | None = None) -> TrackingEnd:
        """A last replay, waited for at most so long; then the child is ended, whatever it does.

        Nothing is waited for when the server is not there, or when it takes nothing for `STILL_SECONDS`.

        Args:
            say: told what is waited for, where it takes longer than a moment.
        """
        with self._lock:
            begun = self._moved = time.monotonic()
            deadline = begun + wait_seconds
            done = self._ask("finish", min(deadline, begun + QUIET_SECONDS))
            if not done and self._outstanding and wait_seconds > QUIET_SECONDS:
                if say:
                    say(f"mlflow: {self._left() or 'the rest'} still to be replayed, waiting {wait_seconds:.0f} s at "
                        "most; Ctrl-C leaves it for later")
                done = self._ask("finish", deadline)
            done = done and not self._problem
            self._end(kill=bool(self._outstanding))
            if self._errors is not None:
                self._errors.close()
                self._errors = None
            problem = self._problem
            if not done and not problem:
                problem = f"no answer within {time.monotonic() - begun:.0f} s"
            return TrackingEnd(self._uri or "MLflow", "" if done else problem, pending=not done,
                               left="" if done else self._left())

    def _left(self) -> str:
        """What is still to be replayed; "" where the record cannot tell."""
        try:
            reporter: Any = registry.load("reporter", "mlflow")(tracking_uri=self._base.get("MLFLOW_TRACKING_URI"))
            return str(reporter.left(read_record(self._run)))
        except ReproError:
            return ""

    def _ask(self, what: str, deadline: float) -> bool:
        """Whether `what` is answered before `deadline`, and before nothing has moved for `STILL_SECONDS`.

        A request that is still open is waited for first. For `finish` a child that is lost is started again.
        """
        self._collect(0.0)  # notices a child that is gone
        ours = self._outstanding == what == "finish"
        while True:
            if not self._outstanding:
                ours = self._send(what)
                if not ours and (what != "finish" or self._starts >= STARTS):
                    return False
            while self._outstanding:
                limit = min(deadline, self._moved + STILL_SECONDS)
                if not self._collect(limit - time.monotonic()) and self._outstanding:
                    return False
            if ours and self._child is not None:
                return True
            if self._child is None and what != "finish":
                return False

    def _send(self, what: str) -> bool:
        if self._child is None and not self._start():
            return False
        assert self._child is not None and self._child.stdin is not None
        try:
            self._child.stdin.write(json.dumps({"do": what}).encode() + b"\n")
            self._child.stdin.flush()
        except OSError:
            self._lost()
            return False
        self._outstanding, self._moved = what, time.monotonic()
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
        self._moved = time.monotonic()
        *lines, self._buffer = (self._buffer + read).split(b"\n")
        for line in lines:
            with suppress(ValueError):  # a library that prints is no answer
                self._take(json.loads(line))
        return True

    def _take(self, answer: Any) -> None:
        if not isinstance(answer, dict) or "problem" not in answer:
            return
        self._outstanding = ""
        self.answers += 1
        self._problem = str(answer.get("problem", ""))
        self._uri = str(answer.get("uri") or self._uri)
        self._judge()

    def _judge(self) -> None:
        """The pause after one failure more, or none."""
        if self._problem:
            self._pause = min(2 * self._pause, LONGEST_RETRY_SECONDS) if self._failed_at else self._retry_seconds
            self._failed_at = time.monotonic()
        else:
            self._failed_at = 0.0

    def _lost(self) -> None:
        """The child is gone: say why, and go on without."""
        self._end(kill=True)
        self._outstanding = ""
        self._problem = f"the tracking process ended: {self._last_words()}"
        self._judge()

    def _last_words(self) -> str:
        lines: list[str] = []
        if self._errors is not None:
            self._errors.seek(0)
            lines = self._errors.read().decode(errors="replace").strip().splitlines()
        hidden = Scrubber(secrets(self._base))
        return redacted(hidden.masked(lines[-1]))[:200] if lines else "it left no message"

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
    give_way()
    child_process.signal_at_parent_exit(signal.SIGCONT)  # a stopped process would not notice that its input has ended
    over = threading.Event()
    requests: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(stdin, requests, over), daemon=True).start()
    try:
        with redirect_stdout(sys.stderr):
            replayer = _Replayer(run, _Pulse(stdout))
            replayer.prepare()
            while line := requests.get():
                _tell(stdout, replayer.answer(json.loads(line)["do"]))
    except BrokenPipeError:
        pass  # nobody is left to be answered
    finally:
        over.set()


def _tell(stdout: TextIO, what: Mapping[str, Any]) -> None:
    stdout.write(json.dumps(what) + "\n")
    stdout.flush()


class _Pulse:
    """Says that something is taken, once a second: the parent may be busy, and a pipe holds only so much."""

    def __init__(self, stdout: TextIO) -> None:
        self._stdout, self._said_at = stdout, 0.0

    def __call__(self, taken: int) -> None:
        if time.monotonic() - self._said_at >= 1:
            self._said_at = time.monotonic()
            _tell(self._stdout, {"taken": taken})


def give_way() -> None:
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

    def __init__(self, run: Path, told: Callable[[int], None]) -> None:
        self._folder = RunFolder(run)
        self._reporter: Any = registry.load("reporter", "mlflow")(patience_seconds=0)  # the next request asks again
        self._reporter.follow(told)
        self._uri = ""

    def prepare(self) -> None:
        """What is slow, before anything is timed; a failure shows, and may have passed, at the first request."""
        with suppress(ReproError):
            self._reporter.check(read_model(self._folder.plan, Plan).suite.suite)

    def answer(self, what: str) -> dict[str, str]:
        """One replay; `finish`: the run is over, so what is unfinished was killed."""
        try:
            if self._folder.environment.is_file():  # else the run is still being set up
                last = {"ended": True, "patience_seconds": PATIENCE_SECONDS}
                reporter = self._reporter.model_copy(update=last) if what == "finish" else self._reporter
                record = read_record(self._folder.root)
                self._uri = reporter.write(record, self._folder.reports)[0]
        except ReproError as error:
            return {"uri": self._uri, "problem": str(error)}
        return {"uri": self._uri, "problem": ""}
