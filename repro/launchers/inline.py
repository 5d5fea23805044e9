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
from repro.core.errors import TrialError
from repro.core.machine import NO_TELEMETRY
from repro.launchers.processes.hang import Deadline, Stacks
from repro.launchers.processes.rank_processes import RankProcesses, cause, exit_code, reason, resolve
from repro.seams.launching import Launcher, LaunchRequest, LaunchResult, RankEnd
from repro.seams.plugin import Setting

LATE = signal.SIGUSR1


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
        os.environ.update(NO_TELEMETRY)
        for module in preload:
            with contextlib.suppress(Exception):  # the trial that needs the module reports the error
                importlib.import_module(module)

    def launch(self, request: LaunchRequest) -> LaunchResult:
        """Call the entry once, as rank 0; exceptions become the outcome, KeyboardInterrupt propagates."""
        request.folder.mkdir(parents=True, exist_ok=True)
        begin = time.monotonic()
        timed_out = hung = False
        with (
            door.open_plain(request.folder / "rank0.log", "a", buffering=1, encoding="utf-8",
                            errors="backslashreplace") as printed,
            contextlib.redirect_stdout(printed),
            contextlib.redirect_stderr(printed),
            _environment(request),
        ):
            watch = _Watch(request, printed)
            try:
                with _interrupted(watch):
                    end = _call(request)
            except _Late:
                hung, timed_out = watch.stacks is not None, watch.stacks is None
                end = RankEnd(0, 1, f"hung: no event for {request.stall_seconds:g} s; all stacks are in its log" if hung
                              else f"not finished after {request.timeout_seconds:g} s")
        return LaunchResult((end,), time.monotonic() - begin, timed_out, hung)


class _Late(BaseException):
    """Raised in the entry when its time is up, or when it makes no progress; not an Exception, so that no
    `except Exception` swallows it.
    """


class _Watch(Deadline):
    """The deadline of an entry in this process: the stacks go to its log at once."""

    def __init__(self, request: LaunchRequest, printed: IO[str]) -> None:
        super().__init__(request)
        self._printed = printed

    def _ask(self, ranks: RankProcesses) -> Stacks:
        faulthandler.dump_traceback(self._printed, all_threads=True)
        return {}


def _call(request: LaunchRequest) -> RankEnd:
    try:
        resolve(request.entry)(str(request.folder), request.payload)
    except SystemExit as error:
        code = exit_code(error)
        return RankEnd(0, code, f"exit code {code}" if code else "")
    except Exception as error:  # a plug-in may raise anything: it is the reason of this end
        if not isinstance(error, TrialError):  # whose words are complete
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
        "TORCHELASTIC_USE_AGENT_STORE": "False",  # of a torchrun around this process: its store is not ours
    }
    before = dict(os.environ)
    os.environ.update({**ours, **request.environment})
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextlib.contextmanager
def _interrupted(watch: Deadline) -> Iterator[None]:
    """Raise `_Late` in this context when `watch` says so; only in the main thread, where signals are handled."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    done, main = threading.Event(), threading.main_thread().ident or 0

    def wait() -> None:
        if not watch.in_time(RankProcesses(), done):
            signal.pthread_kill(main, LATE)

    def stop(_signal: int, _frame: FrameType | None) -> None:
        if not done.is_set():
            raise _Late

    before = signal.signal(LATE, stop)
    thread = threading.Thread(target=wait, name="repro-stall", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        signal.signal(LATE, before)
