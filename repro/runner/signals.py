"""Signals that end a run: an exception while trials run, only an answer while the report is written."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import psutil

from repro.core.errors import Exit, Interrupted
from repro.record.folder.lock import RunLock

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
Found = TypeVar("Found")


class Interrupts:
    """SIGTERM and SIGHUP end a run as Ctrl-C does: ledger, report, exit code. Signals that the caller ignores stay so.

    The first signal ends the trial that runs, and with it the run. A second one while the ranks are being ended kills
    everything at once; the record stays readable and can be resumed. While the report is written, further signals are
    answered and do nothing: an impatient Ctrl-C would leave a record without a report.

    A thread notices the second signal through the interpreter's wake-up descriptor: while a launch ends, torch elastic
    has replaced the handlers by its own, and the main thread may be waiting.
    """

    def __init__(self, lock: RunLock, next_step: str, closing: str) -> None:
        """Prepare to handle signals.

        Args:
            lock: released when a second signal kills this process.
            next_step: how to continue after that; shown to the user.
            closing: the answer to a signal after the last trial: the work that remains.
        """
        self._lock, self._next_step, self._closing_text = lock, next_step, closing
        self._only_answers = self._closing = False
        self._before: dict[signal.Signals, Any] = {}
        self._ours, self._theirs = socket.socketpair()
        self._wakeup = -1
        self._raised: Interrupted | None = None
        self._outer: Interrupts | None = None

    def __enter__(self) -> Interrupts:
        for each in ENDING:
            self._before[each] = signal.getsignal(each)
            if self._before[each] is not signal.SIG_IGN:
                signal.signal(each, self._received)
        global _current
        self._outer, _current = _current, self
        self._theirs.setblocking(False)
        self._wakeup = signal.set_wakeup_fd(self._theirs.fileno(), warn_on_full_buffer=False)
        threading.Thread(target=self._listen, name="repro-signals", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        global _current
        _current = self._outer
        signal.set_wakeup_fd(self._wakeup)
        self._theirs.close()  # ends the thread
        for each, handler in self._before.items():
            signal.signal(each, handler)

    def finish(self) -> None:
        """Only answer signals from here on: all trials have run, and the report has to be completed."""
        self._only_answers = self._closing = True

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Let a signal raise KeyboardInterrupt inside this context, after `finish`; the caller catches it."""
        self._only_answers = False
        try:
            yield
        finally:
            self._only_answers = True

    def _received(self, number: int, frame: object) -> None:
        if self._only_answers:
            # Before the closing `_listen` kills. Not by print: the handler may run in the middle of another one.
            if self._closing:
                os.write(2, f"ending: {self._closing_text}, please wait (Ctrl-\\ aborts)\n".encode())
            return
        self._only_answers = True
        self._raised = Interrupted(number)
        raise self._raised

    def _listen(self) -> None:
        """Count the signals that end a run; others wake the interpreter, too, and are not counted."""
        count, wanted = 0, {int(each) for each, handler in self._before.items() if handler is not signal.SIG_IGN}
        with self._ours:
            while received := self._ours.recv(64):
                count += sum(number in wanted for number in received)
                if count > 1 and not self._closing:
                    self._kill()

    def _kill(self) -> None:
        """End now, with all that this process started: a rank that is stopped would not notice its end by itself."""
        for process in psutil.Process().children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                process.kill()
        os.write(2, f"killed; completed trials are kept; {self._next_step}\n".encode())
        self._lock.release()
        os._exit(Exit.INTERRUPTED)


_current: Interrupts | None = None


def raise_dropped() -> None:
    """Raise the interrupt of this run that was raised and dropped, if any.

    An exception in a function that C code calls (`__eq__`, `__hash__`, a destructor) is dropped there; the run would go
    on, and further signals would only be answered.
    """
    if _current is not None and _current._raised is not None and not _current._closing:
        raise _current._raised


class DeferredInterrupt:
    """A KeyboardInterrupt that arrived while something had to be completed, to be delivered afterwards."""

    def __init__(self) -> None:
        self._caught: KeyboardInterrupt | None = None

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Catch an interrupt that arrives inside this context."""
        try:
            yield
        except KeyboardInterrupt as error:
            self._caught = error

    def complete(self, function: Callable[[], Found]) -> Found:
        """Call `function`, and again if an interrupt arrived in it: `Interrupts` raises one only."""
        try:
            return function()
        except KeyboardInterrupt as error:
            self._caught = error
            return function()

    def deliver(self) -> None:
        """Raise the interrupt that was caught, if any."""
        if self._caught is not None:
            raise self._caught
