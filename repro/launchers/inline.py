"""Launcher that runs the entry in the calling process: no start-up cost, no isolation; for one rank and for tests."""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import os
import signal
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import IO, ClassVar

from repro.core import door
from repro.launchers.processes.hang import FileGrowth
from repro.launchers.processes.rank_processes import cause, exit_code, reason, resolve
from repro.seams.launching import Launcher, LaunchRequest, LaunchResult, RankEnd
from repro.seams.plugin import Setting

HUNG = signal.SIGUSR1


class Inline(Launcher):
    """Runs one rank in the calling process; the fake engine simulates all its ranks there.

    The time-out interrupts Python code on the main thread only. It does not stop a call that hangs outside the
    interpreter, or a launch from another thread.
    """

    title: ClassVar[str] = "in the calling process"

    def unsupported(self, setting: Setting) -> str | None:
        if setting.launched > 1 and not setting.simulated:
            return f"launcher inline runs one process, not {setting.launched}; use launcher local"
        return None

    def rank_logs(self, processes: int) -> int:
        return 1

    def open(self, preload: Sequence[str], device: str) -> None:
        """Import the modules of the trials now: a time limit during an import would leave half a module to the next
        trial.
        """
        for module in preload:
            with contextlib.suppress(Exception):  # the trial that needs the module reports the error
                importlib.import_module(module)

    def launch(self, request: LaunchRequest) -> LaunchResult:
        """Call the entry once, as rank 0; exceptions become the outcome, KeyboardInterrupt propagates."""
        request.folder.mkdir(parents=True, exist_ok=True)
        begin = time.monotonic()
        log = request.folder / "rank0.log"
        timed_out = hung = False
        with (
            door.open_plain(log, "a", buffering=1, encoding="utf-8", errors="backslashreplace") as printed,
            contextlib.redirect_stdout(printed),
            contextlib.redirect_stderr(printed),
            _environment(request),
        ):
            try:
                with _deadline(request.timeout_seconds), _watched(request, printed):
                    end = _call(request)
            except _Hung as late:
                end, hung = RankEnd(0, 1, str(late)), True
            except _TimedOut as late:
                end, timed_out = RankEnd(0, 1, str(late)), True
        return LaunchResult((end,), time.monotonic() - begin, timed_out, hung)


class _TimedOut(BaseException):
    """Raised in the entry when its time is up; not an Exception, so that no `except Exception` swallows it."""


class _Hung(_TimedOut):
    """Raised in the entry when it makes no progress."""


def _call(request: LaunchRequest) -> RankEnd:
    try:
        resolve(request.entry)(str(request.folder), request.payload)
    except SystemExit as error:
        code = exit_code(error)
        return RankEnd(0, code, f"exit code {code}" if code else "")
    except Exception as error:  # a plug-in may raise anything: it is the reason of this end
        traceback.print_exc()
        return RankEnd(0, 1, reason(error), cause=cause(error))
    return RankEnd(0, 0)


@contextlib.contextmanager
def _environment(request: LaunchRequest) -> Iterator[None]:
    """Set the environment of a rank inside the block, and restore the caller's afterwards.

    Port 0 lets the store of a one-rank process group take any free port: no other process has to find it.
    """
    ours = {
        "RANK": "0",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": str(request.processes),
        "LOCAL_WORLD_SIZE": str(request.processes),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "0",
    }
    before = dict(os.environ)
    os.environ.update({**ours, **request.environment})
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextlib.contextmanager
def _deadline(seconds: float) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(_signal: int, _frame: FrameType | None) -> None:
        raise _TimedOut(f"not finished after {seconds:g} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextlib.contextmanager
def _watched(request: LaunchRequest, printed: IO[str]) -> Iterator[None]:
    """Interrupt the entry when `request.progress` stops growing, after its stacks are in the log."""
    if request.stall_seconds is None or request.progress is None or \
            threading.current_thread() is not threading.main_thread():
        yield
        return
    done, main = threading.Event(), threading.main_thread().ident
    progress, seconds = FileGrowth(request.progress, request.stall_seconds), request.stall_seconds

    def watch() -> None:
        while not done.wait(min(0.5, seconds / 4)):
            if progress.stalled():
                faulthandler.dump_traceback(printed, all_threads=True)
                signal.pthread_kill(main or 0, HUNG)
                return

    def stop(_signal: int, _frame: FrameType | None) -> None:
        if not done.is_set():
            raise _Hung(f"hung: no event for {seconds:g} s; all stacks are in its log")

    before = signal.signal(HUNG, stop)
    thread = threading.Thread(target=watch, name="repro-stall", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        signal.signal(HUNG, before)
