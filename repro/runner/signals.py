"""How signals end a run: as an exception in the middle of it, as an answer while its report is written."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from repro.core.errors import Exit, Interrupted
from repro.record.lock import RunLock

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
RESUME, REPORTING = "repro run --resume goes on", "the report is being written"


class Interrupts:
    """SIGTERM and SIGHUP end a run as Ctrl-C does: ledger, report, exit code. What a caller ignores stays ignored.

    The first one ends the trial that runs, and with it the run. A second one while ranks are still being ended kills
    everything at once; the record stays readable and can be resumed. While the report is written further ones are
    answered and do nothing: an impatient Ctrl-C would leave a record without a report.

    A second signal is noticed through the interpreter's wake-up descriptor, by a thread: while a launch ends, torch
    elastic has put its own handlers in place of these, and the main thread may be waiting.
    """

    def __init__(self, lock: RunLock, killed: str = RESUME, ending: str = REPORTING) -> None:
        """
        Args:
            killed: what is told when a second signal kills: how to go on.
            ending: what is told of one that comes when all has run.
        """
        self._lock, self._killed, self._ending = lock, killed, ending
        self._deaf = self._reporting = False
        self._before: dict[signal.Signals, Any] = {}
        self._ours, self._theirs = socket.socketpair()
        self._wakeup = -1

    def __enter__(self) -> Interrupts:
        for each in ENDING:
            self._before[each] = signal.getsignal(each)
            if self._before[each] is not signal.SIG_IGN:
                signal.signal(each, self._received)
        self._theirs.setblocking(False)
        self._wakeup = signal.set_wakeup_fd(self._theirs.fileno(), warn_on_full_buffer=False)
        threading.Thread(target=self._listen, name="repro-signals", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        signal.set_wakeup_fd(self._wakeup)
        self._theirs.close()  # ends the thread
        for each, handler in self._before.items():
            signal.signal(each, handler)

    def ended(self) -> None:
        """The run is over, only its report is to come: that is finished, whatever arrives."""
        self._deaf = self._reporting = True

    @contextmanager
    def heard(self) -> Iterator[None]:
        """What happens inside may be cut short: a signal interrupts it, and is the caller's to catch."""
        self._deaf = False
        try:
            yield
        finally:
            self._deaf = True

    def _received(self, number: int, frame: object) -> None:
        if self._deaf:
            # Not by print: the handler may run in the middle of another one.
            os.write(2, f"ending: {self._ending}, a moment (Ctrl-\\ gives up)\n".encode())
            return
        self._deaf = True
        raise Interrupted(number)

    def _listen(self) -> None:
        """Count the signals that end; other signals wake the interpreter too and are not meant."""
        count, wanted = 0, {int(each) for each, handler in self._before.items() if handler is not signal.SIG_IGN}
        with self._ours:
            while received := self._ours.recv(64):
                count += sum(number in wanted for number in received)
                if count > 1 and not self._reporting:
                    self._kill()

    def _kill(self) -> None:
        """End now: every rank watches this process and goes with it, and so does the fork server."""
        os.write(2, f"killed; what has ended is kept ({self._killed})\n".encode())
        self._lock.release()
        os._exit(Exit.INTERRUPTED)
