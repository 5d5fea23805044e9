"""A program's processes: started, read while they run, ended with all that they started."""

from __future__ import annotations

import contextlib
import errno
import os
import pty
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

import psutil

from repro.core.errors import TrialError
from repro.program.trial_command import MARK, Command

CHUNK = 1 << 16
GRACE_SECONDS = 5.0
"""Time between SIGTERM and SIGKILL."""
DRAIN_SECONDS = 1.0
"""Longest wait for output after the program itself has ended."""


class Process:
    """One start of a command in a session of its own; its output and its errors arrive as one stream of bytes."""

    def __init__(self, command: Command, terminal: bool) -> None:
        """Start it.

        Raises:
            TrialError: the command is not found, or cannot be started.
        """
        self.command = command
        self.started_ns = time.monotonic_ns()
        self._stream, child = pty.openpty() if terminal else os.pipe()
        try:
            self._process = subprocess.Popen(
                command.arguments, cwd=command.folder, env=dict(command.environment), stdin=subprocess.DEVNULL,
                stdout=child, stderr=child, start_new_session=True, close_fds=True)
        except (OSError, ValueError) as error:
            os.close(self._stream)
            raise TrialError(_not_started(command, error)) from error
        finally:
            os.close(child)
        os.set_blocking(self._stream, False)

    def fileno(self) -> int:
        """The stream, for `select`."""
        return self._stream

    def read(self) -> bytes | None:
        """Return what has arrived; b"" if nothing has, None at the end of the stream."""
        try:
            return os.read(self._stream, CHUNK) or None
        except BlockingIOError:
            return b""
        except OSError as error:
            if error.errno == errno.EIO:  # a terminal whose last user has gone
                return None
            raise

    @property
    def exit_code(self) -> int | None:
        """None while it runs; negative: killed by that signal."""
        return self._process.poll()

    def end(self, grace_seconds: float = GRACE_SECONDS) -> None:
        """End it and everything that it started: SIGTERM, then SIGKILL."""
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(grace_seconds)
        self._kill()

    def _kill(self) -> None:
        left = list(self._of_this_start())
        for each in left:
            with contextlib.suppress(psutil.Error):
                each.kill()
        psutil.wait_procs(left, timeout=GRACE_SECONDS)
        self._process.wait()

    def _of_this_start(self) -> Iterator[psutil.Process]:
        """Yield every process of this start that still runs: launchers put workers into sessions of their own."""
        mark = self.command.environment[MARK]
        for each in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                if each.pid != os.getpid() and each.environ().get(MARK) == mark:
                    yield each

    def __enter__(self) -> Process:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.end()
        finally:
            os.close(self._stream)


def _not_started(command: Command, error: OSError | ValueError) -> str:
    name = command.arguments[0]
    if not Path(command.folder).is_dir():
        return f"engine.folder: no such folder: {command.folder.name}"
    if isinstance(error, FileNotFoundError):
        return f"engine.run: command not found: {name!r}; is it on PATH?"
    if isinstance(error, PermissionError):
        return f"engine.run: {name!r} may not be executed; make it executable, or run it by its interpreter"
    return f"engine.run: {name!r} cannot be started: {error}"
