"""The run's side of tracking: request replays from a separate process, and never wait long for an answer.

Parent and child exchange one JSON line per request and answer over pipes. If anything happens to the server or to the
child, the run continues; the record is complete without them.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import repro
from repro.core import registry
from repro.core.errors import ReproError
from repro.core.redact import Scrubber, redacted, secrets
from repro.record.folder.store import read_record
from repro.runner.context import Watcher
from repro.runner.tracking_store import store_uri

PERIOD_SECONDS = 15.0
"""The least time between two replays while trials run."""
START_SECONDS, TRIAL_SECONDS = 30.0, 5.0
"""The longest wait for the replay before the first trial, and after a trial."""


@dataclass(slots=True)
class Replays:
    """Requests replays from a tracking process; does nothing without one."""

    tracking: Tracker | None
    watcher: Watcher
    _last: float = field(default_factory=time.monotonic)

    def begin(self) -> None:
        """Request the first replay; the parity gate runs meanwhile."""
        if self.tracking:
            self.tracking.sync()

    def wait_for_first(self) -> None:
        """Wait until the server has answered, so that its set-up does not disturb the first trial."""
        if self.tracking is None:
            return
        self.tracking.sync(wait_seconds=START_SECONDS)
        if self.tracking.problem:
            self.watcher.stage(f"mlflow: {self.tracking.problem}; the run continues without it")

    def request(self, wait_seconds: float = 0.0) -> None:
        """Request a replay, during a trial too: a long one appears in the tracking server before its end."""
        if self.tracking and time.monotonic() - self._last > PERIOD_SECONDS:
            self._last = time.monotonic()
            self.tracking.sync(wait_seconds=wait_seconds)


RETRY_SECONDS = 60.0
"""Pause after a failure; the run does not wait."""
STILL_SECONDS = 30.0
"""At the end of a run the last replay is aborted after this time without progress."""
QUIET_SECONDS = 1.0
"""Seconds that the end of a run waits before it reports the wait."""


@dataclass(frozen=True, slots=True)
class TrackingEnd:
    """The state of tracking at the end of a run."""

    uri: str
    """The address of the tracking server, without credentials."""
    problem: str
    """The reason why the last replay failed, in one line; "" if it did not."""
    pending: bool
    """True: the server may not have received all of the record."""
    left: str = ""
    """The part of the record that is still to be replayed, in words."""


class Tracker:
    """Requests replays of a run folder to MLflow from a child process."""

    def __init__(self, run: Path, uri: str | None = None, retry_seconds: float = RETRY_SECONDS) -> None:
        """Start the child; it connects by itself, at the lowest priority.

        Args:
            uri: tracking store; None: that of this user.
            retry_seconds: pause after a failure.
        """
        self._run, self._retry_seconds = run, retry_seconds
        self._base = {**os.environ, "MLFLOW_TRACKING_URI": uri or store_uri()}
        self._lock = threading.Lock()
        self._buffer = b""
        self._outstanding, self._slow = "", False
        self.problem, self._failed_at = "", 0.0
        """The reason why the last replay failed, in one line; "" if it did not, or if none has ended yet."""
        self._moved = time.monotonic()
        self._uri = redacted(self._base.get("MLFLOW_TRACKING_URI", ""))
        self._errors: IO[bytes] | None = None
        self._child: subprocess.Popen[bytes] | None = None
        self._done = False
        self.answers = 0
        """Replays that ended, in success or failure."""
        self._start()

    def _start(self) -> None:
        try:
            self._errors = tempfile.TemporaryFile()  # noqa: SIM115  # lives as long as the child
            self._child = subprocess.Popen(
                [sys.executable, "-m", "repro", "track", str(self._run)], stdin=subprocess.PIPE,
                stdout=subprocess.PIPE, stderr=self._errors, env=_environment(self._base),
                start_new_session=True,  # Ctrl-C is the parent's
            )
        except OSError as error:
            self.problem = f"the tracking process cannot be started: {error.strerror}"

    @property
    def pid(self) -> int | None:
        """The process id of the child; None if there is none."""
        return self._child.pid if self._child else None

    def sync(self, wait_seconds: float = 0.0) -> None:
        """Request a replay of what is new; wait for it at most `wait_seconds`.

        While a replay is running, no second one is requested: the next call, or `finish`, requests the rest. After one
        wait without an answer, the run does not wait for this server again before its end.
        """
        with self._lock:
            begun = time.monotonic()
            self._collect(0.0)
            if self.problem and begun - self._failed_at < self._retry_seconds:
                return
            wait = 0.0 if self.problem or self._slow else wait_seconds
            answered = self._ask("sync", begun + wait)
            self._slow = self._slow or (wait > 0 and not answered)

    def finish(self, wait_seconds: float, say: Callable[[str], None] | None = None) -> TrackingEnd:
        """Request a last replay and wait for it at most `wait_seconds`; then end the child.

        The wait ends early if the server does not exist, or if nothing progresses for `STILL_SECONDS`.

        Args:
            say: called with a message if the wait takes longer than `QUIET_SECONDS`.
        """
        with self._lock:
            begun = self._moved = time.monotonic()
            deadline = begun + wait_seconds
            done = self._done or self._ask("finish", min(deadline, begun + QUIET_SECONDS))
            if not done and self._outstanding and wait_seconds > QUIET_SECONDS:
                if say:
                    say(f"mlflow: {self._left() or 'the rest'} still to be replayed, waiting {wait_seconds:.0f} s at "
                        "most; Ctrl-C leaves it for later")
                done = self._ask("finish", deadline)
            self._done = done = done and not self.problem
            self._end(kill=bool(self._outstanding))
            errors, self._errors = self._errors, None
            if errors is not None:
                errors.close()
            if done:
                return TrackingEnd(self._uri or "MLflow", "", pending=False)
            problem = self.problem or f"no answer within {time.monotonic() - begun:.0f} s"
            return TrackingEnd(self._uri or "MLflow", problem, pending=True, left=self._left())

    def _left(self) -> str:
        """Describe what is still to be replayed; "" if the record cannot be read."""
        try:
            reporter: Any = registry.load("reporter", "mlflow")(tracking_uri=self._base.get("MLFLOW_TRACKING_URI"))
            return str(reporter.left(read_record(self._run)))
        except ReproError:
            return ""

    def _ask(self, what: str, deadline: float) -> bool:
        """Return True if `what` is answered before `deadline`, with progress at least every `STILL_SECONDS`.

        An earlier request that is still open is waited for first.
        """
        self._collect(0.0)  # notices a child that has ended
        ours = self._outstanding == what == "finish"
        while True:
            while self._outstanding:
                limit = min(deadline, self._moved + STILL_SECONDS)
                if not self._collect(limit - time.monotonic()) and self._outstanding:
                    return False
            if ours:
                return self._child is not None
            ours = self._send(what)
            if not ours:
                return False

    def _send(self, what: str) -> bool:
        """Send a request; False if there is no child any more."""
        if self._child is None:
            return False
        assert self._child.stdin is not None
        try:
            self._child.stdin.write(json.dumps({"do": what}).encode() + b"\n")
            self._child.stdin.flush()
        except OSError:
            self._lost()
            return False
        self._outstanding, self._moved = what, time.monotonic()
        return True

    def _collect(self, wait_seconds: float) -> bool:
        """Read what the child has written, waiting at most `wait_seconds`; False if it wrote nothing."""
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
            with suppress(ValueError):  # a line that a library printed
                self._take(json.loads(line))
        return True

    def _take(self, answer: Any) -> None:
        if not isinstance(answer, dict) or "problem" not in answer:
            return
        self._outstanding = ""
        self.answers += 1
        self.problem, self._failed_at = str(answer["problem"]), time.monotonic()
        self._uri = str(answer.get("uri") or self._uri)

    def _lost(self) -> None:
        """Record why the child has ended, and continue without it."""
        self._end(kill=True)
        self._outstanding = ""
        self.problem, self._failed_at = f"the tracking process ended: {self._last_words()}", time.monotonic()

    def _last_words(self) -> str:
        lines: list[str] = []
        if self._errors is not None:
            self._errors.seek(0)
            lines = self._errors.read().decode(errors="replace").strip().splitlines()
        hidden = Scrubber(secrets(self._base))
        return redacted(hidden.masked(lines[-1]))[:200] if lines else "it left no message"

    def _end(self, kill: bool) -> None:
        """Close the pipes and reap the child; also if a signal interrupts this, after which there is no child."""
        child, self._child = self._child, None
        if child is None:
            return
        try:
            if child.stdin is not None:
                with suppress(OSError):
                    child.stdin.close()
            child.wait(timeout=0.1 if kill else 2.0)
        except subprocess.TimeoutExpired:
            pass
        finally:
            if child.poll() is None:
                child.kill()
                child.wait()
            if child.stdout is not None:
                child.stdout.close()


def _environment(base: Mapping[str, str]) -> dict[str, str]:
    """Return the child's environment: one thread, no foreign `./repro`, and this package also in a checkout."""
    found = {**base, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONSAFEPATH": "1"}
    root = Path(repro.__file__).resolve().parent.parent
    if (root / "reporters").is_dir():
        found["PYTHONPATH"] = os.pathsep.join(part for part in (str(root), base.get("PYTHONPATH", "")) if part)
    return found
